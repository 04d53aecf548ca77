//! Capabilities by name and by bit.

use model::CAPABILITIES;
use oci_spec::runtime::{Capabilities, Capability};
use rustix::thread::CapabilitySet;

/// Returns the bits of a list of names. A name that the kernel does not know has no bit.
pub(crate) fn bits(names: &Capabilities) -> CapabilitySet {
    let bit = |one: &Capability| {
        let name = one.to_string();
        let name = name.strip_prefix("CAP_").unwrap_or(&name);
        CAPABILITIES.iter().position(|known| *known == name).map_or(0, |bit| 1 << bit)
    };
    CapabilitySet::from_bits_retain(names.iter().fold(0, |all, one| all | bit(one)))
}

/// Returns the capabilities of this process: the maximum for a container.
pub(crate) fn held() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |c| c.permitted)
}

/// Returns the names of a set, as far as they are known.
pub(crate) fn names(set: CapabilitySet) -> Capabilities {
    let known = CAPABILITIES.iter().enumerate().filter(|(bit, _)| set.bits() & (1 << bit) != 0);
    known.filter_map(|(_, name)| name.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_names_have_the_kernels_bits() {
        let admin: Capabilities = [Capability::SysAdmin].into();
        assert_eq!(bits(&admin), CapabilitySet::SYS_ADMIN);
        assert_eq!(bits(&[Capability::CheckpointRestore].into()).bits(), 1 << 40);
        let all = CapabilitySet::from_bits_retain((1 << 41) - 1);
        assert_eq!(bits(&names(all)), all);
    }
}
