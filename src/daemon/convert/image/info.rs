//! The additional information of a verbose ImageStatus.

use std::collections::BTreeMap;

use ::image::{Digest, Image};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A larger document is omitted: clients limit the message size, and a parsed one uses far more
/// memory.
const DOCUMENT_MAX: usize = 512 << 10;

/// Tools expect the keys `chainID` and `imageSpec`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageInfo<'a> {
    /// The chain id of all layers.
    #[serde(rename = "chainID")]
    chain_id: Option<&'a Digest>,
    /// The image config, unchanged; null if it is too large or was removed.
    image_spec: Option<Value>,
    labels: Option<BTreeMap<String, String>>,
    manifest_digest: Option<&'a Digest>,
    /// The lowest layer first.
    layers: Vec<LayerInfo<'a>>,
    repo_tags: &'a [String],
    repo_digests: &'a [String],
    /// Disk usage of its layers.
    size: u64,
    pinned: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LayerInfo<'a> {
    #[serde(rename = "chainID")]
    chain_id: &'a Digest,
    /// The blob in the registry; imported docker archives have none.
    #[serde(flatten)]
    blob: Option<Blob>,
}

/// A blob as described by a manifest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Blob {
    #[serde(default)]
    media_type: String,
    digest: Digest,
    size: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Manifest {
    layers: Vec<Blob>,
}

/// `config` and `manifest` are the image's documents, unchanged.
pub(crate) fn info<'a>(
    image: &'a Image,
    pinned: bool,
    config: Option<&[u8]>,
    manifest: Option<&[u8]>,
) -> ImageInfo<'a> {
    let Image { id: _, repo_tags, repo_digests, manifest: digest, size, user: _, chain } = image;
    let config = config.filter(|json| json.len() <= DOCUMENT_MAX);
    let manifest = manifest.filter(|json| json.len() <= DOCUMENT_MAX);
    let manifest: Manifest = manifest.and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default();
    let blobs = manifest.layers.into_iter().map(Some).chain(std::iter::repeat(None));
    let image_spec: Option<Value> = config.and_then(|json| serde_json::from_slice(json).ok());
    let labels = image_spec.as_ref().map(|spec| BTreeMap::deserialize(&spec["config"]["Labels"]).unwrap_or_default());
    ImageInfo {
        chain_id: chain.last(),
        image_spec,
        labels,
        manifest_digest: digest.as_ref(),
        layers: chain.iter().zip(blobs).map(|(chain_id, blob)| LayerInfo { chain_id, blob }).collect(),
        repo_tags,
        repo_digests,
        size: *size,
        pinned,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn digest(digit: char) -> Digest {
        format!("sha256:{}", digit.to_string().repeat(64)).parse().unwrap()
    }

    fn image() -> Image {
        Image {
            id: digest('a'),
            repo_tags: vec!["a.example/b:c".into()],
            repo_digests: vec![format!("a.example/b@{}", digest('b'))],
            manifest: Some(digest('b')),
            size: 7,
            user: String::new(),
            chain: vec![digest('c'), digest('d')],
        }
    }

    #[test]
    fn an_image_reports_its_layers_and_configuration() {
        let manifest = json!({"layers": [
            {"mediaType": "tar", "digest": digest('1'), "size": 1},
            {"mediaType": "tar", "digest": digest('2'), "size": 2},
        ]});
        let config = json!({"os": "linux", "config": {"Env": ["A=b"], "Labels": {"k": "v"}}, "history": [{}]});
        let (manifest, config) = (manifest.to_string(), config.to_string());
        let image = image();
        let shown = info(&image, true, Some(config.as_bytes()), Some(manifest.as_bytes()));
        assert_eq!(
            serde_json::to_value(shown).unwrap(),
            json!({
                "chainID": digest('d'),
                "imageSpec": {"os": "linux", "config": {"Env": ["A=b"], "Labels": {"k": "v"}}, "history": [{}]},
                "labels": {"k": "v"},
                "manifestDigest": digest('b'),
                "layers": [
                    {"chainID": digest('c'), "mediaType": "tar", "digest": digest('1'), "size": 1},
                    {"chainID": digest('d'), "mediaType": "tar", "digest": digest('2'), "size": 2},
                ],
                "repoTags": ["a.example/b:c"],
                "repoDigests": [format!("a.example/b@{}", digest('b'))],
                "size": 7,
                "pinned": true,
            })
        );
    }

    #[test]
    fn missing_invalid_and_large_fields_are_omitted() {
        let image = Image { manifest: None, ..image() };
        let bare = serde_json::to_value(info(&image, false, None, None)).unwrap();
        assert_eq!(bare["imageSpec"], Value::Null);
        assert_eq!(bare["layers"], json!([{"chainID": digest('c')}, {"chainID": digest('d')}]));
        let large = format!("{{\"x\": \"{}\"}}", "y".repeat(DOCUMENT_MAX));
        for bad in [large.as_bytes(), b"{", "[".repeat(1000).as_bytes()] {
            let shown = info(&image, false, Some(bad), Some(bad));
            assert!(serde_json::to_string(&shown).unwrap().len() < 2000);
        }
    }
}
