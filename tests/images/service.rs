//! Responses of the image service, and their agreement with those for containers.

use std::path::Path;

use cri_api::v1;
use serde_json::{Value, json};
use tonic::Code;

use crate::support::client::container;
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;
use crate::support::image_fixture::{Archive, BOX, import};
use crate::support::registry_fixture::Registry;

/// Not the image that is already in the store.
fn another() -> Archive {
    Archive::new("x").with("Labels", json!({ "another": "one" }))
}

#[test]
fn images_are_listed_and_streamed_by_all_their_names() {
    let registry = Registry::start();
    let first = registry.push(&another(), "box", "1");
    let daemon = Daemon::start();
    let client = daemon.client();
    let name = format!("{}/box", registry.host());
    let id = client.pull(&format!("{name}:1")).unwrap();
    let all = client.images();
    assert_eq!(all.len(), 2);
    assert_eq!(client.stream(v1::StreamImagesRequest::default()), [all]);
    let digits = id.trim_start_matches("sha256:");
    for text in [
        format!("{name}:1"),
        format!("{name}@{first}"),
        id.clone(),
        digits.into(),
        digits[..12].into(),
        digits[..8].into(),
    ] {
        let found = client.images_like(&text);
        assert_eq!(found.len(), 1, "{text}");
        assert_eq!(found[0].id, id, "{text}");
        assert_eq!(client.image(&text).as_ref(), Some(&found[0]), "{text}");
    }
    for text in [
        format!("{name}:2"),
        name,
        "0".repeat(64),
        digits[..2].into(),
        id[.."sha256:".len() + 8].into(),
        "no such name".into(),
    ] {
        assert!(client.images_like(&text).is_empty(), "{text}");
        assert_eq!(client.image(&text), None, "{text}");
    }
}

#[test]
fn a_verbose_status_reports_config_and_layers_of_an_image() {
    let registry = Registry::start();
    let archive = Archive::new("x").with("Labels", json!({ "a": "b" })).with("User", json!("4294967296"));
    let digest = registry.push(&archive, "box", "1");
    let env = TestEnv::new();
    let file = env.dir().join("box.tar");
    Archive::new("crisp.test/saved:2").with("Labels", json!({ "saved": "" })).write_docker_archive(&file);
    import(&file, &env.root());
    let daemon = Daemon::on(env);
    let name = format!("{}/box:1", registry.host());
    daemon.client().pull(&name).unwrap();
    let info = daemon.client().image_info(&name);
    assert_eq!(info["imageSpec"]["config"]["Labels"], json!({ "a": "b" }));
    assert_eq!(info["imageSpec"]["rootfs"]["diff_ids"][0], info["chainID"]);
    assert_eq!(info["labels"], json!({ "a": "b" }));
    assert_eq!(info["manifestDigest"], json!(digest));
    assert_eq!(info["layers"][0]["digest"], json!(archive.pieces().layers[0].digest));
    assert_eq!(info["layers"][0]["size"], json!(archive.pieces().layers[0].bytes.len()));
    assert_eq!(info["repoTags"], json!([name]));
    let image = daemon.client().image(&name).unwrap();
    assert_eq!((image.uid, image.username.as_str()), (None, "4294967296"), "4294967296 is not a user id");
    let saved = daemon.client().image_info("crisp.test/saved:2");
    assert_eq!(saved["manifestDigest"], Value::Null);
    assert_eq!(saved["layers"][0], json!({ "chainID": saved["chainID"] }));
}

#[test]
fn a_container_reports_the_same_image_as_the_image_service() {
    let registry = Registry::start();
    let archive = |which: &str| Archive::new("x").with("Labels", json!({ "which": which }));
    let first = registry.push(&archive("first"), "box", "1");
    let env = TestEnv::new();
    let file = env.dir().join("saved.tar");
    Archive::new("crisp.test/saved:2").with("Labels", json!({ "saved": "" })).write_docker_archive(&file);
    import(&file, &env.root());
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let (tag, digest) = (format!("{}/box:1", registry.host()), format!("{}/box@{first}", registry.host()));
    let id = client.pull(&tag).unwrap();
    assert_eq!(client.pull(&digest).unwrap(), id);
    let pod = daemon.run_pod("pod");
    let create = |name: &str, image: &str, user: &str| {
        let mut config = container(name, &["true"]);
        let spec = v1::ImageSpec { image: image.into(), user_specified_image: user.into(), ..Default::default() };
        config.image = Some(spec);
        client.try_create(&pod, config).unwrap()
    };
    let saved = client.image("crisp.test/saved:2").unwrap();
    assert!(saved.repo_digests.is_empty());
    // Requested name and name in the pod's specification; then the reported name, reference and
    // image.
    let cases = [
        ("tag", tag.as_str(), "", tag.as_str(), digest.as_str(), &id),
        ("digest", &digest, "", &digest, &digest, &id),
        ("id", &id, &tag, &tag, &digest, &id),
        ("id-alone", &id, "", &tag, &digest, &id),
        ("short", &id["sha256:".len()..][..20], "", &tag, &digest, &id),
        ("saved", "crisp.test/saved:2", "", "crisp.test/saved:2", &saved.id, &saved.id),
    ];
    let made = cases.map(|case| (create(case.0, case.1, case.2), case));
    let check = || {
        for (container, (case, _, _, shown, reference, image)) in &made {
            let status = client.status(container);
            let listed = client.containers().into_iter().find(|one| one.id == *container).unwrap();
            assert_eq!(status.image.unwrap().image, *shown, "{case}");
            assert_eq!((status.image_ref.as_str(), &status.image_id), (*reference, *image), "{case}");
            assert_eq!((listed.image_ref.as_str(), &listed.image_id), (*reference, *image), "{case}");
        }
    };
    check();
    for (container, (case, ..)) in &made {
        let image = client.image(&client.status(container).image_ref).unwrap();
        assert_eq!(client.status(container).image_id, image.id, "{case}");
    }
    // A moved tag and removed images do not change running containers.
    registry.push(&archive("second"), "box", "1");
    assert_ne!(client.pull(&tag).unwrap(), id);
    check();
    client.remove_image(&id).unwrap();
    client.remove_image(&saved.id).unwrap();
    check();
}

