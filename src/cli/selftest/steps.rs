//! Runs steps and prints each one with its duration.

use std::future::Future;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::color::Color;
use super::super::signals::Interrupt;
use super::lifecycle::SelftestError;

/// Timeout of a step; no step of a working daemon takes this long.
const WITHIN: Duration = Duration::from_secs(300);

/// A completed step.
#[derive(Debug, Clone, Serialize)]
pub(in super::super) struct Record {
    pub(in super::super) step: &'static str,
    pub(in super::super) ok: bool,
    pub(in super::super) milliseconds: f64,
    /// Result or error.
    pub(in super::super) note: String,
}

/// A step failed, or was not begun because of a signal.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum Failed {
    #[error("step {step:?} of the test pod failed")]
    Step { step: &'static str, source: SelftestError },
    #[error("the test pod run was interrupted by a signal")]
    Interrupted,
}

pub(in super::super) struct Steps {
    interrupt: Arc<Interrupt>,
    /// Whether steps are printed.
    shown: bool,
    /// Whether stdout is a terminal, where a line can be overwritten.
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

    /// Runs one step to its end: the daemon would complete it in any case. Signals are handled between steps.
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

    /// Sleeps until the time is over or a signal arrives.
    pub(in super::super) async fn pause(&self, time: Duration) -> Result<(), Failed> {
        tokio::select! {
            () = tokio::time::sleep(time) => Ok(()),
            () = self.interrupt.stopped() => Err(Failed::Interrupted),
        }
    }

    /// Shows a changing value in one line, on a terminal; elsewhere prints only the last value.
    pub(in super::super) fn watch(&self, name: &str, note: &str, end: bool) {
        let mut out = io::stdout();
        // A failed write to stdout must not stop the steps.
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
