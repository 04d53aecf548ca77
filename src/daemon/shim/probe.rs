//! Runs the shim's program to check what this host supports.

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::ShimProgram;

/// Far more than the check takes.
const PROBE_WITHIN: Duration = Duration::from_secs(20);

impl ShimProgram {
    /// Returns why pods cannot have user namespaces; `None` if they can. `dir` is an empty
    /// directory on the file system of the images' layers.
    pub async fn probe(&self, dir: &Path, state: &Path) -> Option<String> {
        let mut command = tokio::process::Command::new(format!("/proc/self/fd/{}", self.fd().as_raw_fd()));
        command.arg0("crisp-shim").arg("probe").arg(dir).arg(state);
        command.env_clear().current_dir("/").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(PROBE_WITHIN, command.output()).await {
            Ok(Ok(done)) if done.status.success() => None,
            Ok(Ok(done)) => match String::from_utf8_lossy(&done.stdout).trim() {
                "" => Some(format!("the probe exited with {}", done.status)),
                words => Some(words.to_owned()),
            },
            Ok(Err(error)) => Some(format!("the probe could not be run: {error}")),
            Err(_) => Some(format!("the probe took longer than {PROBE_WITHIN:?}")),
        }
    }
}