#[test]
fn removing_an_image_by_any_name_removes_all_its_names() {
    let registry = Registry::start();
    let digest = registry.push(&another(), "box", "1");
    registry.push(&another(), "box", "2");
    registry.push(&another(), "other", "1");
    let host = registry.host();
    let daemon = Daemon::with_settings(&format!("[image]\npinned = [\"{host}/bo*\", {BOX:?}]"));
    let client = daemon.client();
    let names = ["box:1", "box:2", "other:1"].map(|name| format!("{host}/{name}"));
    for given in [names[2].clone(), format!("{host}/box@{digest}"), "id".into()] {
        let ids = names.clone().map(|name| client.pull(&name).unwrap());
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        let image = client.image(&ids[0]).unwrap();
        assert_eq!(image.repo_tags, names);
        assert_eq!(image.repo_digests.len(), 2);
        assert!(image.pinned, "by one of its names");
        client.remove_image(if given == "id" { &ids[0] } else { &given }).unwrap();
        assert!(names.iter().all(|name| client.image(name).is_none()), "{given}");
        assert_eq!(client.images().len(), 1);
    }
    assert!(client.image(BOX).unwrap().pinned);
    client.remove_image(BOX).unwrap();
    assert_eq!(client.image(BOX), None, "pinned only affects the kubelet's garbage collection");
}

#[test]
fn a_single_filesystem_is_reported_once() {
    let daemon = Daemon::start();
    let before = daemon.client().filesystems();
    let [images] = &before.image_filesystems[..] else { panic!("{before:?}") };
    assert_eq!(before.container_filesystems, before.image_filesystems);
    let mountpoint = &images.fs_id.as_ref().unwrap().mountpoint;
    assert_eq!(Path::new(mountpoint), daemon.env.root().join("images"));
    assert!(images.timestamp > 0 && images.used_bytes.unwrap().value > 100_000);
    assert!(images.inodes_used.unwrap().value > 10);
    daemon.client().remove_image(BOX).unwrap();
    let after = daemon.client().filesystems();
    let used = |all: &v1::ImageFsInfoResponse| all.image_filesystems[0].used_bytes.unwrap().value;
    assert!(used(&after) < used(&before), "{after:?}");
}

#[test]
fn a_pull_logs_its_pod_and_refuses_unsupported_fields() {
    let registry = Registry::start();
    registry.push(&another(), "box", "1");
    let daemon = Daemon::start();
    let name = format!("{}/box:1", registry.host());
    let pull = |change: fn(&mut v1::PullImageRequest)| {
        let image = Some(v1::ImageSpec { image: name.clone(), ..Default::default() });
        let sandbox_config = Some(daemon.pod_config("pod"));
        let mut request = v1::PullImageRequest { image, auth: None, sandbox_config };
        change(&mut request);
        daemon.client().image_call(|mut c| async move { c.pull_image(request).await }).map(|answer| answer.image_ref)
    };
    fn image(request: &mut v1::PullImageRequest) -> &mut v1::ImageSpec {
        request.image.as_mut().unwrap()
    }
    fn pod(request: &mut v1::PullImageRequest) -> &mut v1::PodSandboxConfig {
        request.sandbox_config.as_mut().unwrap()
    }
    type Change = fn(&mut v1::PullImageRequest);
    let cases: [(&str, Change); 5] = [
        ("image.runtime_handler", |r| image(r).runtime_handler = "kata".into()),
        ("sandbox_config.metadata.uid", |r| pod(r).metadata.as_mut().unwrap().uid.clear()),
        ("auth.auth", |r| r.auth = Some(v1::AuthConfig { auth: "?".into(), ..Default::default() })),
        ("image.image", |r| image(r).image = "UPPER".into()),
        ("image", |r| r.image = None),
    ];
    for (field, change) in cases {
        let refusal = pull(change).unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
        assert!(refusal.message().starts_with(&format!("{field}: ")), "{refusal:?}");
    }
    pull(|_| ()).unwrap();
    pull(|r| pod(r).metadata = None).unwrap();
    let log = daemon.env.read_log();
    let done = log
        .lines()
        .find(|line| line.contains("PullImage") && line.contains("request complete"))
        .unwrap_or_else(|| panic!("{log}"));
    for words in ["namespace=\"tests\"", "pod_name=\"pod\"", "pod_uid=\"uid-of-pod\"", &name] {
        assert!(done.contains(words), "{words} in {done}");
    }
}
