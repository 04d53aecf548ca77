//! Compares filters with those of libseccomp for the same profile, call by call.
//!
//! The profiles are those that libseccomp accepts and that have one meaning: one action for each system call, and at
//! most one condition on each of its arguments. libseccomp 2.5.4 combines several conditions on one argument wrongly:
//! with "argument 2 is not 1 and argument 3 is 0" and "argument 2 is at least 1" it allows a call with 0 and 1.
//!
//! Not compared, since crisp decides them differently on purpose:
//! - calls newer than the profile, which return ENOSYS
//! - x32 calls, which return ENOSYS
//! - `socketcall` and `ipc` of i386 where a rule has conditions on arguments in memory, or names a call such as
//!   `accept` that has no number of its own
//! - the same with more than the lower 16 bits in the number of the call: the kernel ignores the others in `ipc`, and
//!   refuses them in `socketcall`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sys::seccomp::{Instruction, from_bytes};

use super::compile::tests::any_test;
use super::compile::{Machine, compile_for};
use super::profile::{Action, ArgCondition, Argument, CapSet, Kernel, Listed, Profile, Rule, RuleScope};
use super::syscalls::{self, Abi};
use super::test_interpreter::{Call, run};

const ABIS: [Abi; 4] = [Abi::X86_64, Abi::I386, Abi::Aarch64, Abi::Arm];
const X32: u32 = 0x4000_0000;
const CASES: u32 = 200;

/// A program that compiles profiles with libseccomp.
struct Libseccomp<'a>(&'a Path);

