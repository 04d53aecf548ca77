//! The systemd driver: systemd creates the cgroups, and gets their limits as properties.
//!
//! On hosts with systemd, the tree belongs to it: a pod is a slice, and a container a scope in it.
//! systemd creates and removes them ([`Systemd::start`], [`Systemd::stop`]); crisp writes the files
//! in them, since a scope is delegated. So that a reload does not reset the limits, systemd gets
//! them as properties too ([`Cgroup::sync_manager`](crate::CgroupFs::sync_manager)).

mod bus;
mod message;
mod properties;
mod reload;
mod scope_holder;
mod scope_holder_elf;
mod sync;
mod unit;

use std::time::{Duration, Instant};
use std::{io, thread};

use bus::Bus;
use message::Method;
use model::{ErrorClass, ErrorKind};
use properties::{Property, Value};
use scope_holder::ScopeHolders;

use crate::layout::Version;

pub use bus::BusError;
pub use reload::ReloadWatcher;
pub use sync::SyncError;
pub use unit::slice;
pub(crate) use unit::{Unit, pod, scope};

/// Time limit for starting or stopping a unit. systemd does neither while it reloads.
const DONE_WITHIN: Duration = Duration::from_secs(60);

/// A request to systemd failed.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("starting the process that keeps the systemd unit {unit} active")]
    Keeper { unit: String, source: io::Error },
    #[error("systemd unit {unit} is {state} after its start: expected active")]
    NotStarted { unit: String, state: String },
    #[error("starting or stopping systemd unit {unit}: it is still {state} after {:.0} s", DONE_WITHIN.as_secs_f64())]
    TooSlow { unit: String, state: String },
    #[error("systemd cannot express the container's device rules: use cgroup.driver = \"cgroupfs\" or other rules")]
    DeviceRules,
}

impl ErrorClass for SystemdError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Bus(BusError::Connect { .. } | BusError::Io(_)) => ErrorKind::Unavailable,
            Self::Bus(BusError::Late { .. }) | Self::TooSlow { .. } => ErrorKind::Deadline,
            Self::DeviceRules => ErrorKind::Unsupported,
            Self::Bus(BusError::Greeting(_) | BusError::Noise | BusError::Form(_) | BusError::Refused { .. })
            | Self::Keeper { .. }
            | Self::NotStarted { .. } => ErrorKind::Internal,
        }
    }
}

/// The systemd of this host.
#[derive(Debug)]
pub struct Systemd {
    version: u32,
    holders: ScopeHolders,
}

impl Systemd {
    /// Connects to the systemd of this host, and reads its version.
    pub fn connect() -> Result<Self, SystemdError> {
        let mut bus = Bus::connect()?;
        let version = property(&mut bus, MANAGER, "org.freedesktop.systemd1.Manager", "Version")?;
        let holder = |source| SystemdError::Keeper { unit: "a scope".to_owned(), source };
        Ok(Self { version: release(&version), holders: ScopeHolders::new().map_err(holder)? })
    }

    /// The version, such as 252.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Starts a unit and waits until it is active; returns false if it is active already, which
    /// changes nothing. If a scope cannot be started, its holder exits.
    pub(crate) fn start(&self, unit: &Unit, version: Version) -> Result<bool, SystemdError> {
        let mut bus = Bus::connect()?;
        let Unit::Scope { name, slice } = unit else {
            return start(&mut bus, unit, &slice_properties(version));
        };
        let failed = |source| SystemdError::Keeper { unit: name.clone(), source };
        let holder = self.holders.spawn().map_err(failed)?;
        let made = start(&mut bus, unit, &scope_properties(version, slice, holder.pid()))?;
        if made {
            holder.stay().map_err(failed)?;
        }
        Ok(made)
    }

    /// Stops a unit and its processes, and waits until it is inactive. A missing unit is not an
    /// error.
    pub(crate) fn stop(&self, unit: &Unit) -> Result<(), SystemdError> {
        let mut bus = Bus::connect()?;
        match bus.call(manager("StopUnit"), &(unit.name(), "replace")) {
            Err(e) if e.is("NoSuchUnit") => {}
            outcome => drop(outcome?),
        }
        let begin = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            let state = state(&mut bus, unit)?;
            match state.as_str() {
                "inactive" => return Ok(()),
                // Its processes failed or exceeded the stop timeout; systemd need not keep the
                // failed unit.
                "failed" => {
                    bus.call(manager("ResetFailedUnit"), &(unit.name(),))?;
                    return Ok(());
                }
                _ if begin.elapsed() >= DONE_WITHIN => {
                    return Err(SystemdError::TooSlow { unit: unit.name().to_owned(), state });
                }
                _ => {
                    thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(50));
                }
            }
        }
    }

    /// Changes runtime properties of a unit.
    fn set(&self, unit: &Unit, properties: &[Property]) -> Result<(), SystemdError> {
        let body = (unit.name(), true, message::properties(properties));
        Bus::connect()?.call(manager("SetUnitProperties"), &body)?;
        Ok(())
    }
}

