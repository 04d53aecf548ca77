//! Steps that are shown as they are made, each with its time.

use std::future::Future;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::color::Color;
use super::super::signals::Interrupt;
use super::lifecycle::SelftestError;

/// No step of a working daemon takes as long: it is stuck.
const WITHIN: Duration = Duration::from_secs(300);

/// A step that was made.
#[derive(Debug, Clone, Serialize)]
pub(in super::super) struct Record {
    pub(in super::super) step: &'static str,
    pub(in super::super) ok: bool,
    pub(in super::super) milliseconds: f64,
    /// What came of it.
    pub(in super::super) note: String,
}

/// A step that failed, or that was not begun.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum Failed {
    #[error("the step {step:?} failed")]
    Step { step: &'static str, source: SelftestError },
    #[error("interrupted")]
    Interrupted,
}

pub(in super::super) struct Steps {
    interrupt: Arc<Interrupt>,
    /// Whether they are printed.
    shown: bool,
    /// Whether a line can be written over.
    terminal: bool,
    color: Color,
    records: Vec<Record>,
}

impl Steps {
    pub(in super::super) fn new(interrupt: Arc<Interrupt>, shown: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        Self { interrupt, shown, terminal, color: Color::stdout(), records: Vec::new() }
    }

    pub(in super::super) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Makes one step to its end: the daemon would go on with it in any case. A signal is heeded between two steps.
    pub(in super::super) async fn step<T>(
        &mut self,
        step: &'static str,
        work: impl Future<Output = Result<(T, String), SelftestError>>,
    ) -> Result<T, Failed> {
        if self.interrupt.is_stopped() {
            return Err(Failed::Interrupted);
        }
        self.begin(step);
        let begin = Instant::now();
        let done = tokio::time::timeout(WITHIN, work).await.unwrap_or(Err(SelftestError::Late(WITHIN)));
        let milliseconds = begin.elapsed().as_secs_f64() * 1000.0;
        let (ok, note) = match &done {
            Ok((_, note)) => (true, note.clone()),
            Err(error) => (false, model::error_chain::chain(error)),
        };
        let record = Record { step, ok, milliseconds, note };
        self.end(&record);
        self.records.push(record);
        done.map(|(value, _)| value).map_err(|source| Failed::Step { step, source })
    }

    /// Pauses, unless a signal comes.
    pub(in super::super) async fn pause(&self, time: Duration) -> Result<(), Failed> {
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(()),
            () = self.interrupt.stopped() => Err(Failed::Interrupted),
        }
    }

    /// Shows how something stands that takes a while, over and over in one line; only its end stays.
    pub(in super::super) fn watch(&self, name: &str, note: &str, end: bool) {
        let mut out = io::stdout();
        // Nobody needs to read along for the steps to count.
        if end {
            let start = if self.terminal { "\r\x1b[K" } else { "" };
            writeln!(out, "{start}      {name:<22} {:11}   {note}", "").ok();
        } else if self.terminal {
            write!(out, "\r\x1b[K      {name:<22} {:11}   {note}", "").and_then(|()| out.flush()).ok();
        }
    }

    fn begin(&self, step: &str) {
        if self.shown && self.terminal {
            let mut out = io::stdout();
            write!(out, "  {}  {step}", self.color.faint("..")).and_then(|()| out.flush()).ok();
        }
    }

    fn end(&self, record: &Record) {
        let Record { step, ok, milliseconds, note } = record;
        if self.shown {
            let mark = if *ok { self.color.good("ok") } else { self.color.bad("FAILED") };
            let time = self.color.faint(&format!("{milliseconds:>8.1} ms"));
            let start = if self.terminal { "\r\x1b[K" } else { "" };
            writeln!(io::stdout(), "{start}  {mark}  {step:<22} {time}   {note}").ok();
        }
    }
}
