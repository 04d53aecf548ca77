use model::pod_resources::Resources;

use super::*;
use crate::convert::tests::support::{container_record, pod_record};

fn announced(source: Source) -> PodResourceConfig {
    PodResourceConfig { source, ..pod_record().spec.pod_resources.unwrap() }
}

/// Returns the declared container, changed.
fn arrived(change: impl FnOnce(&mut ContainerSpec)) -> ContainerSpec {
    let mut spec = container_record().spec;
    change(&mut spec);
    spec
}

fn refused(mut spec: ContainerSpec) -> String {
    let error = check(MismatchPolicy::Refuse, Some(&announced(Source::Request)), &mut spec).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition);
    error.to_string()
}

#[test]
fn a_container_that_matches_its_declaration_or_has_none_passes() {
    for policy in [MismatchPolicy::Warn, MismatchPolicy::Refuse] {
        let mut spec = arrived(|_| {});
        assert_eq!(check(policy, Some(&announced(Source::Request)), &mut spec), Ok(None));
        assert_eq!(check(policy, None, &mut arrived(|c| c.meta.name = "other".into())), Ok(None));
        assert_eq!(spec, container_record().spec);
    }
}

#[test]
fn differences_are_logged_or_refused_by_the_policy() {
    let different = || {
        arrived(|c| {
            c.devices.clear();
            c.mounts[0].readonly = false;
        })
    };
    let said = "mount \"/data\", readonly: false, but true was declared; device \"/dev/fuse\": \
                missing, but \"/dev/host-fuse\" was declared";
    assert_eq!(
        refused(different()),
        format!(
            "the container differs from the pod resources in RunPodSandbox or the pod's annotation, which resources.mismatch refuses: {said}"
        )
    );
    let told = check(MismatchPolicy::Warn, Some(&announced(Source::Request)), &mut different()).unwrap();
    assert_eq!(told.unwrap().to_string(), said);
}

#[test]
fn an_undeclared_container_is_a_difference() {
    let said = refused(arrived(|c| c.meta.name = "debugger".into()));
    assert!(said.ends_with(": name: \"debugger\", but no such container was declared"), "{said}");
}

#[test]
fn many_differences_are_listed_in_part_and_counted() {
    let many = arrived(|c| {
        c.cdi_devices = (0..20).map(|number| format!("v.example/gpu={}", 100 + number)).collect();
    });
    let said = refused(many);
    assert_eq!(said.matches("was declared").count(), 16);
    assert!(said.ends_with("; and 5 more"), "{said}");
}

#[test]
fn the_annotation_fills_fields_that_the_request_leaves_empty() {
    let silent = || arrived(|c| c.kubernetes_resources = None);
    let mut spec = silent();
    assert_eq!(check(MismatchPolicy::Refuse, Some(&announced(Source::Annotation)), &mut spec), Ok(None));
    assert_eq!(spec, container_record().spec);
    // Resources of the request take precedence.
    let mut spec = arrived(|c| c.kubernetes_resources = Some(Resources::default()));
    assert!(check(MismatchPolicy::Refuse, Some(&announced(Source::Annotation)), &mut spec).is_err());
    assert_eq!(spec.kubernetes_resources, Some(Resources::default()));
    // A request that repeats the declaration must match it.
    let mut spec = silent();
    let told = check(MismatchPolicy::Warn, Some(&announced(Source::Request)), &mut spec).unwrap().unwrap();
    assert_eq!((told.0.len(), spec.kubernetes_resources), (5, None));
}
