use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::super::tests::support;
use super::*;

const NAME: &str = "a.example:5000/b:c";

fn auth() -> v1::AuthConfig {
    v1::AuthConfig {
        username: "user".into(),
        password: "pass".into(),
        auth: BASE64_STANDARD.encode("auser:a:pass"),
        server_address: "https://a.example:5000/v2/".into(),
        identity_token: "identity".into(),
        registry_token: "registry".into(),
    }
}

fn pull_with(change: impl FnOnce(&mut v1::AuthConfig)) -> Result<Pull, InvalidField> {
    let mut auth = auth();
    change(&mut auth);
    let image = Some(v1::ImageSpec { image: NAME.into(), ..support::image() });
    pull(v1::PullImageRequest { image, auth: Some(auth), sandbox_config: None })
}

fn pull(request: v1::PullImageRequest) -> Result<Pull, InvalidField> {
    super::pull(request, &["docker.io".to_owned()])
}

fn login(username: &str, password: &str) -> Option<RegistryLogin> {
    let credentials = Credentials::Basic { username: username.into(), password: password.into() };
    Some(RegistryLogin { registry: "a.example:5000".into(), credentials })
}

fn image() -> Image {
    let digest = |digit: &str| format!("sha256:{}", digit.repeat(64)).parse().unwrap();
    Image {
        id: digest("a"),
        repo_tags: vec![NAME.into()],
        repo_digests: vec![format!("a.example:5000/b@sha256:{}", "c".repeat(64))],
        manifest: Some(digest("b")),
        size: 7,
        user: String::new(),
        chain: Vec::new(),
    }
}

#[test]
fn the_strongest_credentials_are_used() {
    let used =
        |change: fn(&mut v1::AuthConfig)| pull_with(change).unwrap().request.credentials.map(|login| login.credentials);
    assert_eq!(used(|_| ()), Some(Credentials::RegistryToken("registry".into())));
    assert_eq!(used(|a| a.registry_token.clear()), Some(Credentials::IdentityToken("identity".into())));
    let no_tokens = |a: &mut v1::AuthConfig| (a.registry_token, a.identity_token) = Default::default();
    let basic_auth = pull_with(no_tokens).unwrap();
    assert_eq!(basic_auth.request.credentials, login("auser", "a:pass"));
    assert!(basic_auth.warnings.is_empty());
    let plain = pull_with(|a| {
        no_tokens(a);
        a.auth.clear();
    });
    assert_eq!(plain.unwrap().request.credentials, login("user", "pass"));
    assert_eq!(pull_with(|a| *a = v1::AuthConfig::default()).unwrap().request.credentials, None);
}

#[test]
fn credentials_for_another_registry_are_not_used() {
    for other in ["b.example", "https://a.example", "a.example:5001"] {
        let Pull { request: PullRequest { credentials, .. }, warnings, .. } =
            pull_with(|a| a.server_address = other.into()).unwrap();
        assert_eq!(credentials, None, "{other}");
        assert_eq!(warnings.len(), 1, "{other}");
    }
    for same in ["", "a.example:5000", "http://a.example:5000"] {
        assert!(pull_with(|a| a.server_address = same.into()).unwrap().request.credentials.is_some(), "{same}");
    }
}

#[test]
fn credentials_for_a_name_without_a_registry_are_for_their_registry() {
    let used = |server: &str, search: &[&str]| {
        let search: Vec<String> = search.iter().map(|registry| (*registry).to_owned()).collect();
        let auth = v1::AuthConfig { server_address: server.into(), ..auth() };
        let image = Some(v1::ImageSpec { image: "busybox".into(), ..v1::ImageSpec::default() });
        super::pull(v1::PullImageRequest { image, auth: Some(auth), sandbox_config: None }, &search)
            .map(|pull| pull.request.credentials.map(|login| login.registry).unwrap_or_default())
    };
    let owner = |text: &str| Ok(text.to_owned());
    assert_eq!(used("https://index.docker.io/v1/", &["docker.io"]), owner("docker.io"));
    assert_eq!(used("", &["docker.io"]), owner("docker.io"));
    assert_eq!(used("", &["a.example", "docker.io"]), owner("docker.io"));
    assert_eq!(used("", &["a.example"]), owner(""), "clients look them up for docker.io");
    assert_eq!(used("docker.io", &["a.example"]), owner(""), "they would go to a.example");
    assert_eq!(used("A.example", &["a.example"]), owner("a.example"));
    assert_eq!(used("a.example", &["a.example", "docker.io"]), owner("a.example"));
    assert_eq!(used("docker.io", &["a.example", "docker.io"]), owner("docker.io"));
    assert_eq!(used("b.example", &["a.example", "docker.io"]), owner(""));
    assert!(used("", &[]).unwrap_err().to_string().starts_with("image.image: "));
}

