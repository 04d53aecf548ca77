use model::{ErrorClass as _, ErrorKind, IdMapping, SeLinux};

use super::super::tests::support::container_config;
use super::*;

fn context() -> v1::LinuxContainerSecurityContext {
    container_config().linux.unwrap().security_context.unwrap()
}

fn convert(change: impl FnOnce(&mut v1::LinuxContainerSecurityContext)) -> Result<ContainerSecurity, InvalidField> {
    let mut asked = context();
    change(&mut asked);
    container(FieldPath::top("ctx"), Some(asked))
}

fn refused(change: impl FnOnce(&mut v1::LinuxContainerSecurityContext)) -> String {
    let refusal = convert(change).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Invalid);
    refusal.to_string()
}

fn options(context: &mut v1::LinuxContainerSecurityContext) -> &mut v1::NamespaceOption {
    context.namespace_options.as_mut().unwrap()
}

#[test]
fn every_field_is_converted() {
    let security = convert(|_| ()).unwrap();
    let namespaces = Namespaces {
        network: NsMode::Pod,
        pid: NsMode::Target,
        ipc: NsMode::Pod,
        target: Some("other".into()),
        user: Some(UserNs {
            uids: vec![
                IdMapping { host: 65536, container: 0, length: 1000 },
                IdMapping { host: 90000, container: 1000, length: 1 },
            ],
            gids: vec![IdMapping { host: 131_072, container: 0, length: 1000 }],
        }),
    };
    assert_eq!(
        security,
        ContainerSecurity {
            capabilities: Capabilities {
                add: vec!["NET_ADMIN".into(), "SYS_TIME".into()],
                drop: vec!["ALL".into()],
                add_ambient: vec!["NET_RAW".into()],
            },
            privileged: true,
            namespaces: namespaces.clone(),
            selinux: Some(SeLinux { user: "u".into(), role: "r".into(), kind: "t".into(), level: "s0".into() }),
            run_as: Some(UserRef::Id(1000)),
            run_as_group: Some(2000),
            supplemental_groups: vec![7, 8],
            groups_policy: GroupsPolicy::Strict,
            readonly_rootfs: true,
            no_new_privs: true,
            masked_paths: vec!["/proc/kcore".into()],
            readonly_paths: vec!["/proc/sys".into()],
            seccomp: Some(Profile::Localhost("/profiles/s.json".into())),
            apparmor: Some(Profile::Localhost("aa".into())),
        }
    );
    assert_eq!(Some(namespaces_to_wire(&namespaces)), context().namespace_options);
}

#[test]
fn a_user_is_a_number_or_a_name_but_not_both() {
    let by_name = convert(|c| (c.run_as_user, c.run_as_username) = (None, "www".into())).unwrap();
    assert_eq!(by_name.run_as, Some(UserRef::Name("www".into())));
    assert_eq!(refused(|c| c.run_as_username = "www".into()), "ctx.run_as_username: set together with run_as_user");
    assert!(refused(|c| c.run_as_user = None).starts_with("ctx.run_as_group:"));
    assert!(refused(|c| c.run_as_user.as_mut().unwrap().value = 1 << 32).starts_with("ctx.run_as_user:"));
    assert!(refused(|c| c.run_as_group.as_mut().unwrap().value = -1).starts_with("ctx.run_as_group:"));
}

#[test]
fn modes_and_targets_must_fit() {
    let target = v1::NamespaceMode::Target.into();
    let container = v1::NamespaceMode::Container.into();
    let cases = [
        ("network", refused(|c| options(c).network = container)),
        ("ipc", refused(|c| options(c).ipc = target)),
        ("pid", refused(|c| options(c).pid = 9)),
        ("target_id", refused(|c| options(c).target_id.clear())),
        ("target_id", refused(|c| options(c).pid = container)),
    ];
    for (name, said) in cases {
        assert!(said.starts_with(&format!("ctx.namespace_options.{name}:")), "{said}");
    }
}

#[test]
fn a_user_namespace_is_the_pods_with_mappings_or_the_hosts_without() {
    let with = |userns: v1::UserNamespace| convert(|c| options(c).userns_options = Some(userns));
    let asked = |mode: v1::NamespaceMode, uids: &[v1::IdMapping], gids: &[v1::IdMapping]| v1::UserNamespace {
        mode: mode.into(),
        uids: uids.to_vec(),
        gids: gids.to_vec(),
    };
    let line = [v1::IdMapping { container_id: 0, host_id: 65536, length: 65536 }];
    let pod = with(asked(v1::NamespaceMode::Pod, &line, &line)).unwrap().namespaces.user.unwrap();
    assert_eq!((pod.uid(1000), pod.gid(1000)), (Some(66536), Some(66536)));
    assert_eq!(with(asked(v1::NamespaceMode::Node, &[], &[])).unwrap().namespaces.user, None);
    assert_eq!(convert(|c| options(c).userns_options = None).unwrap().namespaces.user, None);
    let cases = [
        (asked(v1::NamespaceMode::Pod, &[], &line), ".uids: empty, but mode is POD"),
        (asked(v1::NamespaceMode::Pod, &line, &[]), ".gids: empty, but mode is POD"),
        (asked(v1::NamespaceMode::Node, &line, &[]), ": has mappings, but mode is NODE"),
        (asked(v1::NamespaceMode::Container, &line, &line), ".mode: must be POD or NODE"),
        (asked(v1::NamespaceMode::Target, &line, &line), ".mode: must be POD or NODE"),
    ];
    for (userns, problem) in cases {
        let refusal = with(userns).unwrap_err();
        assert_eq!(refusal.kind(), ErrorKind::Invalid);
        assert_eq!(refusal.to_string(), format!("ctx.namespace_options.userns_options{problem}"));
    }
}

