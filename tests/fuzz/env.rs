//! Where layers are unpacked: a layer to be on top of, a fresh directory for each, and a canary beside it.

use std::path::{Path, PathBuf};

use image::fuzzing::{Canary, unpack};

/// The layer below: something of each kind, and a link that leads out if followed blindly.
const BELOW: &[u8] = include_bytes!("seeds/tar/each-kind-once");

/// A directory of its own, removed with all in it when dropped.
#[derive(Debug)]
pub struct TestEnv {
    directory: tempfile::TempDir,
    below: Vec<PathBuf>,
}

impl Default for TestEnv {
    fn default() -> Self {
        let made = || -> std::io::Result<Self> {
            // Thousands of layers a minute are nothing to do to a disk, unless somebody asks for it.
            let memory = Path::new("/dev/shm");
            let asked = std::env::var_os("TMPDIR").is_some();
            let place = if memory.is_dir() && !asked { memory.to_owned() } else { std::env::temp_dir() };
            let directory = tempfile::Builder::new().prefix("crisp-fuzz.").tempdir_in(place)?;
            let layer = directory.path().join("below");
            std::fs::create_dir_all(layer.join("fs"))?;
            assert!(unpack(BELOW, &layer, &[]), "the layer below does not unpack");
            Ok(Self { below: vec![layer.join("fs")], directory })
        };
        made().unwrap_or_else(|error| panic!("making a place to unpack in: {error}"))
    }
}

impl TestEnv {
    /// Unpacks `data` as a layer. Fails if anything outside changes, or what unpacked is not written out as it came.
    ///
    /// True if it unpacked.
    pub fn tar(&self, data: &[u8]) -> bool {
        let directory = self.directory.path().join("try");
        std::fs::create_dir(&directory).unwrap_or_else(|error| panic!("making the directory: {error}"));
        let canary = Canary::new(&directory).unwrap_or_else(|error| panic!("making the canary: {error}"));
        let whole = unpack(data, &canary.layer(), &self.below);
        canary.check();
        if whole {
            let mut back = Vec::with_capacity(data.len());
            let replayed = image::assemble(&canary.layer(), &mut back);
            replayed.unwrap_or_else(|error| panic!("replaying the tape: {error}"));
            assert!(back == data, "the layer is written out otherwise than it came");
        }
        std::fs::remove_dir_all(&directory).unwrap_or_else(|error| panic!("removing the layer: {error}"));
        whole
    }
}
