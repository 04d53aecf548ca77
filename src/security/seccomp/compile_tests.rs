use std::collections::BTreeSet;

use proptest::prelude::*;
use sys::seccomp::{Instruction, from_bytes};

use super::super::default_profile::runtime_default;
use super::super::profile::{Listed, Rule, RuleScope};
use super::super::test_interpreter::{Call, run};
use super::*;

const X86: Machine = Machine { abi: Abi::X86_64, kernel: Kernel(6, 1) };
const ARM: Machine = Machine { abi: Abi::Aarch64, kernel: Kernel(6, 1) };
const EPERM: Action = Action::Errno(1);

fn rule(names: &[&str], arguments: &[(u32, ArgCondition)], action: Action) -> Rule {
    Rule {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        action,
        arguments: arguments.iter().map(|(index, test)| Argument { index: *index, test: *test }).collect(),
        only: RuleScope::default(),
        not: RuleScope::default(),
    }
}

fn profile(otherwise: Action, rules: Vec<Rule>) -> Profile {
    let narrow = ["SCMP_ARCH_X86", "SCMP_ARCH_ARM"].map(str::to_owned).to_vec();
    Profile { otherwise, abis: vec![Listed { on: None, abis: narrow }], rules }
}

fn filter(machine: Machine, profile: &Profile) -> Vec<Instruction> {
    from_bytes(&compile_for(machine, profile, &CapSet::default()).unwrap().bytes).unwrap()
}

fn answer(filter: &[Instruction], abi: Abi, name: &str, first: u64) -> u32 {
    let number = syscalls::number(abi, name).unwrap();
    run(filter, &Call::new(abi, number, [first, 0, 0, 0, 0, 0])).0
}

/// Returns the action of the profile, computed independently of the compiler.
fn expected(machine: Machine, profile: &Profile, call: &Call) -> Action {
    let listed = [machine.abi, machine.abi.narrow()].into_iter().find(|abi| abi.audit() == call.architecture);
    let Some(abi) = listed else { return Action::KillProcess };
    if abi == Abi::X86_64 && call.number >= X32 {
        return Action::ENOSYS;
    }
    let mut newest = None;
    let mut answers = Vec::new();
    for rule in &profile.rules {
        for name in &rule.names {
            let number = syscalls::number(abi, name);
            newest = newest.max(number.filter(|number| *number < PRIVATE));
            if rule.action == profile.otherwise {
                continue;
            }
            if number == Some(call.number) {
                let hit = rule.arguments.iter().all(|argument| holds(*argument, abi, call));
                answers.push((rule.arguments.is_empty(), hit, rule.action));
            }
            let blind = rule.arguments.is_empty() || matches!(rule.action, Action::Errno(_) | Action::Trap);
            if let Some((by, index)) = syscalls::multiplexed(abi, name)
                && syscalls::number(abi, by) == Some(call.number)
                && blind
            {
                answers.push((false, call.arguments[0] & 0xffff == u64::from(index), rule.action));
            }
        }
    }
    let first = |wanted: fn(&(bool, bool, Action)) -> bool| answers.iter().find(|a| wanted(a)).map(|a| a.2);
    if let Some(action) = first(|(always, _, _)| *always).or_else(|| first(|(_, hit, _)| *hit)) {
        return action;
    }
    let refuses = !matches!(profile.otherwise, Action::Allow | Action::Log | Action::Trace(_));
    let newer = newest.is_some_and(|newest| call.number > newest) && answers.is_empty();
    if refuses && newer { Action::ENOSYS } else { profile.otherwise }
}

fn holds(argument: Argument, abi: Abi, call: &Call) -> bool {
    let bits = if abi.is_wide() { u64::MAX } else { u64::from(u32::MAX) };
    let given = call.arguments[usize::try_from(argument.index).unwrap()] & bits;
    match argument.test {
        ArgCondition::Is(value) => given == value & bits,
        ArgCondition::IsNot(value) => given != value & bits,
        ArgCondition::Below(value) => given < value & bits,
        ArgCondition::AtMost(value) => given <= value & bits,
        ArgCondition::AtLeast(value) => given >= value & bits,
        ArgCondition::Above(value) => given > value & bits,
        ArgCondition::Masked { mask, is } => given & mask & bits == is & mask & bits,
    }
}

/// Returns every number of an ABI, its neighbours, and boundary values.
fn all_numbers(abi: Abi) -> BTreeSet<u32> {
    let known = syscalls::names().filter_map(|name| syscalls::number(abi, name));
    let around = known.flat_map(|n| [n.saturating_sub(1), n, n + 1]);
    around.chain([PRIVATE, X32 - 1, X32, X32 + 1, u32::MAX]).collect()
}

/// Returns the same for the calls in a profile, and a few more.
fn named_numbers(profile: &Profile, abi: Abi) -> BTreeSet<u32> {
    let names = profile.rules.iter().flat_map(|rule| &rule.names).map(String::as_str).chain(["socketcall", "ipc"]);
    let around = names.filter_map(|name| syscalls::number(abi, name)).flat_map(|n| [n.saturating_sub(1), n, n + 1]);
    around.chain([0, 1, 100, 500, PRIVATE, X32 - 1, X32, X32 + 1, u32::MAX]).collect()
}

