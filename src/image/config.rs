//! The image config: command, user and environment of the image's containers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bounded::{List, Map};
use crate::digest::Digest;
use crate::manifest::{LAYERS_MAX, ManifestError};
use crate::platform::host;

/// The most items that a list or map of a config may have.
pub(crate) const CONFIG_ITEMS_MAX: usize = 8192;
/// The longest user or signal of a config. The user stays in memory while the image is in the store.
const CONFIG_NAME_MAX: usize = 1024;
/// Longer paths, variables and arguments are refused by the kernel (PATH_MAX, MAX_ARG_STRLEN).
const PATH_MAX: usize = 4096;
const EXEC_STRING_MAX: usize = 128 << 10;

/// The part of an image config that concerns containers. Its values come from the image and are not
/// trusted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// `user[:group]`, names or numbers; empty is root.
    pub user: String,
    /// `NAME=value` each.
    pub env: Vec<String>,
    /// First part of the command line.
    pub entrypoint: Vec<String>,
    /// Second part of the command line, replaced by the container's own arguments.
    pub cmd: Vec<String>,
    /// Working directory of the process; empty is `/`.
    pub working_dir: String,
    /// Signal that stops the container, such as `SIGQUIT` or `3`; empty is SIGTERM.
    pub stop_signal: String,
    /// Paths the image declares as volumes.
    pub volumes: Vec<String>,
    /// The image's labels; they must never become labels of a container.
    pub labels: BTreeMap<String, String>,
    /// Ports the image declares, such as `80/tcp`.
    pub exposed_ports: Vec<String>,
    /// Operating system.
    pub os: String,
    /// CPU architecture as Go names it (`amd64`, `arm64`).
    pub architecture: String,
}

/// A config blob with the diff ids of its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigBlob {
    pub(crate) config: Config,
    /// Digests of the uncompressed layers, lowest first.
    pub(crate) diff_ids: Vec<Digest>,
}

#[derive(Deserialize)]
struct RawBlob {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    config: Option<RawConfig>,
    rootfs: RawRootfs,
}

#[derive(Deserialize)]
struct RawRootfs {
    diff_ids: List<Digest, LAYERS_MAX>,
}

type Texts = List<String, CONFIG_ITEMS_MAX>;
type Set = Map<serde::de::IgnoredAny, CONFIG_ITEMS_MAX>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RawConfig {
    user: Option<String>,
    env: Option<Texts>,
    entrypoint: Option<Texts>,
    cmd: Option<Texts>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
    volumes: Option<Set>,
    labels: Option<Map<String, CONFIG_ITEMS_MAX>>,
    exposed_ports: Option<Set>,
}

impl ConfigBlob {
    /// Parses a config blob and checks that it is for this machine.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, ManifestError> {
        let what = "the image config";
        let raw: RawBlob = serde_json::from_slice(json).map_err(|error| ManifestError::json(what, &error))?;
        let (os, architecture, _) = host();
        if raw.os != os || raw.architecture != architecture {
            let found = format!("{}/{}", raw.os, raw.architecture);
            return Err(ManifestError::WrongPlatform { wanted: format!("{os}/{architecture}"), found });
        }
        let RawConfig { user, env, entrypoint, cmd, working_dir, stop_signal, volumes, labels, exposed_ports } =
            raw.config.unwrap_or_default();
        let diff_ids = raw.rootfs.diff_ids.all().map_err(ManifestError::TooManyLayers)?;
        let too_many = |field| move |count| ManifestError::TooManyItems { field, count };
        let texts = |field, list: Option<Texts>| list.unwrap_or_default().all().map_err(too_many(field));
        let set = |field, set: Option<Set>| -> Result<Vec<String>, ManifestError> {
            Ok(set.unwrap_or_default().all().map_err(too_many(field))?.into_keys().collect())
        };
        let config = Config {
            user: user.unwrap_or_default(),
            env: texts("Env", env)?,
            entrypoint: texts("Entrypoint", entrypoint)?,
            cmd: texts("Cmd", cmd)?,
            working_dir: working_dir.unwrap_or_default(),
            stop_signal: stop_signal.unwrap_or_default(),
            volumes: set("Volumes", volumes)?,
            labels: labels.unwrap_or_default().all().map_err(too_many("Labels"))?,
            exposed_ports: set("ExposedPorts", exposed_ports)?,
            os: raw.os,
            architecture: raw.architecture,
        };
        config.check()?;
        Ok(Self { config, diff_ids })
    }

    /// Returns the chain ids of the layers, lowest first; each identifies a layer and all layers
    /// below it.
    pub(crate) fn chain(&self) -> Vec<Digest> {
        let mut chain: Vec<Digest> = Vec::with_capacity(self.diff_ids.len());
        for diff_id in &self.diff_ids {
            chain.push(chain_id(chain.last(), diff_id));
        }
        chain
    }
}

/// Returns the chain id of a layer with `diff_id` on top of the layer `below`.
pub(crate) fn chain_id(below: Option<&Digest>, diff_id: &Digest) -> Digest {
    match below {
        None => diff_id.clone(),
        Some(below) => Digest::of(format!("{below} {diff_id}").as_bytes()),
    }
}