#[test]
fn capabilities_are_known_names() {
    let named = |name: &str| {
        let capabilities = v1::Capability { add_capabilities: vec![name.to_owned()], ..Default::default() };
        convert(|c| c.capabilities = Some(capabilities)).map(|security| security.capabilities.add)
    };
    for (asked, is) in [("cap_chown", "CHOWN"), ("all", "ALL"), ("CHECKPOINT_RESTORE", "CHECKPOINT_RESTORE")] {
        assert_eq!(named(asked).unwrap(), [is]);
    }
    let refusal = named("SYS_NOPE").unwrap_err();
    assert_eq!(refusal.to_string(), "ctx.capabilities.add_capabilities[0]: \"SYS_NOPE\" is not a known capability");
}

#[test]
fn an_empty_selinux_option_counts_as_absent() {
    let security = convert(|c| c.selinux_options = Some(v1::SeLinuxOption::default())).unwrap();
    assert_eq!(security.selinux, None);
}

#[test]
#[expect(deprecated, reason = "the older fields are what is tested")]
fn deprecated_profile_fields_are_used_if_the_newer_ones_are_absent() {
    let older = |text: &str| {
        convert(|c| {
            (c.seccomp, c.apparmor) = (None, None);
            (c.seccomp_profile_path, c.apparmor_profile) = (text.to_owned(), text.to_owned());
        })
    };
    for (text, profile) in [
        ("", None),
        ("runtime/default", Some(Profile::RuntimeDefault)),
        ("docker/default", Some(Profile::RuntimeDefault)),
        ("unconfined", Some(Profile::Unconfined)),
        ("localhost//p.json", Some(Profile::Localhost("/p.json".into()))),
    ] {
        let security = older(text).unwrap();
        assert_eq!((security.seccomp, security.apparmor), (profile.clone(), profile), "{text:?}");
    }
    for bad in ["localhost/", "localhost/p.json", "strict"] {
        assert!(older(bad).unwrap_err().to_string().starts_with("ctx.seccomp"), "{bad}");
    }
    let apparmor = convert(|c| (c.apparmor, c.apparmor_profile) = (None, "strict".into())).unwrap_err();
    assert_eq!(
        apparmor.to_string(),
        "ctx.apparmor_profile: \"strict\" is not a profile: expected runtime/default, unconfined or localhost/NAME"
    );
}

#[test]
fn a_profile_has_a_name_if_and_only_if_it_is_local() {
    let with = |profile_type: v1::security_profile::ProfileType, name: &str| {
        let profile = v1::SecurityProfile { profile_type: profile_type.into(), localhost_ref: name.to_owned() };
        convert(|c| c.seccomp = Some(profile))
    };
    use v1::security_profile::ProfileType::{Localhost, RuntimeDefault, Unconfined};
    assert_eq!(with(RuntimeDefault, "").unwrap().seccomp, Some(Profile::RuntimeDefault));
    assert_eq!(with(Unconfined, "").unwrap().seccomp, Some(Profile::Unconfined));
    for (kind, name) in [(Localhost, ""), (RuntimeDefault, "/x"), (Unconfined, "/x")] {
        let refusal = with(kind, name).unwrap_err();
        assert!(refusal.to_string().starts_with("ctx.seccomp.localhost_ref:"), "{refusal}");
    }
    assert!(with(Localhost, "relative").unwrap_err().to_string().starts_with("ctx.seccomp:"));
}

#[test]
fn without_a_security_context_sensitive_kernel_files_are_masked() {
    let security = container(FieldPath::top("ctx"), None).unwrap();
    for path in ["/proc/kcore", "/proc/keys", "/sys/firmware", "/sys/devices/virtual/powercap"] {
        assert!(security.masked_paths.iter().any(|masked| masked == path), "{path}");
    }
    assert!(security.readonly_paths.iter().any(|path| path == "/proc/sys"));
}

#[test]
fn paths_are_absolute() {
    assert!(refused(|c| c.masked_paths = vec!["proc".into()]).starts_with("ctx.masked_paths[0]:"));
    assert!(refused(|c| c.readonly_paths = vec![String::new()]).starts_with("ctx.readonly_paths[0]:"));
    assert!(refused(|c| c.supplemental_groups = vec![-1]).starts_with("ctx.supplemental_groups[0]:"));
    assert!(refused(|c| c.supplemental_groups_policy = 2).starts_with("ctx.supplemental_groups_policy:"));
}
