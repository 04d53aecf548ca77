//! Thin, safe doors to the kernel that no crate offers. The only crate of crisp with `unsafe`.
//!
//! - [`fork`]: split the process in two, only where that is sound (one thread).
//! - [`sibling`]: a child that is born with a filter loaded and all rights given up.
//! - [`child_wait`]: wait for a process that has so much time, and hear what it says.
//! - [`mount`]: `mount_setattr`, and detached mounts with their attributes.
//! - [`seccomp`]: load a ready-made filter.
//! - [`seqpacket`]: sequenced packets over Unix sockets that carry file descriptors.
//! - [`bpf`]: load and attach a device program.
//! - [`memfd`]: a sealed copy of a program, which nobody can overwrite while it runs.
//! - [`poll`]: wait for descriptors without a quota.
//! - [`chroot`]: whether this process is in a chroot.
//! - [`malloc`]: give free memory back. [`keyring`]: share no keys.
//! - [`netns`]: the loopback interface of a new namespace, and a look into others; [`signal`]: signals as a new program expects them.
//!
//! Each `unsafe` block does one thing and says why it is sound. Everything else in crisp forbids it.

pub mod bpf;
pub mod child_wait;
pub mod chroot;
pub mod fork;
pub mod keyring;
pub mod malloc;
pub mod memfd;
pub mod mount;
pub mod netns;
pub mod poll;
pub mod seccomp;
pub mod seqpacket;
pub mod sibling;
pub mod signal;
