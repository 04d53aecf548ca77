//! The keys of a spec file. Unknown keys are rejected, as in containerd and CRI-O, since a misspelt
//! key may be one that restricts access.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawSpec {
    pub(super) cdi_version: String,
    pub(super) kind: String,
    /// Metadata for other programs; ignored.
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
    /// The specification uses both spellings.
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

/// Parsed so that a device with it is rejected by name; see [`super::validate`].
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

/// The version only, parsed if the whole spec cannot be, since its version may be a later one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Header {
    pub(super) cdi_version: String,
}

/// Treats `null` as a missing key, as containerd and CRI-O do.
fn or_nothing<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
