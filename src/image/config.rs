//! The image config: what the image wants its containers to run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::manifest::ManifestError;
use crate::platform::host;

/// The part of an image config that matters to a container. Values are as the image has them: untrusted.
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
    /// Where the process starts; empty is `/`.
    pub working_dir: String,
    /// Signal that stops the container, such as `SIGQUIT` or `3`; empty is SIGTERM.
    pub stop_signal: String,
    /// Paths the image declares as volumes.
    pub volumes: Vec<String>,
    /// The image's labels: never to be mixed with a container's.
    pub labels: BTreeMap<String, String>,
    /// Ports the image says it listens on, such as `80/tcp`.
    pub exposed_ports: Vec<String>,
    /// Operating system.
    pub os: String,
    /// CPU architecture in Go's words (`amd64`, `arm64`).
    pub architecture: String,
}

/// A config blob with the layers it describes.
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
    diff_ids: Vec<Digest>,
}

type Set = BTreeMap<String, serde::de::IgnoredAny>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct RawConfig {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
    volumes: Option<Set>,
    labels: Option<BTreeMap<String, String>>,
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
        let config = Config {
            user: user.unwrap_or_default(),
            env: env.unwrap_or_default(),
            entrypoint: entrypoint.unwrap_or_default(),
            cmd: cmd.unwrap_or_default(),
            working_dir: working_dir.unwrap_or_default(),
            stop_signal: stop_signal.unwrap_or_default(),
            volumes: volumes.unwrap_or_default().into_keys().collect(),
            labels: labels.unwrap_or_default(),
            exposed_ports: exposed_ports.unwrap_or_default().into_keys().collect(),
            os: raw.os,
            architecture: raw.architecture,
        };
        config.check()?;
        Ok(Self { config, diff_ids: raw.rootfs.diff_ids })
    }

    /// The chain ids of the layers, lowest first: each names a layer together with all below it.
    pub(crate) fn chain(&self) -> Vec<Digest> {
        let mut chain: Vec<Digest> = Vec::with_capacity(self.diff_ids.len());
        for diff_id in &self.diff_ids {
            chain.push(chain_id(chain.last(), diff_id));
        }
        chain
    }
}

/// The chain id of a layer with `diff_id` on top of the one called `below`.
pub(crate) fn chain_id(below: Option<&Digest>, diff_id: &Digest) -> Digest {
    match below {
        None => diff_id.clone(),
        Some(below) => Digest::of(format!("{below} {diff_id}").as_bytes()),
    }
}

impl Config {
    /// The image's user by number, where it is one.
    pub fn uid(&self) -> Option<u32> {
        crate::rootfs::passwd::id(self.user_part())
    }

    /// The image's user by name; empty where it is a number or none.
    pub fn username(&self) -> &str {
        if self.uid().is_some() { "" } else { self.user_part() }
    }

    fn user_part(&self) -> &str {
        self.user.split(':').next().unwrap_or_default()
    }

    fn check(&self) -> Result<(), ManifestError> {
        let lists =
            [("Env", &self.env), ("Entrypoint", &self.entrypoint), ("Cmd", &self.cmd), ("Volumes", &self.volumes)];
        let texts = [("User", &self.user), ("WorkingDir", &self.working_dir), ("StopSignal", &self.stop_signal)];
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
    fn the_user_is_a_number_or_a_name() {
        let of = |user: &str| {
            let config = Config { user: user.into(), ..Config::default() };
            (config.uid(), config.username().to_owned())
        };
        assert_eq!(of(""), (None, String::new()));
        assert_eq!(of("1000:5"), (Some(1000), String::new()));
        assert_eq!(of("web:5"), (None, "web".into()));
        assert_eq!(of("4294967296"), (None, "4294967296".into()));
    }

    #[test]
    fn a_nul_byte_or_a_foreign_platform_is_refused() {
        let nul = ConfigBlob::parse(&blob(serde_json::json!({"Env": ["A=\0"]})));
        assert!(matches!(nul, Err(ManifestError::Nul("Env"))));
        let json = br#"{"os":"plan9","architecture":"mips","rootfs":{"diff_ids":[]}}"#;
        assert!(matches!(ConfigBlob::parse(json), Err(ManifestError::WrongPlatform { .. })));
    }
}
