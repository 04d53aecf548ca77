//! Computes the capabilities of a container.

use model::{CAPABILITIES, ContainerSecurity};
use oci_spec::runtime::{Capabilities, Capability};

use super::OciError;

/// CRI's name for all capabilities.
const ALL: &str = "ALL";

#[derive(Debug)]
pub(super) struct Sets {
    pub(super) bounding: Capabilities,
    pub(super) ambient: Capabilities,
}

pub(super) fn sets(default: &Capabilities, security: &ContainerSecurity) -> Result<Sets, OciError> {
    let bounding = effective(default, security)?;
    let mut ambient = Capabilities::new();
    for name in &security.capabilities.add_ambient {
        for capability in named(name)? {
            if !bounding.contains(&capability) {
                return Err(OciError::AmbientAlone(name.clone()));
            }
            ambient.insert(capability);
        }
    }
    Ok(Sets { bounding, ambient })
}

/// Returns the default capabilities, with additions and without dropped ones; `ALL` is applied before
/// single names. A privileged container has all.
pub fn effective(default: &Capabilities, security: &ContainerSecurity) -> Result<Capabilities, OciError> {
    if security.privileged {
        return Ok(all().collect());
    }
    let (add, drop) = (&security.capabilities.add, &security.capabilities.drop);
    let is_all = |name: &&String| *name == ALL;
    let mut set = default.clone();
    if add.iter().any(|n| is_all(&n)) {
        set.extend(all());
    }
    if drop.iter().any(|n| is_all(&n)) {
        set.clear();
    }
    for name in add.iter().filter(|n| !is_all(n)) {
        set.extend(named(name)?);
    }
    for name in drop.iter().filter(|n| !is_all(n)) {
        for capability in named(name)? {
            set.remove(&capability);
        }
    }
    Ok(set)
}

fn all() -> impl Iterator<Item = Capability> {
    CAPABILITIES.iter().filter_map(|name| name.parse().ok())
}

/// Parses a name without `CAP_`, or `ALL`.
fn named(name: &str) -> Result<Capabilities, OciError> {
    if name == ALL {
        return Ok(all().collect());
    }
    let found: Capability = name.parse().map_err(|_| OciError::UnknownCapability(name.to_owned()))?;
    Ok(Capabilities::from([found]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_has_a_name_in_oci() {
        assert_eq!(all().count(), CAPABILITIES.len());
        assert!(all().zip(CAPABILITIES).all(|(capability, name)| capability.to_string() == name));
    }
}
