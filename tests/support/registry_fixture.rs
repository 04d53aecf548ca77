//! A real registry on a loopback port, and further registries with the same images.

use std::collections::HashSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpSocket;

use crate::support::harness::{seconds, wait_for};
use crate::support::image_fixture::{Archive, Blob, Pieces};

/// The account of a registry with passwords.
pub(crate) const USER: &str = "mallory";
pub(crate) const PASSWORD: &str = "open sesame";
/// A bcrypt hash with the minimum cost.
const HASH: &str = "$2b$04$abcdefghijklmnopqrstuu/LVz6MZlItEy42I2juLihZ66HnQx/cy";

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// Debian's docker-registry, running.
#[derive(Debug)]
pub(crate) struct Registry {
    process: Child,
    port: u16,
    /// The storage directory; several registries can share it.
    shelves: Arc<TempDir>,
    /// Repository and digest of blobs that are already in the registry.
    pushed: Mutex<HashSet<(String, String)>>,
}

/// A response to a request.
#[derive(Debug)]
struct Answer {
    status: u16,
    header: String,
}

impl Registry {
    pub(crate) fn start() -> Self {
        Self::launch(Arc::new(TempDir::new().unwrap()), "", "")
    }

    /// Starts another registry with the same images that requires the password of [`USER`].
    pub(crate) fn with_password(&self) -> Self {
        let file = self.shelves.path().join("htpasswd");
        fs::write(&file, format!("{USER}:{HASH}\n")).unwrap();
        self.beside("", &format!("auth: {{htpasswd: {{realm: shelves, path: {file:?}}}}}\n"))
    }

    /// Starts another registry with the same images that requires tokens of the server at `realm`,
    /// signed by a certificate in the file `roots`.
    pub(crate) fn with_tokens(&self, realm: &str, roots: &Path) -> Self {
        let token = format!("realm: {realm:?}, service: shelves, issuer: door, rootcertbundle: {roots:?}");
        self.beside("", &format!("auth: {{token: {{{token}}}}}\n"))
    }

    /// Starts another registry with the same images over TLS; with `clients` it requires one of
    /// these client certificates.
    pub(crate) fn with_tls(&self, certificate: &Path, key: &Path, clients: Option<&Path>) -> Self {
        let clients = clients.map(|file| format!(", clientcas: [{file:?}]")).unwrap_or_default();
        self.beside(&format!(", tls: {{certificate: {certificate:?}, key: {key:?}{clients}}}"), "")
    }

    fn beside(&self, http: &str, more: &str) -> Self {
        Self::launch(self.shelves.clone(), http, more)
    }

    fn launch(shelves: Arc<TempDir>, http: &str, more: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Its first log lines have the port that the kernel chose.
        let config = format!(
            "version: 0.1\nlog: {{level: info, accesslog: {{disabled: true}}}}\n\
             storage: {{filesystem: {{rootdirectory: {:?}}}}}\nhttp: {{addr: \"127.0.0.1:0\"{http}}}\n{more}",
            shelves.path().join("blobs"),
        );
        let file = shelves.path().join(format!("{number}.yml"));
        fs::write(&file, config).unwrap();
        let said = shelves.path().join(format!("{number}.log"));
        let log = fs::File::create(&said).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("the package docker-registry is installed");
        let mut registry = Self { process, port: 0, shelves, pushed: Mutex::default() };
        registry.port = wait_for("the registry to listen", seconds(20), || {
            let said = fs::read_to_string(&said).unwrap();
            if let Some(status) = registry.process.try_wait().unwrap() {
                panic!("the registry ended, {status}:\n{said}");
            }
            port_in(&said)
        });
        registry
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Pushes an image as `repository:tag` and returns its digest.
    pub(crate) fn push(&self, archive: &Archive, repository: &str, tag: &str) -> String {
        self.push_pieces(&archive.pieces(), repository, tag)
    }

    pub(crate) fn push_pieces(&self, pieces: &Pieces, repository: &str, tag: &str) -> String {
        let Pieces { layers, config, manifest, kind } = pieces;
        for blob in layers.iter().chain([config]) {
            self.push_blob(repository, blob);
        }
        self.push_manifest(repository, tag, kind, manifest)
    }

    /// Pushes an index of existing manifests: media type, blob and architecture of each.
    pub(crate) fn push_index(&self, kind: &str, entries: &[(&str, &Blob, &str)], repository: &str, tag: &str) -> Blob {
        let entry = |(kind, blob, architecture): &(&str, &Blob, &str)| -> Value {
            let mut descriptor = blob.descriptor(kind);
            descriptor["platform"] = json!({ "os": "linux", "architecture": architecture });
            descriptor
        };
        let entries: Vec<Value> = entries.iter().map(entry).collect();
        let index = Blob::of(&json!({ "schemaVersion": 2, "mediaType": kind, "manifests": entries }));
        self.push_manifest(repository, tag, kind, &index);
        index
    }

    fn push_manifest(&self, repository: &str, tag: &str, kind: &str, manifest: &Blob) -> String {
        let answer = self.request("PUT", &format!("/v2/{repository}/manifests/{tag}"), kind, &manifest.bytes);
        assert_eq!(answer.status, 201, "{answer:?}");
        manifest.digest.clone()
    }

    fn push_blob(&self, repository: &str, blob: &Blob) {
        if !self.pushed.lock().unwrap().insert((repository.to_owned(), blob.digest.clone())) {
            return;
        }
        let begun = self.request("POST", &format!("/v2/{repository}/blobs/uploads/"), "", &[]);
        let location = begun.header.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap().trim();
        let path = location.split_once(&self.host()).map_or(location, |(_, path)| path);
        let sign = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{sign}digest={}", blob.digest);
        let answer = self.request("PUT", &path, "application/octet-stream", &blob.bytes);
        assert_eq!(answer.status, 201, "{answer:?}");
    }

    fn request(&self, verb: &str, path: &str, kind: &str, body: &[u8]) -> Answer {
        self.try_request(verb, path, kind, body).expect("the registry answers")
    }

    fn try_request(&self, verb: &str, path: &str, kind: &str, body: &[u8]) -> Option<Answer> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(seconds(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = format!(
            "{verb} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.host(),
            body.len(),
        );
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body).ok()?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (header, _) = text.split_once("\r\n\r\n")?;
        let status = header.split(' ').nth(1)?.parse().ok()?;
        Some(Answer { status, header: header.to_owned() })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Returns the port in a registry's log, when the line is complete.
fn port_in(said: &str) -> Option<u16> {
    let (_, after) = said.split_once("listening on 127.0.0.1:")?;
    let (port, _) = after.split_once(|other: char| !other.is_ascii_digit())?;
    port.parse().ok()
}

/// A loopback port that is reserved and on which no process listens.
#[derive(Debug)]
pub(crate) struct Nobody(TcpSocket);

impl Nobody {
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        Self(socket)
    }

    pub(crate) fn host(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }
}
