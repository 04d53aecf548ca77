//! Manifests and indexes, OCI and Docker schema 2: parsing with limits.

use serde::Deserialize;

use crate::bounded::List;
use crate::config::CONFIG_ITEMS_MAX;
use crate::digest::Digest;
use crate::platform::Platform;

/// The media types requested from registries.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// Overlayfs accepts its lower directories in one page of mount options.
pub(crate) const LAYERS_MAX: usize = 256;
pub(crate) const INDEX_ENTRIES_MAX: usize = 4096;

/// A reference to content by digest.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    pub(crate) annotations: NameAnnotations,
}

/// The annotations that name an image in an OCI layout. No other annotation is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Option<RawAnnotations>")]
pub(crate) struct NameAnnotations {
    /// containerd's full name.
    pub(crate) full: Option<String>,
    /// A tag, or a full name.
    pub(crate) reference: Option<String>,
}

#[derive(Deserialize)]
struct RawAnnotations {
    #[serde(default, rename = "io.containerd.image.name")]
    full: Option<String>,
    #[serde(default, rename = "org.opencontainers.image.ref.name")]
    reference: Option<String>,
}

impl From<Option<RawAnnotations>> for NameAnnotations {
    fn from(raw: Option<RawAnnotations>) -> Self {
        raw.map_or_else(Self::default, |RawAnnotations { full, reference }| Self { full, reference })
    }
}

/// The document that a tag or digest refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Document {
    /// One image.
    Manifest(Manifest),
    /// One image per platform.
    Index(Vec<Descriptor>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    /// Lowest first.
    pub(crate) layers: Vec<Descriptor>,
}

/// A manifest, index or image config that is not supported.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Invalid JSON or a wrong type. The parser's message is not used: it would repeat values of an
    /// untrusted document.
    #[error("parsing {what}: {problem} at line {line}, column {column}")]
    Json {
        /// The document.
        what: &'static str,
        /// The kind of error.
        problem: &'static str,
        /// The line of the error.
        line: usize,
        /// The column of the error.
        column: usize,
    },
    /// An unsupported media type.
    #[error("the media type of {0} is not supported")]
    MediaType(&'static str),
    /// Docker schema 1 or an unknown newer version.
    #[error("image manifest schema version {0} is not supported: expected 2")]
    Schema(u64),
    /// The index has no entry for this machine.
    #[error("the image index has no image for this machine, {wanted}: it has {}", offered.iter().map(|one| short(one)).collect::<Vec<_>>().join(", "))]
    NoPlatform {
        /// The platform of this machine.
        wanted: String,
        /// The platforms in the index.
        offered: Vec<String>,
    },
    /// The image is for another platform.
    #[error("the pulled or imported image is for {}, this machine is {wanted}", short(found))]
    WrongPlatform {
        /// The platform of this machine.
        wanted: String,
        /// The platform in the config.
        found: String,
    },
    /// The image has no layers, so no root filesystem.
    #[error("the pulled or imported image has no layers: at least one is required")]
    NoLayers,
    /// More layers than one overlay mount supports.
    #[error("the image has {0} layers: at most {LAYERS_MAX} are allowed")]
    TooManyLayers(usize),
    /// More entries than an index may have.
    #[error("the image index has {0} entries: at most {INDEX_ENTRIES_MAX} are allowed")]
    TooManyEntries(usize),
    /// Manifest and config disagree about the number of layers.
    #[error("the image manifest has {layers} layers, but the image config has {diff_ids} diff ids")]
    LayerCount {
        /// Layers of the manifest.
        layers: usize,
        /// Diff ids of the config.
        diff_ids: usize,
    },
    /// A list or map of the config has too many items.
    #[error(
        "cannot use the pulled or imported image: field {field} of its config has {count} items: at most {CONFIG_ITEMS_MAX} are allowed"
    )]
    TooManyItems {
        /// The field.
        field: &'static str,
        /// The number of its items.
        count: usize,
    },
    /// A string of the config is too long.
    #[error("cannot use the pulled or imported image: field {field} of its config is longer than {max} bytes")]
    TooLong {
        /// The field.
        field: &'static str,
        /// The length that is allowed.
        max: usize,
    },
    /// A string of the config cannot be passed to a process.
    #[error("cannot use the pulled or imported image: field {0} of its config contains a NUL byte")]
    Nul(&'static str),
    /// An index in an index in an index.
    #[error("the image index of the pulled or imported image contains too many levels of other indexes")]
    Nested,
}

/// Truncates a text from outside for an error message.
fn short(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(100).collect()
}

