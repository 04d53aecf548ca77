//! Kernel keyrings.

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
    /// A new one, or none, where the kernel has no keyrings.
    Own,
    /// The quota of the user is used up. The process has the one of its parent, which [`lock`] made useless.
    Locked,
}

/// Gives this process a session keyring of its own, so that it shares no key with its parent.
///
/// Any process of the same user can use up the quota of keys. Where it is used up and the keyring of the parent is not
/// locked, this is an error.
pub fn join_new() -> io::Result<SessionKeyring> {
    match join() {
        Ok(()) => Ok(SessionKeyring::Own),
        Err(full) if full.raw_os_error() == Some(libc::EDQUOT) && is_locked() => Ok(SessionKeyring::Locked),
        Err(error) => Err(error),
    }
}

/// The same for a process that locks its keyring afterwards: another user's quota is charged where that of this user is
/// used up. For root with a single thread.
pub fn join_private() -> io::Result<()> {
    match join() {
        Err(full) if full.raw_os_error() == Some(libc::EDQUOT) => {}
        joined => return joined,
    }
    // The quota is that of the real user. Each process uses another uid: one has room for 200 keys.
    let spare = SPARE_UIDS | (Pid::as_raw(Some(rustix::process::getpid())).unsigned_abs() & 0xffff);
    let (spare, effective) = (Uid::from_raw(spare), rustix::process::geteuid());
    let real = rustix::process::getuid();
    rustix::thread::set_thread_res_uid(spare, effective, effective)?;
    let joined = join();
    rustix::thread::set_thread_res_uid(real, effective, effective)?;
    joined
}

/// Takes all rights from the session keyring of this process, for good: no process that inherits it can find, read, add or
/// link a key in it, or give the rights back.
pub fn lock() -> io::Result<()> {
    // SAFETY: changing permissions takes numbers and touches no memory of ours.
    checked(unsafe { libc::syscall(libc::SYS_keyctl, SETPERM, SESSION, 0) })
}

/// Whether this process may not even look at its session keyring.
fn is_locked() -> bool {
    // SAFETY: without a buffer the kernel only returns the length of the description.
    let described = unsafe { libc::syscall(libc::SYS_keyctl, DESCRIBE, SESSION, std::ptr::null::<libc::c_char>(), 0) };
    described < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EACCES)
}

fn join() -> io::Result<()> {
    // SAFETY: joining an anonymous keyring takes a null pointer and touches no memory of ours.
    checked(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) })
}

/// A kernel without keyrings has none to share.
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

    /// A thread that is another user, whose quota is small and used up by other threads, as long as `work` takes.
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
                // A keyring lives as long as a thread that joined it.
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
            assert!(lock().is_err(), "rights that are gone are given to no process");
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn a_process_that_is_to_lock_its_keyring_gets_one_though_the_quota_is_full() {
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
