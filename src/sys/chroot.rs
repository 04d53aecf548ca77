//! Detects whether this process was confined to a part of its mount namespace by `chroot`.

use std::fs::File;
use std::io;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// Returns whether the root of this process is that of its mount namespace.
///
/// A process that enters a mount namespace, for example to exec in a container, starts at its root.
/// So a temporary thread enters its own mount namespace, and compares the root.
pub fn is_namespace_root() -> io::Result<bool> {
    let identity =
        || statx(CWD, "/", AtFlags::empty(), StatxFlags::MNT_ID).map(|about| (about.stx_mnt_id, about.stx_ino));
    let look = || -> io::Result<bool> {
        let before = identity()?;
        let own = File::open("/proc/thread-self/ns/mnt")?;
        // A separate root directory, which threads share otherwise.
        unshare(CloneFlags::CLONE_FS)?;
        setns(own, CloneFlags::CLONE_NEWNS)?;
        Ok(identity()? == before)
    };
    std::thread::scope(|scope| {
        let looker = std::thread::Builder::new().name("root".to_owned()).spawn_scoped(scope, look)?;
        looker.join().map_err(|_| io::Error::other("the thread that compares the root panicked"))?
    })
}
