use super::*;
use crate::api::{
    ContainerAdjustment, CreateContainerResponse, Hook, Hooks, LinuxContainer, LinuxContainerAdjustment,
    LinuxNamespace, LinuxSeccomp,
};
use crate::merge::{Allow, Creation, Group};

/// Returns the owners after plugins set a hook, a seccomp policy, a namespace and a sysctl.
fn owners(container: &Container) -> Owners {
    let allow = Allow::default().with([Group::Hooks, Group::Seccomp, Group::Namespaces, Group::Sysctl]);
    let mut creation = Creation::new(container.clone());
    let hook = Hook { path: "/bin/true".to_owned(), ..Hook::default() };
    let hooks = ContainerAdjustment {
        hooks: Some(Hooks { poststop: vec![hook], ..Hooks::default() }),
        ..ContainerAdjustment::default()
    };
    for plugin in ["10-a", "20-b"] {
        let answer = CreateContainerResponse { adjust: Some(hooks.clone()), ..Default::default() };
        creation.add(plugin, &allow, answer).unwrap();
    }
    let linux = LinuxContainerAdjustment {
        seccomp_policy: Some(LinuxSeccomp::default()),
        namespaces: vec![LinuxNamespace { r#type: "ipc".to_owned(), path: String::new() }],
        sysctl: [("net.a".to_owned(), "1".to_owned())].into(),
        ..LinuxContainerAdjustment::default()
    };
    let adjust = Some(ContainerAdjustment { linux: Some(linux), ..Default::default() });
    creation.add("30-c", &allow, CreateContainerResponse { adjust, ..Default::default() }).unwrap();
    creation.finish().owners
}

fn container(profile: Option<ProfileType>) -> Container {
    let seccomp_profile =
        profile.map(|kind| SecurityProfile { profile_type: kind.into(), localhost_ref: String::new() });
    Container { linux: Some(LinuxContainer { seccomp_profile, ..Default::default() }), ..Default::default() }
}

fn reason(validator: &DefaultValidator, container: &Container) -> Option<String> {
    validator.check(container, &owners(container)).err().map(|rejected| rejected.to_string())
}

#[test]
fn nothing_is_rejected_by_default_or_while_the_validator_is_off() {
    let on = DefaultValidator { enable: true, ..DefaultValidator::default() };
    assert_eq!(reason(&on, &container(None)), None);
    let off = DefaultValidator { reject_oci_hook_adjustment: true, ..DefaultValidator::default() };
    assert_eq!(reason(&off, &container(None)), None);
}

#[test]
fn each_option_names_the_plugins_and_itself() {
    let on = DefaultValidator { enable: true, ..DefaultValidator::default() };
    let hooks = DefaultValidator { reject_oci_hook_adjustment: true, ..on.clone() };
    let expected = "adjustment of OCI hooks by 10-a,20-b rejected by setting reject_oci_hook_adjustment";
    assert_eq!(reason(&hooks, &container(None)).as_deref(), Some(expected));
    let namespaces = DefaultValidator { reject_namespace_adjustment: true, ..on.clone() };
    let expected = "adjustment of namespaces by 30-c rejected by setting reject_namespace_adjustment";
    assert_eq!(reason(&namespaces, &container(None)).as_deref(), Some(expected));
    let sysctl = DefaultValidator { reject_sysctl_adjustment: true, ..on };
    let expected = "adjustment of sysctls by 30-c rejected by setting reject_sysctl_adjustment";
    assert_eq!(reason(&sysctl, &container(None)).as_deref(), Some(expected));
}

#[test]
fn the_seccomp_option_is_that_of_the_profile_of_the_container() {
    let on = DefaultValidator { enable: true, ..DefaultValidator::default() };
    let options = [
        (None, DefaultValidator { reject_unconfined_seccomp_adjustment: true, ..on.clone() }),
        (Some(ProfileType::Unconfined), DefaultValidator { reject_unconfined_seccomp_adjustment: true, ..on.clone() }),
        (
            Some(ProfileType::RuntimeDefault),
            DefaultValidator { reject_runtime_default_seccomp_adjustment: true, ..on.clone() },
        ),
        (Some(ProfileType::Localhost), DefaultValidator { reject_custom_seccomp_adjustment: true, ..on }),
    ];
    for (profile, _) in &options {
        for (other, validator) in &options {
            let is_same = profile.unwrap_or(ProfileType::Unconfined) == other.unwrap_or(ProfileType::Unconfined);
            assert_eq!(reason(validator, &container(*profile)).is_some(), is_same, "{profile:?} {other:?}");
        }
    }
}
