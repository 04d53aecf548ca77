//! Converts the values of a cgroup's files to properties of systemd. Pure: no file is read or written.
//!
//! At each reload, systemd writes all limits of a unit again from its properties, and resets limits without a property.
//! So it gets a property for every file that it supports. It does not change other files.

use crate::devices::{Access, DeviceKind, DeviceRule, Policy, Verdict};
use crate::layout::Version;
use crate::limits::knob::{Knob, Unreadable, Values};
use crate::limits::value::{KnobValue, Value as KnobMeaning};

/// A property of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Property {
    pub(crate) name: &'static str,
    pub(crate) value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Flag(bool),
    Number(u64),
    Text(String),
    /// A set of small numbers as a bit mask, lowest first.
    Mask(Vec<u8>),
    Processes(Vec<u32>),
    Pairs(Vec<(String, String)>),
}

/// systemd's value for unlimited.
const INFINITY: u64 = u64::MAX;
const SECOND: u64 = 1_000_000;
/// systemd stores a quota in whole percents of a CPU, and restores that at a reload.
const PERCENT: u64 = SECOND / 100;

/// The period of a quota that was written without one.
const DEFAULT_PERIOD: u64 = 100_000;

/// How the value of a file is converted to a property.
#[derive(Debug, Clone, Copy)]
enum Form {
    /// A limit. systemd refuses those below `least`: one byte has the effect of 0, since the kernel
    /// counts pages, and a limit of one process permits no other, since each scope has a process
    /// already.
    Limit {
        least: u64,
    },
    Weight,
    Set,
}

/// A file, its property, and the first version of systemd with the property.
struct Known {
    knob: Knob,
    property: &'static str,
    since: u32,
    form: Form,
}

const fn known(knob: &'static str, property: &'static str, since: u32, form: Form) -> Known {
    Known { knob: Knob::named(knob), property, since, form }
}

static V2: [Known; 11] = [
    known("memory.max", "MemoryMax", 231, Form::Limit { least: 1 }),
    known("memory.high", "MemoryHigh", 231, Form::Limit { least: 1 }),
    known("memory.low", "MemoryLow", 231, Form::Limit { least: 0 }),
    known("memory.min", "MemoryMin", 240, Form::Limit { least: 0 }),
    known("memory.swap.max", "MemorySwapMax", 232, Form::Limit { least: 0 }),
    known("memory.zswap.max", "MemoryZSwapMax", 253, Form::Limit { least: 0 }),
    known("pids.max", "TasksMax", 227, Form::Limit { least: 1 }),
    known("cpu.weight", "CPUWeight", 232, Form::Weight),
    known("io.weight", "IOWeight", 230, Form::Weight),
    known("cpuset.cpus", "AllowedCPUs", 244, Form::Set),
    known("cpuset.mems", "AllowedMemoryNodes", 244, Form::Set),
];

/// For v1 systemd has fewer properties: no cpusets, and no swap.
static V1: [Known; 3] = [
    known("memory.limit_in_bytes", "MemoryLimit", 205, Form::Limit { least: 1 }),
    known("pids.max", "TasksMax", 227, Form::Limit { least: 1 }),
    known("cpu.shares", "CPUShares", 205, Form::Weight),
];

const PERIOD_SINCE: u32 = 242;

fn table(version: Version) -> &'static [Known] {
    match version {
        Version::V1 => &V1,
        Version::V2 => &V2,
    }
}

fn bandwidth_knobs(version: Version) -> Vec<Knob> {
    match version {
        Version::V1 => vec![Knob::CFS_QUOTA, Knob::CFS_PERIOD],
        Version::V2 => vec![Knob::CPU_MAX],
    }
}

/// systemd writes this file for every scope, and has no property for it.
const OOM_GROUP: Knob = Knob::named("memory.oom.group");

/// The files that systemd may also write when a property is set: it writes all files of the controller.
pub(crate) fn not_representable(version: Version) -> Vec<Knob> {
    // The weights of devices are in the same file, so its content cannot be written back.
    let table = table(version).iter().filter(|known| known.property != "IOWeight");
    let mut knobs: Vec<Knob> = table.map(|known| known.knob.clone()).chain(bandwidth_knobs(version)).collect();
    if version == Version::V2 {
        knobs.push(OOM_GROUP);
    }
    knobs
}

/// Returns the properties for the files in `changed`, for release `systemd`; `now` has the values of all other files.
pub(crate) fn of(version: Version, systemd: u32, now: &Values, changed: &Values) -> Result<Vec<Property>, Unreadable> {
    let mut properties = Vec::new();
    for Known { knob, property, since, form } in table(version) {
        if let Some(value) = changed.get(knob)
            && systemd >= *since
            && let Some(value) = form.read(knob, value)?
        {
            properties.push(Property { name: property, value });
        }
    }
    if bandwidth_knobs(version).iter().any(|knob| changed.contains_key(knob)) {
        let value = |knob: &Knob| changed.get(knob).or_else(|| now.get(knob));
        properties.extend(bandwidth(version, systemd, value)?);
    }
    Ok(properties)
}

impl Form {
    /// `None` if the value has no property.
    fn read(self, knob: &Knob, value: &KnobValue) -> Result<Option<Value>, Unreadable> {
        Ok(match self {
            Self::Limit { least } => Some(Value::Number(knob.limit(value)?.map_or(INFINITY, |n| n.0.max(least)))),
            Self::Weight => {
                // The general weight may be marked as such; a line that begins with a device is for
                // that device alone.
                let text = value.text().trim();
                let number = text.strip_prefix("default ").unwrap_or(text);
                if number.contains(':') {
                    return Ok(None);
                }
                Some(Value::Number(number.trim().parse().map_err(|_| knob.unreadable(value))?))
            }
            Self::Set => {
                let empty = value.text().trim().is_empty();
                Some(Value::Mask(if empty { Vec::new() } else { mask(knob, value)? }))
            }
        })
    }
}

