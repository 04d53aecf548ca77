//! Which capabilities a container has.

use model::ContainerSecurity;
use oci_spec::runtime::{Capabilities, Capability};

use super::OciError;

/// What a container has unless it asks otherwise: enough for ordinary programs that start as root.
const DEFAULT: [Capability; 14] = [
    Capability::AuditWrite,
    Capability::Chown,
    Capability::DacOverride,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::Mknod,
    Capability::NetBindService,
    Capability::NetRaw,
    Capability::Setfcap,
    Capability::Setgid,
    Capability::Setpcap,
    Capability::Setuid,
    Capability::SysChroot,
];

/// In the kernel's order, up to its newest.
const ALL: [Capability; 41] = [
    Capability::Chown,
    Capability::DacOverride,
    Capability::DacReadSearch,
    Capability::Fowner,
    Capability::Fsetid,
    Capability::Kill,
    Capability::Setgid,
    Capability::Setuid,
    Capability::Setpcap,
    Capability::LinuxImmutable,
    Capability::NetBindService,
    Capability::NetBroadcast,
    Capability::NetAdmin,
    Capability::NetRaw,
    Capability::IpcLock,
    Capability::IpcOwner,
    Capability::SysModule,
    Capability::SysRawio,
    Capability::SysChroot,
    Capability::SysPtrace,
    Capability::SysPacct,
    Capability::SysAdmin,
    Capability::SysBoot,
    Capability::SysNice,
    Capability::SysResource,
    Capability::SysTime,
    Capability::SysTtyConfig,
    Capability::Mknod,
    Capability::Lease,
    Capability::AuditWrite,
    Capability::AuditControl,
    Capability::Setfcap,
    Capability::MacOverride,
    Capability::MacAdmin,
    Capability::Syslog,
    Capability::WakeAlarm,
    Capability::BlockSuspend,
    Capability::AuditRead,
    Capability::Perfmon,
    Capability::Bpf,
    Capability::CheckpointRestore,
];

#[derive(Debug)]
pub(super) struct Sets {
    pub(super) bounding: Capabilities,
    pub(super) ambient: Capabilities,
}

pub(super) fn sets(security: &ContainerSecurity) -> Result<Sets, OciError> {
    let bounding = effective(security)?;
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

/// Default, without what is dropped, with what is added; `ALL` counts first on either side. Privileged has all.
pub(crate) fn effective(security: &ContainerSecurity) -> Result<Capabilities, OciError> {
    if security.privileged {
        return Ok(ALL.into_iter().collect());
    }
    let (add, drop) = (&security.capabilities.add, &security.capabilities.drop);
    let is_all = |name: &&String| name.eq_ignore_ascii_case("all");
    let mut set: Capabilities = DEFAULT.into_iter().collect();
    if add.iter().any(|n| is_all(&n)) {
        set.extend(ALL);
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

/// Reads `NET_ADMIN`, `CAP_NET_ADMIN` or `ALL`, in any case.
fn named(name: &str) -> Result<Vec<Capability>, OciError> {
    let upper = name.to_ascii_uppercase();
    if upper == "ALL" {
        return Ok(ALL.to_vec());
    }
    let upper = upper.strip_prefix("CAP_").unwrap_or(&upper);
    let found = ALL.into_iter().find(|c| c.to_string() == format!("CAP_{upper}") || c.to_string() == upper);
    found.map(|c| vec![c]).ok_or_else(|| OciError::UnknownCapability(name.to_owned()))
}
