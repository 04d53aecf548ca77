//! Where the next address comes from, kept for the next daemon: an address that was just freed is used last, also after a start.

use std::path::PathBuf;

use ipnet::IpNet;
use safe_fs::FileError;
use serde::{Deserialize, Serialize};

use super::state::{Bridge, State};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    /// Of other pools it means nothing.
    pools: Vec<String>,
    next: u32,
}

impl Bridge {
    /// Goes on in the pools where an earlier daemon was, and keeps the position in this file from now on. After all pods that live
    /// were told of.
    pub fn resume(&self, file: PathBuf) -> Result<(), FileError> {
        let mut state = self.lock();
        let found = safe_fs::read_json::<Position>(&file);
        state.position = Some(file);
        if let Some(position) = found?.filter(|position| position.pools == names(state.pool.nets())) {
            state.pool.resume(position.next);
        }
        Ok(())
    }
}

/// Writes the position where it is further than was written. It is written ahead, so that few pods wait for it.
pub(super) fn keep(state: &mut State) {
    let Some(file) = &state.position else { return };
    let Some(next) = state.pool.position_to_keep() else { return };
    let position = Position { pools: names(state.pool.nets()), next };
    if let Err(error) = safe_fs::write_json(file, &position) {
        let error: &(dyn std::error::Error + 'static) = &error;
        tracing::debug!(error, "the position in the pool of addresses could not be kept");
    }
}

fn names(nets: &[IpNet]) -> Vec<String> {
    nets.iter().map(IpNet::to_string).collect()
}
