use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// A self-signed certificate and its key, for these tests only.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBgDCCASegAwIBAgIUQl351GSgrQ0ZrxFobhOa2/Ts9F8wCgYIKoZIzj0EAwIw
FTETMBEGA1UEAwwKY3Jpc3AudGVzdDAgFw0yNjExMTYwNjE5NDBaGA8yMTI2MTAy
MzA2MTk0MFowFTETMBEGA1UEAwwKY3Jpc3AudGVzdDBZMBMGByqGSM49AgEGCCqG
SM49AwEHA0IABCvXJ0mwNTcttMBjXLWOGiKpl6It9MkGKBomsCwUi2lNMV/a/7pf
EE+G9Ko1PyUTSwjVhzwMuFcoxwMdYSvuOSyjUzBRMB0GA1UdDgQWBBQKMsTCCnkT
HxS1uG9ejfLd3zcXvzAfBgNVHSMEGDAWgBQKMsTCCnkTHxS1uG9ejfLd3zcXvzAP
BgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0cAMEQCIH+JKdu592Dps3IMgWuc
CKobuh6QZYPQkuJYQfe649geAiB5BeY6aHlCtQcxWHOEcObTQohACTy2jnH7iag1
te24Fg==
-----END CERTIFICATE-----
";
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg/tqaSlE369IXfwe3
Qnbew3kiSEpe9wo9Tb4Yh3urF6qhRANCAAQr1ydJsDU3LbTAY1y1jhoiqZeiLfTJ
BigaJrAsFItpTTFf2v+6XxBPhvSqNT8lE0sI1Yc8DLhXKMcDHWEr7jks
-----END PRIVATE KEY-----
";

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn with(&self, name: &str, content: &str, mode: u32) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

fn of(host: &str, raw: RawRegistry) -> Result<image::Registry, InvalidSetting> {
    let mut all = resolve(&RawImage::default(), &[(host.to_owned(), raw)].into())?;
    Ok(all.hosts.remove(host).unwrap())
}

fn credentials(file: &Path) -> Result<image::RegistryCredentials, InvalidSetting> {
    let raw = RawImage { credentials: file.to_owned(), ..RawImage::default() };
    resolve(&raw, &BTreeMap::new()).map(|all| all.logins)
}

#[test]
fn certificates_are_read() {
    let files = Files::new();
    let certificate = files.with("cert.pem", CERTIFICATE, 0o644);
    let key = files.with("key.pem", KEY, 0o600);
    let raw = RawRegistry { ca: certificate.clone(), client_cert: certificate, client_key: key, ..Default::default() };
    let expected = image::Tls::default().with_authorities(CERTIFICATE.as_bytes()).unwrap();
    let expected = expected.with_client(CERTIFICATE.as_bytes(), KEY.as_bytes()).unwrap();
    assert_eq!(of("a.example", raw).unwrap().tls, expected);
}

#[test]
fn an_invalid_file_is_refused_with_its_key_and_name() {
    let files = Files::new();
    let good = files.with("good.pem", CERTIFICATE, 0o644);
    let open = files.with("open.pem", KEY, 0o640);
    let key = files.with("key.pem", KEY, 0o600);
    let bad = files.with("bad.pem", "none of it", 0o600);
    let long = files.with("long.pem", "", 0o600);
    fs::File::options().write(true).open(&long).unwrap().set_len(FILE_MAX + 1).unwrap();
    let absent = files.0.path().join("absent.pem");
    let dir = files.0.path().to_owned();
    let none = PathBuf::new();
    let cases = [
        ("ca", &absent, &none, &none, "absent.pem"),
        ("ca", &bad, &none, &none, "bad.pem"),
        ("ca", &long, &none, &none, "long.pem"),
        ("ca", &dir, &none, &none, "is not a regular file"),
        ("ca", &PathBuf::from("relative.pem"), &none, &none, "relative.pem"),
        ("client_cert", &none, &good, &none, "client_key"),
        ("client_key", &none, &none, &key, "client_cert"),
        ("client_cert", &none, &bad, &key, "bad.pem"),
        ("client_key", &none, &good, &bad, "bad.pem"),
        ("client_key", &none, &good, &open, "0640"),
    ];
    for (name, ca, client_cert, client_key, words) in cases {
        let raw = RawRegistry {
            ca: ca.clone(),
            client_cert: client_cert.clone(),
            client_key: client_key.clone(),
            ..Default::default()
        };
        let error = of("a.example:5000", raw).unwrap_err();
        assert_eq!(error.key, format!("registries.\"a.example:5000\".{name}"), "{error}");
        assert!(error.problem.contains(words), "{error}");
    }
}

