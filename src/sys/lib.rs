//! Thin, safe wrappers of kernel interfaces that no crate provides. The only crate of crisp with
//! `unsafe`.
//!
//! - [`fork`]: forks a process, only if that is sound (one thread).\n- [`sibling`]: starts a child
//!   with a seccomp filter and without privileges.\n- [`child_wait`]: waits for a child with a
//!   timeout, and captures its output.\n- [`mount`]: `mount_setattr`, and detached mounts with
//!   their attributes.\n- [`seccomp`]: loads a compiled filter.\n- [`seqpacket`]: sequenced packets
//!   over Unix sockets, with file descriptors.\n- [`bpf`]: loads and attaches a device program.\n-
//!   [`memfd`]: a sealed copy of a program, which cannot be overwritten while it runs.\n- [`poll`]:
//!   waits for descriptors without a quota.\n- [`chroot`]: whether this process is in a chroot.\n-
//!   [`malloc`]: returns free memory. [`keyring`]: private keyrings.\n- [`netns`]: the loopback
//!   interface of a new namespace, and access to others; [`signal`]: sends signals and resets their
//!   actions.
//! - [`pass_fd`]: passes a descriptor to a program under a fixed number.
//!
//! Each `unsafe` block does one thing and documents why it is sound. All other crates forbid it.

pub mod bpf;
pub mod child_wait;
pub mod chroot;
pub mod fork;
pub mod keyring;
pub mod malloc;
pub mod memfd;
pub mod mount;
pub mod netns;
pub mod pass_fd;
pub mod poll;
pub mod seccomp;
pub mod seqpacket;
pub mod sibling;
pub mod signal;
