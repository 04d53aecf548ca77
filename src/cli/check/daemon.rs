//! Checks the daemon on the configured socket, and whether it uses the same configuration.

use std::os::unix::net::UnixStream;
use std::path::Path;

use config::{CgroupDriver, Config};
use cri_api::v1;
use model::error_chain::chain;

use super::super::client::{ConnectError, Cri};
use super::super::verbose_info;
use super::super::verbose_info::DaemonInfo;
use super::finding::Finding;

const TOPIC: &str = "daemon";
/// The reason of NetworkReady=false with network.mode = "none".
const NETWORK_OFF: &str = "NetworkOff";

/// Answers of the daemon.
pub(super) struct Answer {
    pub(super) pid: u32,
    status: v1::StatusResponse,
    version: v1::VersionResponse,
}

/// Queries version and status of the daemon on `socket`.
pub(super) async fn check(socket: &Path) -> Result<Answer, Finding> {
    let start = "start it with `crisp serve`, or `systemctl start crisp`";
    let cri = match Cri::connect(socket).await {
        Ok(cri) => cri,
        Err(ConnectError::Absent(_)) => {
            let what = format!("not running: {} not found", socket.display());
            return Err(Finding::warn(TOPIC, "socket", what, start));
        }
        Err(ConnectError::Stale(_)) => {
            let what = format!(
                "not running: {} is a stale socket of a previous daemon; the next start replaces it",
                socket.display()
            );
            return Err(Finding::warn(TOPIC, "socket", what, start));
        }
        Err(other) => return Err(Finding::warn(TOPIC, "socket", chain(&other), start)),
    };
    let asked = async {
        let version = cri.runtime().version(v1::VersionRequest::default()).await?.into_inner();
        let status = cri.runtime().status(v1::StatusRequest { verbose: true }).await?.into_inner();
        Ok::<_, tonic::Status>((version, status))
    };
    let (version, status) = asked.await.map_err(|error| {
        let hint = "see the daemon's log: journalctl -u crisp";
        Finding::missing(TOPIC, "socket", format!("the status request failed: {}", error.message()), hint)
    })?;
    Ok(Answer { pid: peer(socket).unwrap_or_else(std::process::id), status, version })
}

fn peer(socket: &Path) -> Option<u32> {
    let stream = UnixStream::connect(socket).ok()?;
    let pid = rustix::net::sockopt::socket_peercred(&stream).ok()?.pid;
    u32::try_from(pid.as_raw_pid()).ok()
}

/// Compares the daemon's answers with the configuration and with this version.
pub(super) fn judge_peer(answer: &Answer, config: &Config) -> Vec<Finding> {
    let v1::VersionResponse { runtime_name, runtime_version, .. } = &answer.version;
    let ours = env!("CARGO_PKG_VERSION");
    let mut found = vec![match (runtime_name.as_str(), runtime_version.as_str()) {
        ("crisp", version) if version == ours => Finding::ok(
            TOPIC,
            "version",
            format!("crisp {version}, pid {}, on {}", answer.pid, config.listen.display()),
        ),
        (name, version) => Finding::warn(
            TOPIC,
            "version",
            format!("{name} {version} on {}, but this program is crisp {ours}", config.listen.display()),
            "restart the daemon after an upgrade; pods keep running",
        ),
    }];
    for condition in answer.status.status.iter().flat_map(|status| &status.conditions) {
        let v1::RuntimeCondition { r#type, status, reason, message } = condition;
        found.push(if *status {
            let what = if message.is_empty() { "true" } else { message };
            Finding::ok(TOPIC, r#type.clone(), what)
        } else {
            let hint = "see the findings above and the daemon's log";
            let what = format!("false ({reason}): {message}");
            // With network.mode = "none" pods run, though a kubelet keeps the node NotReady.
            match reason.as_str() {
                NETWORK_OFF => Finding::warn(TOPIC, r#type.clone(), what, hint),
                _ => Finding::missing(TOPIC, r#type.clone(), what, hint).essential(),
            }
        });
    }
    match verbose_info::read::<DaemonInfo>(&answer.status.info) {
        Ok(info) => found.push(settings(&info, config)),
        Err(error) => {
            found.push(Finding::warn(TOPIC, "settings", chain(&error), "restart the daemon after an upgrade"))
        }
    }
    found
}

/// Compares the daemon's settings with the configuration: it may have been started with others, or before a change.
fn settings(info: &DaemonInfo, config: &Config) -> Finding {
    let driver = match config.cgroup.driver {
        CgroupDriver::Cgroupfs => "cgroupfs",
        CgroupDriver::Systemd => "systemd",
    };
    let pairs = [
        ("root", info.root.display().to_string(), config.root.display().to_string()),
        ("state", info.state.display().to_string(), config.state.display().to_string()),
        ("cgroup.driver", info.cgroup_driver.split(' ').next().unwrap_or_default().to_owned(), driver.to_owned()),
    ];
    let other: Vec<String> = pairs
        .iter()
        .filter(|(_, actual, expected)| actual != expected)
        .map(|(key, actual, expected)| format!("{key} is {actual}, expected {expected}"))
        .collect();
    if other.is_empty() {
        let what = format!("same as in the configuration; {} pods, {} containers", info.pods, info.containers);
        return Finding::ok(TOPIC, "settings", what);
    }
    let hint = "restart the daemon, or run this command with the options of the daemon";
    Finding::warn(TOPIC, "settings", format!("different from the configuration: {}", other.join(", ")), hint)
}
