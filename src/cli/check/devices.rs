//! Checks the CDI specs of the host, and counts their devices.

use config::CdiConfig;
use oci::cdi::CdiRegistry;

use super::finding::Finding;

const TOPIC: &str = "devices";

pub(super) fn check(config: &CdiConfig) -> Finding {
    let dirs: Vec<String> = config.spec_dirs.iter().map(|dir| dir.display().to_string()).collect();
    let dirs = dirs.join(", ");
    let (devices, bad) = CdiRegistry::new(config.spec_dirs.clone()).count_devices();
    if let Some((file, problem)) = bad.first() {
        let what = format!("{devices} devices in {dirs}; {} is invalid: {problem}", file.display());
        return Finding::warn(TOPIC, "CDI", what, "fix or remove the file; its devices are not available");
    }
    match devices {
        0 => Finding::ok(TOPIC, "CDI", format!("no devices in {dirs} (device drivers create them)")),
        count => Finding::ok(TOPIC, "CDI", format!("{count} devices in {dirs}")),
    }
}
