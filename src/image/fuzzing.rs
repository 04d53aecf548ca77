//! Entry points for the fuzzer in `tests/fuzz` to code that reads untrusted bytes. Not part of the
//! released binary.

use model::ErrorClass as _;
use std::path::{Path, PathBuf};

use crate::config::ConfigBlob;
use crate::digest::{Digest, Hasher, Metered};
pub use crate::layer::escape_canary::Canary;
use crate::layer::staged_layer::Staged;
use crate::layer::unpack::Unpacked;
use crate::layer::untar::untar;
use crate::layer_plan::plan;
use crate::limits::Limits;
use crate::manifest::Document;
use crate::platform::choose;
use crate::reference::Reference;
use crate::registry::auth::{Challenge, token_url};
use crate::registry::endpoint::Credentials;

const BYTES_MAX: u64 = 1 << 20;
const ENTRIES_MAX: u64 = 256;

/// Unpacks a tar stream into the directory `layer` on top of the layers' files `below`; returns
/// whether that succeeded.
pub fn unpack(stream: &[u8], layer: &Path, below: &[PathBuf]) -> bool {
    let metered = Metered::new(stream, Hasher::sha256(), BYTES_MAX);
    let Ok((pending, metered)) = untar(metered, layer, &Limits::of_entries(ENTRIES_MAX)) else { return false };
    let Ok((diff_id, length)) = metered.finish() else { return false };
    assert_eq!(Some(length), u64::try_from(stream.len()).ok(), "the stream was not read to its end");
    let mut staged = Staged::new(1, layer.to_owned(), diff_id.clone(), diff_id, None);
    // The caller removes the directory.
    staged.keep();
    staged.unpacked(Unpacked { pending, usage: crate::layer::confined_root::DiskUsage::default(), tar_bytes: 0 });
    // A link without a target is detected only here; the unpacked files are complete nonetheless.
    let adopted = staged.link_across_layers(below);
    assert_eq!(
        adopted.is_ok(),
        staged.link_across_layers(below).is_ok(),
        "linking twice gives another result than linking once"
    );
    true
}

/// Reads `data` as each of the documents and headers that a registry sends.
pub fn documents(data: &[u8]) {
    let config = ConfigBlob::parse(data);
    if let Ok(config) = &config {
        assert_eq!(config.chain().len(), config.diff_ids.len());
        drop(plan(None, config.diff_ids.iter().map(|_| None), config));
    }
    match Document::parse(data) {
        Ok(Document::Manifest(manifest)) => {
            assert!(!manifest.layers.is_empty(), "an image without layers");
            let diff_ids = manifest.layers.iter().map(|layer| layer.digest.clone()).collect();
            let config = ConfigBlob { config: crate::Config::default(), diff_ids };
            let plans = plan(None, manifest.layers.iter().map(Some), &config);
            assert_eq!(plans.map(|plans| plans.len()).ok(), Some(manifest.layers.len()));
        }
        Ok(Document::Index(entries)) => drop(choose(&entries)),
        Err(error) => drop((error.kind(), error.to_string())),
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(name) = text.parse::<Reference>() {
        assert_eq!(
            name.to_string().parse::<Reference>().as_ref(),
            Ok(&name),
            "a name changes when formatted and parsed again"
        );
    }
    if let Ok(digest) = text.parse::<Digest>() {
        assert_eq!(digest.as_str(), text);
    }
    if let Some(Challenge::Bearer { realm, service }) = Challenge::read(text.lines()) {
        drop(token_url(&realm, service.as_deref(), "library/some"));
    }
    drop(Credentials::from_docker_auth(text));
}
