use model::{ErrorClass as _, ErrorKind};

use super::super::profile::CapSet;
use super::*;

fn read(json: &str) -> Result<Profile, ProfileError> {
    Profile::read(json.as_bytes())
}

fn refusal(json: &str) -> String {
    read(json).unwrap_err().to_string()
}

/// Returns a profile with one rule.
fn with(rule: &str) -> String {
    format!(r#"{{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{rule}]}}"#)
}

#[test]
fn every_field_of_a_profile_is_read() {
    let profile = read(
        r#"{
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "defaultErrno": "ENOSYS",
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
            {"architecture": "SCMP_ARCH_RISCV64", "subArchitectures": null}
        ],
        "flags": ["SECCOMP_FILTER_FLAG_LOG"], "listenerPath": "", "listenerMetadata": null,
        "syscalls": [{
            "names": ["clone", "unshare"], "action": "SCMP_ACT_TRACE", "errnoRet": 7, "comment": "why",
            "args": [
                {"index": 0, "value": 2114060288, "valueTwo": 1, "op": "SCMP_CMP_MASKED_EQ"},
                {"index": 1, "value": 18446744073709551615, "op": "SCMP_CMP_GE"}
            ],
            "includes": {"caps": ["CAP_SYS_ADMIN"], "minKernel": "4.8"},
            "excludes": {"arches": ["s390", "s390x"]}
        }]
    }"#,
    )
    .unwrap();
    let rule = Rule {
        names: vec!["clone".to_owned(), "unshare".to_owned()],
        action: Action::Trace(7),
        arguments: vec![
            Argument { index: 0, test: ArgCondition::Masked { mask: 0x7e02_0000, is: 1 } },
            Argument { index: 1, test: ArgCondition::AtLeast(u64::MAX) },
        ],
        only: RuleScope { caps: vec!["CAP_SYS_ADMIN".to_owned()], machines: vec![], kernel: Some(Kernel(4, 8)) },
        not: RuleScope { caps: vec![], machines: vec!["s390".to_owned(), "s390x".to_owned()], kernel: None },
    };
    assert_eq!((profile.otherwise, profile.rules.as_slice()), (Action::Errno(38), [rule].as_slice()));
    assert!(profile.lists("SCMP_ARCH_X86_64", "SCMP_ARCH_X86"));
    assert!(!profile.lists("SCMP_ARCH_AARCH64", "SCMP_ARCH_X86"));
}

