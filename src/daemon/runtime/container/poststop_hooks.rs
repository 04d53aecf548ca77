//! Runs poststop hooks after a container's processes have exited.
//!
//! The daemon runs them, not the shim: they must also clean up if the shim died.

use std::fs::File;
use std::io::{self, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use model::ContainerId;
use oci_spec::runtime::{Hook, Spec};
use safe_fs::FileError;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sys::child_wait::Ended;

/// The timeout of a hook without one.
const USUAL: Duration = Duration::from_secs(120);

/// In the container's directory from before its launch until its hooks have run.
const FILE: &str = "poststop.json";

#[derive(Debug, Serialize, Deserialize)]
struct PoststopHooks {
    hooks: Vec<Hook>,
    /// The state of the container for the hooks, as OCI defines it.
    state: Value,
}

/// Writes the hooks to the container's directory, if there are any.
pub(crate) fn note(dir: &Path, id: &ContainerId, spec: &Spec) -> Result<(), FileError> {
    let hooks = spec.hooks().as_ref().and_then(|hooks| hooks.poststop().clone()).unwrap_or_default();
    if hooks.is_empty() {
        return Ok(());
    }
    let state = json!({
        "ociVersion": spec.version(),
        "id": id,
        "status": "stopped",
        "pid": 0,
        "bundle": dir,
        "annotations": spec.annotations().clone().unwrap_or_default(),
    });
    safe_fs::write_json(&dir.join(FILE), &PoststopHooks { hooks, state })
}

/// Runs all hooks; a failure is logged and does not stop the others. After a crash they may run
/// again.
pub(crate) fn run(dir: &Path) -> Result<(), FileError> {
    let file = dir.join(FILE);
    let PoststopHooks { hooks, state } = match safe_fs::read_json(&file) {
        Ok(Some(noted)) => noted,
        Ok(None) => return Ok(()),
        Err(error) => {
            // A retry would fail too, and the container must be removed.
            tracing::warn!(
                path = %file.display(),
                error = model::error_chain::chain(&error),
                "cannot read the poststop hooks of a removed container; they do not run"
            );
            return safe_fs::remove_file(&file);
        }
    };
    for hook in &hooks {
        if let Err(problem) = run_one(hook, &state) {
            tracing::warn!(container = %state["id"], hook = %hook.path().display(), problem, "a poststop hook of the removed container failed; the others still run");
        }
    }
    safe_fs::remove_file(&file)
}

fn run_one(hook: &Hook, state: &Value) -> Result<(), String> {
    let failed = |error: io::Error| format!("could not be run: {error}");
    let input = stdin(state).map_err(failed)?;
    let (output, theirs) = io::pipe().map_err(failed)?;
    let path = hook.path().display().to_string();
    let args = hook.args().clone().unwrap_or_default();
    let (name, rest) = args.split_first().map_or((&path, &[][..]), |(name, rest)| (name, rest));
    let variables = hook.env().iter().flatten().filter_map(|variable| variable.split_once('='));
    let mut command = Command::new(hook.path());
    command.arg0(name).args(rest).env_clear().envs(variables).current_dir("/").process_group(0);
    command.stdin(input).stdout(theirs.try_clone().map_err(failed)?).stderr(theirs);
    let child = command.spawn().map_err(failed)?;
    // The command holds the other end of the output, too.
    drop(command);
    let time = hook.timeout().and_then(|seconds| u64::try_from(seconds).ok()).map_or(USUAL, Duration::from_secs);
    let pid = i32::try_from(child.id()).map_err(|e| e.to_string())?;
    let Ended { status, words } = sys::child_wait::wait(pid, &output.into(), time).map_err(failed)?;
    match status.map(|status| (status.exit_status(), status.terminating_signal())) {
        Some((Some(0), _)) => Ok(()),
        Some((Some(code), _)) => Err(format!("exit status {code}: {words}")),
        Some((None, signal)) => Err(format!("killed by signal {}: {words}", signal.unwrap_or(0))),
        None => Err(format!("did not end within {} s: {words}", time.as_secs())),
    }
}

/// Returns a file in memory, so that no process blocks while the hook does not read.
fn stdin(state: &Value) -> io::Result<Stdio> {
    let mut file = File::from(rustix::fs::memfd_create("state", rustix::fs::MemfdFlags::CLOEXEC)?);
    serde_json::to_writer(&mut file, state)?;
    file.rewind()?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(hooks: Value) -> Spec {
        let spec = json!({"ociVersion": "1.2.0", "annotations": {"a": "b"}, "hooks": {"poststop": hooks}});
        serde_json::from_value(spec).unwrap()
    }

    fn id() -> ContainerId {
        ContainerId::from_bytes([7; 32])
    }

    #[test]
    fn hooks_run_once_in_order_and_a_failure_does_not_stop_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let say = |word: &str| format!("echo {word} $A >> {}", out.display());
        let hook =
            |script: String| json!({"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["A=x"], "timeout": 20});
        let hooks = json!([
            hook(format!("cat > {}", dir.path().join("state").display())),
            hook(say("one")),
            hook("echo no >&2; exit 1".to_owned()),
            {"path": "/not/there"},
            {"path": "/bin/sleep", "args": ["sleep", "1000"], "timeout": 1},
            hook(say("two")),
        ]);
        note(dir.path(), &id(), &spec(hooks)).unwrap();
        run(dir.path()).unwrap();
        run(dir.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "one x\ntwo x\n");
        let state: Value = serde_json::from_slice(&std::fs::read(dir.path().join("state")).unwrap()).unwrap();
        assert_eq!(
            (&state["status"], &state["id"], &state["annotations"]["a"]),
            (&json!("stopped"), &json!(id()), &json!("b"))
        );
        assert_eq!(state["bundle"], json!(dir.path()));
    }

    #[test]
    fn a_container_without_hooks_has_no_hook_file() {
        let dir = tempfile::tempdir().unwrap();
        for hooks in [json!(null), json!([])] {
            note(dir.path(), &id(), &spec(hooks)).unwrap();
        }
        run(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
