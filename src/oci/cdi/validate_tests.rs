use serde_json::{Value, json};

use super::file_format::RawSpec;
use super::spec::{MountKind, NodeKind, Spec};
use super::validate::check;

fn checked(spec: &Value) -> Result<Spec, String> {
    let raw: RawSpec = serde_json::from_value(spec.clone()).map_err(|e| e.to_string())?;
    check(raw).map_err(|e| e.to_string())
}

/// Returns a spec of one device with these edits.
fn with(edits: Value) -> Value {
    json!({"cdiVersion": "1.1.0", "kind": "vendor.example/class", "devices": [{"name": "a", "containerEdits": edits}]})
}

#[track_caller]
fn refused(spec: &Value, words: &[&str]) {
    let text = checked(spec).unwrap_err();
    assert!(words.iter().all(|word| text.contains(word)), "{text:?} lacks one of {words:?}");
}

#[test]
fn a_full_spec_is_parsed() {
    let spec = checked(&json!({
        "cdiVersion": "v1.0.0",
        "kind": "vendor.example/class.x",
        "annotations": {"a": "b"},
        "containerEdits": {"env": ["ALL=1"], "additionalGids": [0, 44]},
        "devices": [
            {"name": "0", "annotations": {"c": "d"}, "containerEdits": {
                "env": ["ONE=a=b"],
                "deviceNodes": [
                    {"path": "/dev//x/./y", "hostPath": "/dev/null", "type": "u", "major": 1, "minor": 3,
                        "fileMode": 0o100_660, "permissions": "rw", "uid": 7, "gid": 8},
                    {"path": "/dev/z", "permissions": "none"},
                    {"path": "/dev/pipe", "type": "p"},
                ],
                "mounts": [
                    {"hostPath": "/usr/lib", "containerPath": "/opt/lib", "options": ["ro", "rbind"]},
                    {"hostPath": "none", "containerPath": "/scratch", "type": "tmpfs", "options": ["size=1m"]},
                    {"hostPath": "/a", "containerPath": "/b", "type": "whatever", "options": ["bind"]},
                ],
                "hooks": [{"hookName": "createContainer", "path": "/bin/true", "args": ["true"], "env": ["A=b"],
                    "timeout": 5}],
            }},
            {"name": "one", "containerEdits": {"additionalGIDs": [5]}},
        ],
    }))
    .unwrap();
    assert_eq!((spec.kind.as_str(), spec.edits.env.as_slice()), ("vendor.example/class.x", &["ALL=1".to_owned()][..]));
    assert_eq!(spec.edits.groups, [44], "0 is ignored, by the specification");
    let device = &spec.devices["0"];
    let [node, closed, pipe] = &device.nodes[..] else { panic!("{device:?}") };
    assert_eq!((node.path.to_str(), node.host.to_str()), (Some("/dev/x/y"), Some("/dev/null")));
    assert_eq!((node.kind, node.numbers, node.mode), (Some(NodeKind::Char), Some((1, 3)), Some(0o660)));
    assert_eq!((node.uid, node.gid, node.access.unwrap().to_string()), (Some(7), Some(8), "rw".to_owned()));
    assert_eq!((closed.kind, closed.numbers, closed.access), (None, None, None));
    assert_eq!(pipe.kind, Some(NodeKind::Fifo));
    let kinds: Vec<_> = device.mounts.iter().map(|mount| mount.kind).collect();
    assert_eq!(kinds, [MountKind::Bind, MountKind::Tmpfs, MountKind::Bind]);
    assert_eq!(device.hooks[0].timeout, Some(5));
    assert_eq!(spec.devices["one"].groups, [5], "the specification has two spellings of the key");
}

#[test]
fn a_null_value_equals_a_missing_key() {
    let spec = json!({"cdiVersion": "0.3.0", "kind": "v.example/c", "annotations": null, "containerEdits": null,
        "devices": [{"name": "a", "containerEdits": {"env": ["A=b"], "mounts": null, "hooks": null, "intelRdt": null}}]});
    checked(&spec).unwrap();
}

