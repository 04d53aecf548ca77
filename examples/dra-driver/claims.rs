//! Prepared claims of this node.
//!
//! A prepared claim has a directory `claims/UID` with a record of its devices, and a CDI spec. The
//! directory is created first and removed last, so an interrupted call is completed by its
//! repetition.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::gadgets::{Allotted, Gadget, GadgetError, Gadgets};
use crate::spec;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("invalid claim uid {0:?}: expected letters, digits and dashes")]
    Uid(String),
    #[error("reading the claim's allocation: {0}")]
    Allocation(#[from] GadgetError),
    #[error("gadget {gadget} is in use by claim {other}")]
    InUse { gadget: String, other: Uid },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// The uid of a claim. It becomes part of file names, so it must be a plain name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Uid(String);

impl FromStr for Uid {
    type Err = ClaimError;

    fn from_str(text: &str) -> Result<Self, ClaimError> {
        let good = (1..=63).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !text.starts_with('-')
            && !text.ends_with('-');
        if good { Ok(Self(text.to_owned())) } else { Err(ClaimError::Uid(text.to_owned())) }
    }
}

impl TryFrom<String> for Uid {
    type Error = ClaimError;

    fn try_from(text: String) -> Result<Self, ClaimError> {
        text.parse()
    }
}

impl From<Uid> for String {
    fn from(uid: Uid) -> String {
        uid.0
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A claim in a request of the kubelet.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// The record of a prepared claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prepared {
    pub(crate) uid: Uid,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) devices: Vec<PreparedDevice>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PreparedDevice {
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) name: String,
    pub(crate) node: PathBuf,
    /// The fully qualified CDI name.
    pub(crate) cdi: String,
}

/// All prepared claims. A lock serializes changes.
#[derive(Debug)]
pub(crate) struct Claims {
    driver: String,
    gadgets: Gadgets,
    /// Contains a directory for each claim.
    dir: PathBuf,
    cdi_dir: PathBuf,
    prepared: Mutex<BTreeMap<Uid, Prepared>>,
}

const RECORD: &str = "claim.json";

impl Claims {
    /// Reads the claims that an earlier run prepared.
    pub(crate) fn open(driver: &str, gadgets: Gadgets, dir: PathBuf, cdi_dir: PathBuf) -> Result<Self, ClaimError> {
        fs::create_dir_all(&dir).map_err(|source| ClaimError::File { path: dir.clone(), source })?;
        let mut prepared = BTreeMap::new();
        for entry in fs::read_dir(&dir).map_err(|source| ClaimError::File { path: dir.clone(), source })? {
            let path = entry.map_err(|source| ClaimError::File { path: dir.clone(), source })?.path().join(RECORD);
            let failed = |source| ClaimError::File { path: path.clone(), source };
            match fs::read(&path) {
                // Interrupted before the record was written: the directory is still empty.
                Err(missing) if missing.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
                Ok(bytes) => {
                    let claim: Prepared = serde_json::from_slice(&bytes).map_err(|e| failed(e.into()))?;
                    prepared.insert(claim.uid.clone(), claim);
                }
            }
        }
        Ok(Self { driver: driver.to_owned(), gadgets, dir, cdi_dir, prepared: Mutex::new(prepared) })
    }

    /// Prepares a claim. A prepared claim keeps its devices, even if its allocation has changed;
    /// but its CDI spec is written again, since a reboot may have removed it.
    pub(crate) fn prepare(&self, asked: &Claim) -> Result<Prepared, ClaimError> {
        let uid: Uid = asked.uid.parse()?;
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let claim = match prepared.get(&uid) {
            Some(claim) => claim.clone(),
            None => self.allot(asked, uid, &prepared)?,
        };
        let dir = self.dir.join(&claim.uid.0);
        fs::create_dir_all(&dir).map_err(|source| ClaimError::File { path: dir.clone(), source })?;
        let record = serde_json::to_vec_pretty(&claim).map_err(io::Error::other);
        let path = dir.join(RECORD);
        let written = record.and_then(|bytes| replace(&path, &bytes));
        written.map_err(|source| ClaimError::File { path, source })?;
        // From here on the claim must be unprepared, even if the next steps fail.
        prepared.insert(claim.uid.clone(), claim.clone());
        let path = self.spec_of(&claim.uid);
        let text = spec::of(&self.driver, &claim, &dir).to_string();
        replace(&path, text.as_bytes()).map_err(|source| ClaimError::File { path, source })?;
        Ok(claim)
    }

    /// Unprepares a claim; does nothing if it is not prepared.
    pub(crate) fn unprepare(&self, asked: &Claim) -> Result<(), ClaimError> {
        let uid: Uid = asked.uid.parse()?;
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let (spec, dir) = (self.spec_of(&uid), self.dir.join(&uid.0));
        gone(fs::remove_file(&spec)).map_err(|source| ClaimError::File { path: spec, source })?;
        gone(fs::remove_dir_all(&dir)).map_err(|source| ClaimError::File { path: dir, source })?;
        prepared.remove(&uid);
        Ok(())
    }

    /// Returns the devices of the claim. The scheduler allocates a device only once; this check is
    /// the last one before two pods would share a device.
    fn allot(&self, asked: &Claim, uid: Uid, prepared: &BTreeMap<Uid, Prepared>) -> Result<Prepared, ClaimError> {
        let mut devices = Vec::new();
        for (Allotted { request, pool, device: _ }, Gadget { name, node }) in self.gadgets.allotted(&uid)? {
            let user = prepared.values().find(|claim| claim.devices.iter().any(|device| device.name == name));
            if let Some(other) = user {
                return Err(ClaimError::InUse { gadget: name, other: other.uid.clone() });
            }
            let cdi = spec::device_id(&self.driver, &uid, &name);
            devices.push(PreparedDevice { request, pool, name, node, cdi });
        }
        Ok(Prepared { uid, namespace: asked.namespace.clone(), name: asked.name.clone(), devices })
    }

    fn spec_of(&self, uid: &Uid) -> PathBuf {
        self.cdi_dir.join(format!("{}-claim_{uid}.json", self.driver))
    }
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Replaces a file atomically, so that a runtime never reads an incomplete spec. Runtimes ignore
/// the extension of the temporary file.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, bytes)?;
    fs::File::open(&new)?.sync_all()?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestEnv {
        dir: tempfile::TempDir,
    }

    impl TestEnv {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for name in ["cdi", "allocations"] {
                fs::create_dir(dir.path().join(name)).unwrap();
            }
            Self { dir }
        }

        fn claims(&self) -> Claims {
            let gadgets = Path::new(env!("CARGO_MANIFEST_DIR")).join("gadgets.json");
            let gadgets = Gadgets::read(&gadgets, self.dir.path().join("allocations")).unwrap();
            Claims::open("d.example", gadgets, self.dir.path().join("claims"), self.dir.path().join("cdi")).unwrap()
        }

        fn allocate(&self, uid: &str, gadget: &str) {
            let text = format!(r#"{{"results": [{{"request": "r", "pool": "this-node", "device": "{gadget}"}}]}}"#);
            fs::write(self.dir.path().join(format!("allocations/{uid}.json")), text).unwrap();
        }

        fn files(&self, dir: &str) -> Vec<String> {
            let names = fs::read_dir(self.dir.path().join(dir)).unwrap();
            let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    fn claim(uid: &str) -> Claim {
        Claim { namespace: "default".into(), name: "mine".into(), uid: uid.into() }
    }

    #[test]
    fn preparing_and_unpreparing_are_idempotent() {
        let env = TestEnv::new();
        let claims = env.claims();
        env.allocate("u1", "gadget-0");
        let first = claims.prepare(&claim("u1")).unwrap();
        assert_eq!(first.devices[0].cdi, "d.example/claim=u1-gadget-0");
        assert_eq!(env.files("cdi"), ["d.example-claim_u1.json"]);
        fs::remove_file(env.dir.path().join("allocations/u1.json")).unwrap();
        fs::remove_file(env.dir.path().join("cdi/d.example-claim_u1.json")).unwrap();
        // Another run after a reboot, when the allocation is no longer available.
        let claims = env.claims();
        assert_eq!(claims.prepare(&claim("u1")).unwrap(), first);
        assert_eq!(env.files("cdi"), ["d.example-claim_u1.json"]);
        for _ in 0..2 {
            claims.unprepare(&claim("u1")).unwrap();
            assert_eq!((env.files("cdi"), env.files("claims")), (vec![], vec![]));
        }
        claims.unprepare(&claim("never-seen")).unwrap();
    }

    #[test]
    fn a_gadget_is_never_prepared_for_two_claims() {
        let env = TestEnv::new();
        let claims = env.claims();
        env.allocate("u1", "gadget-0");
        env.allocate("u2", "gadget-0");
        claims.prepare(&claim("u1")).unwrap();
        let refused = env.claims().prepare(&claim("u2")).unwrap_err().to_string();
        assert!(refused.contains("gadget-0") && refused.contains("u1"), "{refused}");
        assert_eq!(env.files("claims"), ["u1"]);
        claims.unprepare(&claim("u1")).unwrap();
        claims.prepare(&claim("u2")).unwrap();
    }

    #[test]
    fn hostile_uids_are_refused() {
        let env = TestEnv::new();
        let claims = env.claims();
        fs::write(env.dir.path().join("precious.json"), "").unwrap();
        let long = "a".repeat(64);
        for uid in
            ["", ".", "..", "../precious", "a/b", "/etc/passwd", "a\0b", "a b", "-a", "a-", "ä", "a.b", "a\n", &long]
        {
            assert!(matches!(claims.prepare(&claim(uid)), Err(ClaimError::Uid(_))), "{uid:?}");
            assert!(matches!(claims.unprepare(&claim(uid)), Err(ClaimError::Uid(_))), "{uid:?}");
        }
        assert_eq!((env.files("cdi"), env.files("claims")), (vec![], vec![]));
        assert!(env.dir.path().join("precious.json").exists());
    }

    #[test]
    fn claims_without_a_valid_allocation_are_refused() {
        let env = TestEnv::new();
        let claims = env.claims();
        assert!(claims.prepare(&claim("u1")).unwrap_err().to_string().contains("u1.json"));
        env.allocate("u1", "gadget-9");
        assert!(claims.prepare(&claim("u1")).unwrap_err().to_string().contains("gadget-9"));
        fs::write(env.dir.path().join("allocations/u1.json"), "[").unwrap();
        assert!(claims.prepare(&claim("u1")).unwrap_err().to_string().contains("parsing"));
        assert_eq!((env.files("cdi"), env.files("claims")), (vec![], vec![]));
    }
}
