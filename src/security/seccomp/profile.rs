//! What to answer to which system call.

use std::borrow::Borrow;
use std::collections::BTreeSet;

use model::{ErrorClass, ErrorKind};

/// The longest profile that is read, in bytes.
pub(super) const LONGEST: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("more than {LONGEST} bytes long")]
    TooBig,
    #[error("not the JSON of a profile")]
    Json(#[from] serde_json::Error),
    #[error("{0:?} is no action")]
    Action(String),
    #[error("SCMP_ACT_NOTIFY is not supported: crisp runs no seccomp agent")]
    Notify,
    #[error("{0:?} is no comparison")]
    Comparison(String),
    #[error("a system call has the arguments 0 to 5, not {0}")]
    Argument(u32),
    #[error("{0:?} is no architecture")]
    Architecture(String),
    #[error("architectures and archMap are both given")]
    BothArchitectures,
    #[error("name and names are both given for {0:?}")]
    BothNames(String),
    #[error("{0:?} is no errno that can be answered")]
    Errno(String),
    #[error("{name} is given with errnoRet {number}")]
    BothErrnos { name: String, number: u32 },
    #[error("{0:?} is no kernel version")]
    Kernel(String),
    #[error("{0:?} is no filter flag that crisp knows")]
    Flag(String),
    #[error("takes {0} instructions, the kernel allows 4096")]
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

/// The capabilities that a container's processes can have. Names are taken with and without `CAP_`.
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

/// How the kernel answers a system call.
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

    /// The filter's answer: `SECCOMP_RET_*` of linux/seccomp.h.
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

    /// Whether the call is made, or may be: a tracer decides for itself what it does not know.
    pub(super) fn permits(self) -> bool {
        match self {
            Self::Allow | Self::Log | Self::Trace(_) => true,
            Self::KillProcess | Self::KillThread | Self::Trap | Self::Errno(_) => false,
        }
    }
}

/// What is asked of an argument, unsigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ArgCondition {
    Is(u64),
    IsNot(u64),
    Below(u64),
    AtMost(u64),
    AtLeast(u64),
    Above(u64),
    Masked { mask: u64, is: u64 },
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
    /// From a version or a release: what follows the minor number does not matter.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(|c: char| !c.is_ascii_digit());
        Some(Self(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

/// On which machines and containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RuleScope {
    pub(super) caps: Vec<String>,
    pub(super) machines: Vec<String>,
    pub(super) kernel: Option<Kernel>,
}

impl RuleScope {
    /// Whether every wish is met.
    fn all(&self, caps: &CapSet, machine: &str, kernel: Kernel) -> bool {
        self.caps.iter().all(|cap| caps.has(cap))
            && (self.machines.is_empty() || self.machines.iter().any(|m| m == machine))
            && self.kernel.is_none_or(|least| kernel >= least)
    }

    /// Whether one wish is met.
    fn any(&self, caps: &CapSet, machine: &str, kernel: Kernel) -> bool {
        self.caps.iter().any(|cap| caps.has(cap))
            || self.machines.iter().any(|m| m == machine)
            || self.kernel.is_some_and(|least| kernel >= least)
    }
}

/// One answer to some system calls, if all tests of arguments hold.
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

/// ABIs that programs may use, on one machine or on all (none).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) on: Option<String>,
    pub(super) abis: Vec<String>,
}

/// A whole profile, not yet for any machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Profile {
    /// For calls that no rule is about.
    pub(super) otherwise: Action,
    pub(super) abis: Vec<Listed>,
    pub(super) rules: Vec<Rule>,
}

impl Profile {
    /// Whether programs of ABI `other` may run on a `native` machine.
    pub(super) fn lists(&self, native: &str, other: &str) -> bool {
        let here = |listed: &&Listed| listed.on.as_deref().is_none_or(|machine| machine == native);
        self.abis.iter().filter(here).any(|listed| listed.abis.iter().any(|abi| abi == other))
    }
}
