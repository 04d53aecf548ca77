//! Device policies: the device nodes that processes of a cgroup may open and create.
//!
//! On v1 the kernel has a list; on v2 it runs an eBPF program at each access (see `ebpf`).

mod ebpf;

use std::fs::File;
use std::path::PathBuf;
use std::{fmt, io};

use model::{ErrorClass, ErrorKind};

use crate::cgroup::Cgroup;
use crate::cgroupfs::write_to;
use crate::layout::Version;
use crate::systemd::SystemdError;

/// One line of a device policy; later lines override earlier ones, and what no line allows is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRule {
    pub verdict: Verdict,
    pub kind: DeviceKind,
    /// `None` is every number.
    pub major: Option<u32>,
    /// `None` is every number.
    pub minor: Option<u32>,
    pub access: Access,
}

/// The effect of a rule on the accesses that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    Deny,
}

/// The nodes that a rule applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    All,
    Char,
    Block,
}

/// Accesses to a device: any of read, write and mknod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    // The numbers are the kernel's (BPF_DEVCG_ACC_*).
    pub const MKNOD: Access = Access(1);
    pub const READ: Access = Access(2);
    pub const WRITE: Access = Access(4);
    pub const ALL: Access = Access(7);

    pub const fn with(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// Parses the letters of OCI and CRI: any of `r`, `w` and `m`, at least one.
    pub fn parse(letters: &str) -> Option<Access> {
        let mut access = Access(0);
        for letter in letters.chars() {
            access = access.with(match letter {
                'r' => Access::READ,
                'w' => Access::WRITE,
                'm' => Access::MKNOD,
                _ => return None,
            });
        }
        (access.0 != 0).then_some(access)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [(Access::READ, "r"), (Access::WRITE, "w"), (Access::MKNOD, "m")];
        letters.iter().filter(|(one, _)| self.0 & one.0 != 0).try_for_each(|(_, letter)| f.write_str(letter))
    }
}

impl DeviceRule {
    /// Allows `access` to the nodes of `kind` with these numbers.
    pub const fn allow(kind: DeviceKind, major: Option<u32>, minor: Option<u32>, access: Access) -> Self {
        Self { verdict: Verdict::Allow, kind, major, minor, access }
    }

    fn is_about_everything(&self) -> bool {
        self.kind == DeviceKind::All && self.major.is_none() && self.minor.is_none() && self.access == Access::ALL
    }

    fn same_nodes(&self, other: &DeviceRule) -> bool {
        self.kind == other.kind && self.major == other.major && self.minor == other.minor
    }

    fn overlaps(&self, other: &DeviceRule) -> bool {
        let meet = |a: Option<u32>, b: Option<u32>| a.is_none() || b.is_none() || a == b;
        let kinds = self.kind == other.kind || self.kind == DeviceKind::All || other.kind == DeviceKind::All;
        kinds && meet(self.major, other.major) && meet(self.minor, other.minor) && self.access.0 & other.access.0 != 0
    }
}

/// The rule in the form of v1's files: `c 1:3 rwm`.
impl fmt::Display for DeviceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |n: Option<u32>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
        let kind = match self.kind {
            DeviceKind::All => "a",
            DeviceKind::Char => "c",
            DeviceKind::Block => "b",
        };
        write!(f, "{kind} {}:{} {}", number(self.major), number(self.minor), self.access)
    }
}

/// The rules of every container: creating nodes, and access to the standard devices that programs
/// expect.
pub fn default_rules() -> Vec<DeviceRule> {
    use DeviceKind::{Block, Char};
    let node = |major, minor| DeviceRule::allow(Char, Some(major), minor, Access::ALL);
    vec![
        DeviceRule::allow(Char, None, None, Access::MKNOD),
        DeviceRule::allow(Block, None, None, Access::MKNOD),
        node(1, Some(3)), // null
        node(1, Some(5)), // zero
        node(1, Some(7)), // full
        node(1, Some(8)), // random
        node(1, Some(9)), // urandom
        node(5, Some(0)), // tty
        node(5, Some(1)), // console
        node(5, Some(2)), // ptmx
        node(136, None),  // pts/*
    ]
}

