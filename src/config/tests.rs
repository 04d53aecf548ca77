use std::collections::BTreeSet;
use std::path::Path;

use super::file::{RawCgroup, RawHandler, RawRegistry};
use super::*;

/// Returns the defaults with a shim path that exists wherever the test runs.
fn raw() -> RawConfig {
    let mut raw = RawConfig::default();
    raw.shim.path = std::env::current_exe().unwrap();
    raw
}

fn refused(change: impl FnOnce(&mut RawConfig)) -> InvalidSetting {
    let mut raw = raw();
    change(&mut raw);
    match raw.resolve() {
        Err(ConfigError::Invalid(invalid)) => invalid,
        other => panic!("{other:?}"),
    }
}

fn refused_registry(host: &str, registry: RawRegistry) -> InvalidSetting {
    refused(|raw| drop(raw.registries.insert(host.to_owned(), registry)))
}

/// Collects every key with the sections above it.
fn keys(value: &toml::Value, above: &str, into: &mut BTreeSet<String>) {
    match value {
        toml::Value::Table(table) => table.iter().for_each(|(key, value)| keys(value, &format!("{above}.{key}"), into)),
        _ => {
            into.insert(above.to_owned());
        }
    }
}

#[test]
fn the_example_file_has_exactly_the_defaults() {
    assert_eq!(toml::from_str::<RawConfig>(EXPLAINED).unwrap(), RawConfig::default());
}

#[test]
fn the_example_file_explains_every_key() {
    let uncommented: String = EXPLAINED
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line).to_owned() + "\n")
        .collect();
    let mut all = RawConfig::default();
    all.registries.insert("registry.example:5000".to_owned(), RawRegistry::default());
    let strict = RawHandler {
        log_line_max: Some(all.container.log_line_max),
        log_rate_max: Some(all.container.log_rate_max),
        shm_size: Some(all.container.shm_size),
        oom_score_adj: Some("require".into()),
        privileged: Some(false),
        seccomp: Some("/etc/crisp/strict.json".into()),
        apparmor: Some("crisp-strict".into()),
        selinux: Some("off".into()),
        capabilities: Some(Vec::new()),
        rlimits: Some([("core".into(), "0".into()), ("nofile".into(), "1024".into())].into()),
        resize_notices: Some(vec!["file".into(), "SIGHUP".into(), "hook".into()]),
        resize_hook: Some(vec!["/usr/local/bin/on-resize".into()]),
    };
    all.handlers.insert("strict".to_owned(), strict);
    assert_eq!(toml::from_str::<RawConfig>(&uncommented).unwrap(), all);

    let (mut named, mut known) = (BTreeSet::new(), BTreeSet::new());
    keys(&toml::from_str(&uncommented).unwrap(), "", &mut named);
    keys(&toml::Value::try_from(&all).unwrap(), "", &mut known);
    assert_eq!(named, known);

    let lines: Vec<&str> = EXPLAINED.lines().collect();
    for pair in lines.windows(2).filter(|pair| pair[1].contains(" = ") && !pair[1].starts_with("# ")) {
        assert!(pair[0].starts_with("# "), "not explained: {}", pair[1]);
    }
}

#[test]
fn the_defaults_can_be_used() {
    let config = raw().resolve().unwrap();
    assert_eq!(config.socket_mode, 0o600);
    assert_eq!(config.cgroup.parent.as_str(), "/crisp");
    assert_eq!(config.log.format, LogFormat::Text);
}

#[test]
fn registries_and_pinned_images_are_resolved() {
    let mut raw = raw();
    let registry = RawRegistry { mirrors: vec!["http://m:5000/x".to_owned()], ..RawRegistry::default() };
    raw.registries.insert("*".to_owned(), registry);
    raw.image.pinned.push("a.example/b".to_owned());
    let config = raw.resolve().unwrap();
    assert_eq!(config.registries.hosts["*"].mirrors, ["http://m:5000/x".parse().unwrap()]);
    assert_eq!(config.pinned, PinnedImages::parse(&["a.example/b:latest".to_owned()]).unwrap());
}

#[test]
fn pull_limits_and_the_metrics_address_are_resolved() {
    let mut raw = raw();
    assert_eq!(raw.clone().resolve().unwrap().pull, image::Limits::default());
    assert_eq!(raw.clone().resolve().unwrap().metrics, None);
    (raw.image.downloads, raw.image.pull_memory, raw.image.stall_timeout) = (5, 64 << 20, 7);
    for (text, listen) in [
        ("127.0.0.1:9099", MetricsListen::Address(([127, 0, 0, 1], 9099).into())),
        ("[::1]:1", MetricsListen::Address("[::1]:1".parse().unwrap())),
        ("/run/x.sock", MetricsListen::Socket("/run/x.sock".into())),
        ("unix:///run/x.sock", MetricsListen::Socket("/run/x.sock".into())),
    ] {
        raw.metrics.listen = text.to_owned();
        let config = raw.clone().resolve().unwrap();
        assert_eq!(config.metrics, Some(MetricsConfig { listen, access: MetricsAccess::default() }));
        let image::Limits { downloads, memory_bytes, stall, .. } = config.pull;
        assert_eq!((downloads, memory_bytes, stall), (5, 64 << 20, Duration::from_secs(7)));
    }
}