/// Starts a unit, and waits for the end of its job.
fn start(bus: &mut Bus, unit: &Unit, properties: &[Property]) -> Result<bool, SystemdError> {
    let others: Vec<(&str, Vec<(&str, zbus::Variant<'_>)>)> = Vec::new();
    let body = (unit.name(), "replace", message::properties(properties), others);
    let job = match bus.call(manager("StartTransientUnit"), &body) {
        Ok(body) => Some(message::text_of(&body).map_err(BusError::Form)?),
        Err(e) if e.is("UnitExists") => None,
        Err(e) => return Err(e.into()),
    };
    let begin = Instant::now();
    let mut pause = Duration::from_micros(500);
    loop {
        // In this order: the result of a job is visible once the job is gone.
        let running = match &job {
            Some(job) => has_job(bus, job)?,
            None => false,
        };
        let state = state(bus, unit)?;
        match state.as_str() {
            "active" => return Ok(job.is_some()),
            _ if !running => return Err(SystemdError::NotStarted { unit: unit.name().to_owned(), state }),
            _ if begin.elapsed() >= DONE_WITHIN => {
                return Err(SystemdError::TooSlow { unit: unit.name().to_owned(), state });
            }
            _ => {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(50));
            }
        }
    }
}

/// The properties of a scope for the process `pid`, whose cgroup systemd delegates.
fn scope_properties(version: Version, slice: &str, pid: u32) -> Vec<Property> {
    let mut properties = common("crisp container", version);
    properties.push(text("Slice", slice));
    properties.push(flag("Delegate", true));
    properties.push(Property { name: "PIDs", value: Value::Processes(vec![pid]) });
    properties
}

fn slice_properties(version: Version) -> Vec<Property> {
    common("crisp pod", version)
}

/// Accounting is enabled: without accounting or limits, systemd creates no cgroup for a controller,
/// and removes it on v1.
fn common(what: &str, version: Version) -> Vec<Property> {
    let io = match version {
        Version::V1 => "BlockIOAccounting",
        Version::V2 => "IOAccounting",
    };
    let mut properties = vec![
        text("Description", what),
        // crisp stops it, not systemd at the start of a shutdown, when the kubelet still stops pods
        // gracefully.
        flag("DefaultDependencies", false),
        text("CollectMode", "inactive-or-failed"),
    ];
    properties.extend(["CPUAccounting", "MemoryAccounting", "TasksAccounting", io].map(|name| flag(name, true)));
    properties
}

fn text(name: &'static str, text: &str) -> Property {
    Property { name, value: Value::Text(text.to_owned()) }
}

fn flag(name: &'static str, flag: bool) -> Property {
    Property { name, value: Value::Flag(flag) }
}

const DESTINATION: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "/org/freedesktop/systemd1";

fn manager(member: &str) -> Method<'_> {
    Method { destination: DESTINATION, path: MANAGER, interface: "org.freedesktop.systemd1.Manager", member }
}

/// `active`, `inactive`, `failed` or a transition; an unknown unit is inactive.
fn state(bus: &mut Bus, unit: &Unit) -> Result<String, BusError> {
    property(bus, &unit.object(), "org.freedesktop.systemd1.Unit", "ActiveState")
}

/// Whether a job still exists.
fn has_job(bus: &mut Bus, job: &str) -> Result<bool, BusError> {
    match property(bus, job, "org.freedesktop.systemd1.Job", "State") {
        Ok(_) => Ok(true),
        Err(e) if e.is("UnknownObject") => Ok(false),
        Err(e) => Err(e),
    }
}

fn property(bus: &mut Bus, path: &str, interface: &str, name: &str) -> Result<String, BusError> {
    let get = Method { destination: DESTINATION, path, interface: "org.freedesktop.DBus.Properties", member: "Get" };
    Ok(message::variant_text_of(&bus.call(get, &(interface, name))?)?)
}

/// Returns the number in `252.38-1~deb12u1` or `v256`; a version without a number counts as an old
/// one.
fn release(version: &str) -> u32 {
    let digits = version.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_the_first_number_of_a_version() {
        for (version, number) in
            [("252.38-1~deb12u1", 252), ("v256", 256), ("systemd 239 (239-82.el8)", 239), ("255", 255), ("?", 0)]
        {
            assert_eq!(release(version), number, "{version}");
        }
    }

    #[test]
    fn a_scope_is_delegated_and_has_its_first_process() {
        let properties = scope_properties(Version::V1, "kubepods-pod1.slice", 7);
        for wanted in [
            flag("Delegate", true),
            flag("BlockIOAccounting", true),
            text("Slice", "kubepods-pod1.slice"),
            Property { name: "PIDs", value: Value::Processes(vec![7]) },
        ] {
            assert!(properties.contains(&wanted), "{wanted:?}");
        }
    }
}