#[test]
fn bad_credentials_are_refused_without_showing_them() {
    let only_auth = |text: &str| {
        let text = text.to_owned();
        pull_with(|a| *a = v1::AuthConfig { auth: text, ..v1::AuthConfig::default() })
    };
    for bad in ["s3cret!", &BASE64_STANDARD.encode("s3cret"), &BASE64_STANDARD.encode([0xff])] {
        let said = only_auth(bad).unwrap_err().to_string();
        assert_eq!(said, "auth.auth: expected base64 of username:password");
    }
    let nameless = pull_with(|a| *a = v1::AuthConfig { password: "s3cret".into(), ..v1::AuthConfig::default() });
    assert_eq!(nameless.unwrap_err().to_string(), "auth.username: empty, but password is set");
}

#[test]
fn a_pull_needs_a_name() {
    let with = |image| pull(v1::PullImageRequest { image, auth: None, sandbox_config: None }).map(|pull| pull.name);
    assert_eq!(with(None).unwrap_err().to_string(), "image: missing");
    assert_eq!(with(Some(v1::ImageSpec::default())).unwrap_err().to_string(), "image.image: empty");
    let bad = v1::ImageSpec { image: "A B".into(), ..v1::ImageSpec::default() };
    assert!(with(Some(bad)).unwrap_err().to_string().starts_with("image.image: "));
    let good = v1::ImageSpec { image: NAME.into(), ..v1::ImageSpec::default() };
    assert_eq!(with(Some(good)).unwrap().image, NAME);
}

#[test]
fn an_empty_filter_matches_all() {
    let wanted = |image| filter(Some(v1::ImageFilter { image })).map(|(name, _)| name.map(|name| name.image));
    assert_eq!(filter(None), Ok((None, Vec::new())));
    assert_eq!(wanted(None), Ok(None));
    assert_eq!(wanted(Some(v1::ImageSpec::default())), Ok(Some(String::new())));
    assert_eq!(wanted(Some(support::image())), Ok(Some("sha256:abc".into())));
}

#[test]
fn a_filter_is_checked_like_any_image() {
    let with = |change: fn(&mut v1::ImageSpec)| {
        let mut image = v1::ImageSpec::default();
        change(&mut image);
        filter(Some(v1::ImageFilter { image: Some(image) }))
    };
    assert_eq!(with(|image| image.image_ref = "x".into()).unwrap().1.len(), 1);
    assert_eq!(
        with(|image| image.image = "a\0b".into()).unwrap_err().to_string(),
        "filter.image.image: contains a zero byte"
    );
}

#[test]
fn the_runtime_handler_of_an_image_is_converted() {
    let image = v1::ImageSpec { image: NAME.into(), runtime_handler: "other".into(), ..v1::ImageSpec::default() };
    let asked_for = pull(v1::PullImageRequest { image: Some(image.clone()), auth: None, sandbox_config: None });
    assert_eq!(asked_for.unwrap().name.handler, "other");
    assert_eq!(image_name(Some(image.clone())).unwrap().0.handler, "other");
    let filtered = filter(Some(v1::ImageFilter { image: Some(v1::ImageSpec { image: String::new(), ..image }) }));
    assert_eq!(filtered.unwrap().0.unwrap().handler, "other");
}

