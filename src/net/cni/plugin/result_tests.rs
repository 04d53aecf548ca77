//! Results in the forms of all versions.

use serde_json::{Value, json};

use super::error::Verb;
use super::exec::PluginOutput;
use super::result;
use super::version::Version;

fn output(value: &Value) -> PluginOutput {
    let stdout = value.to_string().into_bytes();
    PluginOutput { plugin: "x".to_owned(), verb: Verb::Add, stdout, stderr: String::new() }
}

fn addresses(value: &Value, version: Version) -> Vec<String> {
    let result = result::result(output(value), version).unwrap();
    let attached = result::attached(&result, version).unwrap();
    attached.ips.iter().map(ToString::to_string).collect()
}

fn pair(version: &str) -> Value {
    json!({ "cniVersion": version, "ip4": { "ip": "10.0.0.5/8", "gateway": "10.0.0.1", "routes": [{ "dst": "0.0.0.0/0" }] },
        "ip6": { "ip": "fd00::5/64" }, "dns": { "nameservers": ["10.0.0.10"] } })
}

fn numbered(version: &str) -> Value {
    json!({ "cniVersion": version, "ips": [{ "version": "4", "address": "10.0.0.5/8", "gateway": "10.0.0.1" },
        { "version": "6", "address": "fd00::5/64" }], "routes": [{ "dst": "0.0.0.0/0" }], "dns": { "nameservers": ["10.0.0.10"] } })
}

fn plain(version: &str) -> Value {
    json!({ "cniVersion": version, "ips": [{ "address": "10.0.0.5/8", "gateway": "10.0.0.1" }, { "address": "fd00::5/64" }],
        "routes": [{ "dst": "0.0.0.0/0" }], "dns": { "nameservers": ["10.0.0.10"] } })
}

/// A result of this version, in its own form.
fn own(version: Version) -> Value {
    match version {
        Version::V0_1_0 | Version::V0_2_0 => pair(version.as_str()),
        Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => numbered(version.as_str()),
        Version::V1_0_0 | Version::V1_1_0 => plain(version.as_str()),
    }
}

#[test]
fn results_convert_between_all_versions() {
    for from in Version::ALL {
        for to in Version::ALL {
            let result = result::result(output(&own(from)), to).unwrap();
            assert_eq!(result, own(to), "{from} to {to}");
            assert_eq!(addresses(&own(from), to), ["10.0.0.5", "fd00::5"], "{from} to {to}");
        }
    }
}

#[test]
fn a_result_with_more_addresses_than_a_pod_may_have_is_refused() {
    let with = |count: u32| {
        let ips: Vec<_> = (0..count).map(|n| json!({ "address": format!("10.0.{}.{}/8", n / 250, n % 250) })).collect();
        result::attached(&json!({ "ips": ips }), Version::V1_0_0)
    };
    assert_eq!(with(64).unwrap().ips.len(), 64);
    assert_eq!(with(65).unwrap_err(), "it has more than 64 addresses for the pod");
}

#[test]
fn a_result_without_a_version_has_the_requested_one() {
    for version in Version::ALL {
        for unsaid in [None, Some(json!("")), Some(Value::Null)] {
            let mut value = own(version);
            match unsaid {
                Some(unsaid) => value["cniVersion"] = unsaid,
                None => drop(value.as_object_mut().unwrap().remove("cniVersion")),
            }
            assert_eq!(result::result(output(&value), version).unwrap(), own(version));
        }
    }
}

#[test]
fn only_addresses_of_the_pods_interface_are_used() {
    let mut value = json!({
        "interfaces": [{ "name": "eth0" }, { "name": "eth0", "sandbox": "/x" }, { "name": "eth1", "sandbox": "/x" }],
        "ips": [
            { "address": "10.0.0.1/8", "interface": 0 },
            { "address": "10.0.0.2/8", "interface": 1 },
            { "address": "10.0.0.3/8", "interface": 2 },
            { "address": "10.0.0.4/8" },
            { "address": "10.0.0.2/8", "interface": 1 },
        ],
    });
    assert_eq!(addresses(&value, Version::V1_1_0), ["10.0.0.2", "10.0.0.4"], "the host's eth0 is another one");
    value["interfaces"][1]["name"] = json!("eth7");
    assert_eq!(
        addresses(&value, Version::V1_1_0),
        ["10.0.0.1", "10.0.0.4"],
        "some plugins do not report the interface"
    );
}

#[test]
fn no_output_of_a_plugin_makes_the_parser_panic() {
    let parts = [
        json!(null),
        json!(7),
        json!(-1.5),
        json!("10.0.0.1/8"),
        json!([]),
        json!([null]),
        json!({}),
        json!([{ "address": {} }]),
        json!([{ "address": "::/0", "interface": 18_446_744_073_709_551_615_u64 }]),
        json!({ "ip": [], "routes": "x" }),
        json!([{ "dst": 1 }]),
    ];
    for from in Version::ALL {
        for to in Version::ALL {
            for key in ["ips", "ip4", "ip6", "interfaces", "routes", "dns", "cniVersion"] {
                for part in &parts {
                    let mut value = own(from);
                    value[key] = part.clone();
                    if let Ok(result) = result::result(output(&value), to) {
                        drop(result::attached(&result, to));
                    }
                }
            }
        }
    }
}
