//! The final stage: from a privileged process in the container's namespaces to the container's
//! program.
//!
//! The first process of a container and every exec pass it, so both get the same user, groups,
//! capabilities, limits and filter. It begins with all capabilities of the shim (`drop_rights`),
//! and keeps `CAP_SETPCAP`, and `CAP_SYS_ADMIN` for the filter, until the end (`load_filter`). If
//! other processes can see the new process, it is forked after that: `sys::sibling`.
//!
//! Its descriptors are closed before its program is resolved (`execute`). Close-on-exec is too
//! late: an image may name its program `/proc/self/fd/N/…`.

use std::ffi::{CString, NulError};
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use oci_spec::runtime::{Capabilities, LinuxCapabilities, PosixRlimitType, Process};
use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use shim_protocol::{LaunchWarning, LaunchWarningKind};
use sys::keyring::SessionKeyring;

use crate::process::capabilities::{bits, held};
use crate::process::lsm_label;
use crate::process::lsm_label::{LabelError, ProcFs};
use crate::process::seccomp_filter::SeccompFilter;
use crate::{StepError, step};

#[derive(Debug, thiserror::Error)]
pub enum ExecProgramError {
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("entering the container's working directory {path}: {source}")]
    WorkingDir { path: PathBuf, source: io::Error },
    #[error("the working directory {0} is outside of the container")]
    WorkingDirOutside(PathBuf),
    #[error("exec: {program:?}: {reason}")]
    Program { program: String, reason: String },
    #[error("an argument or an environment variable of the container contains a NUL byte")]
    Nul(#[from] NulError),
    #[error(transparent)]
    Label(#[from] LabelError),
    #[error("the container's config.json, which crisp wrote, has no {0}; please report this bug")]
    Lacks(&'static str),
}

/// Five sets of capabilities, as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sets {
    bounding: CapabilitySet,
    effective: CapabilitySet,
    permitted: CapabilitySet,
    inheritable: CapabilitySet,
    ambient: CapabilitySet,
}

/// Drops all rights that `process` does not have, except those that [`load_filter`] needs. `proc`
/// has the files of this thread, see [`ProcFs`].
pub(crate) fn drop_rights(process: &Process, proc: &ProcFs) -> Result<RemainingRights, ExecProgramError> {
    sys::signal::reset().map_err(step("resetting signals"))?;
    lsm_label::on_exec(process, proc)?;
    set_limits(process)?;
    let umask = process.user().umask().unwrap_or(0o022);
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
    let entered = enter(process.cwd());
    let sets = wanted(process.capabilities().as_ref());
    change_user(process, sets)?;
    if entered.is_err() {
        // The user may be able to enter a directory that root cannot, for example on a network file
        // system.
        enter(process.cwd())?;
    }
    Ok(RemainingRights(sets))
}

/// The final capabilities of a process.
#[derive(Debug)]
#[must_use = "a process that has dropped its rights still has some"]
pub(crate) struct RemainingRights(Sets);

/// Drops the remaining rights and loads the filter. From now on this process and its children have
/// the rights of `process`, and no other process of its user can trace it before its program runs.
pub(crate) fn load_filter(
    process: &Process,
    RemainingRights(sets): RemainingRights,
    filter: &SeccompFilter,
) -> Result<(), ExecProgramError> {
    // A host may be set to allow tracing after each change of the user.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(step("hiding this process"))?;
    let drop_rest = || capset(sets.effective, sets.permitted, sets.inheritable).map_err(step("dropping capabilities"));
    let load = || filter.load().map_err(step("loading the seccomp filter"));
    if process.no_new_privileges() == Some(true) {
        rustix::thread::set_no_new_privs(true).map_err(step("setting no_new_privs"))?;
        drop_rest()?;
        load()?;
    } else {
        // Loading needs a capability now, so the filter must allow capset.
        load()?;
        drop_rest()?;
    }
    Ok(())
}

/// Executes `program`, which may differ from its first argument, with the rights of this process.
/// Returns only on failure.
pub(crate) fn execute(process: &Process, program: &str, args: &[String]) -> ExecProgramError {
    let env = process.env().as_deref().unwrap_or_default();
    let strings = |list: &[String]| list.iter().map(|one| CString::new(one.as_bytes())).collect::<Result<Vec<_>, _>>();
    match (strings(args), strings(env)) {
        (Ok(argv), Ok(envp)) => {
            let path = env.iter().find_map(|entry| entry.strip_prefix("PATH="));
            search(program, path, &argv, &envp)
        }
        (Err(nul), _) | (_, Err(nul)) => nul.into(),
    }
}

/// Executes the first of `args`. Returns only on failure.
pub(crate) fn execute_first(process: &Process, args: &[String]) -> ExecProgramError {
    match args.first() {
        Some(program) => execute(process, program, args),
        None => ExecProgramError::Lacks("program"),
    }
}

/// Gives this process the session keyring of `process`. Returns a warning if it gets none that it
/// can use.
pub(crate) fn join_keyring(process: &Process, proc: &ProcFs) -> Result<Option<&'static str>, LabelError> {
    Ok(match lsm_label::with_keys(process, proc, sys::keyring::join_new)? {
        SessionKeyring::Own => None,
        SessionKeyring::Locked => {
            Some("no session keyring: the quota of keys of its user is used up, see /proc/key-users")
        }
    })
}