#[test]
fn settings_of_declared_pod_resources_are_resolved() {
    let mut raw = raw();
    let defaults = ResourcesConfig { mismatch: MismatchPolicy::Warn, annotation: None };
    assert_eq!(raw.clone().resolve().unwrap().resources, defaults);
    (raw.resources.mismatch, raw.resources.annotation) = ("refuse".into(), "a.example/resources".into());
    let annotation = Some("a.example/resources".parse().unwrap());
    assert_eq!(raw.resolve().unwrap().resources, ResourcesConfig { mismatch: MismatchPolicy::Refuse, annotation });
    assert_eq!(refused(|raw| raw.resources.mismatch = "ignore".into()).key, "resources.mismatch");
    for bad in ["two words", "a.example/", "/x", "a/b/c"] {
        assert_eq!(refused(|raw| raw.resources.annotation = bad.into()).key, "resources.annotation", "{bad}");
    }
}

#[test]
fn cdi_settings_are_resolved() {
    let mut raw = raw();
    let defaults = CdiConfig { spec_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()], annotations: false };
    assert_eq!(raw.clone().resolve().unwrap().cdi, defaults);
    (raw.cdi.spec_dirs, raw.cdi.annotations) = (vec![], true);
    assert_eq!(raw.resolve().unwrap().cdi, CdiConfig { spec_dirs: vec![], annotations: true });
    for bad in ["", "cdi", "/", "/etc/../cdi"] {
        assert_eq!(refused(|raw| raw.cdi.spec_dirs.push(bad.into())).key, "cdi.spec_dirs", "{bad}");
    }
}

#[test]
fn printed_settings_parse_to_the_same_values() {
    let mut raw = raw();
    raw.registries.insert(
        "a.example".to_owned(),
        RawRegistry {
            mirrors: vec!["http://b".to_owned()],
            mirrors_only: true,
            plain_http: true,
            ca: "/ca".into(),
            client_cert: "/cert".into(),
            client_key: "/key".into(),
        },
    );
    raw.image.pinned.push("a.example/b:c".to_owned());
    assert_eq!(toml::from_str::<RawConfig>(&toml::to_string(&raw).unwrap()).unwrap(), raw);
}

#[test]
fn an_unknown_key_is_refused_with_its_name_and_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("crisp.toml");
    for (text, key) in [
        ("lisen = \"/x\"", "lisen"),
        ("[container]\n\ncolour = 3", "colour"),
        ("[registries.\"a.example\"]\n\nx = 1", "x"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = RawConfig::load(Some(&file), Overrides::default()).unwrap_err();
        let ConfigError::Parse { source, line, .. } = &error else { panic!("{error:?}") };
        assert_eq!(*line, text.lines().count());
        assert!(error.to_string().contains("crisp.toml"), "{error}");
        assert!(source.to_string().contains(&format!("unknown field `{key}`")), "{source}");
        assert!(error.to_string().ends_with(&format!("crisp.toml:{line}")), "{error}");
    }
}

#[test]
fn a_named_file_must_exist() {
    let error = RawConfig::load(Some(Path::new("/nonexistent/crisp.toml")), Overrides::default()).unwrap_err();
    assert!(matches!(error, ConfigError::Read { .. }), "{error:?}");
}

#[test]
fn the_command_line_overrides_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("crisp.toml");
    std::fs::write(&file, "listen = \"/a/sock\"\nroot = \"/a/root\"\n[log]\nlevel = \"warn\"").unwrap();
    let overrides = Overrides {
        listen: Some("unix:///b/sock".into()),
        root: None,
        state: Some("/b/state".into()),
        log_level: Some("debug".into()),
        log_format: Some("json".into()),
    };
    let raw = RawConfig::load(Some(&file), overrides).unwrap();
    assert_eq!((raw.listen, raw.root, raw.state), ("/b/sock".into(), "/a/root".into(), "/b/state".into()));
    assert_eq!((raw.log.level.as_str(), raw.log.format.as_str()), ("debug", "json"));
}

