//! A real registry on a loopback port of its own.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::{seconds, wait_for};
use crate::image::{Archive, Blob};

/// Debian's docker-registry, running.
#[derive(Debug)]
pub(crate) struct Registry {
    process: Child,
    port: u16,
    _dir: TempDir,
}

/// An answer to a request.
#[derive(Debug)]
struct Answer {
    status: u16,
    header: String,
}

impl Registry {
    pub(crate) fn start() -> Self {
        let dir = TempDir::new().unwrap();
        // Free a moment ago; the next one to ask gets another.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {:?}}}}}\nhttp: {{addr: \"127.0.0.1:{port}\"}}\n",
            dir.path().join("blobs"),
        );
        let file = dir.path().join("config.yml");
        fs::write(&file, config).unwrap();
        let log = fs::File::create(dir.path().join("log")).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("the package docker-registry is installed");
        let registry = Self { process, port, _dir: dir };
        wait_for("the registry to answer", seconds(20), || registry.try_ask("GET", "/v2/", "", &[]));
        registry
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Pushes an image as `repository:tag` and answers its digest.
    pub(crate) fn push(&self, archive: &Archive, repository: &str, tag: &str) -> String {
        let pieces = archive.pieces();
        for blob in [&pieces.layer, &pieces.config] {
            self.push_blob(repository, blob);
        }
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let path = format!("/v2/{repository}/manifests/{tag}");
        let answer = self.ask("PUT", &path, kind, &pieces.manifest.bytes);
        assert_eq!(answer.status, 201, "{answer:?}");
        pieces.manifest.digest
    }

    fn push_blob(&self, repository: &str, blob: &Blob) {
        let begun = self.ask("POST", &format!("/v2/{repository}/blobs/uploads/"), "", &[]);
        let location = begun.header.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap().trim();
        let path = location.split_once(&self.host()).map_or(location, |(_, path)| path);
        let sign = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{sign}digest={}", blob.digest);
        let answer = self.ask("PUT", &path, "application/octet-stream", &blob.bytes);
        assert_eq!(answer.status, 201, "{answer:?}");
    }

    fn ask(&self, verb: &str, path: &str, kind: &str, body: &[u8]) -> Answer {
        self.try_ask(verb, path, kind, body).expect("the registry answers")
    }

    fn try_ask(&self, verb: &str, path: &str, kind: &str, body: &[u8]) -> Option<Answer> {
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
