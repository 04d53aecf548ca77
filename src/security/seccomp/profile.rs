//! Seccomp profiles: the action for each system call.

use std::borrow::Borrow;
use std::collections::BTreeSet;

use model::{ErrorClass, ErrorKind};

/// The maximum size of a profile in bytes.
pub(super) const LONGEST: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("a container's seccomp profile must have at most {LONGEST} bytes")]
    TooBig,
    #[error("invalid JSON in a container's seccomp profile")]
    Json(#[from] serde_json::Error),
    #[error("unknown action {0:?} in a container's seccomp profile")]
    Action(String),
    #[error("SCMP_ACT_NOTIFY in a container's seccomp profile is not supported: crisp has no seccomp agent")]
    Notify,
    #[error("unknown comparison operator {0:?} in a container's seccomp profile")]
    Comparison(String),
    #[error("invalid argument index {0} in a container's seccomp profile: must be 0 to 5")]
    Argument(u32),
    #[error("unknown architecture {0:?} in a container's seccomp profile")]
    Architecture(String),
    #[error("architectures and archMap cannot be combined in a container's seccomp profile")]
    BothArchitectures,
    #[error("name {0:?} and names cannot be combined in a rule of a container's seccomp profile")]
    BothNames(String),
    #[error("invalid errno {0:?} in a container's seccomp profile: must be 0 to 4095 or a known name")]
    Errno(String),
    #[error("errno {name} and errnoRet {number} in a rule of a container's seccomp profile differ")]
    BothErrnos { name: String, number: u32 },
    #[error("invalid kernel version {0:?} in a container's seccomp profile: must be MAJOR.MINOR")]
    Kernel(String),
    #[error("unknown flag {0:?} in a container's seccomp profile")]
    Flag(String),
    #[error("the seccomp profile compiles to {0} BPF instructions: must be at most 4096")]
    TooLong(usize),
}

impl ErrorClass for ProfileError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Notify | Self::Flag(_) => ErrorKind::Unsupported,
            Self::TooBig
            | Self::Json(_)
            | Self::Action(_)
            | Self::Comparison(_)
            | Self::Argument(_)
            | Self::Architecture(_)
            | Self::BothArchitectures
            | Self::BothNames(_)
            | Self::Errno(_)
            | Self::BothErrnos { .. }
            | Self::Kernel(_)
            | Self::TooLong(_) => ErrorKind::Invalid,
        }
    }
}

/// The capabilities that a container's processes can have. Names are accepted with and without `CAP_`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct CapSet(BTreeSet<String>);

impl<S: AsRef<str>> FromIterator<S> for CapSet {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        Self(names.into_iter().map(|name| plain(name.as_ref())).collect())
    }
}

impl CapSet {
    fn has(&self, name: &str) -> bool {
        self.0.contains::<str>(plain(name).borrow())
    }
}

fn plain(capability: &str) -> String {
    let upper = capability.to_ascii_uppercase();
    upper.strip_prefix("CAP_").map_or_else(|| upper.clone(), str::to_owned)
}

/// The kernel's action on a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    KillProcess,
    KillThread,
    Trap,
    Errno(u16),
    Trace(u16),
    Log,
    Allow,
}

impl Action {
    pub(super) const ENOSYS: Self = Self::Errno(38);

    /// Returns the filter's return value: `SECCOMP_RET_*` of linux/seccomp.h.
    pub(super) fn answer(self) -> u32 {
        match self {
            Self::KillProcess => 0x8000_0000,
            Self::KillThread => 0,
            Self::Trap => 0x0003_0000,
            Self::Errno(number) => 0x0005_0000 | u32::from(number),
            Self::Trace(message) => 0x7ff0_0000 | u32::from(message),
            Self::Log => 0x7ffc_0000,
            Self::Allow => 0x7fff_0000,
        }
    }

    /// Returns whether the call is executed or may be; with `Trace` the tracer decides.
    pub(super) fn permits(self) -> bool {
        match self {
            Self::Allow | Self::Log | Self::Trace(_) => true,
            Self::KillProcess | Self::KillThread | Self::Trap | Self::Errno(_) => false,
        }
    }
}

/// A condition on an argument, as an unsigned number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ArgCondition {
    Is(u64),
    IsNot(u64),
    Below(u64),
    AtMost(u64),
    AtLeast(u64),
    Above(u64),
    /// Bits of `is` outside of the mask are ignored, as in libseccomp.
    Masked {
        mask: u64,
        is: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Argument {
    pub(super) index: u32,
    pub(super) test: ArgCondition,
}

/// A kernel's major and minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kernel(pub(super) u32, pub(super) u32);

impl Kernel {
    /// Parses a version or release and ignores everything after the minor number.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(|c: char| !c.is_ascii_digit());
        Some(Self(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

/// Conditions on capabilities, architecture and kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RuleScope {
    pub(super) caps: Vec<String>,
    pub(super) machines: Vec<String>,
    pub(super) kernel: Option<Kernel>,
}

impl RuleScope {
    /// Returns whether all conditions hold.
    fn all(&self, caps: &CapSet, machine: &str, kernel: Kernel) -> bool {
        self.caps.iter().all(|cap| caps.has(cap))
            && (self.machines.is_empty() || self.machines.iter().any(|m| m == machine))
            && self.kernel.is_none_or(|least| kernel >= least)
    }

    /// Returns whether at least one condition holds.
    fn any(&self, caps: &CapSet, machine: &str, kernel: Kernel) -> bool {
        self.caps.iter().any(|cap| caps.has(cap))
            || self.machines.iter().any(|m| m == machine)
            || self.kernel.is_some_and(|least| kernel >= least)
    }
}

/// An action for some system calls if all conditions on arguments hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) names: Vec<String>,
    pub(super) action: Action,
    pub(super) arguments: Vec<Argument>,
    pub(super) only: RuleScope,
    pub(super) not: RuleScope,
}

impl Rule {
    pub(super) fn applies(&self, caps: &CapSet, machine: &str, kernel: Kernel) -> bool {
        self.only.all(caps, machine, kernel) && !self.not.any(caps, machine, kernel)
    }
}

/// ABIs that programs may use on one architecture, or on all if `on` is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) on: Option<String>,
    pub(super) abis: Vec<String>,
}

/// A profile for all architectures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Profile {
    /// The action for calls without a rule.
    pub(super) otherwise: Action,
    pub(super) abis: Vec<Listed>,
    pub(super) rules: Vec<Rule>,
}

impl Profile {
    /// Returns whether programs of ABI `other` may run on the architecture `native`.
    pub(super) fn lists(&self, native: &str, other: &str) -> bool {
        let here = |listed: &&Listed| listed.on.as_deref().is_none_or(|machine| machine == native);
        self.abis.iter().filter(here).any(|listed| listed.abis.iter().any(|abi| abi == other))
    }
}
