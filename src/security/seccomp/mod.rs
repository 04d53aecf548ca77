//! System call filters: compiles profiles to the BPF program that the shim loads.
//!
//! A `Profile` has an action for each system call. `json` parses profiles of type Localhost,
//! `default_profile` has crisp's own. `compile` converts a profile to classic BPF for this host and a
//! container's capabilities. [`FilterCache`] stores each distinct filter in a file, which containers
//! with the same profile and capabilities share; the shim only reads the bytes.
//!
//! Semantics that the format does not define (as in the common runtimes):
//! - a rule without conditions on arguments overrides those with; of several, the first is used
//! - rules with conditions are tried in the profile's order; those that repeat the default are ignored
//! - system calls newer than all in the profile return ENOSYS if the default denies, so that programs
//!   use a fallback instead of failing
//! - a call of a foreign ABI kills the process, except the host's 32-bit ABI if the profile lists it;
//!   x32 calls return ENOSYS
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
mod libseccomp_tests;
#[cfg(test)]
mod test_interpreter;
