//! The reports of a launch to the shim: one socket, several writers, one message per report.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};
use shim_protocol::{LaunchWarning, ShimErrorKind};

/// A report of the launcher, or of the container's first process before its program runs.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// An error event of libcontainer; the errors it returns have little detail.
    Trace(String),
    /// A setting that this host could not apply.
    Warning(LaunchWarning),
    /// The master end of the terminal, as a descriptor.
    Console,
    /// The open log, as a descriptor.
    Log,
    Created {
        pid: u32,
        warnings: Vec<LaunchWarning>,
        /// It waits for its start at the shim's pipe, not at libcontainer's socket.
        waits: bool,
    },
    Failed(String),
    /// The mounts or a hook failed at the hook gate. libcontainer reports that its own hook, which
    /// waited there, exited: the shim ignores its messages.
    HookGateFailed(String),
    Refused {
        kind: ShimErrorKind,
        message: String,
    },
}

/// The maximum length of a text in bytes, so that a message fits into a packet whatever a container
/// adds to it.
pub const MESSAGE_MAX: usize = 4096;

/// Shortens a text to its maximum length.
pub fn truncate(mut text: String) -> String {
    if text.len() > MESSAGE_MAX {
        let end = (0..=MESSAGE_MAX).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Sends a report and ignores errors: the shim notices the exit of the process.
pub(crate) fn send(socket: impl AsFd, report: &Report, fds: &[BorrowedFd<'_>]) {
    if let Ok(bytes) = shim_protocol::encode(report) {
        drop(sys::seqpacket::send(socket, &bytes, fds));
    }
}

/// Receives the next report, if there is one; `None` at the end.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<(Report, Vec<OwnedFd>)>> {
    let Some((n, fds)) = sys::seqpacket::receive(socket, buffer)? else { return Ok(None) };
    let report = shim_protocol::decode(&buffer[..n]).map_err(io::Error::other)?;
    Ok(Some((report, fds)))
}

/// Sends error events of libcontainer to the shim, from each of its processes.
pub(crate) mod trace {
    use std::fmt::Write as _;
    use std::os::fd::OwnedFd;

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::{Report, send, truncate};

    #[derive(Debug)]
    pub(crate) struct ToShim(pub(crate) OwnedFd);

    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            let space = if self.0.is_empty() { "" } else { " " };
            let written = match field.name() {
                "message" => write!(self.0, "{space}{value:?}"),
                name => write!(self.0, "{space}{name}={value:?}"),
            };
            debug_assert!(written.is_ok(), "writing to a string cannot fail");
        }
    }

    impl Subscriber for ToShim {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::ERROR
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            send(&self.0, &Report::Trace(truncate(text.0)), &[]);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
}