#[test]
fn invalid_values_are_refused_by_key() {
    let cases: [(&str, InvalidSetting); 38] = [
        ("listen", refused(|raw| raw.listen = "crisp.sock".into())),
        ("listen", refused(|raw| raw.listen = "tcp://127.0.0.1:1".into())),
        ("listen", refused(|raw| raw.listen = format!("/{}", "x".repeat(107)).into())),
        ("root", refused(|raw| raw.root = "/".into())),
        ("root", refused(|raw| raw.root = "/var/../lib".into())),
        ("state", refused(|raw| raw.state = raw.root.join("state"))),
        ("socket_mode", refused(|raw| raw.socket_mode = "rw".into())),
        ("socket_mode", refused(|raw| raw.socket_mode = "4600".into())),
        ("socket_mode", refused(|raw| raw.socket_mode = "0060".into())),
        ("socket_mode", refused(|raw| raw.socket_mode = "0666".into())),
        ("socket_group", refused(|raw| raw.socket_group = "no such group".into())),
        ("log.level", refused(|raw| raw.log.level = "crisp=loud".into())),
        ("log.format", refused(|raw| raw.log.format = "xml".into())),
        ("cgroup.driver", refused(|raw| raw.cgroup.driver = "openrc".into())),
        ("cgroup.parent", refused(|raw| raw.cgroup.parent = "crisp".into())),
        (
            "cgroup.parent",
            refused(|raw| {
                raw.cgroup = RawCgroup { driver: "systemd".into(), parent: "/crisp".into(), ..RawCgroup::default() }
            }),
        ),
        ("shim.path", refused(|raw| raw.shim.path = "/nonexistent/shim".into())),
        ("container.log_line_max", refused(|raw| raw.container.log_line_max = 0)),
        ("container.oom_score_adj", refused(|raw| raw.container.oom_score_adj = "maybe".into())),
        ("stop.kill_wait", refused(|raw| raw.stop.kill_wait = 0)),
        ("stop.grace_max", refused(|raw| raw.stop.grace_max = u64::MAX)),
        ("image.pinned[0]", refused(|raw| raw.image.pinned = vec!["a b".into()])),
        ("image.pinned[0]", refused(|raw| raw.image.pinned = vec!["pause:*".into()])),
        ("image.search[0]", refused(|raw| raw.image.search = vec!["https://a.example".into()])),
        ("image.credentials", refused(|raw| raw.image.credentials = "/nonexistent/config.json".into())),
        ("image.downloads", refused(|raw| raw.image.downloads = 0)),
        ("image.downloads", refused(|raw| raw.image.downloads = 65)),
        ("image.pull_memory", refused(|raw| raw.image.pull_memory = 1 << 20)),
        ("image.stall_timeout", refused(|raw| raw.image.stall_timeout = 0)),
        ("image.stall_timeout", refused(|raw| raw.image.stall_timeout = u64::MAX)),
        ("metrics.listen", refused(|raw| raw.metrics.listen = "0.0.0.0:9099".into())),
        ("metrics.listen", refused(|raw| raw.metrics.listen = "127.0.0.1:0".into())),
        ("metrics.listen", refused(|raw| raw.metrics.listen = "localhost:9099".into())),
        ("metrics.listen", refused(|raw| raw.metrics.listen = format!("/{}", "x".repeat(107)))),
        ("metrics.listen", refused(|raw| raw.metrics.listen = raw.listen.display().to_string())),
        ("registries.\"https://a.example\"", refused_registry("https://a.example", RawRegistry::default())),
        (
            "registries.\"a.example\".mirrors",
            refused_registry("a.example", RawRegistry { mirrors: vec!["b:5000".into()], ..RawRegistry::default() }),
        ),
        (
            "registries.\"a.example\".mirrors_only",
            refused_registry("a.example", RawRegistry { mirrors_only: true, ..RawRegistry::default() }),
        ),
    ];
    for (key, invalid) in cases {
        assert_eq!(invalid.key, key, "{invalid}");
    }
    let driver = refused(|raw| raw.cgroup.driver = "openrc".into());
    assert_eq!(driver.to_string(), "cgroup.driver: must be \"cgroupfs\" or \"systemd\", got \"openrc\"");
}

#[test]
fn with_systemd_the_parent_cgroup_is_a_slice() {
    for (named, used) in
        [("", "/crisp.slice"), ("/a-b.slice", "/a.slice/a-b.slice"), ("/a.slice/a-b.slice", "/a.slice/a-b.slice")]
    {
        let mut raw = raw();
        raw.cgroup = RawCgroup { driver: "systemd".into(), parent: named.into(), ..RawCgroup::default() };
        let config = raw.resolve().unwrap();
        assert_eq!((config.cgroup.driver, config.cgroup.parent.as_str()), (CgroupDriver::Systemd, used));
    }
}
