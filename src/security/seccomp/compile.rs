//! Compiles a profile to BPF instructions.
//!
//! ```text
//! ABI? ── native ──▶ number? ── a range of numbers with one action ──▶ action
//!   │ └── 32-bit ──▶ the same for its own numbers   └── or conditions on arguments ──▶ action
//!   └── other: kill the process
//! ```
//!
//! Adjacent numbers with the same action are one range; the filter finds it by binary search. For calls
//! that are always allowed the filter loads only ABI and number, so the kernel (5.11 and later) caches
//! the result at load and does not run the filter for them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::classic_bpf::{If, Label, Program};
use super::profile::{Action, ArgCondition, Argument, CapSet, Kernel, Profile, ProfileError};
use super::syscalls::{self, Abi};

/// The kernel's `BPF_MAXINSNS`.
const MOST_INSTRUCTIONS: usize = 4096;
const INSTRUCTION: usize = 8;

// Offsets in the kernel's `seccomp_data`, little-endian.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// The first number of x32 calls in the x86-64 ABI.
const X32: u32 = 0x4000_0000;
/// The first number for private use in the Arm ABI; such a number is not a newer call.
const PRIVATE: u32 = 0xf_0000;

/// A filter in the kernel's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Compiled {
    pub(crate) bytes: Vec<u8>,
    /// Unknown names in the profile: newer than this release, of other architectures, or misspelt.
    pub(crate) unknown: Vec<String>,
}

/// The architecture and kernel of a filter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machine {
    pub(super) abi: Abi,
    pub(super) kernel: Kernel,
}

impl Machine {
    fn this() -> Self {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Self { abi: Abi::NATIVE, kernel: Kernel::read(&release).unwrap_or(Kernel(0, 0)) }
    }
}

/// Compiles the filter for this host and a container with the capabilities `caps`.
pub(crate) fn compile(profile: &Profile, caps: &CapSet) -> Result<Compiled, ProfileError> {
    compile_for(Machine::this(), profile, caps)
}

pub(super) fn compile_for(machine: Machine, profile: &Profile, caps: &CapSet) -> Result<Compiled, ProfileError> {
    let native = machine.abi;
    let narrow = Some(native.narrow()).filter(|narrow| profile.lists(native.listed_as(), narrow.listed_as()));
    let mut writer = Writer::default();
    let foreign = writer.program.end(Action::KillProcess);
    // Written backward: the first check comes last.
    let mut next = foreign;
    for abi in narrow.into_iter().chain([native]) {
        let start = writer.abi(&ranges(machine, abi, profile, caps), abi.is_wide());
        next = writer.program.branch(If::Equal, abi.audit(), start, next);
    }
    writer.program.go(next);
    writer.program.load(ARCHITECTURE);
    let bytes = writer.program.bytes();
    let instructions = bytes.len() / INSTRUCTION;
    if instructions > MOST_INSTRUCTIONS {
        return Err(ProfileError::TooLong(instructions));
    }
    let names: BTreeSet<&String> = profile.rules.iter().flat_map(|rule| &rule.names).collect();
    let unknown = names.into_iter().filter(|name| !syscalls::is_known(name)).cloned().collect();
    Ok(Compiled { bytes, unknown })
}

/// An action, if the conditions hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Branch {
    arguments: Vec<Argument>,
    action: Action,
}

/// The branches of a system call in their order, and the action if none applies.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RuleAction {
    cases: Vec<Branch>,
    otherwise: Action,
}

impl RuleAction {
    fn always(action: Action) -> Self {
        Self { cases: Vec::new(), otherwise: action }
    }

    fn of(cases: Vec<Branch>, otherwise: Action) -> Self {
        match cases.iter().find(|case| case.arguments.is_empty()) {
            Some(case) => Self::always(case.action),
            None => Self { cases, otherwise },
        }
    }
}

/// Returns the decisions for all numbers, each with the first number of its range.
fn ranges(machine: Machine, abi: Abi, profile: &Profile, caps: &CapSet) -> Vec<(u32, RuleAction)> {
    let decisions = decisions(machine, abi, profile, caps);
    let names = profile.rules.iter().flat_map(|rule| &rule.names);
    let newest = names.filter_map(|name| syscalls::number(abi, name)).filter(|number| *number < PRIVATE).max();
    let unnamed = |number: u32| {
        let newer = newest.is_some_and(|newest| number > newest) && !profile.otherwise.permits();
        let x32 = abi == Abi::X86_64 && number >= X32;
        RuleAction::always(if newer || x32 { Action::ENOSYS } else { profile.otherwise })
    };
    let mut starts: BTreeSet<u32> = decisions.keys().flat_map(|number| [*number, number + 1]).collect();
    starts.extend([0, X32]);
    starts.extend(newest.map(|newest| newest + 1));
    let mut ranges: Vec<(u32, RuleAction)> = Vec::new();
    for start in starts {
        let decision = decisions.get(&start).cloned().unwrap_or_else(|| unnamed(start));
        if ranges.last().is_none_or(|(_, before)| *before != decision) {
            ranges.push((start, decision));
        }
    }
    ranges
}

