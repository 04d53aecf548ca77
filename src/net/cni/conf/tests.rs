//! Selects the configured network from the files of the directory, also after changes.

use std::fs;
use std::path::Path;

use model::{ErrorClass as _, ErrorKind};
use serde_json::json;

use super::dir;
use crate::cni::tests::support::{TestEnv, words};
use crate::cni::{NotReady, PodCidrError, Rendered};

/// A minimal network.
fn plain(name: &str) -> String {
    json!({ "cniVersion": "1.0.0", "name": name, "plugins": [{ "type": "one" }] }).to_string()
}

/// Returns the selected network, and why the files before it were skipped.
fn in_use(env: &TestEnv) -> (Option<String>, Vec<String>) {
    let found = dir::find_network(&env.path("conf")).unwrap();
    let bad = found.bad.iter().map(ToString::to_string).collect();
    (found.network.map(|(_, list)| list.name), bad)
}

fn name_in_use(env: &TestEnv) -> Option<String> {
    in_use(env).0
}

#[test]
fn the_first_valid_file_by_name_is_in_use() {
    let env = TestEnv::new();
    assert_eq!(name_in_use(&env), None, "no directory yet");
    assert!(!env.cni.configured());
    env.conf("50-late.conflist", &plain("late"));
    assert_eq!(name_in_use(&env).as_deref(), Some("late"), "the directory has appeared");
    assert!(env.cni.configured());
    env.conf("20-early.conflist", &plain("early"));
    assert_eq!(name_in_use(&env).as_deref(), Some("early"));
    env.conf("10-other.yaml", &plain("other"));
    env.conf("10-other.conflist.bak", &plain("other"));
    fs::create_dir(env.path("conf/05-directory.conflist")).unwrap();
    assert_eq!(in_use(&env), (Some("early".to_owned()), vec![]), "these are not configurations");
    env.conf("10-broken.conflist", "{");
    let (name, bad) = in_use(&env);
    assert_eq!(name.as_deref(), Some("early"));
    assert_eq!(bad.len(), 1);
    assert!(bad[0].contains("10-broken.conflist: the CNI configuration is not valid JSON: "), "{bad:?}");
}

#[test]
fn every_kind_of_change_is_detected() {
    let env = TestEnv::new();
    env.conf("10.conflist", &plain("one"));
    assert_eq!(name_in_use(&env).as_deref(), Some("one"));
    // In place, with the same length, within one clock tick.
    let path = env.path("conf/10.conflist");
    fs::write(&path, plain("two")).unwrap();
    assert_eq!(name_in_use(&env).as_deref(), Some("two"));
    env.conf("10.conflist", &plain("six"));
    assert_eq!(name_in_use(&env).as_deref(), Some("six"), "renamed into place");
    fs::write(env.path("elsewhere"), plain("linked")).unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(env.path("elsewhere"), &path).unwrap();
    assert_eq!(name_in_use(&env).as_deref(), Some("linked"));
    fs::write(env.path("elsewhere"), plain("behind")).unwrap();
    assert_eq!(name_in_use(&env).as_deref(), Some("behind"), "the file behind a link");
    fs::rename(env.path("conf"), env.path("old")).unwrap();
    assert_eq!(name_in_use(&env), None, "the directory was removed");
    env.conf("10.conflist", &plain("new"));
    assert_eq!(name_in_use(&env).as_deref(), Some("new"), "another directory of the same name");
}

