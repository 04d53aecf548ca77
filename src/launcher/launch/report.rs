//! What the processes of a launch tell the shim: one socket, many writers, each message whole.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};
use shim_protocol::{LaunchWarning, ShimErrorKind};

/// From the launcher, or from the container's first process before it runs its program.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// libcontainer's own words about what went wrong; its errors say little.
    Trace(String),
    /// A setting that this host could not apply.
    Warning(LaunchWarning),
    /// The terminal's master side comes beside this.
    Console,
    /// The log comes beside this.
    Log,
    Created {
        pid: u32,
        warnings: Vec<LaunchWarning>,
        /// It waits at the shim's own pipe for its start, not at libcontainer's socket.
        waits: bool,
    },
    Failed(String),
    /// The mounts or a hook failed at the hook gate. libcontainer reports that its own hook, which waited
    /// there, exited: the shim ignores its messages.
    HookGateFailed(String),
    Refused {
        kind: ShimErrorKind,
        words: String,
    },
}

/// No text in a message is longer: a message has to fit into a packet, whatever a container does to its words.
pub const WORDS_MAX: usize = 4096;

/// The beginning of a text, as long as it may be.
pub fn truncate(mut words: String) -> String {
    if words.len() > WORDS_MAX {
        let end = (0..=WORDS_MAX).rev().find(|i| words.is_char_boundary(*i)).unwrap_or(0);
        words.truncate(end);
        words.push('…');
    }
    words
}

/// Sends, and gives up silently: the shim learns from the end of the process what it did not hear.
pub(crate) fn send(socket: impl AsFd, report: &Report, fds: &[BorrowedFd<'_>]) {
    if let Ok(bytes) = shim_protocol::encode(report) {
        drop(sys::seqpacket::send(socket, &bytes, fds));
    }
}

/// The next report, if one is there; none at the end.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<(Report, Vec<OwnedFd>)>> {
    let Some((n, fds)) = sys::seqpacket::receive(socket, buffer)? else { return Ok(None) };
    let report = shim_protocol::decode(&buffer[..n]).map_err(io::Error::other)?;
    Ok(Some((report, fds)))
}

/// Carries libcontainer's error events to the shim, from whichever of its processes they come.
pub(crate) mod trace {
    use std::fmt::Write as _;
    use std::os::fd::OwnedFd;

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::{Report, send, truncate};

    #[derive(Debug)]
    pub(crate) struct ToShim(pub(crate) OwnedFd);

    struct Words(String);

    impl Visit for Words {
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
            let mut words = Words(String::new());
            event.record(&mut words);
            send(&self.0, &Report::Trace(truncate(words.0)), &[]);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
}
