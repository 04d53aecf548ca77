//! Malformed manifests, indexes and configs: each is refused with its name, and the daemon keeps
//! working.

use serde_json::{Value, json};
use tonic::Code;

use crate::support::harness::Daemon;
use crate::support::image_fixture::{Archive, BOX, Blob, MANIFEST, Pieces, architecture};
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::INDEX;
pub(crate) use crate::support::registry_proxy::{Act, Proxy};

fn pieces() -> Pieces {
    Archive::bare(Layer::noise("file", 1000, 8)).pieces()
}

/// Returns an image with a changed manifest.
fn with_manifest(change: impl FnOnce(&mut Value)) -> Pieces {
    let mut pieces = pieces();
    let mut manifest = serde_json::from_slice(&pieces.manifest.bytes).unwrap();
    change(&mut manifest);
    pieces.manifest = Blob::of(&manifest);
    pieces
}

/// Returns an image whose config has these diff ids.
fn with_diff_ids(diff_ids: &[String]) -> Pieces {
    let config = Archive::new("x").config(diff_ids);
    let descriptor = config.descriptor("application/vnd.oci.image.config.v1+json");
    Pieces { config, ..with_manifest(|manifest| manifest["config"] = descriptor) }
}

/// Returns an image whose config is this text.
fn with_config(text: &str) -> Pieces {
    let config = Blob::new(text.as_bytes().to_vec());
    let descriptor = config.descriptor("application/vnd.oci.image.config.v1+json");
    Pieces { config, ..with_manifest(|manifest| manifest["config"] = descriptor) }
}

#[test]
fn invalid_documents_are_refused_by_name() {
    let daemon = Daemon::start();
    let invalid = [Code::InvalidArgument, Code::Unimplemented];
    let zero = format!("sha256:{}", "0".repeat(64));
    let layer = pieces().layers[0].descriptor("application/vnd.oci.image.layer.v1.tar+gzip");
    let cases: Vec<(Pieces, &str)> = vec![
        (with_manifest(|manifest| manifest["layers"] = json!([])), "no layers"),
        (with_manifest(|manifest| manifest["layers"] = json!(vec![layer.clone(); 300])), "300 layers"),
        (with_manifest(|manifest| manifest["manifests"] = json!([])), "media type"),
        (with_manifest(|manifest| manifest["schemaVersion"] = json!(1)), "schema version 1"),
        (with_manifest(|manifest| manifest["layers"][0]["digest"] = json!("sha256:../../../etc")), "manifest"),
        (with_manifest(|manifest| manifest["layers"][0]["size"] = json!(-1)), "manifest"),
        (
            with_manifest(|manifest| manifest["layers"][0]["mediaType"] = json!("text/plain")),
            "media type of a layer of the image",
        ),
        (
            with_manifest(|manifest| manifest["config"]["mediaType"] = json!("text/plain")),
            "media type of the image's config",
        ),
        (Pieces { manifest: Blob::new(b"[".repeat(100_000)), ..pieces() }, "manifest"),
        (with_diff_ids(std::slice::from_ref(&zero)), "unpacks to content with another digest"),
        (with_diff_ids(&[zero.clone(), zero]), "2 diff ids"),
        (with_diff_ids(&[]), "0 diff ids"),
        (with_config("{}"), "config"),
        (with_config("true"), "config"),
    ];
    for (forged, words) in cases {
        let registry = Proxy::of(forged);
        let refusal = daemon.client().pull(&format!("{}/box:1", registry.host())).unwrap_err();
        assert!(invalid.contains(&refusal.code()), "{words}: {refusal:?}");
        assert!(refusal.message().contains(words), "{words}: {refusal:?}");
        assert!(refusal.message().len() < 1000, "{refusal:?}");
        daemon.check_nothing_left();
    }
    for name in ["../../etc/passwd", "/etc", "a b", "a@sha256:1", "registry.test/../x:1", ""] {
        assert_eq!(daemon.client().pull(name).unwrap_err().code(), Code::InvalidArgument, "{name}");
    }
    assert_eq!(daemon.print_in(BOX, "echo fine"), "fine\n");
}

#[test]
fn documents_above_the_size_limit_are_not_read() {
    let daemon = Daemon::start();
    let large = "x".repeat(5 << 20);
    for forged in [with_manifest(|manifest| manifest["annotations"] = json!({ "a": large })), with_config(&large)] {
        let registry = Proxy::of(forged);
        let refusal = daemon.client().pull(&format!("{}/box:1", registry.host())).unwrap_err();
        assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
        assert!(refusal.message().contains(&registry.host()), "{refusal:?}");
    }
    daemon.check_nothing_left();
}

#[test]
fn nested_indexes_are_limited() {
    let daemon = Daemon::start();
    let platform = json!({ "os": "linux", "architecture": architecture() });
    let image = pieces();
    let mut documents = vec![(MANIFEST, image.manifest.clone())];
    for _ in 0..20 {
        let (kind, below) = documents.last().unwrap();
        let mut entry = below.descriptor(kind);
        entry["platform"] = platform.clone();
        documents.push((INDEX, Blob::of(&json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry] }))));
    }
    let registry = Proxy::alone(move |request| {
        let by_digest = documents.iter().find(|(_, document)| request.is_for(document));
        let (kind, document) = by_digest.unwrap_or(documents.last().unwrap());
        Act::document(kind, document.bytes.clone())
    });
    let refusal = daemon.client().pull(&format!("{}/box:1", registry.host())).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    assert!(refusal.message().contains("too many levels of other indexes"), "{refusal:?}");
    assert!(registry.requests().len() < 10, "{} documents were requested", registry.requests().len());
    daemon.check_nothing_left();
}
