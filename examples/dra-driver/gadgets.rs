//! What this node has, and what of it claims were allocated.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::claims::Uid;

#[derive(Debug, thiserror::Error)]
pub(crate) enum GadgetError {
    #[error("reading {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not understood: {source}")]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error("{0:?} is no name of a gadget: small letters, digits and dashes")]
    Name(String),
    #[error("there are two gadgets {0}")]
    Twice(String),
    #[error("pool {0:?} has no gadget {1:?}")]
    NoSuchGadget(String, String),
}

/// A device of this node's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gadget {
    pub(crate) name: String,
    /// The device node on the host.
    pub(crate) node: PathBuf,
}

/// One entry of a claim's `status.allocation.devices.results`. A real one says more.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Allotted {
    /// The request of the claim that this fulfils.
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
}

/// All gadgets of this node, which are one pool.
#[derive(Debug)]
pub(crate) struct Gadgets {
    pool: String,
    all: BTreeMap<String, Gadget>,
    allocations: PathBuf,
}

impl Gadgets {
    pub(crate) fn read(file: &Path, allocations: PathBuf) -> Result<Self, GadgetError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Node {
            pool: String,
            gadgets: Vec<Gadget>,
        }
        let Node { pool, gadgets } = read(file)?;
        let mut all = BTreeMap::new();
        for gadget in gadgets {
            if !is_name(&gadget.name) {
                return Err(GadgetError::Name(gadget.name));
            }
            if let Some(other) = all.insert(gadget.name.clone(), gadget) {
                return Err(GadgetError::Twice(other.name));
            }
        }
        Ok(Self { pool, all, allocations })
    }

    /// What a claim was allocated of them. A real driver asks the API server for the claim, and makes sure that its uid
    /// is the one it was told: a claim that was deleted and made anew has the same name.
    pub(crate) fn allotted(&self, claim: &Uid) -> Result<Vec<(Allotted, Gadget)>, GadgetError> {
        #[derive(Deserialize)]
        struct Allocation {
            results: Vec<Allotted>,
        }
        let Allocation { results } = read(&self.allocations.join(format!("{claim}.json")))?;
        let gadget = |allotted: Allotted| match self.all.get(&allotted.device) {
            Some(gadget) if allotted.pool == self.pool => Ok((allotted, gadget.clone())),
            Some(_) | None => Err(GadgetError::NoSuchGadget(allotted.pool, allotted.device)),
        };
        results.into_iter().map(gadget).collect()
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, GadgetError> {
    let bytes = std::fs::read(path).map_err(|source| GadgetError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&bytes).map_err(|source| GadgetError::Parse { path: path.to_owned(), source })
}

/// As Kubernetes has it, and good for a file, a device node and a CDI device.
fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| plain(b) || b == b'-')
        && text.bytes().next().is_some_and(plain)
        && text.bytes().next_back().is_some_and(plain)
}