impl<'a> Libseccomp<'a> {
    fn build(program: &'a Path) -> Self {
        let mut compiler = Command::new("cc")
            .args(["-x", "c", "-Wall", "-Werror", "-o"])
            .arg(program)
            .args(["-", "-lseccomp"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        compiler.stdin.take().unwrap().write_all(include_bytes!("libseccomp_filter.c")).unwrap();
        assert!(compiler.wait().unwrap().success(), "is libseccomp-dev installed?");
        Self(program)
    }

    fn run(&self, input: &str) -> Vec<u8> {
        let mut child = Command::new(self.0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let output = std::thread::scope(|scope| {
            scope.spawn(move || stdin.write_all(input.as_bytes()).unwrap());
            child.wait_with_output().unwrap()
        });
        assert!(output.status.success(), "{input}");
        output.stdout
    }

    /// Returns the names that it knows: an older release lacks newer system calls.
    fn known<'n>(&self, names: impl Iterator<Item = &'n str>) -> BTreeSet<String> {
        let input: String = names.map(|name| format!("name {name}\n")).collect();
        String::from_utf8(self.run(&input)).unwrap().lines().map(str::to_owned).collect()
    }

    /// Compiles the filter for one ABI, with the rules for its system calls only: with others, libseccomp 2.5.4 leaves
    /// out the instruction that loads the number.
    fn filter(&self, abi: Abi, profile: &Profile) -> Vec<Instruction> {
        let mut input = format!("default {:#x}\narch {:#x}\n", profile.otherwise.answer(), abi.audit());
        for rule in &profile.rules {
            for name in rule.names.iter().filter(|name| syscalls::number(abi, name).is_some()) {
                write!(input, "rule {:#x} {name}", rule.action.answer()).unwrap();
                for Argument { index, test } in &rule.arguments {
                    let (operator, first, second) = comparison(*test);
                    write!(input, " {index} {operator} {first:#x} {second:#x}").unwrap();
                }
                input.push('\n');
            }
        }
        from_bytes(&self.run(&input)).unwrap()
    }
}

/// Returns the value of `enum scmp_compare` and its operands.
fn comparison(test: ArgCondition) -> (u32, u64, u64) {
    match test {
        ArgCondition::IsNot(value) => (1, value, 0),
        ArgCondition::Below(value) => (2, value, 0),
        ArgCondition::AtMost(value) => (3, value, 0),
        ArgCondition::Is(value) => (4, value, 0),
        ArgCondition::AtLeast(value) => (5, value, 0),
        ArgCondition::Above(value) => (6, value, 0),
        ArgCondition::Masked { mask, is } => (7, mask, is),
    }
}

/// Generates the action of a system call and the conditions of each of its rules.
fn any_call() -> impl Strategy<Value = (Action, Vec<BTreeMap<u32, ArgCondition>>)> {
    let actions = [Action::Allow, Action::Log, Action::Trap, Action::Errno(13), Action::Trace(9), Action::KillThread];
    let conditions = prop::collection::btree_map(0..2u32, any_test(), 0..3);
    let rules = prop::collection::vec(conditions, 1..4).prop_map(|rules| {
        let own = |(rule, conditions): (u32, BTreeMap<u32, ArgCondition>)| {
            conditions.into_iter().map(|(argument, test)| (2 * rule + argument, test)).collect()
        };
        (0..).zip(rules).map(own).collect()
    });
    (prop::sample::select(actions.to_vec()), rules)
}

fn any_profile(known: &BTreeSet<String>) -> impl Strategy<Value = Profile> + use<> {
    let often = ["read", "socket", "connect", "shmget", "personality", "clone", "openat2"].map(str::to_owned).to_vec();
    let all: Vec<String> = known.iter().cloned().collect();
    let name = prop_oneof![prop::sample::select(often), prop::sample::select(all)];
    let defaults = [Action::Errno(1), Action::Allow, Action::KillProcess, Action::Log];
    let rules = prop::collection::btree_map(name, any_call(), 1..12);
    (prop::sample::select(defaults.to_vec()), rules, any::<bool>()).prop_map(|(otherwise, calls, narrow)| {
        let rules =
            calls.into_iter().filter(|(_, (action, _))| *action != otherwise).flat_map(|(name, (action, rules))| {
                rules.into_iter().map(move |conditions| Rule {
                    names: vec![name.clone()],
                    action,
                    arguments: conditions.into_iter().map(|(index, test)| Argument { index, test }).collect(),
                    only: RuleScope::default(),
                    not: RuleScope::default(),
                })
            });
        let abis = ABIS.iter().filter(|abi| narrow && !abi.is_wide()).map(|abi| abi.listed_as().to_owned()).collect();
        Profile { otherwise, abis: vec![Listed { on: None, abis }], rules: rules.collect() }
    })
}

/// Returns whether crisp decides this call differently on purpose.
fn differs_by_design(profile: &Profile, abi: Abi, number: u32) -> bool {
    let names = || profile.rules.iter().flat_map(|rule| rule.names.iter().map(move |name| (rule, name.as_str())));
    let numbers: BTreeSet<u32> = names().filter_map(|(_, name)| syscalls::number(abi, name)).collect();
    // Numbers of private calls of Arm begin there.
    let newest = numbers.range(..0xf_0000).next_back();
    let newer = newest.is_some_and(|newest| number > *newest) && !numbers.contains(&number);
    let multiplexer = ["socketcall", "ipc"].into_iter().find(|name| syscalls::number(abi, name) == Some(number));
    let multiplexed = multiplexer.is_some_and(|by| {
        names().any(|(rule, name)| {
            let by_it = syscalls::multiplexed(abi, name).is_some_and(|(other, _)| other == by);
            name == by || by_it && (!rule.arguments.is_empty() || syscalls::number(abi, name).is_none())
        })
    });
    (newer && !profile.otherwise.permits())
        || (abi == Abi::X86_64 && number >= X32)
        || (abi == Abi::I386 && multiplexed)
}

fn is_multiplexer(abi: Abi, number: u32) -> bool {
    abi == Abi::I386 && ["socketcall", "ipc"].into_iter().any(|name| syscalls::number(abi, name) == Some(number))
}

/// Returns numbers of the profile's calls, those around them, and boundary values.
fn numbers(profile: &Profile, abi: Abi) -> BTreeSet<u32> {
    let names = profile.rules.iter().flat_map(|rule| &rule.names).map(String::as_str).chain(["socketcall", "ipc"]);
    let around = names.filter_map(|name| syscalls::number(abi, name)).flat_map(|n| [n.saturating_sub(1), n, n + 1]);
    around.chain([0, 1, 100, 300, 500, X32 - 1, X32, u32::MAX]).collect()
}

/// Returns arguments at the boundaries of the rules' conditions, one after the other in each position.
fn arguments(profile: &Profile) -> Vec<[u64; 6]> {
    let tests = profile.rules.iter().flat_map(|rule| &rule.arguments).map(|argument| comparison(argument.test));
    let near = tests.flat_map(|(_, first, second)| [first, first.wrapping_add(1), first.wrapping_sub(1), second]);
    let values: Vec<u64> = near.chain([0, 1, 1 << 32, u64::MAX]).collect();
    (0..values.len()).map(|at| std::array::from_fn(|index| values[(at + index * 3) % values.len()])).collect()
}

fn compare(libseccomp: &Libseccomp<'_>, profile: &Profile) -> usize {
    let mut compared = 0;
    for native in [Abi::X86_64, Abi::Aarch64] {
        let machine = Machine { abi: native, kernel: Kernel(6, 1) };
        let ours = from_bytes(&compile_for(machine, profile, &CapSet::default()).unwrap().bytes).unwrap();
        let narrow = Some(native.narrow()).filter(|abi| profile.lists(native.listed_as(), abi.listed_as()));
        let abis: Vec<Abi> = narrow.into_iter().chain([native]).collect();
        for abi in ABIS {
            // A filter for another ABI kills the process.
            let theirs = libseccomp.filter(if abis.contains(&abi) { abi } else { native }, profile);
            for number in numbers(profile, abi) {
                if abis.contains(&abi) && differs_by_design(profile, abi, number) {
                    continue;
                }
                for arguments in arguments(profile) {
                    if is_multiplexer(abi, number) && arguments[0] & 0xffff_0000 != 0 {
                        continue;
                    }
                    let call = Call::new(abi, number, arguments);
                    let (ours, theirs) = (run(&ours, &call).0, run(&theirs, &call).0);
                    assert_eq!(ours, theirs, "crisp left, libseccomp right: {call:x?} with {profile:x?}");
                    compared += 1;
                }
            }
        }
    }
    compared
}

#[test]
#[ignore = "needs libseccomp-dev"]
fn filters_decide_as_those_of_libseccomp() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("libseccomp-filter");
    let libseccomp = Libseccomp::build(&program);
    // On Arm, libseccomp knows the call only by its other name, arm_sync_file_range.
    let known = libseccomp.known(syscalls::names().filter(|name| *name != "sync_file_range2"));
    assert!(known.len() > 400, "libseccomp knows {} system calls", known.len());
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let compared = std::cell::Cell::new(0);
    let outcome = TestRunner::new(config).run(&any_profile(&known), |profile| {
        compared.set(compared.get() + compare(&libseccomp, &profile));
        Ok(())
    });
    outcome.unwrap();
    assert!(compared.get() > 100_000, "compared {} calls", compared.get());
}