pub(crate) fn check(machine: Machine, profile: &Profile, arguments: [u64; 6], numbers: impl Fn(Abi) -> BTreeSet<u32>) {
    let filter = filter(machine, profile);
    for abi in [Abi::X86_64, Abi::I386, Abi::Aarch64, Abi::Arm] {
        for number in numbers(abi) {
            let call = Call::new(abi, number, arguments);
            let (found, wanted) = (run(&filter, &call).0, expected(machine, profile, &call).answer());
            assert_eq!(found, wanted, "{call:x?} with {profile:?}");
        }
    }
}

#[test]
fn every_call_of_every_abi_gets_the_action_of_the_default_profile() {
    let profile = runtime_default();
    let profile = Profile { rules: without_caps(&profile), ..profile };
    for machine in [X86, ARM] {
        check(machine, &profile, [1, 0, 0, 0, 0, 0], all_numbers);
    }
}

/// Returns the rules for a container without capabilities, since `expected` does not evaluate them.
fn without_caps(profile: &Profile) -> Vec<Rule> {
    let free = |rule: &&Rule| rule.only == RuleScope::default();
    profile.rules.iter().filter(free).map(|rule| Rule { not: RuleScope::default(), ..rule.clone() }).collect()
}

fn any_value() -> impl Strategy<Value = u64> {
    let edges = [0, 1, 2, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff, 1 << 32, (1 << 32) + 1, u64::MAX];
    prop_oneof![4 => prop::sample::select(edges.to_vec()), 1 => any::<u64>()]
}

pub(crate) fn any_test() -> impl Strategy<Value = ArgCondition> {
    prop_oneof![
        any_value().prop_map(ArgCondition::Is),
        any_value().prop_map(ArgCondition::IsNot),
        any_value().prop_map(ArgCondition::Below),
        any_value().prop_map(ArgCondition::AtMost),
        any_value().prop_map(ArgCondition::AtLeast),
        any_value().prop_map(ArgCondition::Above),
        (any_value(), any_value()).prop_map(|(mask, is)| ArgCondition::Masked { mask, is }),
    ]
}

fn any_action() -> impl Strategy<Value = Action> {
    let some = [Action::Allow, Action::Log, Action::Trap, EPERM, Action::Errno(13), Action::ENOSYS, Action::Trace(9)];
    prop::sample::select(some.to_vec())
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let mut all: Vec<&str> = syscalls::names().collect();
    all.sort_unstable();
    // Some calls are frequent, so that several rules apply to them.
    let often = prop::sample::select(vec!["read", "socket", "socketcall", "shmget", "ipc", "clone3", "no_such_call"]);
    let name = prop_oneof![often, prop::sample::select(all)];
    let arguments = prop::collection::vec((0..3u32, any_test()), 0..3);
    (prop::collection::vec(name, 1..12), arguments, any_action())
        .prop_map(|(names, arguments, action)| rule(&names, &arguments, action))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_filter_of_any_profile_returns_its_actions(
        otherwise in any_action(),
        rules in prop::collection::vec(any_rule(), 0..40),
        arguments in prop::array::uniform6(any_value()),
    ) {
        for machine in [X86, ARM] {
            let profile = profile(otherwise, rules.clone());
            check(machine, &profile, arguments, |abi| named_numbers(&profile, abi));
        }
    }

    #[test]
    fn any_condition_on_an_argument_compares_all_bits(test in any_test(), given in any_value(), index in 0..6u32) {
        let tested = profile(EPERM, vec![rule(&["read"], &[(index, test)], Action::Allow)]);
        let mut arguments = [0; 6];
        arguments[usize::try_from(index).unwrap()] = given;
        for (machine, abi) in [(X86, Abi::X86_64), (X86, Abi::I386), (ARM, Abi::Aarch64), (ARM, Abi::Arm)] {
            let call = Call::new(abi, syscalls::number(abi, "read").unwrap(), arguments);
            let wanted = if holds(Argument { index, test }, abi, &call) { Action::Allow } else { EPERM };
            prop_assert_eq!(run(&filter(machine, &tested), &call).0, wanted.answer());
        }
    }
}

#[test]
fn a_foreign_abi_kills_the_process_and_x32_returns_enosys() {
    let open = Profile { abis: vec![], ..profile(Action::Allow, vec![rule(&["mount"], &[], EPERM)]) };
    let filter = filter(X86, &open);
    assert_eq!(answer(&filter, Abi::X86_64, "read", 0), Action::Allow.answer());
    assert_eq!(answer(&filter, Abi::X86_64, "mount", 0), EPERM.answer());
    assert_eq!(answer(&filter, Abi::I386, "read", 0), Action::KillProcess.answer());
    assert_eq!(answer(&filter, Abi::Aarch64, "read", 0), Action::KillProcess.answer());
    let x32_mount = Call::new(Abi::X86_64, X32 + 165, [0; 6]);
    assert_eq!(run(&filter, &x32_mount).0, Action::ENOSYS.answer());
}

