//! System call filters: from a profile to the bytes that the shim hands to the kernel.
//!
//! A `Profile` says what to answer to which system call. `json` reads those that "Localhost" names, `default_profile` holds
//! crisp's own. `compile` turns one into classic BPF for this machine and a container's capabilities. [`FilterCache`]
//! keeps the result in a file for each distinct filter: containers with the same profile and capabilities share it,
//! and the shim only reads bytes.
//!
//! How a profile is understood, where the format leaves it open (each as the common runtimes do):
//! - a rule without conditions on arguments beats those with; of several such the first counts
//! - rules with conditions are tried in the profile's order; those that only repeat the default are left out
//! - system calls newer than all that the profile names answer ENOSYS where it refuses by default, so that programs
//!   fall back instead of giving up
//! - a foreign ABI ends the process, except the machine's 32-bit one if the profile lists it; x32 answers ENOSYS
//!
//! Limits: x86-64 and 64-bit Arm machines; no `SCMP_ACT_NOTIFY`; 1 MiB of JSON; the kernel's 4096 instructions.

mod cache;
mod classic_bpf;
mod compile;
mod default_profile;
mod json;
mod profile;
mod syscalls;

pub use cache::{FilterCache, ProfileSource, SeccompError, check};

#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod test_interpreter;
