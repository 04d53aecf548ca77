//! Stores the position in the pools for the next daemon, so that a freed address is used last.

use std::path::PathBuf;

use ipnet::IpNet;
use safe_fs::FileError;
use serde::{Deserialize, Serialize};

use super::state::{Bridge, State};

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    /// The pools that the position is for.
    pools: Vec<String>,
    next: u32,
}

impl Bridge {
    /// Continues at the stored position if the pools are the same, and stores it in this file from
    /// now on. Restore all running pods first.
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

/// Stores the position if it has passed the stored one. It is stored ahead, so that few pods wait
/// for the write.
pub(super) fn keep(state: &mut State) {
    let Some(file) = &state.position else { return };
    let Some(next) = state.pool.position_to_keep() else { return };
    let position = Position { pools: names(state.pool.nets()), next };
    if let Err(error) = safe_fs::write_json(file, &position) {
        let error: &(dyn std::error::Error + 'static) = &error;
        tracing::debug!(
            error,
            "cannot record the last allocated pod address; after a restart, addresses may be reused sooner"
        );
    }
}

fn names(nets: &[IpNet]) -> Vec<String> {
    nets.iter().map(IpNet::to_string).collect()
}