/// Changes to the working directory `cwd`, and checks that it is inside the root: `/proc/self/fd`
/// could lead to a leaked descriptor of the host.
fn enter(cwd: &Path) -> Result<(), ExecProgramError> {
    let failed =
        |source: rustix::io::Errno| ExecProgramError::WorkingDir { path: cwd.to_owned(), source: source.into() };
    rustix::process::chdir(cwd).map_err(failed)?;
    let real = rustix::process::getcwd(Vec::new()).map_err(|_| ExecProgramError::WorkingDirOutside(cwd.to_owned()))?;
    if real.as_bytes().starts_with(b"/") { Ok(()) } else { Err(ExecProgramError::WorkingDirOutside(cwd.to_owned())) }
}

/// Limits above those that this process may set are lowered; [`clamped_limits`] reports them
/// before.
fn set_limits(process: &Process) -> Result<(), ExecProgramError> {
    for limit in process.rlimits().iter().flatten() {
        let resource = resource(limit.typ());
        let now = rustix::process::getrlimit(resource);
        let set = |hard: u64| {
            let new = Rlimit { current: Some(limit.soft().min(hard)), maximum: Some(hard) };
            rustix::process::setrlimit(resource, finite(new))
        };
        match set(clamp(limit.hard(), now.maximum)) {
            // The capability has no effect here if it is that of a user namespace.
            Err(rustix::io::Errno::PERM) => set(limit.hard().min(now.maximum.unwrap_or(u64::MAX))),
            other => other,
        }
        .map_err(step("setting a resource limit"))?;
    }
    Ok(())
}

/// Raises the limits of this process before it enters a user namespace, where it no longer may.
pub(crate) fn raise_limits(process: &Process) {
    for limit in process.rlimits().iter().flatten() {
        let resource = resource(limit.typ());
        let Rlimit { current, maximum } = rustix::process::getrlimit(resource);
        if maximum.is_some_and(|maximum| limit.hard() > maximum) {
            // `clamped_limits` has reported a limit that cannot be raised.
            rustix::process::setrlimit(resource, finite(Rlimit { current, maximum: Some(limit.hard()) })).ok();
        }
    }
}

/// Converts the kernel's unlimited value to that of rustix, which is `None`.
fn finite(limit: Rlimit) -> Rlimit {
    let open = |value: Option<u64>| value.filter(|v| *v != u64::MAX);
    Rlimit { current: open(limit.current), maximum: open(limit.maximum) }
}

fn clamp(requested: u64, hard: Option<u64>) -> u64 {
    let may_raise = rustix::thread::capabilities(None).is_ok_and(|c| c.effective.contains(CapabilitySet::SYS_RESOURCE));
    if may_raise { requested } else { requested.min(hard.unwrap_or(u64::MAX)) }
}

/// Returns a warning for each limit that this host does not allow.
pub(crate) fn clamped_limits(process: &Process) -> Vec<LaunchWarning> {
    let mut warnings = Vec::new();
    for limit in process.rlimits().iter().flatten() {
        let hard = clamp(limit.hard(), rustix::process::getrlimit(resource(limit.typ())).maximum);
        if hard != limit.hard() {
            let (name, requested) = (limit.typ(), limit.hard());
            let message = format!("{name} is {hard} instead of {requested}: CAP_SYS_RESOURCE is missing");
            warnings.push(LaunchWarningKind::Rlimit.warning(message));
        }
    }
    warnings
}