#[test]
fn a_spec_must_declare_the_version_of_its_features() {
    let of = |version: &str, edits: Value| {
        let mut spec = with(edits);
        spec["cdiVersion"] = json!(version);
        spec
    };
    for version in ["", "1", "1.0", "2.0.0", "1.2.0", "vv1.0.0", "latest"] {
        refused(&of(version, json!({"env": ["A=b"]})), &["cdiVersion", &format!("{version:?}")]);
    }
    refused(&of("0.2.0", json!({"env": ["A=b"]})), &["cdiVersion", "0.3.0 or later"]);
    for (edits, old, new) in [
        (json!({"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]}), "0.3.0", "0.4.0"),
        (json!({"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}), "0.4.0", "0.5.0"),
        (json!({"additionalGids": [1]}), "0.6.0", "0.7.0"),
        (json!({"intelRdt": {"closID": "a"}}), "0.6.0", "0.7.0"),
        (json!({"intelRdt": {"schemata": []}}), "1.0.0", "1.1.0"),
        (json!({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}), "1.0.0", "1.1.0"),
    ] {
        refused(&of(old, edits.clone()), &["cdiVersion", old, new]);
        checked(&of(new, edits)).unwrap();
    }
    let mut spec = of("0.5.0", json!({"env": ["A=b"]}));
    spec["kind"] = json!("v.example/c.d");
    refused(&spec, &["0.6.0", "dot"]);
    spec["kind"] = json!("v.example/c");
    spec["devices"][0]["annotations"] = json!({"a": "b"});
    refused(&spec, &["0.6.0", "annotations"]);
    let mut spec = of("0.4.0", json!({"env": ["A=b"]}));
    spec["devices"][0]["name"] = json!("0");
    refused(&spec, &["0.5.0", "digit"]);
}

#[test]
fn invalid_names_are_refused() {
    let mut spec = with(json!({"env": ["A=b"]}));
    for kind in ["", "vendor", "vendor.example/", "/class", "a/b/c", "../x", "vendor.example/cl ass", "1v/c"] {
        spec["kind"] = json!(kind);
        refused(&spec, &["kind", "vendor.com/class"]);
    }
    let mut spec = with(json!({"env": ["A=b"]}));
    for name in ["", "..", "a/b", "a=b", "-a", "a b"] {
        spec["devices"][0]["name"] = json!(name);
        refused(&spec, &["devices[0].name"]);
    }
    spec["devices"] = json!([]);
    refused(&spec, &["devices"]);
    spec["devices"] = json!([{"name": "a", "containerEdits": {}}]);
    refused(&spec, &["devices[0].containerEdits"]);
    let one = json!({"name": "a", "containerEdits": {"env": ["A=b"]}});
    spec["devices"] = json!([one, one]);
    refused(&spec, &["devices[1].name", "duplicate"]);
}

#[test]
fn hostile_paths_and_values_are_refused_by_their_field() {
    let node = |node: Value| with(json!({"deviceNodes": [node]}));
    for path in ["", "dev/x", "/dev", "/dev/", "/etc/x", "/dev/../etc/x", "/dev/a/../../x", "/devx", "/dev/a\0b"] {
        refused(&node(json!({"path": path})), &["devices[0].containerEdits.deviceNodes[0].path"]);
    }
    for (field, value) in [
        ("hostPath", json!("null")),
        ("hostPath", json!("/dev/../x")),
        ("type", json!("x")),
        ("type", json!("cc")),
        ("major", json!(-1)),
        ("major", json!(4096)),
        ("minor", json!(1 << 20)),
        ("fileMode", json!(0o1_000_000)),
        ("permissions", json!("rwx")),
        ("uid", json!(u32::MAX)),
        ("gid", json!(u32::MAX)),
    ] {
        let mut spec = node(json!({"path": "/dev/x"}));
        spec["devices"][0]["containerEdits"]["deviceNodes"][0][field] = value.clone();
        refused(&spec, &[&format!("deviceNodes[0].{field}")]);
    }
    let mount = |host: &str, inside: &str| {
        with(
            json!({"mounts": [{"hostPath": "/ok", "containerPath": "/ok"}, {"hostPath": host, "containerPath": inside}]}),
        )
    };
    for inside in ["", "x", "/", "//", "/.", "/proc", "/proc/", "/a/../proc", "/..", "/a\0"] {
        refused(&mount("/usr", inside), &["mounts[1].containerPath"]);
    }
    for host in ["", "usr", "/usr/..", "/\0"] {
        refused(&mount(host, "/x"), &["mounts[1].hostPath"]);
    }
    let hook = |hook: Value| with(json!({"hooks": [hook]}));
    refused(&hook(json!({"hookName": "preStart", "path": "/bin/true"})), &["hooks[0].hookName", "preStart"]);
    refused(&hook(json!({"hookName": "poststop", "path": "true"})), &["hooks[0].path"]);
    refused(&hook(json!({"hookName": "poststop", "path": "/bin/true", "timeout": 0})), &["hooks[0].timeout"]);
    refused(&hook(json!({"hookName": "poststop", "path": "/bin/true", "timeout": -5})), &["hooks[0].timeout"]);
    refused(&hook(json!({"hookName": "poststop", "path": "/bin/true", "env": ["A"]})), &["env[0]"]);
    refused(&hook(json!({"hookName": "poststop", "path": "/bin/true", "args": ["a\0"]})), &["args[0]"]);
    for variable in ["", "A", "=b", "A=b\0"] {
        refused(&with(json!({"env": ["GOOD=1", variable]})), &["env[1]"]);
    }
    refused(&with(json!({"additionalGids": [u32::MAX]})), &["additionalGids[0]"]);
    refused(&with(json!({"env": ["A=b"], "unknown": 1})), &["unknown"]);
}

#[test]
fn unsupported_features_are_recorded() {
    for (edits, what) in [
        (json!({"intelRdt": {"closID": "a"}, "env": ["A=b"]}), "intelRdt"),
        (json!({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}), "netDevices"),
        (json!({"mounts": [{"hostPath": "/dev/x", "containerPath": "/x", "type": "ext4"}]}), "\"ext4\""),
    ] {
        let spec = checked(&with(edits)).unwrap();
        let beyond = spec.devices["a"].beyond.as_deref().unwrap();
        assert!(beyond.contains(what), "{beyond}");
    }
}
