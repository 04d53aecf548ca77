//! Images for tests, made of busybox: one program without libraries.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::harness::program;

/// The image that every daemon here has.
pub(crate) const BOX: &str = "crisp.test/box:1";

/// What the shell does not know by itself, or a test runs without a shell.
const APPLETS: [&str; 34] = [
    "[", "cat", "chmod", "chown", "cp", "dd", "echo", "env", "false", "grep", "head", "hostname", "id", "ip", "kill",
    "ln", "ls", "mkdir", "mount", "nc", "ps", "pwd", "readlink", "rm", "seq", "sh", "sleep", "sort", "stat", "touch",
    "true", "umount", "wc", "yes",
];
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:a user:/home/user:/bin/sh\n";
const GROUP: &str = "root:x:0:\nuser:x:1000:\nextra:x:2000:user\nmore:x:3000:user\n";
const BUSYBOX: &str = "/bin/busybox";

/// An image in the form of an OCI layout.
#[derive(Debug, Clone)]
pub(crate) struct Archive {
    pub(crate) name: String,
    /// The `config` part of the image's configuration.
    config: Value,
    /// Symbolic links on top of busybox's files: name and target.
    links: Vec<(String, String)>,
    dirs: Vec<String>,
}

/// A piece of an image, as registries and layouts keep it.
#[derive(Debug, Clone)]
pub(crate) struct Blob {
    pub(crate) digest: String,
    pub(crate) bytes: Vec<u8>,
}

/// An image in pieces.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) layer: Blob,
    pub(crate) config: Blob,
    pub(crate) manifest: Blob,
    /// The layer as it was before it was compressed.
    tar: Vec<u8>,
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

impl Archive {
    pub(crate) fn new(name: &str) -> Self {
        let config = json!({ "Env": ["PATH=/bin", "FROM_IMAGE=yes"], "Cmd": ["sh"] });
        Self { name: name.to_owned(), config, links: Vec::new(), dirs: Vec::new() }
    }

    /// With a setting in the words of the image's configuration, such as `StopSignal`.
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

    pub(crate) fn pieces(&self) -> Pieces {
        let tar = self.layer();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&tar).unwrap();
        let layer = Blob::new(gzip.finish().unwrap());
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = Blob::of(&json!({
            "architecture": architecture, "os": "linux", "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": [digest(&tar)] },
        }));
        let manifest = Blob::of(&json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar+gzip")],
        }));
        Pieces { layer, config, manifest, tar }
    }

    fn layer(&self) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut dirs = vec![("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)];
        dirs.extend(["proc", "sys", "dev"].iter().map(|dir| (*dir, 0o755)));
        dirs.extend(self.dirs.iter().map(|dir| (dir.as_str(), 0o755)));
        // A link takes the place of a directory.
        dirs.retain(|(dir, _)| self.links.iter().all(|(name, _)| name != dir));
        for (dir, mode) in dirs {
            tar.append_data(&mut header(tar::EntryType::Directory, mode), dir, &[][..]).unwrap();
        }
        let busybox = fs::read(BUSYBOX).expect("the package busybox-static is installed");
        for (name, mode, bytes) in [
            ("bin/busybox", 0o755, &busybox[..]),
            ("etc/passwd", 0o644, PASSWD.as_bytes()),
            ("etc/group", 0o644, GROUP.as_bytes()),
        ] {
            let mut header = header(tar::EntryType::Regular, mode);
            header.set_size(u64::try_from(bytes.len()).unwrap());
            tar.append_data(&mut header, name, bytes).unwrap();
        }
        let applets = APPLETS.iter().map(|name| (format!("bin/{name}"), "busybox".to_owned()));
        for (name, target) in applets.chain(self.links.clone()) {
            tar.append_link(&mut header(tar::EntryType::Symlink, 0o777), name, target).unwrap();
        }
        tar.into_inner().unwrap()
    }

    /// Writes an OCI layout into `dir`.
    pub(crate) fn write_layout(&self, dir: &Path) {
        let Pieces { layer, config, manifest, .. } = self.pieces();
        let blobs = dir.join("blobs/sha256");
        fs::create_dir_all(&blobs).unwrap();
        for blob in [&layer, &config, &manifest] {
            fs::write(blobs.join(blob.hex()), &blob.bytes).unwrap();
        }
        let mut descriptor = manifest.descriptor(MANIFEST);
        descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": self.name });
        fs::write(dir.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        let index = json!({ "schemaVersion": 2, "manifests": [descriptor] });
        fs::write(dir.join("index.json"), index.to_string()).unwrap();
    }

    /// Writes what `docker save` would.
    pub(crate) fn write_docker_archive(&self, file: &Path) {
        let Pieces { config, tar, .. } = self.pieces();
        let manifest =
            json!([{ "Config": format!("{}.json", config.hex()), "RepoTags": [self.name], "Layers": ["l/layer.tar"] }]);
        let mut archive = tar::Builder::new(fs::File::create(file).unwrap());
        let parts = [
            (format!("{}.json", config.hex()), config.bytes),
            ("l/layer.tar".to_owned(), tar),
            ("manifest.json".to_owned(), manifest.to_string().into_bytes()),
        ];
        for (name, bytes) in parts {
            let mut header = header(tar::EntryType::Regular, 0o644);
            header.set_size(u64::try_from(bytes.len()).unwrap());
            archive.append_data(&mut header, name, &bytes[..]).unwrap();
        }
        archive.finish().unwrap();
    }

    /// Puts the image into the store at `root`, with which no daemon may be at work.
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

fn header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header.set_mtime(1_700_000_000);
    header
}

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().fold("sha256:".to_owned(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

impl Blob {
    fn new(bytes: Vec<u8>) -> Self {
        Self { digest: digest(&bytes), bytes }
    }

    fn of(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }

    fn hex(&self) -> &str {
        self.digest.trim_start_matches("sha256:")
    }

    fn descriptor(&self, kind: &str) -> Value {
        json!({ "mediaType": kind, "digest": self.digest, "size": self.bytes.len() })
    }
}

/// A store with [`BOX`] in it, made once and copied for each daemon: importing takes longer.
#[derive(Debug)]
pub(crate) struct Template {
    dir: TempDir,
}

impl Template {
    /// The one of this process. It goes away when nobody uses it any more.
    pub(crate) fn get() -> Arc<Self> {
        static CURRENT: Mutex<Weak<Template>> = Mutex::new(Weak::new());
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
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
