//! Which network is in use, whatever happens to the files.

use std::fs;
use std::path::Path;

use model::{ErrorClass as _, ErrorKind};
use serde_json::json;

use super::dir;
use crate::cni::tests::support::{Ground, words};
use crate::cni::{NotReady, PodCidrError, Rendered};

/// A network without anything special.
fn plain(name: &str) -> String {
    json!({ "cniVersion": "1.0.0", "name": name, "plugins": [{ "type": "one" }] }).to_string()
}

/// The network in use, and the reasons against those before it.
fn in_use(ground: &Ground) -> (Option<String>, Vec<String>) {
    let found = dir::find_network(&ground.path("conf")).unwrap();
    let bad = found.bad.iter().map(ToString::to_string).collect();
    (found.network.map(|(_, list)| list.name), bad)
}

fn name_in_use(ground: &Ground) -> Option<String> {
    in_use(ground).0
}

#[test]
fn the_first_valid_file_by_name_is_in_use() {
    let ground = Ground::new();
    assert_eq!(name_in_use(&ground), None, "no directory yet");
    assert!(!ground.cni.configured());
    ground.conf("50-late.conflist", &plain("late"));
    assert_eq!(name_in_use(&ground).as_deref(), Some("late"), "the directory has appeared");
    assert!(ground.cni.configured());
    ground.conf("20-early.conflist", &plain("early"));
    assert_eq!(name_in_use(&ground).as_deref(), Some("early"));
    ground.conf("10-other.yaml", &plain("other"));
    ground.conf("10-other.conflist.bak", &plain("other"));
    fs::create_dir(ground.path("conf/05-directory.conflist")).unwrap();
    assert_eq!(in_use(&ground), (Some("early".to_owned()), vec![]), "these are no configurations at all");
    ground.conf("10-broken.conflist", "{");
    let (name, bad) = in_use(&ground);
    assert_eq!(name.as_deref(), Some("early"));
    assert_eq!(bad.len(), 1);
    assert!(bad[0].contains("10-broken.conflist: it is no JSON: "), "{bad:?}");
}

#[test]
fn every_kind_of_change_is_seen_at_once() {
    let ground = Ground::new();
    ground.conf("10.conflist", &plain("one"));
    assert_eq!(name_in_use(&ground).as_deref(), Some("one"));
    // In place, of the same length, in the same tick of the clock.
    let path = ground.path("conf/10.conflist");
    fs::write(&path, plain("two")).unwrap();
    assert_eq!(name_in_use(&ground).as_deref(), Some("two"));
    ground.conf("10.conflist", &plain("six"));
    assert_eq!(name_in_use(&ground).as_deref(), Some("six"), "renamed into place");
    fs::write(ground.path("elsewhere"), plain("linked")).unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(ground.path("elsewhere"), &path).unwrap();
    assert_eq!(name_in_use(&ground).as_deref(), Some("linked"));
    fs::write(ground.path("elsewhere"), plain("behind")).unwrap();
    assert_eq!(name_in_use(&ground).as_deref(), Some("behind"), "the file behind a link");
    fs::rename(ground.path("conf"), ground.path("old")).unwrap();
    assert_eq!(name_in_use(&ground), None, "the directory is gone");
    ground.conf("10.conflist", &plain("new"));
    assert_eq!(name_in_use(&ground).as_deref(), Some("new"), "another directory of the same name");
}