impl Config {
    fn check(&self) -> Result<(), ManifestError> {
        let lists =
            [("Env", &self.env), ("Entrypoint", &self.entrypoint), ("Cmd", &self.cmd), ("Volumes", &self.volumes)];
        let texts = [("User", &self.user), ("WorkingDir", &self.working_dir), ("StopSignal", &self.stop_signal)];
        let longest = |texts: &[String]| texts.iter().map(String::len).max().unwrap_or_default();
        let bounds = [
            ("User", self.user.len(), CONFIG_NAME_MAX),
            ("StopSignal", self.stop_signal.len(), CONFIG_NAME_MAX),
            ("WorkingDir", self.working_dir.len(), PATH_MAX),
            ("Volumes", longest(&self.volumes), PATH_MAX),
            ("Env", longest(&self.env), EXEC_STRING_MAX),
            ("Entrypoint", longest(&self.entrypoint), EXEC_STRING_MAX),
            ("Cmd", longest(&self.cmd), EXEC_STRING_MAX),
        ];
        if let Some((field, _, max)) = bounds.into_iter().find(|(_, length, max)| length > max) {
            return Err(ManifestError::TooLong { field, max });
        }
        let in_lists = lists.iter().flat_map(|(name, list)| list.iter().map(move |text| (*name, text)));
        match in_lists.chain(texts).find(|(_, text)| text.contains('\0')) {
            Some((name, _)) => Err(ManifestError::Nul(name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(config: serde_json::Value) -> Vec<u8> {
        let (os, architecture, _) = host();
        let diff_ids = [Digest::of(b"1"), Digest::of(b"2")];
        serde_json::to_vec(&serde_json::json!({
            "os": os, "architecture": architecture, "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }))
        .unwrap()
    }

    #[test]
    fn nulls_and_absent_fields_are_empty() {
        let parsed = ConfigBlob::parse(&blob(serde_json::json!({"Env": null, "Volumes": {"/data": {}}}))).unwrap();
        assert_eq!(parsed.config.env, Vec::<String>::new());
        assert_eq!(parsed.config.volumes, ["/data"]);
        assert!(ConfigBlob::parse(&blob(serde_json::Value::Null)).unwrap().config.user.is_empty());
    }

    #[test]
    fn chain_ids_follow_the_image_spec() {
        let parsed = ConfigBlob::parse(&blob(serde_json::Value::Null)).unwrap();
        let second = Digest::of(format!("{} {}", Digest::of(b"1"), Digest::of(b"2")).as_bytes());
        assert_eq!(parsed.chain(), [Digest::of(b"1"), second]);
    }

    #[test]
    fn fields_with_too_many_items_or_too_long_strings_are_refused() {
        let many: Vec<String> = (0..=CONFIG_ITEMS_MAX).map(|number| number.to_string()).collect();
        let set: serde_json::Map<_, _> = many.iter().map(|key| (key.clone(), serde_json::json!({}))).collect();
        let texts: serde_json::Map<_, _> = many.iter().map(|key| (key.clone(), key.clone().into())).collect();
        for (field, value) in [
            ("Env", serde_json::json!(many)),
            ("Cmd", serde_json::json!(many)),
            ("Entrypoint", serde_json::json!(many)),
            ("Volumes", set.clone().into()),
            ("ExposedPorts", set.into()),
            ("Labels", texts.into()),
        ] {
            let error = ConfigBlob::parse(&blob(serde_json::json!({field: value}))).unwrap_err();
            let text = format!(
                "cannot use the pulled or imported image: field {field} of its config has 8193 items: at most 8192 are allowed"
            );
            assert_eq!(error.to_string(), text);
        }
        for (field, value, max) in [
            ("User", serde_json::json!("u".repeat(1025)), 1024),
            ("StopSignal", serde_json::json!("u".repeat(1025)), 1024),
            ("WorkingDir", serde_json::json!("u".repeat(4097)), 4096),
            ("Volumes", serde_json::json!({"u".repeat(4097): {}}), 4096),
            ("Env", serde_json::json!(["u".repeat(131_073)]), 131_072),
            ("Cmd", serde_json::json!(["u".repeat(131_073)]), 131_072),
            ("Entrypoint", serde_json::json!(["u".repeat(131_073)]), 131_072),
        ] {
            let error = ConfigBlob::parse(&blob(serde_json::json!({field: value}))).unwrap_err();
            let text = format!(
                "cannot use the pulled or imported image: field {field} of its config is longer than {max} bytes"
            );
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_nul_byte_or_a_foreign_platform_is_refused() {
        let nul = ConfigBlob::parse(&blob(serde_json::json!({"Env": ["A=\0"]})));
        assert!(matches!(nul, Err(ManifestError::Nul("Env"))));
        let json = br#"{"os":"plan9","architecture":"mips","rootfs":{"diff_ids":[]}}"#;
        assert!(matches!(ConfigBlob::parse(json), Err(ManifestError::WrongPlatform { .. })));
    }
}
