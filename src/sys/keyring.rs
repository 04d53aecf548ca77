//! Creates session keyrings, so that containers share no keys with the host.

use std::io;

use rustix::process::{Pid, Uid};

const JOIN_SESSION_KEYRING: libc::c_long = 1;
const SETPERM: libc::c_long = 5;
const DESCRIBE: libc::c_long = 6;
const SESSION: libc::c_long = -3;

/// The first of a range of 65,536 uids that no distribution assigns, see [`join_private`].
const SPARE_UIDS: u32 = 0xfff0_0000;

/// The session keyring of a process after [`join_new`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionKeyring {
    /// A new one, or none if the kernel has no keyrings.
    Own,
    /// The key quota of the user is used up. The process has the keyring of its parent, without any
    /// rights after [`lock`].
    Locked,
}

/// Gives this process a new session keyring, so that it shares no keys with its parent.
///
/// Any process of the same user can use up the key quota. If it is used up and the keyring of the
/// parent is not locked, this returns an error.
pub fn join_new() -> io::Result<SessionKeyring> {
    match join() {
        Ok(()) => Ok(SessionKeyring::Own),
        Err(full) if full.raw_os_error() == Some(libc::EDQUOT) && is_locked() => Ok(SessionKeyring::Locked),
        Err(error) => Err(error),
    }
}

/// Does the same as [`join_new`] for a process that locks its keyring afterwards: if the quota of
/// this user is used up, that of another user is charged. For root with a single thread.
pub fn join_private() -> io::Result<()> {
    match join() {
        Err(full) if full.raw_os_error() == Some(libc::EDQUOT) => {}
        joined => return joined,
    }
    // The quota is that of the real user. Each process uses another uid: one uid has a quota of 200
    // keys.
    let spare = SPARE_UIDS | (Pid::as_raw(Some(rustix::process::getpid())).unsigned_abs() & 0xffff);
    let (spare, effective) = (Uid::from_raw(spare), rustix::process::geteuid());
    let real = rustix::process::getuid();
    rustix::thread::set_thread_res_uid(spare, effective, effective)?;
    let joined = join();
    rustix::thread::set_thread_res_uid(real, effective, effective)?;
    joined
}

/// Permanently removes all rights from the session keyring of this process: a process that inherits
/// it cannot find, read, add or link a key in it, or restore the rights.
pub fn lock() -> io::Result<()> {
    // SAFETY: changing permissions takes numbers and accesses no memory.
    checked(unsafe { libc::syscall(libc::SYS_keyctl, SETPERM, SESSION, 0) })
}

/// Returns whether this process may not even view its session keyring.
fn is_locked() -> bool {
    // SAFETY: without a buffer the kernel only returns the length of the description.
    let described = unsafe { libc::syscall(libc::SYS_keyctl, DESCRIBE, SESSION, std::ptr::null::<libc::c_char>(), 0) };
    described < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EACCES)
}

fn join() -> io::Result<()> {
    // SAFETY: joining an anonymous keyring takes a null pointer and accesses no memory.
    checked(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) })
}

/// Treats a kernel without keyrings as success: it has none to share.
fn checked(result: libc::c_long) -> io::Result<()> {
    match io::Error::last_os_error() {
        _ if result >= 0 => Ok(()),
        none if none.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `work` as another user, whose small quota is used up by other threads.
    fn with_full_quota(uid: u32, work: impl FnOnce() + Send) {
        let become_user = move || {
            let root = Uid::from_raw(0);
            rustix::thread::set_thread_res_uid(Uid::from_raw(uid), root, root).unwrap();
        };
        let (full, done) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                // The kernel charges no quota for the first keyring of a process.
                join().unwrap();
                become_user();
                // A keyring exists as long as a thread that joined it.
                let (stop, held) = (std::sync::RwLock::new(()), std::sync::atomic::AtomicUsize::new(0));
                let holding = stop.write().unwrap();
                std::thread::scope(|holders| {
                    loop {
                        let (tell, hear) = std::sync::mpsc::channel();
                        let stop = &stop;
                        holders.spawn(move || {
                            tell.send(join().is_ok()).unwrap();
                            drop(stop.read());
                        });
                        if !hear.recv().unwrap() {
                            break;
                        }
                        held.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    full.wait();
                    done.wait();
                    drop(holding);
                });
                assert!(held.into_inner() > 10);
            });
            full.wait();
            threads
                .spawn(|| {
                    join().unwrap();
                    work();
                    done.wait();
                })
                .join()
                .unwrap();
        });
    }

    fn as_user(uid: u32) {
        let root = Uid::from_raw(0);
        rustix::thread::set_thread_res_uid(Uid::from_raw(uid), root, root).unwrap();
    }

    #[test]
    #[ignore = "needs root"]
    fn a_full_quota_is_an_error_unless_the_inherited_keyring_is_locked() {
        const USER: u32 = 3_000_000_017;
        with_full_quota(USER, || {
            as_user(USER);
            assert_eq!(join_new().unwrap_err().raw_os_error(), Some(libc::EDQUOT));
            lock().unwrap();
            assert_eq!(join_new().unwrap(), SessionKeyring::Locked);
            assert!(is_locked());
            assert!(lock().is_err(), "removed rights cannot be restored");
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_process_that_locks_its_keyring_gets_one_despite_a_full_quota() {
        const USER: u32 = 3_000_000_018;
        with_full_quota(USER, || {
            as_user(USER);
            join_private().unwrap();
            assert_eq!(rustix::process::getuid(), Uid::from_raw(USER));
            lock().unwrap();
            assert!(is_locked());
        });
    }
}
