//! The default filter on the real kernel.
//!
//! A filter cannot be taken off, so it is loaded in a process of its own: the parent runs this test program again,
//! for the one test that loads it.

use std::process::Command;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};

use super::compile::compile;
use super::default_profile::runtime_default;
use super::profile::CapSet;

const CONFINED: &str = "CRISP_TEST_CONFINED";

#[test]
fn the_kernel_takes_the_default_filter_and_answers_by_it() {
    let this = std::env::current_exe().unwrap();
    let child = Command::new(this)
        .args(["--exact", "seccomp::kernel_tests::within_the_filter", "--nocapture", "--test-threads=1"])
        .env(CONFINED, "yes")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(said.contains("1 passed"), "{said}");
}

#[test]
fn within_the_filter() {
    if std::env::var_os(CONFINED).is_none() {
        return; // Run by the test above.
    }
    let alg = || socket(AddressFamily::from_raw(38), SocketType::SEQPACKET, None).map(drop);
    let nonsense = || socket(AddressFamily::from_raw(4000), SocketType::STREAM, None).map(drop);
    // Without a filter the kernel answers otherwise, to root and to others. There is one already in some CI systems.
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
