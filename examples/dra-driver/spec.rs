//! The CDI spec of a claim.

use std::path::Path;

use serde_json::{Value, json};

use crate::claims::{Prepared, PreparedDevice, Uid};

/// The first version with all features used here: device names that begin with a digit, as uids may, and `hostPath`.
const VERSION: &str = "0.5.0";

/// A driver's name is also the vendor of its CDI devices.
pub(crate) fn check_driver(name: &str) -> anyhow::Result<()> {
    let label = |label: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        label.bytes().all(|b| plain(b) || b == b'-')
            && !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let good = name.len() <= 63 && name.split('.').all(label) && name.starts_with(|c: char| c.is_ascii_lowercase());
    if good {
        Ok(())
    } else {
        Err(anyhow::anyhow!("invalid driver name {name:?}: expected a name like gadgets.example"))
    }
}

/// Returns the CDI name of the device. It contains the uid of the claim, because a runtime may
/// cache specs: a name used again for another claim could refer to the old spec.
pub(crate) fn device_id(driver: &str, claim: &Uid, gadget: &str) -> String {
    format!("{driver}/claim={claim}-{gadget}")
}

/// Returns the CDI spec: a device node and a variable per device; and for all, a mount of the claim's record in `dir`.
pub(crate) fn of(driver: &str, claim: &Prepared, dir: &Path) -> Value {
    let device = |device: &PreparedDevice| {
        let variable = device.name.to_uppercase().replace('-', "_");
        json!({
            "name": format!("{}-{}", claim.uid, device.name),
            "containerEdits": {
                "env": [format!("{variable}={}", device.request)],
                "deviceNodes": [{"path": format!("/dev/gadgets/{}", device.name), "hostPath": device.node}],
            },
        })
    };
    json!({
        "cdiVersion": VERSION,
        "kind": format!("{driver}/claim"),
        "devices": claim.devices.iter().map(device).collect::<Vec<_>>(),
        "containerEdits": {
            "env": [format!("GADGETS_CLAIM={}", claim.uid)],
            "mounts": [{
                "hostPath": dir,
                "containerPath": "/run/gadgets",
                "options": ["ro", "nosuid", "nodev", "noexec", "bind"],
            }],
        },
    })
}
