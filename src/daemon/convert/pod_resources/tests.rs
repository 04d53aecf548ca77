use model::{ErrorClass as _, ErrorKind};

use super::super::tests::support::{
    container_record, kubernetes_resources, pod_record, pod_resources, quantities, run_request,
};
use super::super::{container, pod};
use super::*;
use crate::store::{ContainerRecord, PodRecord};

fn refused(change: impl FnOnce(&mut v1::PodResourceConfig)) -> String {
    let mut request = run_request();
    change(request.config.as_mut().unwrap().pod_resources.as_mut().unwrap());
    let refusal = pod::run(request, None).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Invalid);
    refusal.to_string()
}

fn limit(config: &mut v1::PodResourceConfig, name: &str, text: &str) {
    let resources = config.containers[1].kubernetes_resources.as_mut().unwrap();
    resources.limits.insert(name.to_owned(), cri_api::Quantity { string: text.to_owned() });
}

#[test]
fn every_field_is_converted() {
    let announced = pod_resource_config(FieldPath::top("pod_resources"), Some(pod_resources()), &mut Warnings::new());
    let PodResourceConfig { containers, resources, source } = announced.unwrap().unwrap();
    let names: Vec<_> = containers.iter().map(|one| (one.name.as_str(), one.kind)).collect();
    assert_eq!(names, [("init", ContainerKind::Init), ("main", ContainerKind::Regular)]);
    assert_eq!((resources.unwrap().requests["cpu"].as_str(), source), ("1.5", Source::Request));
    assert_eq!((containers[0].resources.as_ref(), containers[0].mounts.len()), (None, 0));
    let spec = container_record().spec;
    let ContainerResourceConfig { name: _, kind: _, resources, mounts, devices, cdi_devices } = containers[1].clone();
    assert_eq!((resources, mounts), (spec.kubernetes_resources, spec.mounts));
    assert_eq!((devices, cdi_devices), (spec.devices, spec.cdi_devices));
}

#[test]
fn every_field_is_returned_unchanged() {
    let at = FieldPath::top("pod_resources");
    let came = pod_resource_config(at, Some(pod_resources()), &mut Warnings::new()).unwrap().unwrap();
    let again =
        pod_resource_config(at, Some(pod_resource_config_to_wire(&came)), &mut Warnings::new()).unwrap().unwrap();
    assert_eq!(again, came);
}

#[test]
fn absent_and_empty_are_different() {
    let at = FieldPath::top("x");
    assert_eq!(resources(at, None), Ok(None));
    assert_eq!(resources(at, Some(v1::KubernetesResources::default())), Ok(Some(Resources::default())));
    assert_eq!(pod_resource_config(at, None, &mut Warnings::new()), Ok(None));
    let empty = pod_resource_config(at, Some(v1::PodResourceConfig::default()), &mut Warnings::new()).unwrap().unwrap();
    assert_eq!((empty.containers.len(), empty.resources), (0, None));
}

#[test]
fn a_bad_quantity_is_refused_by_its_whole_path() {
    let field = "config.pod_resources.containers[1].kubernetes_resources.limits[\"memory\"]";
    for text in ["", " ", "1.2.3", "1 Gi", "0x10", "NaN", "-1", "1e-10", "8Ei", "1K", "1\n"] {
        let said = refused(|config| limit(config, "memory", text));
        let named = said.starts_with(&format!("{field}: ")) && said.contains(&format!("{text:?}"));
        assert!(named, "{text:?}: {said}");
    }
    let said = refused(|c| c.kubernetes_resources.as_mut().unwrap().requests = quantities(&[("cpu", "one")]));
    assert!(said.starts_with("config.pod_resources.kubernetes_resources.requests[\"cpu\"]: "), "{said}");
}

#[test]
fn a_bad_name_is_refused() {
    for name in ["", "two words", "/gpu", "a\nb", "Vendor.Example/gpu"] {
        let said = refused(|config| limit(config, name, "1"));
        let field = format!("config.pod_resources.containers[1].kubernetes_resources.limits[{name:?}]");
        assert!(said.starts_with(&format!("{field}: invalid resource name {name:?}")), "{said}");
    }
}

