//! In-place resize: the journal of a change, its outcomes, and limits after a systemd reload.
//!
//! `container/update.rs` and `pod/update.rs` plan a change and hand it to [`journal`].

pub(crate) mod journal;
pub(crate) mod outcomes;
mod systemd_reload;