/// Access to all devices, for privileged containers.
pub fn allow_all() -> Vec<DeviceRule> {
    vec![DeviceRule::allow(DeviceKind::All, None, None, Access::ALL)]
}

/// Why a device policy could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("device rule \"{0}\" denies only a part of an earlier rule, which a cgroup cannot express")]
    Partial(DeviceRule),
    #[error("cannot restrict the container's devices: the host has no devices cgroup controller")]
    NoController,
    #[error("writing the device rule {value:?} to {path}")]
    Write { path: PathBuf, value: String, source: io::Error },
    #[error("setting the container's allowed devices in systemd")]
    Systemd(#[from] SystemdError),
    #[error("{doing} for the device rules of cgroup {path}")]
    Program { doing: &'static str, path: PathBuf, source: io::Error },
}

impl ErrorClass for DeviceError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Partial(_) => ErrorKind::Invalid,
            Self::Systemd(e) => e.kind(),
            Self::NoController | Self::Write { .. } | Self::Program { .. } => ErrorKind::Internal,
        }
    }
}

/// Rules reduced to the form of both kernels: a default, and exceptions that all are its opposite.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) otherwise: Verdict,
    pub(crate) exceptions: Vec<DeviceRule>,
}

impl Policy {
    pub(crate) fn new(rules: &[DeviceRule]) -> Result<Self, DeviceError> {
        let mut policy = Policy { otherwise: Verdict::Deny, exceptions: Vec::new() };
        for rule in rules {
            if rule.is_about_everything() {
                policy = Policy { otherwise: rule.verdict, exceptions: Vec::new() };
                continue;
            }
            // v1 takes "a" for all devices, whatever numbers follow.
            let kinds: &[DeviceKind] = match rule.kind {
                DeviceKind::All => &[DeviceKind::Char, DeviceKind::Block],
                DeviceKind::Char => &[DeviceKind::Char],
                DeviceKind::Block => &[DeviceKind::Block],
            };
            for kind in kinds {
                policy.add(DeviceRule { kind: *kind, ..*rule })?;
            }
        }
        Ok(policy)
    }

    fn add(&mut self, rule: DeviceRule) -> Result<(), DeviceError> {
        if rule.verdict != self.otherwise {
            match self.exceptions.iter_mut().find(|exception| exception.same_nodes(&rule)) {
                Some(exception) => exception.access = exception.access.with(rule.access),
                None => self.exceptions.push(rule),
            }
            return Ok(());
        }
        // Back to the default: exceptions for the same nodes shrink; any other overlap cannot be
        // expressed.
        for exception in self.exceptions.iter_mut().filter(|exception| exception.same_nodes(&rule)) {
            exception.access = Access(exception.access.0 & !rule.access.0);
        }
        self.exceptions.retain(|exception| exception.access.0 != 0);
        match self.exceptions.iter().find(|exception| exception.overlaps(&rule)) {
            Some(_) => Err(DeviceError::Partial(rule)),
            None => Ok(()),
        }
    }
}

impl Cgroup {
    /// Applies a device policy in place of the earlier one.
    pub fn set_devices(&self, rules: &[DeviceRule]) -> Result<(), DeviceError> {
        let policy = Policy::new(rules)?;
        match self.layout().version() {
            // On v1 systemd has the same list to write at a reload; it does not manage programs.
            Version::V1 => {
                self.sync_devices(&policy)?;
                self.set_device_list(&policy)
            }
            Version::V2 => self.set_device_program(&policy),
        }
    }

