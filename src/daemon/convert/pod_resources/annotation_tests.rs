use super::*;
use crate::convert::pod;
use crate::convert::tests::support::{map, pod_resources, run_request};

const NAME: &str = "a.example/resources";

/// Converts a RunPodSandbox request with this annotation, and with `pod_resources` or without.
fn run(text: &str, pod_resources: Option<v1::PodResourceConfig>) -> Result<(PodSpec, Warnings), InvalidField> {
    let mut request = run_request();
    let config = request.config.as_mut().unwrap();
    config.pod_resources = pod_resources;
    config.port_mappings.clear();
    config.annotations = map(&[(NAME, text)]);
    pod::run(request, Some(&NAME.parse().unwrap()))
}

fn refused(text: &str) -> String {
    let said = run(text, None).unwrap_err().to_string();
    said.strip_prefix("config.annotations[\"a.example/resources\"]").unwrap_or_else(|| panic!("{said}")).to_owned()
}

fn same_but_for_its_source(announced: &PodResourceConfig) -> PodResourceConfig {
    PodResourceConfig { source: Source::Request, ..announced.clone() }
}

#[test]
fn the_annotation_for_hooks_can_be_used_as_a_declaration() {
    let (by_request, _) = run("{}", Some(pod_resources())).unwrap();
    let by_request = by_request.pod_resources.unwrap();
    let text = oci::pod_resources_json::pod_json(&by_request).to_string();
    let (by_annotation, warnings) = run(&text, None).unwrap();
    let by_annotation = by_annotation.pod_resources.unwrap();
    assert_eq!(by_annotation.source, Source::Annotation);
    assert_eq!(same_but_for_its_source(&by_annotation), by_request);
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn the_field_names_of_the_proto_files_are_accepted_too() {
    let ours = r#"{"containers": [{"name": "a", "type": "INIT_CONTAINER", "kubernetesResources": {"limits": {"cpu": "1"}},
        "mounts": [{"containerPath": "/a", "hostPath": "/b", "propagation": "PROPAGATION_BIDIRECTIONAL"},
            {"containerPath": "/i", "image": {"image": "x", "userSpecifiedImage": "y"}, "imageSubPath": "z", "readonly": true}],
        "devices": [{"containerPath": "/a", "hostPath": "/b", "permissions": "r"}], "CDIDevices": [{"name": "v/g=0"}]}],
        "kubernetesResources": {"requests": {"cpu": "2"}}}"#;
    let theirs = ours
        .replace("kubernetesResources", "kubernetes_resources")
        .replace("containerPath", "container_path")
        .replace("hostPath", "host_path")
        .replace("userSpecifiedImage", "user_specified_image")
        .replace("imageSubPath", "image_sub_path")
        .replace("CDIDevices", "CDI_devices");
    let announced = run(ours, None).unwrap().0.pod_resources;
    assert_eq!(announced.as_ref().unwrap().containers[0].mounts.len(), 2);
    assert_eq!(announced, run(&theirs, None).unwrap().0.pod_resources);
}

