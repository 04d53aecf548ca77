//! Images for tests, with busybox, which is one static program.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock, Weak};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use sync::Mutex;
use tempfile::TempDir;

use crate::support::harness::program;
use crate::support::layer_fixture::Layer;

/// The image in the store of every test daemon.
pub(crate) const BOX: &str = "crisp.test/box:1";

/// Commands that are not built into the shell, or that tests run without a shell.
const APPLETS: [&str; 34] = [
    "[", "cat", "chmod", "chown", "cp", "dd", "echo", "env", "false", "grep", "head", "hostname", "id", "ip", "kill",
    "ln", "ls", "mkdir", "mount", "nc", "ps", "pwd", "readlink", "rm", "seq", "sh", "sleep", "sort", "stat", "touch",
    "true", "umount", "wc", "yes",
];
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:a user:/home/user:/bin/sh\n";
const GROUP: &str = "root:x:0:\nuser:x:1000:\nextra:x:2000:user\nmore:x:3000:user\n";
const BUSYBOX: &str = "/bin/busybox";

/// An image: busybox or an empty root, and layers on top of it.
#[derive(Debug, Clone)]
pub(crate) struct Archive {
    pub(crate) name: String,
    /// The `config` part of the image's configuration.
    config: Value,
    /// Symbolic links in addition to busybox's files: name and target.
    links: Vec<(String, String)>,
    dirs: Vec<String>,
    /// Without busybox there are only the other layers.
    busybox: bool,
    above: Vec<Layer>,
    architecture: &'static str,
    /// Uses Docker's media types instead of OCI's.
    docker: bool,
}

/// A blob of an image.
#[derive(Debug, Clone)]
pub(crate) struct Blob {
    pub(crate) digest: String,
    pub(crate) bytes: Vec<u8>,
}

