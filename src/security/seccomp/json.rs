//! Parses seccomp profiles in the JSON of the OCI runtime specification.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::profile::{Action, ArgCondition, Argument, Kernel, LONGEST, Listed, Profile, ProfileError, Rule, RuleScope};

const EPERM: u16 = 1;
/// The largest errno that a filter can return.
const LAST_ERRNO: u16 = 4095;

impl Profile {
    /// Parses the JSON of the OCI runtime specification with the conditions that container engines add.
    ///
    /// Unknown values are errors, except for names of system calls. Known filter flags are accepted and
    /// ignored, since they do not change the action of any call.
    pub(crate) fn read(json: &[u8]) -> Result<Self, ProfileError> {
        if u64::try_from(json.len()).is_ok_and(|len| len > LONGEST) {
            return Err(ProfileError::TooBig);
        }
        let raw: RawProfile = serde_json::from_slice(json)?;
        let RawProfile {
            default_action,
            default_errno_ret,
            default_errno,
            architectures,
            arch_map,
            flags,
            listener_path,
            listener_metadata,
            syscalls,
        } = raw;
        if [listener_path, listener_metadata].iter().flatten().any(|text| !text.is_empty()) {
            return Err(ProfileError::Notify);
        }
        for flag in flags.unwrap_or_default() {
            match flag.as_str() {
                "SECCOMP_FILTER_FLAG_TSYNC" | "SECCOMP_FILTER_FLAG_LOG" | "SECCOMP_FILTER_FLAG_SPEC_ALLOW" => {}
                _ => return Err(ProfileError::Flag(flag)),
            }
        }
        let otherwise = action(&default_action, errno(default_errno, default_errno_ret)?)?;
        let abis = abis(architectures.unwrap_or_default(), arch_map.unwrap_or_default())?;
        let rules = syscalls.unwrap_or_default().into_iter().map(rules).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { otherwise, abis, rules: rules.into_iter().flatten().collect() })
    }
}

/// Converts a rule. As in runc, several conditions on one argument are alternatives, so each becomes a
/// rule.
fn rules(raw: RawRule) -> Result<Vec<Rule>, ProfileError> {
    let RawRule { name, names, action: asked, errno_ret, errno: errno_name, args, _comment: _, includes, excludes } =
        raw;
    let names = match (name.filter(|name| !name.is_empty()), names.unwrap_or_default()) {
        (None, names) => names,
        (Some(name), names) if names.is_empty() => vec![name],
        (Some(name), _) => return Err(ProfileError::BothNames(name)),
    };
    let arguments = args.unwrap_or_default().into_iter().map(argument).collect::<Result<Vec<_>, _>>()?;
    let indices: BTreeSet<u32> = arguments.iter().map(|argument| argument.index).collect();
    let rule = Rule {
        names,
        action: action(&asked, errno(errno_name, errno_ret)?)?,
        arguments: Vec::new(),
        only: when(includes)?,
        not: when(excludes)?,
    };
    if indices.len() == arguments.len() {
        return Ok(vec![Rule { arguments, ..rule }]);
    }
    Ok(arguments.into_iter().map(|one| Rule { arguments: vec![one], ..rule.clone() }).collect())
}

fn when(raw: Option<RawWhen>) -> Result<RuleScope, ProfileError> {
    let RawWhen { caps, arches, min_kernel } = raw.unwrap_or_default();
    let kernel = match min_kernel.filter(|text| !text.is_empty()) {
        Some(text) => Some(Kernel::read(&text).ok_or(ProfileError::Kernel(text))?),
        None => None,
    };
    Ok(RuleScope { caps: caps.unwrap_or_default(), machines: arches.unwrap_or_default(), kernel })
}

fn argument(raw: RawArgument) -> Result<Argument, ProfileError> {
    let RawArgument { index, value, value_two, op } = raw;
    if index > 5 {
        return Err(ProfileError::Argument(index));
    }
    let test = match op.as_str() {
        "SCMP_CMP_EQ" => ArgCondition::Is(value),
        "SCMP_CMP_NE" => ArgCondition::IsNot(value),
        "SCMP_CMP_LT" => ArgCondition::Below(value),
        "SCMP_CMP_LE" => ArgCondition::AtMost(value),
        "SCMP_CMP_GE" => ArgCondition::AtLeast(value),
        "SCMP_CMP_GT" => ArgCondition::Above(value),
        "SCMP_CMP_MASKED_EQ" => ArgCondition::Masked { mask: value, is: value_two.unwrap_or(0) },
        _ => return Err(ProfileError::Comparison(op)),
    };
    Ok(Argument { index, test })
}