#[test]
fn a_rule_without_conditions_overrides_others_and_the_first_is_used() {
    let tested = |action| rule(&["read"], &[(0, ArgCondition::Is(5))], action);
    let plain = |action| rule(&["read"], &[], action);
    let decide = |rules, first| answer(&filter(X86, &profile(EPERM, rules)), Abi::X86_64, "read", first);
    assert_eq!(decide(vec![tested(Action::Trap), plain(Action::Allow)], 5), Action::Allow.answer());
    assert_eq!(decide(vec![plain(Action::Log), plain(Action::Allow)], 5), Action::Log.answer());
    assert_eq!(decide(vec![tested(Action::Log), tested(Action::Allow)], 5), Action::Log.answer());
    assert_eq!(decide(vec![plain(EPERM), plain(Action::Allow)], 5), Action::Allow.answer(), "repeats the default");
    assert_eq!(decide(vec![tested(Action::Allow)], 6), EPERM.answer());
}

#[test]
fn calls_newer_than_the_profile_return_enosys_if_the_default_denies() {
    let named = || vec![rule(&["read", "openat2"], &[], Action::Allow)];
    let newer = filter(X86, &profile(EPERM, named()));
    assert_eq!(answer(&newer, Abi::X86_64, "clone3", 0), EPERM.answer(), "older than openat2");
    assert_eq!(answer(&newer, Abi::X86_64, "openat2", 0), Action::Allow.answer());
    assert_eq!(answer(&newer, Abi::X86_64, "faccessat2", 0), Action::ENOSYS.answer());
    let newer = filter(X86, &profile(Action::KillProcess, named()));
    assert_eq!(answer(&newer, Abi::X86_64, "faccessat2", 0), Action::ENOSYS.answer());
    let newer = filter(X86, &profile(Action::Log, vec![rule(&["read"], &[], EPERM)]));
    assert_eq!(answer(&newer, Abi::X86_64, "faccessat2", 0), Action::Log.answer());
}

#[test]
fn unknown_names_are_reported_and_skipped() {
    let strange = profile(EPERM, vec![rule(&["swapcontext", "read", "raed", "raed"], &[], Action::Allow)]);
    let compiled = compile_for(X86, &strange, &CapSet::default()).unwrap();
    assert_eq!(compiled.unknown, ["raed", "swapcontext"]);
    assert_eq!(answer(&from_bytes(&compiled.bytes).unwrap(), Abi::X86_64, "read", 0), Action::Allow.answer());
}

#[test]
fn jumps_reach_any_distance_and_a_filter_that_is_too_long_is_refused() {
    let tests = |count: u64| {
        let each = |n| rule(&["read"], &[(0, ArgCondition::Is(n << 20)), (1, ArgCondition::Above(n))], Action::Allow);
        let mut rules: Vec<Rule> = (1..=count).map(each).collect();
        rules.push(rule(&["write", "close"], &[(0, ArgCondition::Is(7))], Action::Allow));
        Profile { abis: vec![], ..profile(EPERM, rules) }
    };
    let long = tests(300);
    let filter = filter(X86, &long);
    assert!(filter.len() > 2000);
    for (name, arguments, wanted) in [
        ("read", [300 << 20, 301, 0, 0, 0, 0], Action::Allow),
        ("read", [1 << 20, 2, 0, 0, 0, 0], Action::Allow),
        ("read", [1 << 20, 1, 0, 0, 0, 0], EPERM),
        ("read", [5, 5, 0, 0, 0, 0], EPERM),
        ("close", [7, 0, 0, 0, 0, 0], Action::Allow),
        ("close", [8, 0, 0, 0, 0, 0], EPERM),
    ] {
        let call = Call::new(Abi::X86_64, syscalls::number(Abi::X86_64, name).unwrap(), arguments);
        assert_eq!(run(&filter, &call).0, wanted.answer(), "{name} {arguments:?}");
    }
    let refused = compile_for(X86, &tests(3000), &CapSet::default()).unwrap_err();
    assert!(matches!(refused, ProfileError::TooLong(n) if n > 4096), "{refused}");
}

#[test]
fn socketcall_of_i386_does_not_bypass_rules() {
    let tested = profile(
        EPERM,
        vec![
            rule(&["socket"], &[(0, ArgCondition::Is(1))], Action::Allow),
            rule(&["connect"], &[], Action::Allow),
            rule(&["bind"], &[(2, ArgCondition::Is(0))], Action::Trap),
        ],
    );
    let filter = filter(X86, &tested);
    assert_eq!(answer(&filter, Abi::I386, "socket", 1), Action::Allow.answer());
    assert_eq!(
        answer(&filter, Abi::I386, "socketcall", 1),
        EPERM.answer(),
        "socket: the filter cannot read the family"
    );
    assert_eq!(answer(&filter, Abi::I386, "socketcall", 2), Action::Trap.answer(), "bind");
    assert_eq!(answer(&filter, Abi::I386, "socketcall", 3), Action::Allow.answer(), "connect");
    assert_eq!(answer(&filter, Abi::I386, "socketcall", 4), EPERM.answer(), "listen");
}
