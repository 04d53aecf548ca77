//! Stores for tests, and images added to them without a registry.

use std::path::Path;
use std::sync::Arc;

use model::ErrorClass as _;
use safe_fs::FileError;

use crate::config::ConfigBlob;
use crate::digest::Digest;
use crate::layer::free_space::Reserve;
use crate::layer::unpack::UnpackError;
use crate::limits::Limits;
use crate::record::Image;
use crate::registry::endpoint::Registries;
use crate::store::Store;
use crate::store::catalog::OpenError;
use crate::store::commit::{LayerPlan, NewImage};
use crate::test_support::{Made, Tar};

pub(crate) fn open(path: &Path) -> Store {
    try_open(path).unwrap()
}

/// Opens a store that no other part of the test has open.
pub(crate) fn try_open(path: &Path) -> Result<Store, OpenError> {
    // No reserve: tests of a full disk must reach every step.
    let limits = Limits { reserve: Reserve { bytes: 0, inodes: 0 }, ..Limits::default() };
    // A process that another test is starting may inherit the lock for a moment.
    for _ in 0..100 {
        match Store::open(path, Registries::default(), limits) {
            Err(OpenError::InUse(_)) => std::thread::sleep(std::time::Duration::from_millis(10)),
            other => return other,
        }
    }
    panic!("{} stays in use", path.display());
}

/// Adds an image of these layers, lowest first, as a pull does.
pub(crate) fn add(store: &Store, tars: &[Vec<u8>], name: &str) -> Arc<Image> {
    try_add(store, tars, name).unwrap()
}

/// The reason why an image could not be added.
#[derive(Debug)]
pub(crate) enum AddError {
    Unpack(UnpackError),
    Disk(FileError),
}

impl AddError {
    pub(crate) fn kind(&self) -> model::ErrorKind {
        match self {
            Self::Unpack(error) => error.kind(),
            Self::Disk(error) => error.kind(),
        }
    }
}

impl AddError {
    pub(crate) fn cause(&self) -> &(dyn std::error::Error + 'static) {
        match self {
            Self::Unpack(error) => error,
            Self::Disk(error) => error,
        }
    }
}

pub(crate) fn try_add(store: &Store, tars: &[Vec<u8>], name: &str) -> Result<Arc<Image>, AddError> {
    let made = Made::new(tars, |tar| tar.to_vec());
    let blob = ConfigBlob::parse(&made.config).unwrap();
    let chain = blob.chain();
    let _pin = store.catalog.pin(chain.clone());
    let mut ready = Vec::new();
    for (at, tar) in tars.iter().enumerate() {
        let plan = LayerPlan {
            chain_id: chain[at].clone(),
            diff_id: blob.diff_ids[at].clone(),
            parent: at.checked_sub(1).map(|below| chain[below].clone()),
            blob: None,
            registry: None,
        };
        ready.push(match store.catalog.ready(&plan.chain_id) {
            Some(have) => have,
            None => store.catalog.stage(&plan, &tar[..], &store.limits()).map_err(AddError::Unpack)?,
        });
    }
    let new = NewImage {
        id: made.id(),
        config_json: made.config.clone(),
        user: blob.config.user,
        manifest: Some((Digest::of(&made.manifest), made.manifest.clone())),
        chain,
        tags: vec![name.to_owned()],
        digests: vec![format!("a.b/x@{}", Digest::of(&made.manifest))],
    };
    store.catalog.add(new, &ready).map_err(AddError::Disk)
}

pub(crate) fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub(crate) fn base() -> Vec<u8> {
    Tar::default().file("base", b"base").end()
}

pub(crate) fn top(text: &str) -> Vec<u8> {
    Tar::default().file("top", text.as_bytes()).end()
}

/// Returns the disk usage of all files in a tree, as `du` would count it.
pub(crate) fn walk(root: &Path) -> crate::layer::confined_root::DiskUsage {
    let root = crate::layer::confined_root::ConfinedRoot::open(root).unwrap();
    crate::layer::confined_root::disk_usage(std::os::fd::AsFd::as_fd(&root.directory(Path::new(".")).unwrap()), None)
        .unwrap()
}
