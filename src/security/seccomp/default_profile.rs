//! crisp's own profile, for `RuntimeDefault`: what is not listed here is refused with EPERM.
//!
//! Nothing here allows keyrings (one for the whole host), io_uring and userfaultfd (past ways out of containers),
//! kexec, swap, pivot_root, the obsolete calls, or memory and page moves between NUMA nodes of other processes.

use super::profile::{Action, ArgCondition, Argument, Listed, Profile, Rule, RuleScope};
use super::syscalls::Abi;

const EPERM: u16 = 1;

/// The flags of clone that make namespaces: of mounts, cgroups, host names, IPC, users, processes, network.
const NAMESPACES: u64 = 0x7e02_0000;

/// What ordinary programs do. The kernel checks these for every user, and a container's namespaces bound what they
/// reach. On 32-bit machines the same things have more names: for wide numbers, long times and old habits.
const ORDINARY: &[&str] = &[
    // A process: to be made, to become another program, to end, to wait for others.
    "execve execveat exit exit_group fork vfork wait4 waitid waitpid getpid getppid gettid getpgid getpgrp setpgid \
     getsid setsid set_tid_address pidfd_open pidfd_send_signal process_mrelease prctl arch_prctl modify_ldt \
     set_thread_area get_thread_area restart_syscall",
    // Since Linux 4.8 a tracer cannot lead its tracee around a filter, so debuggers may work on their own user's.
    "ptrace process_vm_readv process_vm_writev",
    // Threads that wait for each other.
    "futex futex_time64 futex_wait futex_wake futex_waitv futex_requeue set_robust_list get_robust_list membarrier \
     rseq rseq_slice_yield",
    // Probes that the host puts into programs: the kernel itself has the program make these calls.
    "uprobe uretprobe",
    // Signals.
    "kill tkill tgkill rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend \
     rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sigaltstack signalfd signalfd4 pause alarm sigaction \
     signal sigpending sigprocmask sigreturn sigsuspend",
    // Its own memory.
    "brk mmap mmap2 munmap mremap mprotect madvise mincore msync mlock mlock2 mlockall munlock munlockall mseal \
     remap_file_pages map_shadow_stack memfd_create memfd_secret pkey_alloc pkey_free pkey_mprotect",
    // Files: to be opened and read.
    "open openat openat2 creat close close_range read readv pread64 preadv preadv2 write writev pwrite64 pwritev \
     pwritev2 lseek _llseek ioctl fcntl fcntl64 flock dup dup2 dup3 pipe pipe2 sendfile sendfile64 splice tee vmsplice \
     copy_file_range readahead fadvise64 fadvise64_64 fallocate truncate truncate64 ftruncate ftruncate64 sync fsync \
     fdatasync syncfs sync_file_range cachestat io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents \
     io_pgetevents_time64",
    // Names of files, and what is known of them.
    "access faccessat faccessat2 stat stat64 lstat lstat64 fstat fstat64 fstatat64 newfstatat statx statfs statfs64 \
     fstatfs fstatfs64 getdents getdents64 getcwd chdir fchdir mkdir mkdirat rmdir mknod mknodat link linkat symlink \
     symlinkat readlink readlinkat unlink unlinkat rename renameat renameat2 chmod fchmod fchmodat fchmodat2 chown \
     chown32 fchown fchown32 fchownat lchown lchown32 umask utime utimes futimesat utimensat utimensat_time64 \
     name_to_handle_at statmount listmount file_getattr file_setattr",
    // Extended attributes.
    "getxattr lgetxattr fgetxattr getxattrat setxattr lsetxattr fsetxattr setxattrat listxattr llistxattr flistxattr \
     listxattrat removexattr lremovexattr fremovexattr removexattrat",
    // Waiting for files and events.
    "poll ppoll ppoll_time64 select _newselect pselect6 pselect6_time64 epoll_create epoll_create1 epoll_ctl \
     epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2 inotify_init inotify_init1 inotify_add_watch \
     inotify_rm_watch fanotify_mark",
    // The network, once there is a socket.
    "socketpair bind connect listen accept accept4 getsockname getpeername getsockopt setsockopt shutdown send sendto \
     sendmsg sendmmsg recv recvfrom recvmsg recvmmsg recvmmsg_time64",
    // Queues, semaphores and memory shared within the IPC namespace.
    "mq_open mq_unlink mq_notify mq_getsetattr mq_timedsend mq_timedsend_time64 mq_timedreceive \
     mq_timedreceive_time64 msgctl msgget msgrcv msgsnd semctl semget semop semtimedop semtimedop_time64 shmat shmctl \
     shmdt shmget",
    // The time and timers. Adjusting calls also only read; to adjust takes CAP_SYS_TIME.
    "time times gettimeofday clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep \
     clock_nanosleep_time64 nanosleep adjtimex clock_adjtime clock_adjtime64 getitimer setitimer timer_create \
     timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create \
     timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64",
    // Who it is. The capabilities that the container has decide what it may become.
    "getuid getuid32 geteuid geteuid32 getgid getgid32 getegid getegid32 getresuid getresuid32 getresgid getresgid32 \
     getgroups getgroups32 setuid setuid32 setgid setgid32 setreuid setreuid32 setregid setregid32 setresuid \
     setresuid32 setresgid setresgid32 setfsuid setfsuid32 setfsgid setfsgid32 setgroups setgroups32 capget capset",
    // Its share of the machine.
    "getrlimit setrlimit ugetrlimit prlimit64 getrusage getpriority setpriority nice ioprio_get ioprio_set getcpu \
     sched_yield sched_getaffinity sched_setaffinity sched_getattr sched_setattr sched_getparam sched_setparam \
     sched_getscheduler sched_setscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval \
     sched_rr_get_interval_time64",
    // The machine, and randomness.
    "uname sysinfo getrandom",
    // To give up rights.
    "seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self",
    // What 32-bit Arm has for itself.
    "arm_fadvise64_64 arm_sync_file_range sync_file_range2 breakpoint cacheflush set_tls get_tls",
];