fn resource(kind: PosixRlimitType) -> Resource {
    match kind {
        PosixRlimitType::RlimitCpu => Resource::Cpu,
        PosixRlimitType::RlimitFsize => Resource::Fsize,
        PosixRlimitType::RlimitData => Resource::Data,
        PosixRlimitType::RlimitStack => Resource::Stack,
        PosixRlimitType::RlimitCore => Resource::Core,
        PosixRlimitType::RlimitRss => Resource::Rss,
        PosixRlimitType::RlimitNproc => Resource::Nproc,
        PosixRlimitType::RlimitNofile => Resource::Nofile,
        PosixRlimitType::RlimitMemlock => Resource::Memlock,
        PosixRlimitType::RlimitAs => Resource::As,
        PosixRlimitType::RlimitLocks => Resource::Locks,
        PosixRlimitType::RlimitSigpending => Resource::Sigpending,
        PosixRlimitType::RlimitMsgqueue => Resource::Msgqueue,
        PosixRlimitType::RlimitNice => Resource::Nice,
        PosixRlimitType::RlimitRtprio => Resource::Rtprio,
        PosixRlimitType::RlimitRttime => Resource::Rttime,
    }
}

fn change_user(process: &Process, sets: Sets) -> Result<(), ExecProgramError> {
    for bit in 0..64u32 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if sets.bounding.contains(one) {
            continue;
        }
        // The kernel knows no higher capability.
        let Ok(there) = rustix::thread::capability_is_in_bounding_set(one) else { break };
        if there {
            rustix::thread::remove_capability_from_bounding_set(one).map_err(step("narrowing the bounding set"))?;
        }
    }
    let user = process.user();
    let groups = user.additional_gids().as_deref().unwrap_or_default();
    let groups: Vec<Gid> = groups.iter().map(|g| Gid::from_raw(*g)).collect();
    rustix::thread::set_thread_groups(&groups).map_err(step("setting the groups"))?;
    rustix::thread::set_keep_capabilities(true).map_err(step("keeping capabilities"))?;
    let gid = Gid::from_raw(user.gid());
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(step("setting the group"))?;
    let uid = Uid::from_raw(user.uid());
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(step("setting the user"))?;
    rustix::thread::set_keep_capabilities(false).map_err(step("keeping capabilities"))?;
    let still = CapabilitySet::SYS_ADMIN | CapabilitySet::SETPCAP;
    capset(sets.effective | still, sets.permitted | still, sets.inheritable).map_err(step("setting capabilities"))?;
    rustix::thread::clear_ambient_capability_set().map_err(step("clearing ambient capabilities"))?;
    for one in sets.ambient.iter() {
        rustix::thread::configure_capability_in_ambient_set(one, true).map_err(step("raising ambient capabilities"))?;
    }
    Ok(())
}

fn capset(effective: CapabilitySet, permitted: CapabilitySet, inheritable: CapabilitySet) -> io::Result<()> {
    // A process cannot set capabilities that it lacks: SYS_ADMIN may be missing if crisp itself is
    // confined.
    let held = rustix::thread::capabilities(None)?.permitted;
    let sets = CapabilitySets { effective: effective & held, permitted: permitted & held, inheritable };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Returns the requested sets, limited to the capabilities of the shim. Without a section they are
/// empty.
fn wanted(capabilities: Option<&LinuxCapabilities>) -> Sets {
    let held = held();
    let set = |of: fn(&LinuxCapabilities) -> &Option<Capabilities>| {
        capabilities.and_then(|c| of(c).as_ref()).map_or(CapabilitySet::empty(), bits) & held
    };
    Sets {
        bounding: set(LinuxCapabilities::bounding),
        effective: set(LinuxCapabilities::effective),
        permitted: set(LinuxCapabilities::permitted),
        inheritable: set(LinuxCapabilities::inheritable),
        ambient: set(LinuxCapabilities::ambient),
    }
}

/// Searches for the program as a shell does, and executes it.
fn search(program: &str, path: Option<&str>, argv: &[CString], envp: &[CString]) -> ExecProgramError {
    let failed = |reason: &str| ExecProgramError::Program { program: program.to_owned(), reason: reason.to_owned() };
    let attempt = |file: PathBuf| -> Result<Errno, ExecProgramError> {
        let file = CString::new(file.into_os_string().into_encoded_bytes())?;
        Ok(match nix::unistd::execve(&file, argv, envp) {
            Ok(never) => match never {},
            Err(errno) => errno,
        })
    };
    if program.is_empty() {
        return failed("executable file not found in $PATH");
    }
    if program.contains('/') {
        return match attempt(PathBuf::from(program)) {
            Ok(Errno::ENOENT) => failed("no such file or directory"),
            Ok(errno) => failed(&errno.desc().to_lowercase()),
            Err(nul) => nul,
        };
    }
    let mut worst = "executable file not found in $PATH".to_owned();
    for directory in path.unwrap_or("/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").split(':') {
        let directory = if directory.is_empty() { "." } else { directory };
        match attempt(Path::new(directory).join(program)) {
            Ok(Errno::ENOENT | Errno::ENOTDIR) => {}
            Ok(errno) => worst = errno.desc().to_lowercase(),
            Err(nul) => return nul,
        }
    }
    failed(&worst)
}