#[test]
fn the_pod_of_a_pull_is_checked_and_returned() {
    let with = |config| {
        let image = Some(v1::ImageSpec { image: NAME.into(), ..v1::ImageSpec::default() });
        pull(v1::PullImageRequest { image, auth: None, sandbox_config: config })
    };
    assert_eq!(with(None).unwrap().pod, None);
    let metadata = v1::PodSandboxMetadata { name: "n".into(), uid: "u".into(), namespace: "s".into(), attempt: 3 };
    let config = v1::PodSandboxConfig { metadata: Some(metadata.clone()), ..Default::default() };
    let expected = PodMeta { name: "n".into(), uid: "u".into(), namespace: "s".into(), attempt: 3 };
    assert_eq!(with(Some(config.clone())).unwrap().pod, Some(expected));
    assert_eq!(with(Some(v1::PodSandboxConfig::default())).unwrap().pod, None, "as some clients send it");
    let nameless = v1::PodSandboxMetadata { uid: String::new(), ..metadata };
    let refused = with(Some(v1::PodSandboxConfig { metadata: Some(nameless), ..config })).unwrap_err();
    assert_eq!(refused.to_string(), "sandbox_config.metadata.uid: empty");
}

#[test]
fn padding_of_credentials_is_removed() {
    let padded = BASE64_STANDARD.encode("user:pass\0\0");
    for auth in [padded.clone(), format!("{padded}\0\0"), format!("{padded}\n")] {
        let given = pull_with(|a| *a = v1::AuthConfig { auth, ..v1::AuthConfig::default() });
        assert_eq!(given.unwrap().request.credentials, login("user", "pass"));
    }
}

#[test]
fn an_image_shows_every_field() {
    let id = format!("sha256:{}", "a".repeat(64));
    assert_eq!(
        to_wire(&image(), &PinnedImages::default()),
        v1::Image {
            id: id.clone(),
            repo_tags: vec![NAME.into()],
            repo_digests: image().repo_digests,
            size: 7,
            uid: None,
            username: String::new(),
            spec: Some(v1::ImageSpec { image: id, ..v1::ImageSpec::default() }),
            pinned: false,
        }
    );
}

#[test]
fn an_images_user_is_a_number_or_a_name() {
    let user = |text: &str| {
        let mut image = image();
        image.user = text.into();
        let shown = to_wire(&image, &PinnedImages::default());
        (shown.uid.map(|uid| uid.value), shown.username)
    };
    assert_eq!(user("1003:1004"), (Some(1003), String::new()));
    assert_eq!(user("www-data:1004"), (None, "www-data".into()));
    assert_eq!(user("0"), (Some(0), String::new()));
    assert_eq!(user(""), (None, String::new()));
    assert_eq!(user(&"ä".repeat(1 << 20)).1.chars().count(), 256);
    for no_user in ["4294967296", "2147483648", "-1", "+1"] {
        assert_eq!(user(no_user), (None, no_user.to_owned()));
    }
}

#[test]
fn an_image_is_pinned_by_name() {
    let pinned = |name: &str| PinnedImages::parse(&[name.to_owned()]).unwrap();
    assert!(to_wire(&image(), &pinned(NAME)).pinned);
    assert!(to_wire(&image(), &pinned(&image().repo_digests[0])).pinned);
    assert!(!to_wire(&image(), &pinned("a.example:5000/b:d")).pinned);
    assert_eq!(to_wire(&Image { size: 0, ..image() }, &PinnedImages::default()).size, 1);
}

#[test]
fn usage_names_the_directory_and_has_its_numbers() {
    let usage = Usage { path: "/var/lib/crisp/images".into(), bytes: 5, inodes: 6 };
    let shown = usage_to_wire(&usage, UNIX_EPOCH + Duration::from_secs(1));
    assert_eq!(shown.timestamp, 1_000_000_000);
    assert_eq!(shown.fs_id.unwrap().mountpoint, "/var/lib/crisp/images");
    assert_eq!((shown.used_bytes.unwrap().value, shown.inodes_used.unwrap().value), (5, 6));
}