impl model::ErrorClass for ManifestError {
    fn kind(&self) -> model::ErrorKind {
        match self {
            Self::MediaType(_) | Self::Schema(_) => model::ErrorKind::Unsupported,
            Self::NoPlatform { .. } => model::ErrorKind::NotFound,
            Self::Json { .. }
            | Self::WrongPlatform { .. }
            | Self::NoLayers
            | Self::TooManyLayers(_)
            | Self::TooManyEntries(_)
            | Self::LayerCount { .. }
            | Self::TooManyItems { .. }
            | Self::TooLong { .. }
            | Self::Nul(_)
            | Self::Nested => model::ErrorKind::Invalid,
        }
    }
}

impl ManifestError {
    pub(crate) fn json(what: &'static str, error: &serde_json::Error) -> Self {
        let problem = match error.classify() {
            serde_json::error::Category::Data => "a field is missing or has the wrong type",
            serde_json::error::Category::Eof => "unexpected end",
            serde_json::error::Category::Syntax | serde_json::error::Category::Io => "not JSON",
        };
        Self::Json { what, problem, line: error.line(), column: error.column() }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: Option<u64>,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<List<Descriptor, LAYERS_MAX>>,
    #[serde(default)]
    manifests: Option<List<Descriptor, INDEX_ENTRIES_MAX>>,
}

impl Document {
    /// Parses a manifest or an index and checks its structure.
    ///
    /// A document that is valid as both is refused: two readers must never see two different
    /// images.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, ManifestError> {
        let what = "the manifest";
        let raw: RawDocument = serde_json::from_slice(json).map_err(|error| ManifestError::json(what, &error))?;
        let media_type = raw.media_type.unwrap_or_default();
        match raw.schema_version {
            Some(2) => {}
            other => return Err(ManifestError::Schema(other.unwrap_or(0))),
        }
        match (raw.config, raw.layers, raw.manifests) {
            (Some(config), Some(layers), None) if is_manifest(&media_type) => {
                Ok(Self::Manifest(Manifest::check(config, layers)?))
            }
            (None, None, Some(entries)) if is_index(&media_type) => {
                Ok(Self::Index(entries.all().map_err(ManifestError::TooManyEntries)?))
            }
            _ => Err(ManifestError::MediaType("the image's manifest")),
        }
    }
}

impl Manifest {
    fn check(config: Descriptor, layers: List<Descriptor, LAYERS_MAX>) -> Result<Self, ManifestError> {
        if !matches!(
            config.media_type.as_str(),
            "application/vnd.oci.image.config.v1+json" | "application/vnd.docker.container.image.v1+json"
        ) {
            return Err(ManifestError::MediaType("the image's config"));
        }
        let layers = layers.all().map_err(ManifestError::TooManyLayers)?;
        check_layer_count(layers.len())?;
        match layers.iter().all(|layer| is_layer(&layer.media_type)) {
            true => Ok(Self { config, layers }),
            false => Err(ManifestError::MediaType("a layer of the image")),
        }
    }
}

/// Checks that an image has at least one layer and not more than one mount supports.
pub(crate) fn check_layer_count(count: usize) -> Result<(), ManifestError> {
    match count {
        0 => Err(ManifestError::NoLayers),
        1..=LAYERS_MAX => Ok(()),
        _ => Err(ManifestError::TooManyLayers(count)),
    }
}

fn is_manifest(media_type: &str) -> bool {
    matches!(
        media_type,
        "" | "application/vnd.oci.image.manifest.v1+json" | "application/vnd.docker.distribution.manifest.v2+json"
    )
}

fn is_index(media_type: &str) -> bool {
    matches!(
        media_type,
        "" | "application/vnd.oci.image.index.v1+json" | "application/vnd.docker.distribution.manifest.list.v2+json"
    )
}

