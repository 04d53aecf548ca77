//! The devices of this node, and their allocation to claims.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::claims::Uid;

#[derive(Debug, thiserror::Error)]
pub(crate) enum GadgetError {
    #[error("reading {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("parsing {path}: {source}")]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error("invalid gadget name {0:?}: expected lower-case letters, digits and dashes")]
    Name(String),
    #[error("duplicate gadget {0}")]
    Twice(String),
    #[error("gadget {1:?} not found in pool {0:?}")]
    NoSuchGadget(String, String),
}

/// A device of this node.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gadget {
    pub(crate) name: String,
    /// Path of the device node on the host.
    pub(crate) node: PathBuf,
}

/// One entry of a claim's `status.allocation.devices.results`. A real one has more fields.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Allotted {
    /// The request of the claim that this device fulfils.
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
}

/// All gadgets of this node; they form one pool.
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

    /// Returns the gadgets that a claim was allocated. A real driver reads the claim from the API
    /// server and compares its uid with that of the request: a claim that was deleted and created
    /// again has the same name.
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

/// Checks a name: valid in Kubernetes, and as name of a file, a device node and a CDI device.
fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.bytes().all(|b| plain(b) || b == b'-')
        && text.bytes().next().is_some_and(plain)
        && text.bytes().next_back().is_some_and(plain)
}