    fn set_device_list(&self, policy: &Policy) -> Result<(), DeviceError> {
        let dir = self.dir_of("devices").ok_or(DeviceError::NoController)?;
        let (general, exception) = match policy.otherwise {
            Verdict::Deny => ("devices.deny", "devices.allow"),
            Verdict::Allow => ("devices.allow", "devices.deny"),
        };
        let write = |file: &str, values: &[String]| {
            let path = dir.join(file);
            let failed = |value: &str, source| DeviceError::Write { path: path.clone(), value: value.into(), source };
            let open = File::options().write(true).open(&path);
            let open = open.map_err(|source| failed(values.first().map_or("", String::as_str), source))?;
            values.iter().try_for_each(|value| write_to(&open, value).map_err(|source| failed(value, source)))
        };
        write(general, &["a".to_owned()])?;
        write(exception, &policy.exceptions.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    /// The new program is attached before the earlier ones are detached, so a policy always
    /// applies.
    fn set_device_program(&self, policy: &Policy) -> Result<(), DeviceError> {
        let path = self.unified_dir().ok_or(DeviceError::NoController)?;
        let failed = |doing, source| DeviceError::Program { doing, path: path.clone(), source };
        let dir = File::open(&path).map_err(|e| failed("opening the cgroup to set its device program", e))?;
        let old = sys::bpf::device_programs(&dir).map_err(|e| failed("listing the device programs", e))?;
        if policy.otherwise == Verdict::Deny || !policy.exceptions.is_empty() {
            let program = ebpf::assemble(policy);
            let program = sys::bpf::load_device_program(&program)
                .map_err(|e| failed("having the kernel check the device program", e))?;
            sys::bpf::attach_device_program(&dir, &program).map_err(|e| failed("attaching the device program", e))?;
        }
        for program in &old {
            sys::bpf::detach_device_program(&dir, program)
                .map_err(|e| failed("detaching the former device program", e))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verdict: Verdict, kind: DeviceKind, major: u32, minor: u32, access: &str) -> DeviceRule {
        let access = Access::parse(access).unwrap();
        DeviceRule { verdict, kind, major: Some(major), minor: Some(minor), access }
    }

    #[test]
    fn rules_have_the_form_of_v1_files() {
        assert_eq!(default_rules()[0].to_string(), "c *:* m");
        assert_eq!(default_rules()[2].to_string(), "c 1:3 rwm");
        assert_eq!(default_rules().last().unwrap().to_string(), "c 136:* rwm");
    }

    #[test]
    fn access_is_parsed_from_letters() {
        assert_eq!(Access::parse("mrw"), Some(Access::ALL));
        assert_eq!(Access::parse("r"), Some(Access::READ));
        assert_eq!(Access::parse(""), None);
        assert_eq!(Access::parse("rx"), None);
        assert_eq!(Access::READ.with(Access::MKNOD).to_string(), "rm");
    }

    #[test]
    fn rules_for_the_same_node_are_merged() {
        let (allow, char) = (Verdict::Allow, DeviceKind::Char);
        let policy = Policy::new(&[rule(allow, char, 1, 3, "r"), rule(allow, char, 1, 3, "w")]).unwrap();
        assert_eq!(policy.exceptions, [rule(allow, char, 1, 3, "rw")]);
    }

    #[test]
    fn a_rule_for_all_devices_replaces_the_earlier_ones() {
        let mut rules = default_rules();
        rules.extend(allow_all());
        let policy = Policy::new(&rules).unwrap();
        assert_eq!(policy, Policy { otherwise: Verdict::Allow, exceptions: vec![] });
    }

    #[test]
    fn a_rule_for_both_kinds_becomes_two_rules() {
        let policy = Policy::new(&[rule(Verdict::Allow, DeviceKind::All, 7, 0, "rwm")]).unwrap();
        let kinds: Vec<DeviceKind> = policy.exceptions.iter().map(|e| e.kind).collect();
        assert_eq!(kinds, [DeviceKind::Char, DeviceKind::Block]);
    }

    #[test]
    fn a_rule_can_be_revoked_for_the_same_node_and_not_for_a_part() {
        let (allow, deny, char) = (Verdict::Allow, Verdict::Deny, DeviceKind::Char);
        let policy = Policy::new(&[rule(allow, char, 1, 3, "rwm"), rule(deny, char, 1, 3, "m")]).unwrap();
        assert_eq!(policy.exceptions, [rule(allow, char, 1, 3, "rw")]);
        let wide = DeviceRule::allow(char, Some(1), None, Access::ALL);
        assert!(matches!(Policy::new(&[wide, rule(deny, char, 1, 3, "w")]), Err(DeviceError::Partial(_))));
        assert!(Policy::new(&[wide, rule(deny, char, 2, 3, "w")]).is_ok(), "a redundant denial is accepted");
    }
}