/// What a container may do only with a capability: without it the kernel would mostly refuse too, but a user namespace
/// could give the capability back, and then the code behind these calls would lie open.
const WITH_CAPABILITY: &[(&str, &str)] = &[
    ("BPF", "bpf"),
    ("DAC_READ_SEARCH", "open_by_handle_at"),
    ("PERFMON", "perf_event_open"),
    (
        "SYS_ADMIN",
        "bpf perf_event_open clone clone3 unshare setns mount umount umount2 mount_setattr move_mount \
         open_tree open_tree_attr fsopen fsconfig fsmount fspick fanotify_init quotactl quotactl_fd sethostname \
         setdomainname syslog lookup_dcookie listns lsm_get_self_attr lsm_list_modules lsm_set_self_attr",
    ),
    ("SYSLOG", "syslog"),
    ("SYS_BOOT", "reboot"),
    ("SYS_CHROOT", "chroot"),
    ("SYS_MODULE", "init_module finit_module delete_module"),
    ("SYS_NICE", "get_mempolicy set_mempolicy set_mempolicy_home_node mbind"),
    ("SYS_PACCT", "acct"),
    ("SYS_PTRACE", "kcmp pidfd_getfd process_madvise"),
    ("SYS_RAWIO", "ioperm iopl"),
    ("SYS_TIME", "settimeofday stime clock_settime clock_settime64"),
    ("SYS_TTY_CONFIG", "vhangup"),
];

/// Kinds of sockets, first and last. Left out: those of the host beyond the container's network namespace (AF_VSOCK,
/// 40, leads to the hypervisor), the kernel's cryptography (AF_ALG, 38), and what is dead or for mainframes: DECnet,
/// Econet, ATM, IrDA, WANPIPE, IUCV, CAIF.
const SOCKETS: &[(u64, u64)] = &[(0, 11), (13, 18), (21, 22), (24, 24), (26, 33), (35, 36), (39, 39), (41, 45)];

/// Plain Linux, 32-bit (8), with the version of old (`UNAME26`, 0x20000), both, and the question what is set.
/// Others weaken the address space for the next program, also for one with more rights.
const PERSONALITIES: &[u64] = &[0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// The profile for containers that ask for the runtime's default.
pub(crate) fn runtime_default() -> Profile {
    let first = |test| Argument { index: 0, test };
    let mut rules: Vec<Rule> = ORDINARY.iter().map(|names| rule(names, &[])).collect();
    rules.extend(WITH_CAPABILITY.iter().map(|(cap, names)| {
        let only = RuleScope { caps: vec![(*cap).to_owned()], ..RuleScope::default() };
        Rule { only, ..rule(names, &[]) }
    }));
    rules.extend(
        SOCKETS.iter().map(|(low, high)| {
            rule("socket", &[first(ArgCondition::AtLeast(*low)), first(ArgCondition::AtMost(*high))])
        }),
    );
    rules.extend(PERSONALITIES.iter().map(|value| rule("personality", &[first(ArgCondition::Is(*value))])));
    let without_admin = RuleScope { caps: vec!["SYS_ADMIN".to_owned()], ..RuleScope::default() };
    rules.extend([
        Rule {
            not: without_admin.clone(),
            ..rule("clone", &[first(ArgCondition::Masked { mask: NAMESPACES, is: 0 })])
        },
        // Its flags lie in memory, out of a filter's sight. With ENOSYS the C libraries use clone instead.
        Rule { action: Action::ENOSYS, not: without_admin, ..rule("clone3", &[]) },
    ]);
    let machine =
        |abi: Abi| Listed { on: Some(abi.listed_as().to_owned()), abis: vec![abi.narrow().listed_as().to_owned()] };
    Profile { otherwise: Action::Errno(EPERM), abis: vec![machine(Abi::X86_64), machine(Abi::Aarch64)], rules }
}

fn rule(names: &str, arguments: &[Argument]) -> Rule {
    Rule {
        names: names.split_whitespace().map(str::to_owned).collect(),
        action: Action::Allow,
        arguments: arguments.to_vec(),
        only: RuleScope::default(),
        not: RuleScope::default(),
    }
}

#[cfg(test)]
#[path = "default_profile_tests.rs"]
mod tests;
