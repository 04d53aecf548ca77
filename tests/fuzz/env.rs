//! The environment for unpacking layers: a lower layer, a new directory for each input, and a canary.

use std::path::{Path, PathBuf};

use image::fuzzing::{Canary, unpack};

/// The lower layer: one entry of each type, and a link that leads outside.
const BELOW: &[u8] = include_bytes!("seeds/tar/each-kind-once");

/// A temporary directory, removed on drop.
#[derive(Debug)]
pub struct TestEnv {
    directory: tempfile::TempDir,
    below: Vec<PathBuf>,
}

impl Default for TestEnv {
    fn default() -> Self {
        let made = || -> std::io::Result<Self> {
            // Thousands of layers per minute would wear a disk; TMPDIR overrides this.
            let memory = Path::new("/dev/shm");
            let asked = std::env::var_os("TMPDIR").is_some();
            let place = if memory.is_dir() && !asked { memory.to_owned() } else { std::env::temp_dir() };
            let directory = tempfile::Builder::new().prefix("crisp-fuzz.").tempdir_in(place)?;
            let layer = directory.path().join("below");
            std::fs::create_dir_all(layer.join("fs"))?;
            assert!(unpack(BELOW, &layer, &[]), "the lower layer does not unpack");
            Ok(Self { below: vec![layer.join("fs")], directory })
        };
        made().unwrap_or_else(|error| panic!("creating the environment: {error}"))
    }
}

impl TestEnv {
    /// Unpacks `data` as a layer and returns whether that succeeded. Panics if anything outside changes,
    /// or if the export of the layer differs from `data`.
    pub fn tar(&self, data: &[u8]) -> bool {
        let directory = self.directory.path().join("try");
        std::fs::create_dir(&directory).unwrap_or_else(|error| panic!("creating the directory: {error}"));
        let canary = Canary::new(&directory).unwrap_or_else(|error| panic!("creating the canary: {error}"));
        let whole = unpack(data, &canary.layer(), &self.below);
        canary.check();
        if whole {
            let mut back = Vec::with_capacity(data.len());
            let replayed = image::assemble(&canary.layer(), &mut back);
            replayed.unwrap_or_else(|error| panic!("exporting the layer: {error}"));
            assert!(back == data, "the exported layer differs from the input");
        }
        std::fs::remove_dir_all(&directory).unwrap_or_else(|error| panic!("removing the layer: {error}"));
        whole
    }
}