fn action(name: &str, errno: Option<u16>) -> Result<Action, ProfileError> {
    let errno = errno.unwrap_or(EPERM);
    Ok(match name {
        "SCMP_ACT_KILL_PROCESS" => Action::KillProcess,
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Action::KillThread,
        "SCMP_ACT_TRAP" => Action::Trap,
        "SCMP_ACT_ERRNO" => Action::Errno(errno),
        "SCMP_ACT_TRACE" => Action::Trace(errno),
        "SCMP_ACT_LOG" => Action::Log,
        "SCMP_ACT_ALLOW" => Action::Allow,
        "SCMP_ACT_NOTIFY" => return Err(ProfileError::Notify),
        other => return Err(ProfileError::Action(other.to_owned())),
    })
}

fn abis(list: Vec<String>, map: Vec<RawMachine>) -> Result<Vec<Listed>, ProfileError> {
    if !list.is_empty() && !map.is_empty() {
        return Err(ProfileError::BothArchitectures);
    }
    let mut abis = Vec::new();
    for RawMachine { architecture, sub_architectures } in map {
        abis.push(Listed { on: Some(architecture), abis: sub_architectures.unwrap_or_default() });
    }
    if !list.is_empty() {
        abis.push(Listed { on: None, abis: list });
    }
    match abis.iter().flat_map(|listed| listed.on.iter().chain(&listed.abis)).find(|name| !is_abi(name)) {
        Some(name) => Err(ProfileError::Architecture(name.clone())),
        None => Ok(abis),
    }
}

fn is_abi(name: &str) -> bool {
    const NAMES: &str = "NATIVE X86 X86_64 X32 ARM AARCH64 LOONGARCH64 M68K MIPS MIPS64 MIPS64N32 MIPSEL MIPSEL64 \
                         MIPSEL64N32 PARISC PARISC64 PPC PPC64 PPC64LE RISCV64 S390 S390X SH SHEB";
    name.strip_prefix("SCMP_ARCH_").is_some_and(|name| NAMES.split(' ').any(|known| known == name))
}

/// Converts an errno given as a name, a number, or both; both must be equal.
fn errno(name: Option<String>, number: Option<u32>) -> Result<Option<u16>, ProfileError> {
    let small = |number: u32| u16::try_from(number).ok().filter(|number| *number <= LAST_ERRNO);
    let number_read = match number {
        Some(number) => Some(small(number).ok_or_else(|| ProfileError::Errno(number.to_string()))?),
        None => None,
    };
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(number_read) };
    let by_name = ERRNOS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    let Some(meant) = by_name else { return Err(ProfileError::Errno(name)) };
    match number {
        Some(number) if number_read != Some(meant) => Err(ProfileError::BothErrnos { name, number }),
        _ => Ok(Some(meant)),
    }
}

/// The accepted names; any errno can be given by its number.
const ERRNOS: [(&str, u16); 16] = [
    ("EPERM", 1),
    ("ENOENT", 2),
    ("EINTR", 4),
    ("EIO", 5),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("EBUSY", 16),
    ("ENODEV", 19),
    ("EINVAL", 22),
    ("ENOTTY", 25),
    ("EROFS", 30),
    ("ENOSYS", 38),
    ("EOPNOTSUPP", 95),
    ("EAFNOSUPPORT", 97),
];

// The fields of the JSON. Lists and strings may be null, since Go encodes empty ones so.

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawProfile {
    default_action: String,
    default_errno_ret: Option<u32>,
    default_errno: Option<String>,
    architectures: Option<Vec<String>>,
    arch_map: Option<Vec<RawMachine>>,
    flags: Option<Vec<String>>,
    listener_path: Option<String>,
    listener_metadata: Option<String>,
    syscalls: Option<Vec<RawRule>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawMachine {
    architecture: String,
    sub_architectures: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawRule {
    name: Option<String>,
    names: Option<Vec<String>>,
    action: String,
    errno_ret: Option<u32>,
    errno: Option<String>,
    args: Option<Vec<RawArgument>>,
    #[serde(rename = "comment")]
    _comment: Option<String>,
    includes: Option<RawWhen>,
    excludes: Option<RawWhen>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawArgument {
    index: u32,
    value: u64,
    value_two: Option<u64>,
    op: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawWhen {
    caps: Option<Vec<String>>,
    arches: Option<Vec<String>>,
    min_kernel: Option<String>,
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