/// The compression is detected from the first bytes, so the suffix only has to be a supported one.
fn is_layer(media_type: &str) -> bool {
    let base = media_type
        .strip_prefix("application/vnd.oci.image.layer.v1.")
        .or_else(|| media_type.strip_prefix("application/vnd.oci.image.layer.nondistributable.v1."));
    match base {
        Some(rest) => matches!(rest, "tar" | "tar+gzip" | "tar+zstd"),
        None => matches!(
            media_type.strip_prefix("application/vnd.docker.image.rootfs."),
            Some(
                "diff.tar"
                    | "diff.tar.gzip"
                    | "diff.tar.zstd"
                    | "foreign.diff.tar"
                    | "foreign.diff.tar.gzip"
                    | "foreign.diff.tar.zstd"
            )
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::{choose, host};

    fn descriptor(media_type: &str) -> serde_json::Value {
        serde_json::json!({"mediaType": media_type, "digest": Digest::of(b"x"), "size": 1})
    }

    fn manifest(config: &str, layers: &[&str]) -> serde_json::Value {
        serde_json::json!({
            "schemaVersion": 2,
            "config": descriptor(config),
            "layers": layers.iter().map(|l| descriptor(l)).collect::<Vec<_>>(),
        })
    }

    fn parse(value: &serde_json::Value) -> Result<Document, ManifestError> {
        Document::parse(&serde_json::to_vec(value).unwrap())
    }

    const OCI: &str = "application/vnd.oci.image.config.v1+json";
    const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

    #[test]
    fn a_plain_manifest_is_parsed() {
        assert!(matches!(parse(&manifest(OCI, &[LAYER])), Ok(Document::Manifest(m)) if m.layers.len() == 1));
    }

    #[test]
    fn a_document_that_is_both_manifest_and_index_is_refused() {
        let mut both = manifest(OCI, &[LAYER]);
        both["manifests"] = serde_json::json!([]);
        assert!(matches!(parse(&both), Err(ManifestError::MediaType(_))));
        let mut lying = manifest(OCI, &[LAYER]);
        lying["mediaType"] = "application/vnd.oci.image.index.v1+json".into();
        assert!(matches!(parse(&lying), Err(ManifestError::MediaType(_))));
    }

    #[test]
    fn images_with_wrong_layer_counts_schema_1_or_encryption_are_refused() {
        assert!(matches!(parse(&manifest(OCI, &[])), Err(ManifestError::NoLayers)));
        assert!(matches!(parse(&manifest(OCI, &[LAYER; 257])), Err(ManifestError::TooManyLayers(257))));
        let mut old = manifest(OCI, &[LAYER]);
        old["schemaVersion"] = 1.into();
        assert!(matches!(parse(&old), Err(ManifestError::Schema(1))));
        let encrypted = format!("{LAYER}+encrypted");
        assert!(matches!(parse(&manifest(OCI, &[&encrypted])), Err(ManifestError::MediaType(_))));
        assert!(matches!(parse(&manifest("application/x", &[LAYER])), Err(ManifestError::MediaType(_))));
    }

    #[test]
    fn the_platform_of_this_machine_is_chosen() {
        let (os, architecture, _) = host();
        let entry = |os: &str, architecture: &str, size: u64| Descriptor {
            media_type: String::new(),
            digest: Digest::of(b"x"),
            size,
            platform: Some(Platform { architecture: architecture.into(), os: os.into(), variant: String::new() }),
            annotations: NameAnnotations::default(),
        };
        let entries = [entry("windows", architecture, 1), entry(os, "mips", 2), entry(os, architecture, 3)];
        assert_eq!(choose(&entries).unwrap().size, 3);
        let error = choose(&entries[..2]).unwrap_err();
        assert!(error.to_string().contains("windows/"), "{error}");
    }

    #[test]
    fn an_error_truncates_untrusted_text() {
        let long = "x\n".repeat(1 << 20);
        let mut bad = manifest(OCI, &[LAYER]);
        bad["mediaType"] = long.clone().into();
        let entry = |os: &str| serde_json::json!({"digest": Digest::of(b"x"), "size": 1, "platform": {"os": os, "architecture": os}});
        let index = serde_json::json!({"schemaVersion": 2, "manifests": vec![entry(&long); 3]});
        let Ok(Document::Index(entries)) = parse(&index) else { panic!("an index") };
        for error in [parse(&bad).unwrap_err(), choose(&entries).unwrap_err()] {
            let text = error.to_string();
            assert!(text.len() < 1000 && !text.contains('\n'), "{}", text.len());
        }
    }

    #[test]
    fn deeply_nested_json_is_refused() {
        for key in ["x", "config", "layers", "manifests", "mediaType"] {
            for (open, close) in [("[", "]"), (r#"{"platform":"#, "}")] {
                let nested = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
                let deep = format!(r#"{{"schemaVersion":2,"{key}":{nested}}}"#);
                assert!(Document::parse(deep.as_bytes()).is_err());
            }
        }
    }

    #[test]
    fn a_negative_or_missing_size_is_refused() {
        let mut bad = manifest(OCI, &[LAYER]);
        bad["layers"][0]["size"] = (-1).into();
        assert!(matches!(parse(&bad), Err(ManifestError::Json { .. })));
    }
}