#[test]
fn a_fifo_is_refused_without_waiting_for_a_writer() {
    let files = Files::new();
    let pipe = files.0.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert!(credentials(&pipe).unwrap_err().problem.contains("is not a regular file"));
}

#[test]
fn host_names_are_case_insensitive() {
    let registries = |names: &[&str]| {
        let hosts = names.iter().map(|name| ((*name).to_owned(), RawRegistry::default())).collect();
        resolve(&RawImage::default(), &hosts).map(|all| all.hosts.into_keys().collect::<Vec<_>>())
    };
    assert_eq!(registries(&["A.Example:5000"]).unwrap(), ["a.example:5000"]);
    let error = registries(&["A.example", "a.example"]).unwrap_err();
    assert_eq!(error.key, "registries.\"a.example\"", "{error}");
}

#[test]
fn the_section_for_other_registries_takes_no_certificates() {
    let raw = RawRegistry { ca: "/etc/hostname".into(), ..Default::default() };
    let error = of("*", raw).unwrap_err();
    assert_eq!(error.key, "registries.\"*\".ca");
}

#[test]
fn credentials_must_be_private_to_the_owner_and_are_never_shown() {
    let files = Files::new();
    let link = files.0.path().join("link");
    let good = files.with("good.json", r#"{"auths": {"a.example": {"auth": "bWU6aHVudGVyMg=="}}}"#, 0o600);
    symlink(&good, &link).unwrap();
    assert_eq!(credentials(&link).unwrap(), credentials(&good).unwrap());
    assert_ne!(credentials(&good).unwrap(), image::RegistryCredentials::default());
    for (content, mode) in [("{\"auths\": {\"a\": {\"auth\": \"hunter2\"}}}", 0o600), ("hunter2", 0o600), ("{}", 0o604)]
    {
        let bad = files.with("bad.json", content, mode);
        let error = credentials(&bad).unwrap_err();
        assert_eq!(error.key, "image.credentials", "{error}");
        assert!(error.problem.contains("bad.json") && !error.problem.contains("hunter2"), "{error}");
    }
}

#[test]
fn search_accepts_registries_only() {
    let search = |names: &[&str]| {
        let search = names.iter().map(|name| (*name).to_owned()).collect();
        resolve(&RawImage { search, ..RawImage::default() }, &BTreeMap::new()).map(|all| all.search)
    };
    assert_eq!(search(&["a.example:5000", "docker.io"]).unwrap(), ["a.example:5000", "docker.io"]);
    assert_eq!(search(&[]).unwrap(), [""; 0]);
    for (bad, key) in [
        (&["docker.io", "https://a.example"][..], "image.search[1]"),
        (&["library"], "image.search[0]"),
        (&["a.example/team"], "image.search[0]"),
        (&["a.example", "A.Example"], "image.search[1]"),
    ] {
        assert_eq!(search(bad).unwrap_err().key, key, "{bad:?}");
    }
}

#[test]
fn files_returns_every_file_that_settings_name() {
    let registry = RawRegistry { ca: "/a".into(), client_key: "/k".into(), ..Default::default() };
    let image = RawImage { credentials: "/c".into(), ..Default::default() };
    let named = files(&image, &[("x.example".to_owned(), registry)].into());
    assert_eq!(named, [PathBuf::from("/a"), "/k".into(), "/c".into()]);
    assert!(files(&RawImage::default(), &BTreeMap::new()).is_empty());
}
