use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

/// A certificate and its key, as a tool of the trade makes them; for nothing else than these tests.
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
fn a_file_that_cannot_be_used_is_blamed_by_key_and_name() {
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
        ("ca", &dir, &none, &none, "is no file"),
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
        let said = of("a.example:5000", raw).unwrap_err();
        assert_eq!(said.key, format!("registries.\"a.example:5000\".{name}"), "{said}");
        assert!(said.problem.contains(words), "{said}");
    }
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let files = Files::new();
    let pipe = files.0.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    assert!(credentials(&pipe).unwrap_err().problem.contains("is no file"));
}

#[test]
fn host_names_are_the_same_in_capitals() {
    let registries = |names: &[&str]| {
        let hosts = names.iter().map(|name| ((*name).to_owned(), RawRegistry::default())).collect();
        resolve(&RawImage::default(), &hosts).map(|all| all.hosts.into_keys().collect::<Vec<_>>())
    };
    assert_eq!(registries(&["A.Example:5000"]).unwrap(), ["a.example:5000"]);
    let said = registries(&["A.example", "a.example"]).unwrap_err();
    assert_eq!(said.key, "registries.\"a.example\"", "{said}");
}

#[test]
fn all_others_have_no_certificates() {
    let raw = RawRegistry { ca: "/etc/hostname".into(), ..Default::default() };
    let said = of("*", raw).unwrap_err();
    assert_eq!(said.key, "registries.\"*\".ca");
}

#[test]
fn credentials_are_for_the_owner_alone_and_never_shown() {
    let files = Files::new();
    let link = files.0.path().join("link");
    let good = files.with("good.json", r#"{"auths": {"a.example": {"auth": "bWU6aHVudGVyMg=="}}}"#, 0o600);
    symlink(&good, &link).unwrap();
    assert_eq!(credentials(&link).unwrap(), credentials(&good).unwrap());
    assert_ne!(credentials(&good).unwrap(), image::RegistryCredentials::default());
    for (content, mode) in [("{\"auths\": {\"a\": {\"auth\": \"hunter2\"}}}", 0o600), ("hunter2", 0o600), ("{}", 0o604)]
    {
        let bad = files.with("bad.json", content, mode);
        let said = credentials(&bad).unwrap_err();
        assert_eq!(said.key, "image.credentials", "{said}");
        assert!(said.problem.contains("bad.json") && !said.problem.contains("hunter2"), "{said}");
    }
}

#[test]
fn short_names_are_searched_in_registries_only() {
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
fn the_files_to_look_at_are_those_that_are_named() {
    let registry = RawRegistry { ca: "/a".into(), client_key: "/k".into(), ..Default::default() };
    let image = RawImage { credentials: "/c".into(), ..Default::default() };
    let named = files(&image, &[("x.example".to_owned(), registry)].into());
    assert_eq!(named, [PathBuf::from("/a"), "/k".into(), "/c".into()]);
    assert!(files(&RawImage::default(), &BTreeMap::new()).is_empty());
}
