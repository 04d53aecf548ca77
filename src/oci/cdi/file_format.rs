//! A spec file, key by key. A key that the specification does not have is refused, as the peers do: it may be a
//! misspelt one that was to close something.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawSpec {
    pub(super) cdi_version: String,
    pub(super) kind: String,
    /// For people and other programs: they say nothing about containers.
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) devices: Vec<RawDevice>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) container_edits: RawEdits,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawDevice {
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) container_edits: RawEdits,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawEdits {
    #[serde(deserialize_with = "or_nothing")]
    pub(super) env: Vec<String>,
    #[serde(deserialize_with = "or_nothing")]
    pub(super) device_nodes: Vec<RawNode>,
    #[serde(deserialize_with = "or_nothing")]
    pub(super) net_devices: Vec<RawNetDevice>,
    #[serde(deserialize_with = "or_nothing")]
    pub(super) hooks: Vec<RawHook>,
    #[serde(deserialize_with = "or_nothing")]
    pub(super) mounts: Vec<RawMount>,
    pub(super) intel_rdt: Option<RawRdt>,
    /// The specification's text writes it in both ways.
    #[serde(alias = "additionalGIDs", deserialize_with = "or_nothing")]
    pub(super) additional_gids: Vec<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawNode {
    pub(super) path: String,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) host_path: String,
    #[serde(default, rename = "type", deserialize_with = "or_nothing")]
    pub(super) kind: String,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) major: i64,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) minor: i64,
    pub(super) file_mode: Option<u32>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) permissions: String,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawMount {
    pub(super) host_path: String,
    pub(super) container_path: String,
    #[serde(default, rename = "type", deserialize_with = "or_nothing")]
    pub(super) kind: String,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) options: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawHook {
    pub(super) hook_name: String,
    pub(super) path: String,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) args: Vec<String>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) env: Vec<String>,
    pub(super) timeout: Option<i64>,
}

/// Read so that it can be refused by its name; [`super::validate`] says why.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawRdt {
    #[serde(rename = "closID")]
    pub(super) _clos_id: Option<String>,
    #[serde(rename = "l3CacheSchema")]
    pub(super) _l3_cache_schema: Option<String>,
    #[serde(rename = "memBwSchema")]
    pub(super) _mem_bw_schema: Option<String>,
    pub(super) schemata: Option<Vec<String>>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub(super) enable_monitoring: bool,
    /// Until 1.0.0.
    #[serde(rename = "enableCMT")]
    pub(super) _enable_cmt: Option<bool>,
    /// Until 1.0.0.
    #[serde(rename = "enableMBM")]
    pub(super) _enable_mbm: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawNetDevice {
    #[serde(rename = "hostInterfaceName")]
    pub(super) _host_interface_name: String,
    #[serde(rename = "name")]
    pub(super) _name: String,
}

/// The version alone: asked for where the rest cannot be read, which may be since it is of a version to come.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Header {
    pub(super) cdi_version: String,
}

/// A key without a value is as good as no key, as it is to the peers.
fn or_nothing<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
