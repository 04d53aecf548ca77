//! Loads the default filter into the real kernel.
//!
//! A filter cannot be removed, so a child process loads it: the parent runs this test program again for
//! the single test that loads the filter.

use std::process::Command;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};

use super::compile::compile;
use super::default_profile::runtime_default;
use super::profile::CapSet;

const CONFINED: &str = "CRISP_TEST_CONFINED";

#[test]
fn the_kernel_loads_and_applies_the_default_filter() {
    let this = std::env::current_exe().unwrap();
    let child = Command::new(this)
        .args(["--exact", "seccomp::kernel_tests::within_the_filter", "--nocapture", "--test-threads=1"])
        .env(CONFINED, "yes")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{stdout}{}", String::from_utf8_lossy(&child.stderr));
    assert!(stdout.contains("1 passed"), "{stdout}");
}

#[test]
fn within_the_filter() {
    if std::env::var_os(CONFINED).is_none() {
        return; // Run by the test above.
    }
    let alg = || socket(AddressFamily::from_raw(38), SocketType::SEQPACKET, None).map(drop);
    let nonsense = || socket(AddressFamily::from_raw(4000), SocketType::STREAM, None).map(drop);
    // Without a filter the results differ, for root and other users. Some CI systems already have a filter.
    if !std::fs::read_to_string("/proc/thread-self/status").unwrap().contains("Seccomp:\t2") {
        assert_ne!(alg(), Err(Errno::PERM));
        assert_eq!(nonsense(), Err(Errno::AFNOSUPPORT));
    }

    let filter = compile(&runtime_default(), &CapSet::default()).unwrap().bytes;
    let filter = sys::seccomp::from_bytes(&filter).unwrap();
    rustix::thread::set_no_new_privs(true).unwrap();
    sys::seccomp::load(&filter).unwrap();

    assert_eq!(alg(), Err(Errno::PERM));
    assert_eq!(nonsense(), Err(Errno::PERM));
    assert_eq!(rustix::mount::fsopen("tmpfs", rustix::mount::FsOpenFlags::empty()).map(drop), Err(Errno::PERM));
    let mounted = rustix::mount::mount("none", "/no/such/place", "tmpfs", rustix::mount::MountFlags::empty(), None);
    assert_eq!(mounted, Err(Errno::PERM), "for root it would be ENOENT");

    assert!(rustix::process::getpid().as_raw_nonzero().get() > 1);
    assert_eq!(std::thread::spawn(|| 5).join().unwrap(), 5, "a thread can be started");
    assert!(Command::new("/bin/true").status().unwrap().success(), "a program can be started");
    let status = Command::new("/bin/cat").arg("/proc/self/status").output().unwrap();
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("Seccomp:\t2"), "inherited: {status}");
}
