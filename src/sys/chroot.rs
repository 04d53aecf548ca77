//! Whether this process has the root of its mount namespace, or was put into a part of it by `chroot`.

use std::fs::File;
use std::io;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// Whether the root of this process is that of its mount namespace.
///
/// Who enters a mount namespace, as for a command in a container, begins at its root. So a thread that is thrown away enters
/// its own, and looks where it is.
pub fn is_namespace_root() -> io::Result<bool> {
    let identity =
        || statx(CWD, "/", AtFlags::empty(), StatxFlags::MNT_ID).map(|about| (about.stx_mnt_id, about.stx_ino));
    let look = || -> io::Result<bool> {
        let before = identity()?;
        let own = File::open("/proc/thread-self/ns/mnt")?;
        // With a root of its own, which it would else share with all threads.
        unshare(CloneFlags::CLONE_FS)?;
        setns(own, CloneFlags::CLONE_NEWNS)?;
        Ok(identity()? == before)
    };
    std::thread::scope(|scope| {
        let looker = std::thread::Builder::new().name("root".to_owned()).spawn_scoped(scope, look)?;
        looker.join().map_err(|_| io::Error::other("the thread that looks for its root panicked"))?
    })
}