#[test]
fn a_single_plugin_is_a_network_of_one() {
    let ground = Ground::new();
    for name in ["10-x.conf", "10-x.json"] {
        ground.conf(name, r#"{"cniVersion": "0.3.1", "name": "single", "type": "bridge", "mtu": 1400}"#);
        let (_, list) = dir::find_network(&ground.path("conf")).unwrap().network.unwrap();
        assert_eq!((list.name.as_str(), list.plugins.len(), list.highest().as_str()), ("single", 1, "0.3.1"));
        assert_eq!(list.plugins[0].conf["mtu"], 1400);
        fs::remove_file(ground.path("conf").join(name)).unwrap();
    }
    ground.conf("10-x.conf", &plain("x"));
    let (name, bad) = in_use(&ground);
    assert_eq!(name, None);
    assert!(bad[0].contains("ends in .conflist"), "{bad:?}");
}

#[test]
fn a_file_that_is_no_network_says_why() {
    let cases = [
        ("[]", "no JSON object"),
        ("{\"name\": \"a\"} x", "no JSON"),
        (r#"{"plugins": [{"type": "x"}]}"#, "no name"),
        (r#"{"name": 7, "plugins": [{"type": "x"}]}"#, "name is not a text"),
        (r#"{"name": "../../etc", "plugins": [{"type": "x"}]}"#, "no name of a network"),
        (r#"{"name": "", "plugins": [{"type": "x"}]}"#, "no name of a network"),
        (r#"{"name": "a"}"#, "no plugins"),
        (r#"{"name": "a", "plugins": []}"#, "no plugins"),
        (r#"{"name": "a", "plugins": {}}"#, "plugins is not a list"),
        (r#"{"name": "a", "plugins": ["x"]}"#, "a plugin is not a JSON object"),
        (r#"{"name": "a", "plugins": [{}]}"#, "no type"),
        (r#"{"name": "a", "plugins": [{"type": "../sh"}]}"#, "no name of a plugin"),
        (r#"{"name": "a", "plugins": [{"type": ".."}]}"#, "no name of a plugin"),
        (r#"{"name": "a", "plugins": [{"type": ""}]}"#, "no name of a plugin"),
        (r#"{"name": "a", "plugins": [{"type": "x\u0000y"}]}"#, "no name of a plugin"),
        (r#"{"name": "a", "plugins": [{"type": "x", "capabilities": {"mac": 1}}]}"#, "capabilities is not"),
        (r#"{"name": "a", "cniVersion": "9.0.0", "plugins": [{"type": "x"}]}"#, "crisp speaks none"),
        (r#"{"name": "a", "cniVersion": 1, "plugins": [{"type": "x"}]}"#, "cniVersion is not a text"),
        (r#"{"name": "a", "cniVersions": [1], "plugins": [{"type": "x"}]}"#, "cniVersions is not"),
        (r#"{"name": "a", "disableCheck": "maybe", "plugins": [{"type": "x"}]}"#, "disableCheck is not"),
        (r#"{"name": "a", "loadOnlyInlinedPlugins": true}"#, "loadOnlyInlinedPlugins"),
    ];
    for (text, why) in cases {
        let ground = Ground::new();
        ground.conf("10-x.conflist", text);
        ground.conf("20-y.conflist", &plain("y"));
        let (name, bad) = in_use(&ground);
        assert_eq!(name.as_deref(), Some("y"), "{text}");
        assert_eq!(bad.len(), 1, "{text}");
        assert!(bad[0].contains(why), "{text}: {bad:?}");
    }
}

#[test]
fn what_is_no_small_file_is_passed_over() {
    let ground = Ground::new();
    ground.conf("30-good.conflist", &plain("good"));
    ground.conf("10-large.conflist", &(" ".repeat((1 << 20) + 1) + &plain("large")));
    let pipe = ground.path("conf/20-pipe.conflist");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    std::os::unix::fs::symlink("/nowhere", ground.path("conf/21-dangling.conflist")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", ground.path("conf/22-endless.conflist")).unwrap();
    let (name, bad) = in_use(&ground);
    assert_eq!(name.as_deref(), Some("good"));
    let reasons = ["larger than", "no file", "cannot be read", "no file"];
    assert_eq!(bad.len(), reasons.len());
    for (said, reason) in bad.iter().zip(reasons) {
        assert!(said.contains(reason), "{said}");
    }
    let many: Vec<_> = (0..65).map(|_| json!({ "type": "x" })).collect();
    ground.conf("30-good.conflist", &json!({ "name": "good", "plugins": many }).to_string());
    assert!(in_use(&ground).1[4].contains("more than 64"));
}

#[test]
fn the_highest_version_that_crisp_speaks_is_chosen() {
    let ground = Ground::new();
    for (versions, chosen) in [
        (json!({}), "0.1.0"),
        (json!({ "cniVersion": "0.4.0" }), "0.4.0"),
        (json!({ "cniVersion": "0.4.0", "cniVersions": ["0.3.1", "1.0.0"] }), "1.0.0"),
        (json!({ "cniVersion": "0.4.0", "cniVersions": ["1.1.0", "9.1.0"] }), "1.1.0"),
        (json!({ "cniVersions": ["1.0.0", "0.3.1"] }), "1.0.0"),
    ] {
        ground.list_of(&versions, &[("x", json!({}))]);
        let (_, list) = dir::find_network(&ground.path("conf")).unwrap().network.unwrap();
        assert_eq!(list.highest().as_str(), chosen, "{versions}");
    }
}

#[test]
fn plugins_may_have_files_of_their_own() {
    let ground = Ground::new();
    let programs = |ground: &Ground| {
        let found = dir::find_network(&ground.path("conf")).unwrap();
        found.network.map(|(_, list)| list.plugins.into_iter().map(|p| p.program).collect::<Vec<_>>())
    };
    ground.conf("10-x.conflist", r#"{"name": "net", "plugins": [{"type": "a"}]}"#);
    fs::create_dir(ground.path("conf/net")).unwrap();
    fs::write(ground.path("conf/net/20-c.conf"), r#"{"type": "c"}"#).unwrap();
    fs::write(ground.path("conf/net/10-b.conf"), r#"{"type": "b"}"#).unwrap();
    fs::write(ground.path("conf/net/README"), "not a plugin").unwrap();
    assert_eq!(programs(&ground).unwrap(), ["a", "b", "c"]);
    ground.conf("10-x.conflist", r#"{"name": "net"}"#);
    assert_eq!(programs(&ground).unwrap(), ["b", "c"]);
    ground.conf("10-x.conflist", r#"{"name": "net", "loadOnlyInlinedPlugins": true, "plugins": [{"type": "a"}]}"#);
    assert_eq!(programs(&ground).unwrap(), ["a"]);
    ground.conf("10-x.conflist", r#"{"name": "net", "plugins": [{"type": "a"}]}"#);
    fs::write(ground.path("conf/net/20-c.conf"), r#"{"type": "../c"}"#).unwrap();
    let (name, bad) = in_use(&ground);
    assert_eq!(name, None);
    assert!(bad[0].contains("20-c.conf") && bad[0].contains("no name of a plugin"), "{bad:?}");
}

#[tokio::test]
async fn what_is_not_ready_says_which_files_are_bad() {
    let ground = Ground::new();
    let none = ground.cni.status().await.unwrap_err();
    assert!(matches!(&none, NotReady::NoNetwork { bad, .. } if bad.is_empty()));
    assert!(words(&none).contains("conf"), "{none}");
    ground.conf("10-a.conflist", "{");
    ground.conf("20-b.conf", "[]");
    let bad = words(&ground.cni.status().await.unwrap_err());
    for part in ["10-a.conflist: it is no JSON", "20-b.conf: it is no JSON object"] {
        assert!(bad.contains(part), "{bad}");
    }
    let refused = ground.cni.add(&crate::cni::tests::support::pod("p")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Precondition);
    assert!(words(&refused).contains("20-b.conf"), "{refused}");
}

#[tokio::test]
async fn a_directory_that_cannot_be_read_is_told_apart_from_an_empty_one() {
    let ground = Ground::new();
    fs::write(ground.path("conf"), "a file").unwrap();
    assert!(matches!(ground.cni.status().await, Err(NotReady::Dir(_))));
    assert!(!ground.cni.configured());
}

const TEMPLATE: &str = r#"{"cniVersion": "1.0.0", "name": "made", "plugins": [{"type": "ptp", "ipam": {"type": "host-local",
"ranges": [{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}]}}]}"#;

fn with_template(text: &str) -> Ground {
    let ground = Ground::new();
    fs::write(ground.path("template"), text).unwrap();
    ground.change(|settings| settings.template = Some(ground.path("template")));
    ground
}

#[test]
fn the_addresses_of_pods_become_a_network() {
    let ground = with_template(TEMPLATE);
    let own = ground.path("conf/10-crisp.conflist");
    assert_eq!(ground.cni.set_pod_cidrs(""), Ok(Rendered::NoCidr));
    assert!(!own.exists());
    assert_eq!(ground.cni.set_pod_cidrs("10.0.0.0/24, fd00::/64"), Ok(Rendered::Written(own.clone())));
    let (_, list) = dir::find_network(&ground.path("conf")).unwrap().network.unwrap();
    let ranges = json!([[{ "subnet": "10.0.0.0/24" }], [{ "subnet": "fd00::/64" }]]);
    assert_eq!(list.plugins[0].conf["ipam"]["ranges"], ranges);
    assert_eq!(ground.cni.set_pod_cidrs("10.0.0.0/24,fd00::/64"), Ok(Rendered::Unchanged(own.clone())));
    assert_eq!(ground.cni.set_pod_cidrs("10.9.0.0/24"), Ok(Rendered::Written(own)), "a change counts");
    let (_, list) = dir::find_network(&ground.path("conf")).unwrap().network.unwrap();
    assert_eq!(list.plugins[0].conf["ipam"]["ranges"], json!([[{ "subnet": "10.9.0.0/24" }]]));
    assert_eq!(fs::read_dir(ground.path("conf")).unwrap().count(), 1, "nothing beside it");
}

#[test]
fn a_network_of_somebody_elses_is_left_alone() {
    let ground = with_template(TEMPLATE);
    ground.conf("90-theirs.conflist", &plain("theirs"));
    let theirs = ground.path("conf/90-theirs.conflist");
    assert_eq!(ground.cni.set_pod_cidrs("10.0.0.0/24"), Ok(Rendered::NotNeeded(theirs)));
    assert_eq!(name_in_use(&ground).as_deref(), Some("theirs"));
    ground.conf("90-theirs.conflist", "broken");
    assert!(matches!(ground.cni.set_pod_cidrs("10.0.0.0/24"), Ok(Rendered::Written(_))));
    assert_eq!(name_in_use(&ground).as_deref(), Some("made"));
    assert_eq!(Ground::new().cni.set_pod_cidrs("10.0.0.0/24"), Ok(Rendered::NoTemplate));
}

#[test]
fn bad_ranges_and_bad_templates_are_refused_and_nothing_is_written() {
    let refused = |text: &str, ranges: &str| {
        let ground = with_template(text);
        let error = ground.cni.set_pod_cidrs(ranges).unwrap_err();
        assert!(!ground.path("conf").exists(), "{text}");
        error
    };
    let error = refused(TEMPLATE, "10.0.0.0/24,nonsense");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(words(&error).contains("nonsense"), "{error}");
    assert_eq!(
        Ground::new().cni.set_pod_cidrs("10.0.0.1/24").unwrap_err().kind(),
        ErrorKind::Invalid,
        "without a template too"
    );
    let error = refused("{{.Unknown}}", "10.0.0.0/24");
    assert_eq!(error.kind(), ErrorKind::Precondition);
    assert!(words(&error).contains(".Unknown"), "{error}");
    let error = refused("{\"name\": \"{{.PodCIDR}}\"}", "10.0.0.0/24");
    assert!(words(&error).contains("no name of a network"), "{error}");
    let ground = Ground::new();
    ground.change(|settings| settings.template = Some(Path::new("/nowhere").to_owned()));
    let error = ground.cni.set_pod_cidrs("10.0.0.0/24").unwrap_err();
    assert!(matches!(error, PodCidrError::Template { .. }));
}

impl PartialEq for PodCidrError {
    fn eq(&self, other: &Self) -> bool {
        words(self) == words(other)
    }
}
