//! In-place resize: one [`transaction`] for pods and containers, its journal, the outcomes, and
//! limits after a systemd reload.

pub(crate) mod journal;
pub(crate) mod outcomes;
mod systemd_reload;
pub(crate) mod transaction;