#[test]
fn a_list_of_architectures_applies_to_every_machine() {
    let profile = read(r#"{"defaultAction": "SCMP_ACT_LOG", "architectures": ["SCMP_ARCH_X86"]}"#).unwrap();
    assert!(profile.lists("SCMP_ARCH_X86_64", "SCMP_ARCH_X86"));
    assert!(!profile.lists("SCMP_ARCH_X86_64", "SCMP_ARCH_X32"));
}

#[test]
fn null_values_and_the_older_field_name_are_accepted() {
    let rule = r#"{"name": "mount", "action": "SCMP_ACT_ALLOW", "args": null, "includes": {}, "excludes": null}"#;
    let profile = read(&with(rule)).unwrap();
    assert_eq!(profile.rules[0].names, ["mount"]);
    assert!(profile.rules[0].applies(&CapSet::default(), "amd64", Kernel(6, 1)));
    assert_eq!(profile.otherwise, Action::Errno(1));
}

#[test]
fn every_action_and_every_comparison_is_read() {
    let action = |name: &str| read(&format!(r#"{{"defaultAction": "SCMP_ACT_{name}"}}"#)).unwrap().otherwise;
    assert_eq!(action("KILL"), Action::KillThread);
    assert_eq!(action("KILL_THREAD"), Action::KillThread);
    assert_eq!(action("KILL_PROCESS"), Action::KillProcess);
    assert_eq!(action("TRAP"), Action::Trap);
    assert_eq!(action("ERRNO"), Action::Errno(1));
    assert_eq!(action("TRACE"), Action::Trace(1));
    assert_eq!(action("LOG"), Action::Log);
    assert_eq!(action("ALLOW"), Action::Allow);
    let test = |name: &str| {
        let args = format!(r#"[{{"index": 2, "value": 9, "op": "SCMP_CMP_{name}"}}]"#);
        let rule = format!(r#"{{"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": {args}}}"#);
        read(&with(&rule)).unwrap().rules[0].arguments[0].test
    };
    assert_eq!(test("EQ"), ArgCondition::Is(9));
    assert_eq!(test("NE"), ArgCondition::IsNot(9));
    assert_eq!(test("LT"), ArgCondition::Below(9));
    assert_eq!(test("LE"), ArgCondition::AtMost(9));
    assert_eq!(test("GE"), ArgCondition::AtLeast(9));
    assert_eq!(test("GT"), ArgCondition::Above(9));
    assert_eq!(test("MASKED_EQ"), ArgCondition::Masked { mask: 9, is: 0 });
}

#[test]
fn unknown_values_are_refused_by_name() {
    assert_eq!(
        refusal(r#"{"defaultAction": "SCMP_ACT_MAYBE"}"#),
        r#"unknown action "SCMP_ACT_MAYBE" in a container's seccomp profile"#
    );
    assert!(
        refusal(r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#)
            .starts_with("SCMP_ACT_NOTIFY in a container's seccomp profile is not supported")
    );
    let more = |field: &str| refusal(&format!(r#"{{"defaultAction": "SCMP_ACT_ERRNO", {field}}}"#));
    assert_eq!(
        more(r#""architectures": ["SCMP_ARCH_Z80"]"#),
        r#"unknown architecture "SCMP_ARCH_Z80" in a container's seccomp profile"#
    );
    assert_eq!(more(r#""flags": ["FAST"]"#), r#"unknown flag "FAST" in a container's seccomp profile"#);
    assert!(more(r#""listenerPath": "/run/agent.sock""#).starts_with("SCMP_ACT_NOTIFY"));
    let rule = |fields: &str| refusal(&with(&format!(r#"{{"names": ["read"], {fields}}}"#)));
    assert_eq!(
        rule(r#""action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 1, "op": "SCMP_CMP_SAME"}]"#),
        r#"unknown comparison operator "SCMP_CMP_SAME" in a container's seccomp profile"#
    );
    assert_eq!(
        rule(r#""action": "SCMP_ACT_ALLOW", "args": [{"index": 6, "value": 1, "op": "SCMP_CMP_EQ"}]"#),
        "invalid argument index 6 in a container's seccomp profile: must be 0 to 5"
    );
    assert_eq!(
        rule(r#""action": "SCMP_ACT_ERRNO", "errnoRet": 4096"#),
        r#"invalid errno "4096" in a container's seccomp profile: must be 0 to 4095 or a known name"#
    );
    assert_eq!(
        rule(r#""action": "SCMP_ACT_ERRNO", "errno": "EODD""#),
        r#"invalid errno "EODD" in a container's seccomp profile: must be 0 to 4095 or a known name"#
    );
    assert_eq!(
        rule(r#""action": "SCMP_ACT_ERRNO", "errno": "EPERM", "errnoRet": 2"#),
        "errno EPERM and errnoRet 2 in a rule of a container's seccomp profile differ"
    );
    assert_eq!(
        rule(r#""action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "new"}"#),
        r#"invalid kernel version "new" in a container's seccomp profile: must be MAJOR.MINOR"#
    );
    assert_eq!(
        rule(r#""action": "SCMP_ACT_ALLOW", "name": "write""#),
        r#"name "write" and names cannot be combined in a rule of a container's seccomp profile"#
    );
}

#[test]
fn a_misspelt_field_is_refused() {
    use std::error::Error as _;
    let rule = r#"{"names": ["socket"], "action": "SCMP_ACT_ALLOW", "arg": []}"#;
    let error = read(&with(rule)).unwrap_err();
    assert!(error.source().unwrap().to_string().contains("unknown field `arg`"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn a_profile_of_more_than_a_mebibyte_is_not_parsed() {
    let json = vec![b' '; (1 << 20) + 1];
    assert!(matches!(Profile::read(&json), Err(ProfileError::TooBig)));
    assert!(matches!(Profile::read(&json[1..]), Err(ProfileError::Json(_))));
}

#[test]
fn several_conditions_on_one_argument_are_alternatives() {
    let args = r#"[{"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 2, "op": "SCMP_CMP_EQ"},
                   {"index": 1, "value": 3, "op": "SCMP_CMP_EQ"}]"#;
    let rule = format!(r#"{{"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": {args}}}"#);
    let profile = read(&with(&rule)).unwrap();
    let tests: Vec<_> = profile.rules.iter().map(|rule| rule.arguments.as_slice()).collect();
    let is = |index, value| [Argument { index, test: ArgCondition::Is(value) }];
    assert_eq!(tests, [&is(0, 1), &is(0, 2), &is(1, 3)]);
}

#[test]
fn a_rule_needs_all_includes_and_none_of_the_excludes() {
    let rule = r#"{"names": ["bpf"], "action": "SCMP_ACT_ALLOW",
        "includes": {"caps": ["CAP_BPF", "CAP_PERFMON"], "arches": ["amd64", "arm64"], "minKernel": "5.8"},
        "excludes": {"caps": ["CAP_SYS_ADMIN", "CAP_SYSLOG"], "arches": ["arm64"], "minKernel": "7.0"}}"#;
    let rule = &read(&with(rule)).unwrap().rules[0];
    let applies = |caps: &[&str], machine, kernel| rule.applies(&caps.iter().collect(), machine, kernel);
    assert!(applies(&["BPF", "cap_perfmon", "CHOWN"], "amd64", Kernel(5, 8)));
    assert!(!applies(&["BPF"], "amd64", Kernel(5, 8)));
    assert!(!applies(&["BPF", "PERFMON", "SYSLOG"], "amd64", Kernel(5, 8)));
    assert!(!applies(&["BPF", "PERFMON"], "arm64", Kernel(5, 8)));
    assert!(!applies(&["BPF", "PERFMON"], "riscv64", Kernel(5, 8)));
    assert!(!applies(&["BPF", "PERFMON"], "amd64", Kernel(5, 7)));
    assert!(!applies(&["BPF", "PERFMON"], "amd64", Kernel(7, 0)));
}

#[test]
fn a_kernel_version_is_parsed_from_its_release() {
    assert_eq!(Kernel::read("6.18.44-fc-v445"), Some(Kernel(6, 18)));
    assert_eq!(Kernel::read("5.10"), Some(Kernel(5, 10)));
    assert_eq!(Kernel::read("6"), None);
    assert_eq!(Kernel::read("new.est"), None);
    assert!(Kernel(5, 10) > Kernel(5, 9));
}
