//! In-place resize: one [`transaction`] for pods and containers, its journal, the outcomes, and
//! limits after a systemd reload. Each resize that does anything ends as a [`finished::FinishedResize`].

pub(crate) mod caller;
pub(crate) mod finished;
pub(crate) mod history;
pub(crate) mod journal;
pub(crate) mod notice;
pub(crate) mod outcomes;
pub(crate) mod resources;
mod span;
mod systemd_reload;
pub(crate) mod times;
pub(crate) mod transaction;