/// Converts a quota to one second, rounded up so that no reload makes it less than requested.
fn bandwidth<'a>(
    version: Version,
    systemd: u32,
    value: impl Fn(&Knob) -> Option<&'a KnobValue>,
) -> Result<Vec<Property>, Unreadable> {
    let (quota, period) = match version {
        Version::V1 => match (value(&Knob::CFS_QUOTA), value(&Knob::CFS_PERIOD)) {
            (Some(quota), Some(period)) => {
                let unreadable = || Knob::CFS_PERIOD.unreadable(period);
                (Knob::CFS_QUOTA.number(quota)?, Knob::CFS_PERIOD.number(period)?.ok_or_else(unreadable)?)
            }
            (None, _) | (_, None) => return Ok(Vec::new()),
        },
        Version::V2 => {
            let Some(value) = value(&Knob::CPU_MAX) else { return Ok(Vec::new()) };
            let KnobMeaning::Bandwidth { quota, period } = *value.value() else {
                return Err(Knob::CPU_MAX.unreadable(value));
            };
            (quota, period.unwrap_or(DEFAULT_PERIOD))
        }
    };
    let per_second = quota.map_or(INFINITY, |quota| per_second(quota, period));
    let mut properties = vec![Property { name: "CPUQuotaPerSecUSec", value: Value::Number(per_second) }];
    if systemd >= PERIOD_SINCE {
        properties.push(Property { name: "CPUQuotaPeriodUSec", value: Value::Number(period) });
    }
    Ok(properties)
}

/// Returns the content of a file after a reload of systemd if it is not `wrote`, which it held before.
pub(crate) fn after_reload(knob: &Knob, wrote: &str, period: Option<&KnobValue>) -> Option<String> {
    if *knob == OOM_GROUP {
        return Some("0".to_owned());
    }
    // systemd stores "no quota", `max` or -1, exactly.
    if *knob == Knob::CPU_MAX {
        let KnobMeaning::Bandwidth { quota: Some(quota), period } = *knob.value(wrote).value() else { return None };
        let period = period.unwrap_or(DEFAULT_PERIOD);
        Some(format!("{} {period}", rounded(quota, period)))
    } else if *knob == Knob::CFS_QUOTA {
        let quota = knob.number(&knob.value(wrote)).ok()??;
        let period = Knob::CFS_PERIOD.number(period?).ok()??;
        Some(rounded(quota, period).to_string())
    } else {
        None
    }
}

/// Returns the quota that systemd writes back: a whole percentage of a CPU.
fn rounded(quota: u64, period: u64) -> u64 {
    per_second(quota, period).saturating_mul(period) / SECOND
}

/// Returns a quota in whole percents of a CPU, rounded up.
fn per_second(quota: u64, period: u64) -> u64 {
    let exact = quota.saturating_mul(SECOND).div_ceil(period.max(1));
    exact.div_ceil(PERCENT).saturating_mul(PERCENT)
}

fn mask(knob: &Knob, value: &KnobValue) -> Result<Vec<u8>, Unreadable> {
    let set = value.set().ok_or_else(|| knob.unreadable(value))?;
    let mut bytes = Vec::new();
    for member in set.members() {
        let member = usize::try_from(member).map_err(|_| knob.unreadable(value))?;
        if bytes.len() <= member / 8 {
            bytes.resize(member / 8 + 1, 0);
        }
        bytes[member / 8] |= 1 << (member % 8);
    }
    Ok(bytes)
}

/// Converts a device policy to properties, which v1 needs: a reload would open all devices. On v2
/// crisp attaches the program, and systemd does not change it. `None` if the rules have no
/// properties.
pub(crate) fn devices(policy: &Policy) -> Option<Vec<Property>> {
    let strictly = |pairs| {
        vec![
            Property { name: "DevicePolicy", value: Value::Text("strict".to_owned()) },
            // Without an empty list first, systemd appends to the earlier list.
            Property { name: "DeviceAllow", value: Value::Pairs(Vec::new()) },
            Property { name: "DeviceAllow", value: Value::Pairs(pairs) },
        ]
    };
    match policy.otherwise {
        // Not left open: systemd would then need no devices cgroup, and remove crisp's.
        Verdict::Allow if policy.exceptions.is_empty() => {
            Some(strictly(["char-*", "block-*"].map(|all| (all.to_owned(), Access::ALL.to_string())).into()))
        }
        Verdict::Allow => None,
        Verdict::Deny => {
            let pair = |rule: &DeviceRule| Some((device(rule)?, rule.access.to_string()));
            Some(strictly(policy.exceptions.iter().map(pair).collect::<Option<_>>()?))
        }
    }
}

fn device(rule: &DeviceRule) -> Option<String> {
    let kind = match rule.kind {
        DeviceKind::Char => "char",
        DeviceKind::Block => "block",
        DeviceKind::All => return None,
    };
    match (rule.major, rule.minor) {
        (None, None) => Some(format!("{kind}-*")),
        (Some(major), None) => Some(format!("{kind}-{major}")),
        (Some(major), Some(minor)) => Some(format!("/dev/{kind}/{major}:{minor}")),
        (None, Some(_)) => None,
    }
}

#[cfg(test)]
#[path = "properties_tests.rs"]
mod tests;
