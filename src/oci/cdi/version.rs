//! Checks the version of a spec against the features that it uses.

use super::file_format::{RawEdits, RawSpec};
use super::validate::SpecError;

/// All released versions, oldest first.
const KNOWN: [&str; 10] = ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];
/// The oldest supported version.
const EARLIEST: &str = "0.3.0";

/// Returns whether `text` is a known version.
pub(super) fn is_known(text: &str) -> bool {
    rank(text).is_some()
}

/// Rejects a spec with an unknown version, or with a feature that its version does not have: other
/// readers would ignore the feature.
pub(super) fn check(spec: &RawSpec) -> Result<(), SpecError> {
    let declared = &spec.cdi_version;
    let Some(rank_of_spec) = rank(declared) else {
        return Err(SpecError::new("cdiVersion", format_args!("unknown version {declared:?}")));
    };
    let (needed, what) = needed(spec);
    if rank(needed).is_some_and(|needed| needed > rank_of_spec) {
        return Err(SpecError::new(
            "cdiVersion",
            format_args!("{declared} is too old for {what}: must be {needed} or later"),
        ));
    }
    Ok(())
}

fn rank(text: &str) -> Option<usize> {
    let plain = text.strip_prefix('v').unwrap_or(text);
    KNOWN.iter().position(|known| *known == plain)
}

/// Returns the first version with all features of the spec, and the newest of these features.
fn needed(spec: &RawSpec) -> (&'static str, &'static str) {
    let edits = || spec.devices.iter().map(|device| &device.container_edits).chain([&spec.container_edits]);
    let any = |uses: fn(&RawEdits) -> bool| edits().any(uses);
    if any(|e| !e.net_devices.is_empty()) {
        ("1.1.0", "netDevices")
    } else if any(|e| e.intel_rdt.as_ref().is_some_and(|rdt| rdt.schemata.is_some() || rdt.enable_monitoring)) {
        ("1.1.0", "intelRdt.schemata and intelRdt.enableMonitoring")
    } else if any(|e| e.intel_rdt.is_some()) {
        ("0.7.0", "intelRdt")
    } else if any(|e| !e.additional_gids.is_empty()) {
        ("0.7.0", "additionalGids")
    } else if !spec.annotations.is_empty() || spec.devices.iter().any(|device| !device.annotations.is_empty()) {
        ("0.6.0", "annotations")
    } else if spec.kind.split_once('/').is_some_and(|(_, class)| class.contains('.')) {
        ("0.6.0", "a class with a dot")
    } else if spec.devices.iter().any(|device| device.name.starts_with(|c: char| c.is_ascii_digit())) {
        ("0.5.0", "a device name that begins with a digit")
    } else if any(|e| e.device_nodes.iter().any(|node| !node.host_path.is_empty())) {
        ("0.5.0", "deviceNodes.hostPath")
    } else if any(|e| e.mounts.iter().any(|mount| !mount.kind.is_empty())) {
        ("0.4.0", "mounts.type")
    } else {
        (EARLIEST, "this reader")
    }
}
