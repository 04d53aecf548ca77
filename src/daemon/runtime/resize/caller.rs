//! The caller of a resize: a client on the Unix socket, or the daemon itself.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};

use serde::{Deserialize, Serialize};

/// Maximum bytes of a program's name; the kernel's limit is 15 (`TASK_COMM_LEN`, include/linux/sched.h).
const NAME_MAX: u64 = 64;

/// The process at the other end of a connection, when it connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peer {
    /// `None` if the process is in another PID namespace.
    pub(crate) pid: Option<i32>,
    pub(crate) uid: u32,
    /// The name in /proc/PID/comm, escaped; empty if the process had exited. A process can choose its own name.
    pub(crate) program: String,
}

impl Peer {
    pub(crate) fn new(pid: Option<i32>, uid: u32) -> Self {
        let program = pid.and_then(|pid| program(pid).ok()).unwrap_or_default();
        Self { pid, uid, program }
    }
}

/// Returns the name of a process.
fn program(pid: i32) -> io::Result<String> {
    let mut name = Vec::new();
    File::open(format!("/proc/{pid}/comm"))?.take(NAME_MAX).read_to_end(&mut name)?;
    Ok(escaped(name.strip_suffix(b"\n").unwrap_or(&name)))
}

/// Returns a name without control characters and bytes that a terminal could interpret.
fn escaped(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

/// Work of the daemon that changes limits without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DaemonTask {
    /// The daemon restored limits that a reload of systemd changed.
    SystemdReload,
}

impl DaemonTask {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::SystemdReload => "systemd reload",
        }
    }
}

/// The caller of a resize.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Caller {
    /// `None` for the daemon's own work, and in journals of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<Peer>,
    /// The trace ID in the header `traceparent`, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) task: Option<DaemonTask>,
}

impl Caller {
    pub(crate) fn client(peer: Option<Peer>, trace: Option<String>) -> Self {
        Self { peer, trace, task: None }
    }

    pub(crate) fn daemon(task: DaemonTask) -> Self {
        Self { task: Some(task), ..Self::default() }
    }
}

/// `kubelet[812]`, with the user unless it is root.
impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(task) = self.task {
            return write!(f, "crisp ({})", task.as_str());
        }
        let Some(peer) = &self.peer else { return f.write_str("unknown") };
        f.write_str(if peer.program.is_empty() { "unknown" } else { &peer.program })?;
        if let Some(pid) = peer.pid {
            write!(f, "[{pid}]")?;
        }
        if peer.uid != 0 {
            write!(f, " uid {}", peer.uid)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_shown_with_its_program_and_pid() {
        let peer = |program: &str, pid, uid| Some(Peer { pid, uid, program: program.to_owned() });
        for (caller, text) in [
            (Caller::client(peer("kubelet", Some(812), 0), None), "kubelet[812]"),
            (Caller::client(peer("crictl", Some(9), 1000), None), "crictl[9] uid 1000"),
            (Caller::client(peer("", None, 0), None), "unknown"),
            (Caller::daemon(DaemonTask::SystemdReload), "crisp (systemd reload)"),
            (Caller::default(), "unknown"),
        ] {
            assert_eq!(caller.to_string(), text);
        }
    }

    #[test]
    fn the_name_of_a_program_is_escaped_and_bounded() {
        assert_eq!(escaped(b"a\x1b[2J\n\"b\xff"), r#"a\x1b[2J\n\"b\xff"#);
        let own = i32::try_from(std::process::id()).unwrap();
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(Peer::new(Some(own), 0).program, comm.trim_end());
        assert_eq!(Peer::new(Some(i32::MAX), 0).program, "");
        assert_eq!(Peer::new(None, 7), Peer { pid: None, uid: 7, program: String::new() });
    }
}