#[test]
fn the_request_field_has_priority_over_the_annotation() {
    let (spec, warnings) =
        run(r#"{"containers": [{"name": "a", "type": "CONTAINER"}]}"#, Some(pod_resources())).unwrap();
    let announced = spec.pod_resources.unwrap();
    assert_eq!((announced.source, announced.containers.len()), (Source::Request, 2));
    assert_eq!(warnings, ["config.annotations[\"a.example/resources\"]: ignored, because config.pod_resources is set"]);
    assert!(run("{", Some(pod_resources())).is_err(), "a bad one is refused all the same");
}

#[test]
fn an_annotation_is_used_only_if_configured_and_present() {
    let mut request = run_request();
    let config = request.config.as_mut().unwrap();
    config.pod_resources = None;
    config.annotations = map(&[(NAME, "no JSON")]);
    for name in [None, Some("another".parse().unwrap())] {
        assert_eq!(pod::run(request.clone(), name.as_ref()).unwrap().0.pod_resources, None);
    }
}

#[test]
fn an_invalid_annotation_is_refused_by_its_name() {
    let named = |rest: &str| format!(r#"{{"containers": [{{"name": "a", "type": "CONTAINER"{rest}}}]}}"#);
    for (text, problem) in [
        (String::new(), "EOF while parsing"),
        ("no JSON".to_owned(), "expected ident"),
        ("{} x".to_owned(), "trailing characters"),
        ("[]".to_owned(), "invalid type: sequence, expected an object"),
        ("null".to_owned(), "invalid type: null, expected an object"),
        (r#"{"containers": [["a", "CONTAINER"]]}"#.to_owned(), "invalid type: sequence, expected an object"),
        (named(r#", "kubernetesResources": []"#), "invalid type: sequence, expected an object"),
        (named(r#", "mounts": [["/a"]]"#), "invalid type: sequence, expected an object"),
        (
            named(r#", "mounts": [{"containerPath": "/a", "image": ["x"]}]"#),
            "invalid type: sequence, expected an object",
        ),
        (named(r#", "devices": [["/a", "/b", "r"]]"#), "invalid type: sequence, expected an object"),
        (named(r#", "CDIDevices": [["v/g=0"]]"#), "invalid type: sequence, expected an object"),
        (r#"{"colour": 1}"#.to_owned(), "unknown field `colour`"),
        (named(r#", "colour": 1"#), "unknown field `colour`"),
        (named(r#", "name": "b""#), "duplicate field `name`"),
        (r#"{"containers": [{"name": "a"}]}"#.to_owned(), "missing field `type`"),
        (r#"{"containers": [{"type": "CONTAINER"}]}"#.to_owned(), "missing field `name`"),
        (r#"{"containers": [{"name": "a", "type": "SIDECAR"}]}"#.to_owned(), "unknown variant `SIDECAR`"),
        (r#"{"containers": [{"name": "a", "type": 1}]}"#.to_owned(), "expected"),
        (named(r#", "kubernetesResources": {"limits": {"cpu": 1}}"#), "invalid type: integer `1`, expected a string"),
        (named(r#", "kubernetesResources": {"limits": {"cpu": "1", "cpu": "2"}}"#), "duplicate key \"cpu\""),
        (named(r#", "kubernetesResources": {"limit": {}}"#), "unknown field `limit`"),
    ] {
        let said = refused(&text);
        assert!(said.starts_with(": ") && said.contains(problem), "{text}: {said}");
    }
}

#[test]
fn an_annotation_is_checked_like_the_message() {
    let with = |resources: &str| {
        format!(r#"{{"containers": [{{"name": "a", "type": "CONTAINER", "kubernetesResources": {resources}}}]}}"#)
    };
    let cases = [
        (with(r#"{"limits": {"memory": "1 Gi"}}"#), ".containers[0].kubernetes_resources.limits[\"memory\"]: "),
        (with(r#"{"limits": {"": "1"}}"#), ".containers[0].kubernetes_resources.limits[\"\"]: "),
        (
            with(r#"{"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}"#),
            ".containers[0].kubernetes_resources.requests[\"cpu\"]: 2 exceeds the limit of 1",
        ),
        (
            r#"{"containers": [{"name": "a", "type": "CONTAINER"}, {"name": "a", "type": "CONTAINER"}]}"#.to_owned(),
            ".containers[1].name: duplicate container \"a\"",
        ),
        (
            r#"{"containers": [{"name": "a", "type": "CONTAINER", "mounts": [{"containerPath": "a", "hostPath": "/b"}]}]}"#
                .to_owned(),
            ".containers[0].mounts[0].container_path: ",
        ),
        (r#"{"kubernetesResources": {"requests": {"cpu": "-1"}}}"#.to_owned(), ".kubernetes_resources.requests[\"cpu\"]: "),
    ];
    for (text, expected) in cases {
        let said = refused(&text);
        assert!(said.starts_with(expected), "{text}: {said}");
    }
}
