use std::time::{Duration, Instant};

use sys::seccomp::{Instruction, from_bytes};

use super::super::compile::{Machine, compile_for};
use super::super::profile::{CapSet, Kernel};
use super::super::syscalls;
use super::super::test_interpreter::{Call, run};
use super::*;

const EPERM_ANSWER: u32 = 0x0005_0001;
const ENOSYS: u32 = 0x0005_0026;
const ALLOW: u32 = 0x7fff_0000;

fn filter(abi: Abi, caps: &[&str]) -> Vec<Instruction> {
    let machine = Machine { abi, kernel: Kernel(6, 1) };
    let compiled = compile_for(machine, &runtime_default(), &caps.iter().collect::<CapSet>()).unwrap();
    from_bytes(&compiled.bytes).unwrap()
}

fn answer(filter: &[Instruction], abi: Abi, name: &str, first: u64) -> u32 {
    let number = syscalls::number(abi, name).unwrap_or_else(|| panic!("{name}"));
    run(filter, &Call::new(abi, number, [first, 0, 0, 0, 0, 0])).0
}

#[test]
fn every_name_is_a_system_call_and_is_listed_once() {
    let machine = Machine { abi: Abi::X86_64, kernel: Kernel(6, 1) };
    assert_eq!(compile_for(machine, &runtime_default(), &CapSet::default()).unwrap().unknown, Vec::<String>::new());
    let mut names: Vec<&str> = ORDINARY.iter().flat_map(|group| group.split_whitespace()).collect();
    let with: Vec<&str> = WITH_CAPABILITY.iter().flat_map(|(_, group)| group.split_whitespace()).collect();
    assert_eq!(names.iter().find(|name| with.contains(name)), None);
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn calls_of_ordinary_programs_and_of_their_start_are_allowed() {
    let everywhere = "read write close chdir fchdir execve execveat exit exit_group setgroups setuid setgid setresuid \
                      setresgid capset prctl dup3 openat wait4 kill mmap mprotect brk futex rt_sigaction \
                      rt_sigprocmask rt_sigreturn getdents64 getrandom epoll_pwait connect accept4 pipe2 ptrace \
                      clock_gettime seccomp statx prlimit64 sched_yield close_range memfd_create newfstatat \
                      process_vm_readv set_robust_list rseq";
    for machine in [Abi::X86_64, Abi::Aarch64] {
        let filter = filter(machine, &[]);
        for abi in [machine, machine.narrow()] {
            for name in everywhere.split_whitespace().filter(|name| syscalls::number(abi, name).is_some()) {
                assert_eq!(answer(&filter, abi, name, 0), ALLOW, "{name} on {abi:?}");
            }
            assert_eq!(answer(&filter, abi, "clone", 0x0001_2011), ALLOW, "a fork on {abi:?}");
            assert_eq!(answer(&filter, abi, "clone", 0x003d_0f00), ALLOW, "a thread on {abi:?}");
        }
    }
}

#[test]
fn calls_used_by_escapes_are_denied_with_any_capabilities() {
    let never = "keyctl add_key request_key io_uring_setup io_uring_enter io_uring_register userfaultfd kexec_load \
                 kexec_file_load swapon swapoff pivot_root nfsservctl move_pages migrate_pages _sysctl uselib ustat sysfs";
    let all: Vec<&str> = WITH_CAPABILITY.iter().map(|(cap, _)| *cap).collect();
    for machine in [Abi::X86_64, Abi::Aarch64] {
        for caps in [&[][..], &all] {
            let filter = filter(machine, caps);
            for abi in [machine, machine.narrow()] {
                for name in never.split_whitespace().filter(|name| syscalls::number(abi, name).is_some()) {
                    assert_eq!(answer(&filter, abi, name, 0), EPERM_ANSWER, "{name} on {abi:?}");
                }
            }
        }
    }
}

/// All calls that are always denied to a container without capabilities on x86-64. A change of the
/// profile must change this list, which shows its effect in review.
const DENIED: &str = "_sysctl acct add_key afs_syscall bpf chroot clock_settime clone3 create_module delete_module epoll_ctl_old \
    epoll_wait_old fanotify_init finit_module fsconfig fsmount fsopen fspick get_kernel_syms get_mempolicy getpmsg \
    init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl \
    listns lookup_dcookie lsm_get_self_attr lsm_list_modules lsm_set_self_attr mbind migrate_pages mount \
    mount_setattr move_mount move_pages nfsservctl open_by_handle_at open_tree open_tree_attr perf_event_open \
    pidfd_getfd pivot_root process_madvise putpmsg query_module quotactl quotactl_fd reboot request_key security \
    set_mempolicy set_mempolicy_home_node setdomainname sethostname setns settimeofday swapoff swapon sysfs syslog \
    tuxcall umount2 unshare uselib userfaultfd ustat vhangup vserver";

#[test]
fn a_container_without_capabilities_is_denied_exactly_these_calls() {
    let filter = filter(Abi::X86_64, &[]);
    let mut denied: Vec<&str> = syscalls::names()
        .filter(|name| {
            let Some(number) = syscalls::number(Abi::X86_64, name) else { return false };
            // With any first argument.
            let values = [0, 1, 2, 8, 16, 17, 0x1_0000, 0x2_0000, 0xffff_ffff];
            values.iter().all(|first| run(&filter, &Call::new(Abi::X86_64, number, [*first, 0, 0, 0, 0, 0])).0 != ALLOW)
        })
        .collect();
    denied.sort_unstable();
    assert_eq!(denied, DENIED.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn each_capability_allows_its_own_calls_only() {
    for (cap, opened) in WITH_CAPABILITY {
        let (without, with) = (filter(Abi::X86_64, &[]), filter(Abi::X86_64, &[cap]));
        for name in WITH_CAPABILITY.iter().flat_map(|(_, names)| names.split_whitespace()) {
            // With a namespace flag, since clone is allowed without one.
            let Some(number) = syscalls::number(Abi::X86_64, name) else { continue };
            let call = Call::new(Abi::X86_64, number, [NAMESPACES, 0, 0, 0, 0, 0]);
            let shut = if name == "clone3" { ENOSYS } else { EPERM_ANSWER };
            let open = opened.split_whitespace().any(|o| o == name);
            assert_eq!(run(&without, &call).0, shut, "{name}");
            assert_eq!(run(&with, &call).0, if open { ALLOW } else { shut }, "{name} with {cap}");
        }
    }
}

#[test]
fn new_namespaces_require_sys_admin() {
    let flags = [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
    let (without, with) = (filter(Abi::X86_64, &[]), filter(Abi::X86_64, &["CAP_SYS_ADMIN"]));
    for flag in flags {
        assert_eq!(answer(&without, Abi::X86_64, "clone", flag | 17), EPERM_ANSWER, "{flag:#x}");
        assert_eq!(answer(&with, Abi::X86_64, "clone", flag | 17), ALLOW, "{flag:#x}");
    }
}

#[test]
fn only_known_socket_families_and_personalities_are_allowed() {
    let filter = filter(Abi::X86_64, &["SYS_ADMIN"]);
    let socket = |family| answer(&filter, Abi::X86_64, "socket", family);
    for (name, family) in [("unix", 1), ("inet", 2), ("inet6", 10), ("netlink", 16), ("packet", 17), ("xdp", 44)] {
        assert_eq!(socket(family), ALLOW, "{name}");
    }
    for (name, family) in [("alg", 38), ("vsock", 40), ("decnet", 12), ("next", 46), ("wide", (1 << 32) + 1)] {
        assert_eq!(socket(family), EPERM_ANSWER, "{name}");
    }
    assert_eq!(answer(&filter, Abi::I386, "socket", 2), ALLOW);
    assert_eq!(answer(&filter, Abi::I386, "socket", 38), EPERM_ANSWER);
    assert_eq!(answer(&filter, Abi::I386, "socketcall", 1), EPERM_ANSWER, "the filter cannot read the family");
    assert_eq!(answer(&filter, Abi::I386, "socketcall", 3), ALLOW);
    let personality = |value| answer(&filter, Abi::X86_64, "personality", value);
    assert!(PERSONALITIES.iter().all(|known| personality(*known) == ALLOW));
    assert_eq!(personality(0x0004_0000), EPERM_ANSWER, "without a random address space");
}

#[test]
fn a_future_call_returns_enosys() {
    let filter = filter(Abi::X86_64, &[]);
    for number in [500, 9999, 0x4000_0000, u32::MAX] {
        assert_eq!(run(&filter, &Call::new(Abi::X86_64, number, [0; 6])).0, ENOSYS, "{number}");
    }
}

#[test]
fn the_filter_is_short_and_compiles_within_500_ms() {
    let started = Instant::now();
    let filter = filter(Abi::X86_64, &[]);
    assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
    assert!(filter.len() < 600, "{} instructions", filter.len());
    let steps = |name| {
        let number = syscalls::number(Abi::X86_64, name).unwrap();
        run(&filter, &Call::new(Abi::X86_64, number, [0; 6])).1
    };
    let longest = syscalls::names().filter(|name| syscalls::number(Abi::X86_64, name).is_some()).map(steps).max();
    assert!(longest.unwrap() < 40, "{longest:?} steps");
}
