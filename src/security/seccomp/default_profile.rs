//! crisp's own profile, for `RuntimeDefault`: unlisted system calls fail with EPERM.
//!
//! The profile does not allow keyrings (one for the whole host), io_uring and userfaultfd (used by past
//! container escapes), kexec, swap, pivot_root, obsolete calls, and moving memory pages of other
//! processes between NUMA nodes.

use super::profile::{Action, ArgCondition, Argument, Listed, Profile, Rule, RuleScope};
use super::syscalls::Abi;

const EPERM: u16 = 1;

/// The flags of clone that create namespaces: mount, cgroup, UTS, IPC, user, PID, network.
const NAMESPACES: u64 = 0x7e02_0000;

/// System calls of ordinary programs. The kernel checks their permissions for every user, and the
/// namespaces of a container limit their reach. 32-bit ABIs have further names for the same calls, for
/// 64-bit offsets, 64-bit times and compatibility.
const ORDINARY: &[&str] = &[
    // Processes: create, execute, exit, wait.
    "execve execveat exit exit_group fork vfork wait4 waitid waitpid getpid getppid gettid getpgid getpgrp setpgid \
     getsid setsid set_tid_address pidfd_open pidfd_send_signal process_mrelease prctl arch_prctl modify_ldt \
     set_thread_area get_thread_area restart_syscall",
    // Since Linux 4.8 a tracer cannot bypass the filter of its tracee, so debuggers are allowed.
    "ptrace process_vm_readv process_vm_writev",
    // Thread synchronization.
    "futex futex_time64 futex_wait futex_wake futex_waitv futex_requeue set_robust_list get_robust_list membarrier \
     rseq rseq_slice_yield",
    // Uprobes of the host: the kernel makes the probed program execute these calls.
    "uprobe uretprobe",
    // Signals.
    "kill tkill tgkill rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend \
     rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sigaltstack signalfd signalfd4 pause alarm sigaction \
     signal sigpending sigprocmask sigreturn sigsuspend",
    // The process's own memory.
    "brk mmap mmap2 munmap mremap mprotect madvise mincore msync mlock mlock2 mlockall munlock munlockall mseal \
     remap_file_pages map_shadow_stack memfd_create memfd_secret pkey_alloc pkey_free pkey_mprotect",
    // Files: open, read and write.
    "open openat openat2 creat close close_range read readv pread64 preadv preadv2 write writev pwrite64 pwritev \
     pwritev2 lseek _llseek ioctl fcntl fcntl64 flock dup dup2 dup3 pipe pipe2 sendfile sendfile64 splice tee vmsplice \
     copy_file_range readahead fadvise64 fadvise64_64 fallocate truncate truncate64 ftruncate ftruncate64 sync fsync \
     fdatasync syncfs sync_file_range cachestat io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents \
     io_pgetevents_time64",
    // File names and metadata.
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
    // Existing sockets.
    "socketpair bind connect listen accept accept4 getsockname getpeername getsockopt setsockopt shutdown send sendto \
     sendmsg sendmmsg recv recvfrom recvmsg recvmmsg recvmmsg_time64",
    // Message queues, semaphores and shared memory in the IPC namespace.
    "mq_open mq_unlink mq_notify mq_getsetattr mq_timedsend mq_timedsend_time64 mq_timedreceive \
     mq_timedreceive_time64 msgctl msgget msgrcv msgsnd semctl semget semop semtimedop semtimedop_time64 shmat shmctl \
     shmdt shmget",
    // Time and timers. The adjusting calls can also read; changing the time needs CAP_SYS_TIME.
    "time times gettimeofday clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep \
     clock_nanosleep_time64 nanosleep adjtimex clock_adjtime clock_adjtime64 getitimer setitimer timer_create \
     timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create \
     timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64",
    // User and group ids and capabilities. The container's capabilities limit changes.
    "getuid getuid32 geteuid geteuid32 getgid getgid32 getegid getegid32 getresuid getresuid32 getresgid getresgid32 \
     getgroups getgroups32 setuid setuid32 setgid setgid32 setreuid setreuid32 setregid setregid32 setresuid \
     setresuid32 setresgid setresgid32 setfsuid setfsuid32 setfsgid setfsgid32 setgroups setgroups32 capget capset",
    // Resource limits and scheduling.
    "getrlimit setrlimit ugetrlimit prlimit64 getrusage getpriority setpriority nice ioprio_get ioprio_set getcpu \
     sched_yield sched_getaffinity sched_setaffinity sched_getattr sched_setattr sched_getparam sched_setparam \
     sched_getscheduler sched_setscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval \
     sched_rr_get_interval_time64",
    // System information and randomness.
    "uname sysinfo getrandom",
    // Sandboxing of the process itself.
    "seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self",
    // Calls specific to 32-bit Arm.
    "arm_fadvise64_64 arm_sync_file_range sync_file_range2 breakpoint cacheflush set_tls get_tls",
];

/// System calls that require a capability of the container. The kernel mostly denies them without it
/// too, but in a new user namespace a process regains capabilities, and the code of these calls would be
/// exposed.
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

/// Allowed ranges of socket families, first and last. Excluded: families beyond the container's network
/// namespace (AF_VSOCK, 40, connects to the hypervisor), the kernel's cryptography (AF_ALG, 38), and
/// obsolete or mainframe families: DECnet, Econet, ATM, IrDA, WANPIPE, IUCV, CAIF.
const SOCKETS: &[(u64, u64)] = &[(0, 11), (13, 18), (21, 22), (24, 24), (26, 33), (35, 36), (39, 39), (41, 45)];

/// Plain Linux, 32-bit (8), with an old version (`UNAME26`, 0x20000), both, and the query of the current
/// value. Other values weaken the address space randomization of the next program, even of one with
/// more privileges.
const PERSONALITIES: &[u64] = &[0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Returns the profile for `RuntimeDefault`.
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
        // A filter cannot read its flags, which are in memory. On ENOSYS the C libraries use clone.
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