#[test]
fn a_request_above_its_limit_is_refused_by_value() {
    let said = refused(|config| limit(config, "cpu", "499999999n"));
    assert_eq!(
        said,
        "config.pod_resources.containers[1].kubernetes_resources.requests[\"cpu\"]: 500m exceeds the limit of \
         499999999n"
    );
    let same = v1::KubernetesResources {
        requests: quantities(&[("memory", "1073741824"), ("cpu", "7")]),
        limits: quantities(&[("memory", "1Gi")]),
    };
    assert!(resources(FieldPath::top("x"), Some(same)).is_ok());
}

#[test]
fn two_containers_of_one_kind_with_one_name_are_refused() {
    let said = refused(|config| config.containers.push(config.containers[1].clone()));
    assert_eq!(said, "config.pod_resources.containers[2].name: duplicate container \"main\"");
    let said = refused(|config| config.containers.insert(0, config.containers[0].clone()));
    assert_eq!(said, "config.pod_resources.containers[1].name: duplicate init container \"init\"");
    let mut both = pod_resources();
    both.containers[0].name = "main".to_owned();
    assert!(pod_resource_config(FieldPath::top("x"), Some(both), &mut Warnings::new()).is_ok());
}

#[test]
fn declared_containers_are_checked_like_containers() {
    let cases = [
        ("name: empty", refused(|c| c.containers[1].name.clear())),
        ("type: 2 is not a known value", refused(|c| c.containers[1].r#type = 2)),
        ("mounts[0].container_path: ", refused(|c| c.containers[1].mounts[0].container_path = "x".into())),
        ("devices[0].permissions: ", refused(|c| c.containers[1].devices[0].permissions = "x".into())),
        ("CDI_devices[0].name: empty", refused(|c| c.containers[1].cdi_devices[0].name.clear())),
    ];
    for (rest, said) in cases {
        assert!(said.starts_with(&format!("config.pod_resources.containers[1].{rest}")), "{said}");
    }
}

#[test]
fn resources_of_a_container_are_checked_too() {
    let mut request = super::super::tests::support::create_request();
    let config = request.config.as_mut().unwrap();
    config.kubernetes_resources.as_mut().unwrap().limits = quantities(&[("cpu", "1 ")]);
    let said = container::create(request.clone()).unwrap_err().to_string();
    assert!(said.starts_with("config.kubernetes_resources.limits[\"cpu\"]: "), "{said}");
    request.config.as_mut().unwrap().kubernetes_resources = Some(kubernetes_resources());
    limit(request.sandbox_config.as_mut().unwrap().pod_resources.as_mut().unwrap(), "cpu", "");
    let said = container::create(request).unwrap_err().to_string();
    assert!(said.starts_with("sandbox_config.pod_resources.containers[1].kubernetes_resources.limits"), "{said}");
}

#[test]
fn records_keep_declared_resources_verbatim_and_older_records_are_read() {
    let (pod, container) = (pod_record(), container_record());
    let mut stored = (serde_json::to_value(&pod).unwrap(), serde_json::to_value(&container).unwrap());
    assert_eq!(serde_json::from_value::<PodRecord>(stored.0.clone()).unwrap(), pod);
    assert_eq!(serde_json::from_value::<ContainerRecord>(stored.1.clone()).unwrap(), container);
    assert_eq!(stored.1["spec"]["kubernetes_resources"]["limits"]["memory"], "100000001");
    assert!(stored.0["spec"].as_object_mut().unwrap().remove("pod_resources").is_some());
    assert!(stored.1["spec"].as_object_mut().unwrap().remove("kubernetes_resources").is_some());
    assert_eq!(serde_json::from_value::<PodRecord>(stored.0).unwrap().spec.pod_resources, None);
    assert_eq!(serde_json::from_value::<ContainerRecord>(stored.1).unwrap().spec.kubernetes_resources, None);
}