#[test]
fn a_conf_file_is_a_network_with_one_plugin() {
    let env = TestEnv::new();
    for name in ["10-x.conf", "10-x.json"] {
        env.conf(name, r#"{"cniVersion": "0.3.1", "name": "single", "type": "bridge", "mtu": 1400}"#);
        let (_, list) = dir::find_network(&env.path("conf")).unwrap().network.unwrap();
        assert_eq!((list.name.as_str(), list.plugins.len(), list.highest().as_str()), ("single", 1, "0.3.1"));
        assert_eq!(list.plugins[0].conf["mtu"], 1400);
        fs::remove_file(env.path("conf").join(name)).unwrap();
    }
    env.conf("10-x.conf", &plain("x"));
    let (name, bad) = in_use(&env);
    assert_eq!(name, None);
    assert!(bad[0].contains("must have the extension .conflist"), "{bad:?}");
}

#[test]
fn an_invalid_configuration_names_the_reason() {
    let cases = [
        ("[]", "the CNI configuration is not a JSON object"),
        ("{\"name\": \"a\"} x", "the CNI configuration is not valid JSON"),
        (r#"{"plugins": [{"type": "x"}]}"#, "has no name"),
        (r#"{"name": 7, "plugins": [{"type": "x"}]}"#, "name of the CNI configuration is not a text"),
        (r#"{"name": "../../etc", "plugins": [{"type": "x"}]}"#, "invalid CNI network name"),
        (r#"{"name": "", "plugins": [{"type": "x"}]}"#, "invalid CNI network name"),
        (r#"{"name": "a"}"#, "has no plugins"),
        (r#"{"name": "a", "plugins": []}"#, "has no plugins"),
        (r#"{"name": "a", "plugins": {}}"#, "plugins of the CNI configuration is not a list"),
        (r#"{"name": "a", "plugins": ["x"]}"#, "a plugin of the CNI configuration is not a JSON object"),
        (r#"{"name": "a", "plugins": [{}]}"#, "has no type"),
        (r#"{"name": "a", "plugins": [{"type": "../sh"}]}"#, "invalid CNI plugin type"),
        (r#"{"name": "a", "plugins": [{"type": ".."}]}"#, "invalid CNI plugin type"),
        (r#"{"name": "a", "plugins": [{"type": ""}]}"#, "invalid CNI plugin type"),
        (r#"{"name": "a", "plugins": [{"type": "x\u0000y"}]}"#, "invalid CNI plugin type"),
        (
            r#"{"name": "a", "plugins": [{"type": "x", "capabilities": {"mac": 1}}]}"#,
            "capabilities of the CNI configuration is not",
        ),
        (r#"{"name": "a", "cniVersion": "9.0.0", "plugins": [{"type": "x"}]}"#, "supports no CNI version"),
        (
            r#"{"name": "a", "cniVersion": 1, "plugins": [{"type": "x"}]}"#,
            "cniVersion of the CNI configuration is not a text",
        ),
        (
            r#"{"name": "a", "cniVersions": [1], "plugins": [{"type": "x"}]}"#,
            "cniVersions of the CNI configuration is not",
        ),
        (
            r#"{"name": "a", "disableCheck": "maybe", "plugins": [{"type": "x"}]}"#,
            "disableCheck of the CNI configuration is not",
        ),
        (r#"{"name": "a", "loadOnlyInlinedPlugins": true}"#, "loadOnlyInlinedPlugins"),
    ];
    for (text, why) in cases {
        let env = TestEnv::new();
        env.conf("10-x.conflist", text);
        env.conf("20-y.conflist", &plain("y"));
        let (name, bad) = in_use(&env);
        assert_eq!(name.as_deref(), Some("y"), "{text}");
        assert_eq!(bad.len(), 1, "{text}");
        assert!(bad[0].contains(why), "{text}: {bad:?}");
    }
}

#[test]
fn files_that_are_large_or_not_regular_are_skipped() {
    let env = TestEnv::new();
    env.conf("30-good.conflist", &plain("good"));
    env.conf("10-large.conflist", &(" ".repeat((1 << 20) + 1) + &plain("large")));
    let pipe = env.path("conf/20-pipe.conflist");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    std::os::unix::fs::symlink("/nowhere", env.path("conf/21-dangling.conflist")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", env.path("conf/22-endless.conflist")).unwrap();
    let (name, bad) = in_use(&env);
    assert_eq!(name.as_deref(), Some("good"));
    let reasons = ["larger than", "a regular file", "reading the CNI configuration", "a regular file"];
    assert_eq!(bad.len(), reasons.len());
    for (output, reason) in bad.iter().zip(reasons) {
        assert!(output.contains(reason), "{output}");
    }
    let many: Vec<_> = (0..65).map(|_| json!({ "type": "x" })).collect();
    env.conf("30-good.conflist", &json!({ "name": "good", "plugins": many }).to_string());
    assert!(in_use(&env).1[4].contains("more than 64"));
}

#[test]
fn the_highest_supported_version_is_chosen() {
    let env = TestEnv::new();
    for (versions, chosen) in [
        (json!({}), "0.1.0"),
        (json!({ "cniVersion": "0.4.0" }), "0.4.0"),
        (json!({ "cniVersion": "0.4.0", "cniVersions": ["0.3.1", "1.0.0"] }), "1.0.0"),
        (json!({ "cniVersion": "0.4.0", "cniVersions": ["1.1.0", "9.1.0"] }), "1.1.0"),
        (json!({ "cniVersions": ["1.0.0", "0.3.1"] }), "1.0.0"),
    ] {
        env.list_of(&versions, &[("x", json!({}))]);
        let (_, list) = dir::find_network(&env.path("conf")).unwrap().network.unwrap();
        assert_eq!(list.highest().as_str(), chosen, "{versions}");
    }
}

#[test]
fn plugins_may_be_configured_in_separate_files() {
    let env = TestEnv::new();
    let programs = |env: &TestEnv| {
        let found = dir::find_network(&env.path("conf")).unwrap();
        found.network.map(|(_, list)| list.plugins.into_iter().map(|p| p.program).collect::<Vec<_>>())
    };
    env.conf("10-x.conflist", r#"{"name": "net", "plugins": [{"type": "a"}]}"#);
    fs::create_dir(env.path("conf/net")).unwrap();
    fs::write(env.path("conf/net/20-c.conf"), r#"{"type": "c"}"#).unwrap();
    fs::write(env.path("conf/net/10-b.conf"), r#"{"type": "b"}"#).unwrap();
    fs::write(env.path("conf/net/README"), "not a plugin").unwrap();
    assert_eq!(programs(&env).unwrap(), ["a", "b", "c"]);
    env.conf("10-x.conflist", r#"{"name": "net"}"#);
    assert_eq!(programs(&env).unwrap(), ["b", "c"]);
    env.conf("10-x.conflist", r#"{"name": "net", "loadOnlyInlinedPlugins": true, "plugins": [{"type": "a"}]}"#);
    assert_eq!(programs(&env).unwrap(), ["a"]);
    env.conf("10-x.conflist", r#"{"name": "net", "plugins": [{"type": "a"}]}"#);
    fs::write(env.path("conf/net/20-c.conf"), r#"{"type": "../c"}"#).unwrap();
    let (name, bad) = in_use(&env);
    assert_eq!(name, None);
    assert!(bad[0].contains("20-c.conf") && bad[0].contains("invalid CNI plugin type"), "{bad:?}");
}

#[tokio::test]
async fn a_network_that_is_not_ready_names_the_invalid_files() {
    let env = TestEnv::new();
    let none = env.cni.status().await.unwrap_err();
    assert!(matches!(&none, NotReady::NoNetwork { bad, .. } if bad.is_empty()));
    assert!(words(&none).contains("conf"), "{none}");
    env.conf("10-a.conflist", "{");
    env.conf("20-b.conf", "[]");
    let bad = words(&env.cni.status().await.unwrap_err());
    for part in [
        "10-a.conflist: the CNI configuration is not valid JSON",
        "20-b.conf: the CNI configuration is not a JSON object",
    ] {
        assert!(bad.contains(part), "{bad}");
    }
    let refused = env.cni.add(&crate::cni::tests::support::pod("p")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Precondition);
    assert!(words(&refused).contains("20-b.conf"), "{refused}");
}

#[tokio::test]
async fn an_unreadable_directory_is_an_error_and_an_empty_one_is_not() {
    let env = TestEnv::new();
    fs::write(env.path("conf"), "a file").unwrap();
    assert!(matches!(env.cni.status().await, Err(NotReady::Dir(_))));
    assert!(!env.cni.configured());
}

const TEMPLATE: &str = r#"{"cniVersion": "1.0.0", "name": "made", "plugins": [{"type": "ptp", "ipam": {"type": "host-local",
"ranges": [{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}]}}]}"#;

fn with_template(text: &str) -> TestEnv {
    let env = TestEnv::new();
    fs::write(env.path("template"), text).unwrap();
    env.change(|settings| settings.template = Some(env.path("template")));
    env
}

#[test]
fn the_pod_cidrs_become_a_network_configuration() {
    let env = with_template(TEMPLATE);
    let own = env.path("conf/10-crisp.conflist");
    assert_eq!(env.cni.set_pod_cidrs(""), Ok(Rendered::NoCidr));
    assert!(!own.exists());
    assert_eq!(env.cni.set_pod_cidrs("10.0.0.0/24, fd00::/64"), Ok(Rendered::Written(own.clone())));
    let (_, list) = dir::find_network(&env.path("conf")).unwrap().network.unwrap();
    let ranges = json!([[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64" }]]);
    assert_eq!(list.plugins[0].conf["ipam"]["ranges"], ranges);
    assert_eq!(env.cni.set_pod_cidrs("10.0.0.0/24,fd00::/64"), Ok(Rendered::Unchanged(own.clone())));
    assert_eq!(env.cni.set_pod_cidrs("10.9.0.0/24"), Ok(Rendered::Written(own)), "a change counts");
    let (_, list) = dir::find_network(&env.path("conf")).unwrap().network.unwrap();
    assert_eq!(list.plugins[0].conf["ipam"]["ranges"], json!([[{ "subnet": "10.9.0.0/24" }]]));
    assert_eq!(fs::read_dir(env.path("conf")).unwrap().count(), 1, "nothing beside it");
}

#[test]
fn a_foreign_network_configuration_is_not_changed() {
    let env = with_template(TEMPLATE);
    env.conf("90-theirs.conflist", &plain("theirs"));
    let theirs = env.path("conf/90-theirs.conflist");
    assert_eq!(env.cni.set_pod_cidrs("10.0.0.0/24"), Ok(Rendered::NotNeeded(theirs)));
    assert_eq!(name_in_use(&env).as_deref(), Some("theirs"));
    env.conf("90-theirs.conflist", "broken");
    assert!(matches!(env.cni.set_pod_cidrs("10.0.0.0/24"), Ok(Rendered::Written(_))));
    assert_eq!(name_in_use(&env).as_deref(), Some("made"));
    assert_eq!(TestEnv::new().cni.set_pod_cidrs("10.0.0.0/24"), Ok(Rendered::NoTemplate));
}

#[test]
fn invalid_ranges_and_templates_are_refused_without_a_write() {
    let refused = |text: &str, ranges: &str| {
        let env = with_template(text);
        let error = env.cni.set_pod_cidrs(ranges).unwrap_err();
        assert!(!env.path("conf").exists(), "{text}");
        error
    };
    let error = refused(TEMPLATE, "10.0.0.0/24,nonsense");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(words(&error).contains("nonsense"), "{error}");
    assert_eq!(
        TestEnv::new().cni.set_pod_cidrs("10.0.0.1/24").unwrap_err().kind(),
        ErrorKind::Invalid,
        "without a template too"
    );
    let error = refused("{{.Unknown}}", "10.0.0.0/24");
    assert_eq!(error.kind(), ErrorKind::Precondition);
    assert!(words(&error).contains(".Unknown"), "{error}");
    let error = refused("{\"name\": \"{{.PodCIDR}}\"}", "10.0.0.0/24");
    assert!(words(&error).contains("invalid CNI network name"), "{error}");
    let env = TestEnv::new();
    env.change(|settings| settings.template = Some(Path::new("/nowhere").to_owned()));
    let error = env.cni.set_pod_cidrs("10.0.0.0/24").unwrap_err();
    assert!(matches!(error, PodCidrError::Template { .. }));
}

impl PartialEq for PodCidrError {
    fn eq(&self, other: &Self) -> bool {
        words(self) == words(other)
    }
}