fn decisions(machine: Machine, abi: Abi, profile: &Profile, caps: &CapSet) -> BTreeMap<u32, RuleAction> {
    let mut cases: BTreeMap<u32, Vec<Branch>> = BTreeMap::new();
    let applies = |action| action != profile.otherwise;
    for rule in profile.rules.iter().filter(|rule| applies(rule.action)) {
        if !rule.applies(caps, machine.abi.machine(), machine.kernel) {
            continue;
        }
        for name in &rule.names {
            let case = Branch { arguments: rule.arguments.clone(), action: rule.action };
            if let Some(number) = syscalls::number(abi, name) {
                cases.entry(number).or_default().push(case);
            }
            // A filter cannot read the arguments of these calls, which are in memory. So a rule with
            // conditions never allows such a call; if it denies, it denies all arguments.
            if let Some((by, index)) = syscalls::multiplexed(abi, name)
                && let Some(number) = syscalls::number(abi, by)
                && (rule.arguments.is_empty() || !rule.action.permits())
            {
                let test = ArgCondition::Masked { mask: 0xffff, is: index.into() };
                let case = Branch { arguments: vec![Argument { index: 0, test }], action: rule.action };
                cases.entry(number).or_default().push(case);
            }
        }
    }
    cases.into_iter().map(|(number, cases)| (number, RuleAction::of(cases, profile.otherwise))).collect()
}

/// Writes decisions; equal ones with conditions are written once.
#[derive(Default)]
struct Writer {
    program: Program,
    written: HashMap<(RuleAction, bool), Label>,
}

impl Writer {
    fn abi(&mut self, ranges: &[(u32, RuleAction)], wide: bool) -> Label {
        let search = self.search(ranges, wide);
        self.program.go(search);
        self.program.load(NUMBER)
    }

    /// Writes a binary search for the range of the loaded number.
    fn search(&mut self, ranges: &[(u32, RuleAction)], wide: bool) -> Label {
        match ranges {
            [] => self.program.end(Action::KillProcess),
            [(_, decision)] => self.decide(decision, wide),
            _ => {
                let (low, high) = ranges.split_at(ranges.len() / 2);
                let first_high = high[0].0;
                let high = self.search(high, wide);
                let low = self.search(low, wide);
                self.program.branch(If::AtLeast, first_high, high, low)
            }
        }
    }

    fn decide(&mut self, decision: &RuleAction, wide: bool) -> Label {
        if decision.cases.is_empty() {
            return self.program.end(decision.otherwise);
        }
        let key = (decision.clone(), wide);
        if let Some(label) = self.written.get(&key) {
            return *label;
        }
        let mut next = self.program.end(decision.otherwise);
        for case in decision.cases.iter().rev() {
            let mut held = self.program.end(case.action);
            for argument in case.arguments.iter().rev() {
                held = self.test(*argument, wide, held, next);
            }
            next = held;
        }
        self.written.insert(key, next);
        next
    }

    /// Jumps to `yes` if the condition holds, else to `no`. For 32-bit arguments the values are truncated.
    fn test(&mut self, argument: Argument, wide: bool, yes: Label, no: Label) -> Label {
        let at = ARGUMENTS + 8 * argument.index;
        match argument.test {
            ArgCondition::Is(value) => self.equal(at, (u64::MAX, value), wide, yes, no),
            ArgCondition::IsNot(value) => self.equal(at, (u64::MAX, value), wide, no, yes),
            ArgCondition::Masked { mask, is } => self.equal(at, (mask, is & mask), wide, yes, no),
            ArgCondition::Above(value) => self.greater(at, If::Greater, value, wide, yes, no),
            ArgCondition::AtMost(value) => self.greater(at, If::Greater, value, wide, no, yes),
            ArgCondition::AtLeast(value) => self.greater(at, If::AtLeast, value, wide, yes, no),
            ArgCondition::Below(value) => self.greater(at, If::AtLeast, value, wide, no, yes),
        }
    }

    fn equal(&mut self, at: u32, (mask, is): (u64, u64), wide: bool, yes: Label, no: Label) -> Label {
        let (mask, is) = (halves(mask), halves(is));
        let low = self.half_equal(at, mask.0, is.0, yes, no);
        if wide { self.half_equal(at + 4, mask.1, is.1, low, no) } else { low }
    }

    fn half_equal(&mut self, at: u32, mask: u32, is: u32, yes: Label, no: Label) -> Label {
        if (mask, is) == (0, 0) {
            return yes;
        }
        self.program.branch(If::Equal, is, yes, no);
        if mask != u32::MAX {
            self.program.mask(mask);
        }
        self.program.load(at)
    }

    fn greater(&mut self, at: u32, asked: If, value: u64, wide: bool, yes: Label, no: Label) -> Label {
        let (low, high) = halves(value);
        self.program.branch(asked, low, yes, no);
        let low = self.program.load(at);
        if !wide {
            return low;
        }
        let same = self.program.branch(If::Equal, high, low, no);
        self.program.branch(If::Greater, high, yes, same);
        self.program.load(at + 4)
    }
}

/// Returns the low and the high half.
fn halves(value: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

#[cfg(test)]
#[path = "compile_tests.rs"]
pub(super) mod tests;