/// The blobs of an image.
#[derive(Debug, Clone)]
pub(crate) struct Pieces {
    /// Lowest layer first.
    pub(crate) layers: Vec<Blob>,
    pub(crate) config: Blob,
    pub(crate) manifest: Blob,
    /// The manifest's media type.
    pub(crate) kind: &'static str,
}

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// This machine's architecture as named in images.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl Archive {
    pub(crate) fn new(name: &str) -> Self {
        let config = json!({ "Env": ["PATH=/bin", "FROM_IMAGE=yes"], "Cmd": ["sh"] });
        let (links, dirs, above) = (Vec::new(), Vec::new(), Vec::new());
        let architecture = architecture();
        Self { name: name.to_owned(), config, links, dirs, busybox: true, above, architecture, docker: false }
    }

    /// An image with only this layer, in which no program can run.
    pub(crate) fn bare(layer: Layer) -> Self {
        Self { busybox: false, ..Self::new("bare") }.on_top(layer)
    }

    /// Adds a setting of the image's configuration, such as `StopSignal`.
    pub(crate) fn with(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    pub(crate) fn with_link(mut self, name: &str, target: &str) -> Self {
        self.links.push((name.to_owned(), target.to_owned()));
        self
    }

    pub(crate) fn with_dir(mut self, path: &str) -> Self {
        self.dirs.push(path.trim_start_matches('/').to_owned());
        self
    }

    pub(crate) fn on_top(mut self, layer: Layer) -> Self {
        self.above.push(layer);
        self
    }

    pub(crate) fn for_architecture(mut self, architecture: &'static str) -> Self {
        self.architecture = architecture;
        self
    }

    pub(crate) fn in_docker_words(mut self) -> Self {
        self.docker = true;
        self
    }

    /// Lowest layer first.
    fn layers(&self) -> Vec<(Layer, Blob)> {
        // Compressing busybox takes longer than most tests.
        static BARE_BOX: OnceLock<(Layer, Blob)> = OnceLock::new();
        let mut layers = Vec::new();
        if self.busybox && self.links.is_empty() && self.dirs.is_empty() {
            layers.push(BARE_BOX.get_or_init(|| with_blob(self.lowest())).clone());
        } else if self.busybox {
            layers.push(with_blob(self.lowest()));
        }
        layers.extend(self.above.iter().cloned().map(with_blob));
        layers
    }

    /// Returns the `config` blob with these layers.
    pub(crate) fn config(&self, diff_ids: &[String]) -> Blob {
        Blob::of(&json!({
            "architecture": self.architecture, "os": "linux", "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        }))
    }

    pub(crate) fn pieces(&self) -> Pieces {
        let layers = self.layers();
        let diff_ids: Vec<String> = layers.iter().map(|(layer, _)| layer.diff_id()).collect();
        let config = self.config(&diff_ids);
        let (kind, config_kind) = match self.docker {
            false => (MANIFEST, "application/vnd.oci.image.config.v1+json"),
            true => (DOCKER_MANIFEST, "application/vnd.docker.container.image.v1+json"),
        };
        let descriptors: Vec<Value> =
            layers.iter().map(|(layer, blob)| blob.descriptor(layer.kind(self.docker))).collect();
        let manifest = Blob::of(&json!({
            "schemaVersion": 2, "mediaType": kind, "config": config.descriptor(config_kind), "layers": descriptors,
        }));
        Pieces { layers: layers.into_iter().map(|(_, blob)| blob).collect(), config, manifest, kind }
    }

    fn lowest(&self) -> Layer {
        let mut dirs = vec![("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)];
        dirs.extend(["proc", "sys", "dev"].iter().map(|dir| (*dir, 0o755)));
        dirs.extend(self.dirs.iter().map(|dir| (dir.as_str(), 0o755)));
        // A link replaces a directory.
        dirs.retain(|(dir, _)| self.links.iter().all(|(name, _)| name != dir));
        let busybox = fs::read(BUSYBOX).expect("the package busybox-static is installed");
        Layer::new(|tar| {
            for (dir, mode) in dirs {
                tar.dir(dir, mode);
            }
            tar.file("bin/busybox", 0o755, &busybox);
            tar.file("etc/passwd", 0o644, PASSWD.as_bytes());
            tar.file("etc/group", 0o644, GROUP.as_bytes());
            for name in APPLETS {
                tar.symlink(&format!("bin/{name}"), "busybox");
            }
            for (name, target) in &self.links {
                tar.symlink(name, target);
            }
        })
    }

    /// Writes an OCI layout into `dir`.
    pub(crate) fn write_layout(&self, dir: &Path) {
        let Pieces { layers, config, manifest, kind } = self.pieces();
        let blobs = dir.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        for blob in layers.iter().chain([&config, &manifest]) {
            fs::write(blobs.join(blob.hex()), &blob.bytes).unwrap();
        }
        let mut descriptor = manifest.descriptor(kind);
        descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": self.name });
        fs::write(dir.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        let index = json!({ "schemaVersion": 2, "manifests": [descriptor] });
        fs::write(dir.join("index.json"), index.to_string()).unwrap();
    }

    /// Writes an archive as `docker save` does.
    pub(crate) fn write_docker_archive(&self, file: &Path) {
        let Pieces { config, .. } = self.pieces();
        let layers = self.layers();
        let names: Vec<String> = (0..layers.len()).map(|number| format!("{number}/layer.tar")).collect();
        let about = format!("{}.json", config.hex());
        let manifest = json!([{ "Config": about, "RepoTags": [self.name], "Layers": names }]).to_string();
        let archive = Layer::new(|tar| {
            tar.file(&about, 0o644, &config.bytes);
            for (name, (layer, _)) in names.iter().zip(&layers) {
                tar.file(name, 0o644, layer.tar());
            }
            tar.file("manifest.json", 0o644, manifest.as_bytes());
        });
        fs::write(file, archive.tar()).unwrap();
    }

    /// Imports the image into the store at `root`, which no daemon may use.
    pub(crate) fn import_to(&self, root: &Path) {
        let layout = TempDir::new().unwrap();
        self.write_layout(layout.path());
        import(layout.path(), root);
    }
}

/// `crisp image import`.
pub(crate) fn import(from: &Path, root: &Path) {
    let config = TempDir::new().unwrap();
    let file = config.path().join("crisp.toml");
    fs::write(&file, format!("root = {root:?}\nstate = {:?}\n", config.path().join("state"))).unwrap();
    let output =
        Command::new(program("crisp")).args(["image", "import", "--config"]).arg(file).arg(from).output().unwrap();
    assert!(output.status.success(), "importing {}: {}", from.display(), String::from_utf8_lossy(&output.stderr));
}

fn with_blob(layer: Layer) -> (Layer, Blob) {
    let blob = layer.blob();
    (layer, blob)
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().fold("sha256:".to_owned(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

impl Blob {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { digest: digest(&bytes), bytes }
    }

    pub(crate) fn of(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }

    fn hex(&self) -> &str {
        self.digest.trim_start_matches("sha256:")
    }

    pub(crate) fn descriptor(&self, kind: &str) -> Value {
        json!({ "mediaType": kind, "digest": self.digest, "size": self.bytes.len() })
    }
}

/// A store with [`BOX`], created once and copied for each daemon, because an import takes longer.
#[derive(Debug)]
pub(crate) struct Template {
    dir: TempDir,
}

impl Template {
    /// Returns the template of this process. It is removed when no test uses it any more.
    pub(crate) fn get() -> Arc<Self> {
        static CURRENT: Mutex<Weak<Template>> = Mutex::new(Weak::new());
        let mut current = CURRENT.lock();
        if let Some(template) = current.upgrade() {
            return template;
        }
        let dir = tempfile::Builder::new().prefix("crisp-template-").tempdir().unwrap();
        let template = Arc::new(Self { dir });
        Archive::new(BOX).import_to(&template.root());
        *current = Arc::downgrade(&template);
        template
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub(crate) fn copy_to(&self, root: &Path) {
        let status = Command::new("cp").arg("-a").arg(self.root()).arg(root).status().unwrap();
        assert!(status.success());
    }
}
