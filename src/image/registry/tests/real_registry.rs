//! Pulls from Debian's docker-registry, with TLS, client certificates and passwords, also through a
//! faulty connection.

use std::fs;
use std::net::TcpListener as StdListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::ErrorClass as _;
use model::error_chain::chain;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::digest::Digest;
use crate::limits::Limits;
use crate::registry::docker_config::RegistryCredentials;
use crate::registry::endpoint::{Credentials, Registries, Registry};
use crate::registry::tests::ca::{Authority, Pair};
use crate::registry::tests::support::{TestEnv, me, mirrored};
use crate::registry::tls::Tls;
use crate::test_support::{Made, Tar, gzip};

/// `me` and `secret`, in htpasswd format.
const PASSWORDS: &str = "me:$2b$04$rS7GiO0rJmvFvTPgZyhg2OmnWiqg/I8Jr1Eb1S.4DXP6jL8t5ubNq\n";

struct Real {
    host: String,
    process: Child,
    _directory: tempfile::TempDir,
}

impl Real {
    /// Starts a registry that has `made` as `x:1`; with an authority it uses TLS, client
    /// certificates and passwords.
    async fn start(made: &Made, authority: Option<&Authority>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        store(&path.join("blobs"), made);
        // The port is free now; the kernel gives another one to the next caller.
        let host = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut config = format!(
            "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {:?}}}}}\n",
            path.join("blobs")
        );
        match authority {
            None => config.push_str(&format!("http: {{addr: \"{host}\"}}\n")),
            Some(authority) => {
                let Pair { certificate, key } = authority.server("127.0.0.1");
                for (name, text) in [("cert", &certificate), ("key", &key), ("ca", &authority.pem)] {
                    fs::write(path.join(name), text).unwrap();
                }
                fs::write(path.join("passwords"), PASSWORDS).unwrap();
                let [cert, key, ca, passwords] = ["cert", "key", "ca", "passwords"].map(|name| path.join(name));
                config.push_str(&format!(
                    "auth: {{htpasswd: {{realm: r, path: {passwords:?}}}}}\nhttp: {{addr: \"{host}\", \
                     tls: {{certificate: {cert:?}, key: {key:?}, clientcas: [{ca:?}]}}}}\n"
                ));
            }
        }
        fs::write(path.join("config.yml"), config).unwrap();
        let log = fs::File::create(path.join("log")).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(path.join("config.yml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("the package docker-registry is installed");
        let real = Self { host, process, _directory: directory };
        for _ in 0..400 {
            if TcpStream::connect(&real.host).await.is_ok() {
                return real;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the registry did not start");
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Stores an image in the layout of docker-registry.
fn store(root: &Path, made: &Made) {
    let root = root.join("docker/registry/v2");
    let write = |path: String, content: &[u8]| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    for blob in made.blobs().chain([&made.manifest]) {
        let digest = Digest::of(blob);
        let hex = digest.hex();
        write(format!("blobs/sha256/{}/{hex}/data", &hex[..2]), blob);
        write(format!("repositories/x/_layers/sha256/{hex}/link"), digest.as_str().as_bytes());
    }
    let digest = Digest::of(&made.manifest);
    let manifests = "repositories/x/_manifests";
    for place in ["revisions/sha256", "tags/1/index/sha256"] {
        write(format!("{manifests}/{place}/{}/link", digest.hex()), digest.as_str().as_bytes());
    }
    write(format!("{manifests}/tags/1/current/link"), digest.as_str().as_bytes());
}

#[derive(Debug, Clone, Copy)]
enum Spoil {
    Cut,
    Stall,
    Corrupt,
}

/// A proxy to `host` that breaks every connection after half a megabyte, and the number of breaks.
async fn bad_line(host: &str, spoil: Spoil) -> (String, Arc<AtomicUsize>) {
    let (host, spoiled) = (host.to_owned(), Arc::<AtomicUsize>::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = (listener.local_addr().unwrap().to_string(), spoiled.clone());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (host, count) = (host.clone(), count.clone());
            tokio::spawn(async move {
                let (mut from, mut to) = TcpStream::connect(host).await.unwrap().into_split();
                let (mut asks, mut answers) = client.into_split();
                tokio::spawn(async move { tokio::io::copy(&mut asks, &mut to).await });
                let (mut passed, mut buffer) = (0, [0; 16 << 10]);
                while let Ok(length @ 1..) = from.read(&mut buffer).await {
                    passed += length;
                    if passed > 500_000 {
                        count.fetch_add(1, Ordering::Relaxed);
                        match spoil {
                            Spoil::Cut => return,
                            Spoil::Stall => std::future::pending().await,
                            Spoil::Corrupt => buffer[0] ^= 1,
                        }
                    }
                    if answers.write_all(&buffer[..length]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, spoiled)
}

/// An image with an incompressible layer of two megabytes.
fn big() -> (Made, Vec<u8>) {
    let noise: Vec<u8> = (0..500_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    (Made::new(&[Tar::default().file("big", &noise).end()], gzip), noise)
}

fn configured(host: &str, tls: Tls, logins: &str) -> TestEnv {
    let hosts = [(host.to_owned(), Registry { tls, ..Registry::default() })].into();
    let logins = RegistryCredentials::parse(logins.as_bytes()).unwrap();
    let limits = Limits { stall: Duration::from_millis(700), ..Limits::default() };
    TestEnv::with(Registries { hosts, logins, ..Registries::default() }, limits)
}

fn login(host: &str, password: &str) -> String {
    format!(r#"{{"auths": {{"https://{host}/v1/": {{"username": "me", "password": "{password}"}}}}}}"#)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs docker-registry"]
async fn a_guarded_registry_requires_ca_certificate_and_password() {
    let (made, _) = big();
    let authority = Authority::new();
    let real = Real::start(&made, Some(&authority)).await;
    let name = format!("{}/x:1", real.host);
    let none = r#"{"auths": {}}"#;
    let pull = async |tls: Tls, logins: &str, given: Option<Credentials>| {
        let env = configured(&real.host, tls, logins);
        env.store
            .pull_named(&name, given)
            .await
            .map(|image| image.id.clone())
            .map_err(|error| (error.kind(), chain(&error)))
    };
    let right = login(&real.host, "secret");
    let (_, text) = pull(Authority::new().known(), &right, None).await.unwrap_err();
    assert!(text.contains("signed by an unknown CA"), "{text}");
    let (_, text) = pull(authority.trusted(), &right, None).await.unwrap_err();
    assert!(text.contains("`client_cert`"), "{text}");
    for logins in [none.to_owned(), login(&real.host, "guess")] {
        let (kind, text) = pull(authority.known(), &logins, None).await.unwrap_err();
        assert_eq!(kind, model::ErrorKind::Unauthenticated, "{text}");
    }
    assert_eq!(pull(authority.known(), &right, None).await, Ok(made.id()));
    assert_eq!(pull(authority.known(), none, Some(me())).await, Ok(made.id()));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs docker-registry"]
async fn a_pull_completes_over_a_connection_that_breaks_or_stalls() {
    let (made, noise) = big();
    let authority = Authority::new();
    let real = Real::start(&made, Some(&authority)).await;
    for spoil in [Spoil::Cut, Spoil::Stall] {
        let (line, spoiled) = bad_line(&real.host, spoil).await;
        let env = configured(&line, authority.known(), &login(&line, "secret"));
        let image = env.store.pull_named(&format!("{line}/x:1"), None).await.unwrap();
        let lowers = env.store.lowers(&image).unwrap();
        assert_eq!(fs::read(env.store.layers_dir().join(lowers[0].directory()).join("big")).unwrap(), noise);
        assert!(spoiled.load(Ordering::Relaxed) >= 3, "{spoil:?}");
        assert_eq!(env.store.traffic().bytes, made.layers[0].len() as u64, "no byte is received twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs docker-registry"]
async fn corrupted_content_is_fetched_from_the_next_mirror() {
    let (made, _) = big();
    let real = Real::start(&made, None).await;
    let (line, spoiled) = bad_line(&real.host, Spoil::Corrupt).await;
    let [bad, good] = [&line, &real.host].map(|host| format!("http://{host}"));
    let alone = TestEnv::with(mirrored(std::slice::from_ref(&bad)), Limits::default());
    let error = alone.store.pull_named("registry.example/x:1", None).await.unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::Invalid, "{error:?}");
    alone.empty();
    let both = TestEnv::with(mirrored(&[bad, good]), Limits::default());
    both.store.pull_named("registry.example/x:1", None).await.unwrap();
    assert!(spoiled.load(Ordering::Relaxed) >= 2);
}
