//! Runs a hook: a program that a configuration names for a moment in the life of a container.
//!
//! A hook gets the container's state on its standard input and has a timeout. If it fails, its
//! output is part of the error. No thread is started for it.

use std::ffi::CString;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use oci_spec::runtime::Hook;
use rustix::process::Signal;
use sys::child_wait::Ended;
use sys::fork::SingleThread;

/// The timeout of a hook without one: as long as a kubelet waits for a response.
const USUAL: Duration = Duration::from_secs(120);
/// The exit status of a hook whose program could not be executed.
const NOT_RUN: i32 = 127;

#[derive(Debug, thiserror::Error)]
#[error("{moment} hook {path} of the container: {problem}")]
pub struct HookError {
    moment: &'static str,
    path: PathBuf,
    problem: String,
}

/// The state of the container that a hook gets, as OCI defines it.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State<'a> {
    pub oci_version: &'a str,
    pub id: &'a str,
    pub status: &'static str,
    pub pid: i32,
    /// The directory with `config.json`, whose root path is correct.
    pub bundle: &'a std::path::Path,
    pub annotations: &'a std::collections::HashMap<String, String>,
}

/// How the new process executes the hook.
pub trait HookExec {
    /// Enters the namespaces of the hook, with all descriptors still open.
    fn enter(&self) -> io::Result<()> {
        Ok(())
    }
    /// Whether only a child of the process that entered is in the PID namespace.
    fn forks_in_target(&self) -> bool {
        false
    }
    /// Executes the program. Returns the reason if that fails.
    fn execute(&self, hook: &Hook) -> String;
}

/// A hook that runs on the host.
#[derive(Debug)]
pub struct InHost;

impl HookExec for InHost {
    fn execute(&self, hook: &Hook) -> String {
        execute(hook)
    }
}

/// Resets the OOM score of the shim, which hooks would inherit.
pub fn reset_process() {
    // Raising a score is always allowed; a hook can run without it.
    std::fs::write("/proc/self/oom_score_adj", "0").ok();
}

/// Runs hooks in order, up to the first that fails.
pub fn run_all(
    alone: SingleThread,
    moment: &'static str,
    hooks: Option<&Vec<Hook>>,
    state: &State<'_>,
    place: &impl HookExec,
) -> Result<(), HookError> {
    for hook in hooks.into_iter().flatten() {
        run(alone, hook, state, place).map_err(|problem| HookError { moment, path: hook.path().clone(), problem })?;
    }
    Ok(())
}

fn run(alone: SingleThread, hook: &Hook, state: &State<'_>, place: &impl HookExec) -> Result<(), String> {
    let failed = |error: io::Error| format!("could not be started: {error}");
    let input = stdin(state).map_err(failed)?;
    let (output, theirs) = io::pipe().map_err(failed)?;
    let requested = hook.timeout().and_then(|seconds| u64::try_from(seconds).ok()).map(Duration::from_secs);
    let time = requested.unwrap_or(USUAL);
    let theirs = OwnedFd::from(theirs);
    let child = sys::fork::fork(alone, || {
        let why = match begin(&input, &theirs, place) {
            Err(error) => error.to_string(),
            Ok(()) if place.forks_in_target() => return run_child(alone, hook, place),
            Ok(()) => place.execute(hook),
        };
        report(&why)
    });
    let child = child.map_err(failed)?;
    drop(theirs);
    let Ended { status, words } = sys::child_wait::wait(child.as_raw(), &output.into(), time).map_err(failed)?;
    let after = if words.is_empty() { String::new() } else { format!(": {words}") };
    match status {
        None => Err(format!("did not end within {} s{after}", time.as_secs())),
        Some(status) if status.exit_status() == Some(0) => Ok(()),
        Some(status) => Err(match (status.exit_status(), status.terminating_signal()) {
            (Some(NOT_RUN), _) if !words.is_empty() => words,
            (Some(code), _) => format!("exit status {code}{after}"),
            (None, signal) => format!("killed by signal {}{after}", signal.unwrap_or(0)),
        }),
    }
}

/// In the new process: it is killed with its parent, and has only its three streams.
fn begin(input: &OwnedFd, output: &OwnedFd, place: &impl HookExec) -> io::Result<()> {
    end_with_parent()?;
    rustix::process::setsid()?;
    rustix::stdio::dup2_stdin(input)?;
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(output)?;
    place.enter()?;
    // Again, since a change of the user clears it.
    end_with_parent()?;
    sys::fork::close_all_but(&[])?;
    sys::signal::reset()
}

/// Waits between the parent and a hook that had to be forked in another namespace.
fn run_child(alone: SingleThread, hook: &Hook, place: &impl HookExec) -> i32 {
    let born = sys::fork::fork(alone, || match end_with_parent() {
        Ok(()) => report(&place.execute(hook)),
        Err(error) => report(&error.to_string()),
    });
    match born.and_then(|child| sys::child_wait::reap(child.as_raw())) {
        Ok(status) => status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0)),
        Err(error) => report(&error.to_string()),
    }
}

fn end_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Writes to the hook's output why it does not run.
fn report(why: &str) -> i32 {
    // A failed write cannot be reported.
    io::stderr().write_all(why.as_bytes()).ok();
    NOT_RUN
}

/// Returns a file in memory, so that no process blocks while the hook does not read.
fn stdin(state: &State<'_>) -> io::Result<OwnedFd> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("state", flags)?);
    serde_json::to_writer(&mut file, state)?;
    file.rewind()?;
    Ok(file.into())
}

/// Replaces this process by the hook's program. Returns the reason if that fails.
pub(crate) fn execute(hook: &Hook) -> String {
    let strings =
        |list: &[String]| list.iter().map(|text| CString::new(text.as_bytes())).collect::<Result<Vec<_>, _>>();
    let path = CString::new(hook.path().as_os_str().as_encoded_bytes());
    let env = strings(hook.env().as_deref().unwrap_or_default());
    let (Ok(path), Ok(args), Ok(env)) = (path, strings(&arguments(hook)), env) else {
        return "an argument or an environment variable contains a NUL byte".to_owned();
    };
    match nix::unistd::execve(&path, &args, &env) {
        Ok(never) => match never {},
        Err(errno) => format!("exec: {}", errno.desc().to_lowercase()),
    }
}

/// Returns its arguments, of which the first is its name.
pub(crate) fn arguments(hook: &Hook) -> Vec<String> {
    match hook.args() {
        Some(args) if !args.is_empty() => args.clone(),
        _ => vec![hook.path().display().to_string()],
    }
}
