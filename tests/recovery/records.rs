//! Records of another release, and damaged ones: their pods are listed, stay unchanged, and can be
//! removed.

use std::fs;
use std::path::{Path, PathBuf};

use cri_api::v1;
use cri_api::v1::{ContainerState, PodSandboxState};
use serde_json::Value;
use tonic::Code;

use crate::support::client::{Pod, container};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds, wait_for};
use crate::support::kernel_state;

/// Exits with a code of its own on SIGTERM.
const POLITE: [&str; 3] = ["sh", "-c", "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 1000 & wait; done"];

fn pod_dir(daemon: &Daemon, pod: &Pod) -> PathBuf {
    daemon.env.state().join("pods").join(&pod.id)
}

fn container_dir(daemon: &Daemon, pod: &Pod, container: &str) -> PathBuf {
    pod_dir(daemon, pod).join("containers").join(container)
}

fn change(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut content: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    change(&mut content);
    fs::write(file, serde_json::to_vec(&content).unwrap()).unwrap();
}

/// A record as a later release could write it: another version, unknown fields and values, missing
/// fields.
fn write_as_newer_release(record: &Path) {
    change(record, |record| {
        record["version"] = 3.into();
        record["colour"] = serde_json::json!({ "hue": 7 });
        record["state"] = "Hibernating".into();
        record.as_object_mut().unwrap().remove("spec");
    });
    change(&record.with_file_name("intent.json"), |intent| {
        intent["colour"] = "blue".into();
        intent["handler"] = serde_json::json!(["of", "another", "type"]);
    });
}

fn labelled(daemon: &Daemon, name: &str) -> v1::PodSandboxConfig {
    let mut config = daemon.pod_config(name);
    config.labels = [("app".to_owned(), name.to_owned())].into();
    config.annotations = [("note".to_owned(), "kept".to_owned())].into();
    config
}

/// Every request except status, list, stop and remove is rejected, with `words` as the reason.
fn assert_refused(daemon: &Daemon, pod: &Pod, id: &str, words: &[&str]) {
    let client = daemon.client();
    let forward = v1::PortForwardRequest { pod_sandbox_id: pod.id.clone(), port: vec![80] };
    let attach = v1::AttachRequest { container_id: id.to_owned(), stdout: true, ..Default::default() };
    let exec =
        v1::ExecRequest { container_id: id.to_owned(), cmd: vec!["true".into()], stdout: true, ..Default::default() };
    let limits = v1::LinuxContainerResources { cpu_shares: 512, ..Default::default() };
    let update_pod = v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id.clone(),
        resources: Some(limits.clone()),
        ..Default::default()
    };
    let refusals = [
        client.try_create(pod, container("next", &["true"])).unwrap_err(),
        client.start(id).unwrap_err(),
        client.try_exec(id, &["true"], 0).unwrap_err(),
        client.reopen_log(id).unwrap_err(),
        client.update(id, limits).unwrap_err(),
        client.call(|mut c| async move { c.exec(exec).await }).map(drop).unwrap_err(),
        client.call(|mut c| async move { c.attach(attach).await }).map(drop).unwrap_err(),
        client.call(|mut c| async move { c.port_forward(forward).await }).map(drop).unwrap_err(),
        client.call(|mut c| async move { c.update_pod_sandbox_resources(update_pod).await }).map(drop).unwrap_err(),
    ];
    for (number, refusal) in refusals.iter().enumerate() {
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{number}: {refusal:?}");
        for word in words {
            assert!(refusal.message().contains(word), "{number}: {word:?} is not in {refusal:?}");
        }
    }
}

#[test]
fn a_pod_of_a_later_release_is_listed_keeps_its_resources_and_can_be_removed() {
    let mut daemon = Daemon::on(TestEnv::connected(""));
    let config = labelled(&daemon, "live");
    let pod = daemon.client().run_pod_of(config.clone());
    let mut asked = container("main", &POLITE);
    asked.labels = [("part".to_owned(), "one".to_owned())].into();
    let id = daemon.client().run_config(&pod, asked);
    daemon.client().wait_printed(&id, "up");
    let (before, ip) = (daemon.client().status(&id), daemon.client().pod_status(&pod.id).network.unwrap().ip);
    let (pids, shims, links) = (daemon.pids(&id), daemon.shims(), daemon.env.links());
    assert!(!ip.is_empty());

    daemon.kill9();
    let records = [pod_dir(&daemon, &pod).join("pod.json"), container_dir(&daemon, &pod, &id).join("container.json")];
    records.iter().for_each(|record| write_as_newer_release(record));
    let written = records.each_ref().map(|record| fs::read(record).unwrap());
    daemon.revive();
    let client = daemon.client();
    // It is listed, with its metadata.
    let listed = client.pods();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].id, listed[0].state()), (&pod.id, PodSandboxState::SandboxNotready));
    assert_eq!((&listed[0].metadata, &listed[0].labels), (&config.metadata, &config.labels));
    assert_eq!(listed[0].annotations, config.annotations);
    assert!(listed[0].created_at > 0);
    assert_eq!(client.pod_status(&pod.id).network.unwrap().ip, ip);
    let told = client.status(&id);
    assert_eq!(told.state(), ContainerState::ContainerRunning);
    assert_eq!((&told.metadata, &told.labels, &told.log_path), (&before.metadata, &before.labels, &before.log_path));
    assert_eq!((&told.image, &told.image_ref), (&before.image, &before.image_ref));
    assert!(told.reason == "RecordUnreadable" && told.message.contains("version 3"), "{told:?}");
    assert!(client.containers().iter().any(|one| one.id == id && one.labels == before.labels));
    // None of its files or cgroups has changed.
    assert_eq!((daemon.pids(&id), daemon.shims(), daemon.env.links()), (pids.clone(), shims, links));
    assert_refused(&daemon, &pod, &id, &["version 3", "version 2"]);
    // Its name and address are not allocated to another pod.
    let refusal = client.try_run_pod(config.clone()).unwrap_err();
    assert_eq!(refusal.code(), Code::AlreadyExists, "{refusal:?}");
    let other = daemon.run_pod("other");
    assert_ne!(client.pod_status(&other.id).network.unwrap().ip, ip);
    daemon.restart();
    let client = daemon.client();
    assert_eq!((client.pods().len(), daemon.pids(&id)), (2, pids.clone()));
    for (record, written) in records.iter().zip(&written) {
        assert_eq!(fs::read(record).unwrap(), *written, "the record is unchanged");
    }
    // It exits like any other container.
    client.stop(&id, 60).unwrap();
    let status = client.status(&id);
    assert_eq!((status.state(), status.exit_code), (ContainerState::ContainerExited, 5));
    client.stop_pod(&pod.id).unwrap();
    assert!(pids.iter().all(|pid| !kernel_state::is_alive(*pid)));
    wait_for("its shim to end", seconds(5), || (daemon.shims().len() == 1).then_some(()));
    daemon.restart();
    let client = daemon.client();
    assert_eq!(client.try_run_pod(config.clone()).unwrap_err().code(), Code::AlreadyExists, "until it is removed");
    client.remove_pod(&pod.id).unwrap();
    assert!(!pod_dir(&daemon, &pod).exists());
    assert_eq!(client.try_pod_status(&pod.id).unwrap_err().code(), Code::NotFound);
    client.run_pod_of(config);
}

#[test]
fn a_record_of_another_release_is_left_unchanged() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let (status, pids) = (daemon.client().status(&id), daemon.pids(&id));
    daemon.kill9();
    let records = [pod_dir(&daemon, &pod).join("pod.json"), container_dir(&daemon, &pod, &id).join("container.json")];
    let originals = records.each_ref().map(|record| fs::read(record).unwrap());
    records.iter().for_each(|record| change(record, |record| record["version"] = 3.into()));
    daemon.revive();
    assert_eq!(daemon.client().pods()[0].state(), PodSandboxState::SandboxNotready);
    daemon.kill9();
    for (record, original) in records.iter().zip(originals) {
        fs::write(record, original).unwrap();
    }
    daemon.revive();
    let client = daemon.client();
    assert_eq!((client.status(&id), daemon.pids(&id)), (status, pids));
    assert_eq!(client.pod_status(&pod.id).state(), PodSandboxState::SandboxReady);
    assert_eq!(client.exec_script(&id, "echo alive"), "alive\n");
}

#[test]
fn a_damaged_record_is_like_one_of_another_release() {
    for (number, content) in [&b""[..], b"{", b"{\"version\":2}", b"\0\0\0\0", b"[]"].into_iter().enumerate() {
        let mut daemon = Daemon::start();
        let config = labelled(&daemon, "damaged");
        let pod = daemon.client().run_pod_of(config.clone());
        let id = daemon.client().run_idle(&pod, "main");
        let pids = daemon.pids(&id);
        let whole = daemon.client().run_idle(&pod, "whole");
        daemon.kill9();
        fs::write(pod_dir(&daemon, &pod).join("pod.json"), content).unwrap();
        fs::write(container_dir(&daemon, &pod, &id).join("container.json"), content).unwrap();
        daemon.revive();
        let client = daemon.client();
        let listed = client.pods();
        assert_eq!((listed.len(), &listed[0].metadata, &listed[0].labels), (1, &config.metadata, &config.labels));
        assert_eq!(client.status(&id).state(), ContainerState::ContainerRunning, "{number}");
        assert_eq!(daemon.pids(&id), pids);
        assert_refused(&daemon, &pod, &id, &["is damaged"]);
        // A container with an intact record has the same limits in such a pod.
        assert_refused(&daemon, &pod, &whole, &["pod.json is damaged"]);
        client.remove_pod(&pod.id).unwrap();
        assert!(pids.iter().all(|pid| !kernel_state::is_alive(*pid)));
        daemon.env.wait_until_empty(Some(daemon.pid()));
        client.run_pod_of(config);
    }
}

#[test]
fn a_container_with_a_damaged_record_is_removed_while_its_pod_continues() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let (bad, good) = (daemon.client().run(&pod, "bad", &POLITE), daemon.client().run_idle(&pod, "good"));
    daemon.client().wait_printed(&bad, "up");
    let pids = daemon.pids(&bad);
    daemon.kill9();
    fs::write(container_dir(&daemon, &pod, &bad).join("container.json"), "{").unwrap();
    daemon.revive();
    let client = daemon.client();
    assert_eq!(client.pod_status(&pod.id).state(), PodSandboxState::SandboxReady);
    assert_eq!(client.exec_script(&good, "echo alive"), "alive\n");
    let refusal = client.try_exec(&bad, &["true"], 0).unwrap_err();
    assert!(refusal.code() == Code::FailedPrecondition && refusal.message().contains("container.json"), "{refusal:?}");
    assert_eq!(client.try_create(&pod, container("bad", &["true"])).unwrap_err().code(), Code::AlreadyExists);
    client.stop(&bad, 60).unwrap();
    assert_eq!((client.status(&bad).exit_code, client.lines(&bad).last().unwrap().text.as_str()), (5, "bye"));
    client.remove(&bad).unwrap();
    assert!(pids.iter().all(|pid| !kernel_state::is_alive(*pid)));
    assert_eq!(client.script(&pod, "bad", "exit 3").status.exit_code, 3, "the name is free again");
}

#[test]
fn with_record_and_intent_lost_a_pod_is_listed_by_its_id_and_can_be_removed() {
    let mut daemon = Daemon::on(TestEnv::connected(""));
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run(&pod, "main", &["sh", "-c", "trap '' TERM; exec sleep 100000"]);
    let (pids, links) = (daemon.pids(&id), daemon.env.links());
    daemon.kill9();
    let (pod_dir, container_dir) = (pod_dir(&daemon, &pod), container_dir(&daemon, &pod, &id));
    for file in [pod_dir.join("pod.json"), pod_dir.join("intent.json"), container_dir.join("container.json")] {
        fs::write(file, "{\"cut").unwrap();
    }
    fs::remove_file(container_dir.join("intent.json")).unwrap();
    daemon.revive();
    let client = daemon.client();
    let listed = client.pods();
    assert_eq!((listed.len(), &listed[0].id), (1, &pod.id));
    let metadata = listed[0].metadata.clone().unwrap();
    assert!([metadata.name, metadata.uid, metadata.namespace].iter().all(|part| !part.is_empty()), "{:?}", listed[0]);
    assert!(listed[0].created_at > 0);
    let status = client.status(&id);
    assert_eq!((status.state(), status.created_at > 0), (ContainerState::ContainerRunning, true));
    assert_eq!((daemon.pids(&id), daemon.env.links()), (pids.clone(), links));
    client.stop(&id, 0).unwrap();
    client.stop_pod(&pod.id).unwrap();
    assert!(pids.iter().all(|pid| !kernel_state::is_alive(*pid)));
    client.remove_pod(&pod.id).unwrap();
    assert!(!pod_dir.exists() && client.pods().is_empty() && client.containers().is_empty());
    // Its cgroups and its namespaces no longer exist either; the end of the test checks that.
}

#[test]
fn layers_are_kept_while_the_layers_of_a_container_are_unknown() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_idle(&pod, "main");
    let image = daemon.client().status(&id).image_id;
    let launch = container_dir(&daemon, &pod, &id).join("launch.json");
    let content: Value = serde_json::from_slice(&fs::read(&launch).unwrap()).unwrap();
    let below = Path::new(content["rootfs"]["layers"].as_str().unwrap());
    let layer = below.join(content["rootfs"]["lower"][0].as_str().unwrap());
    assert!(layer.is_dir(), "{}", layer.display());
    daemon.kill9();
    fs::write(container_dir(&daemon, &pod, &id).join("container.json"), "").unwrap();
    fs::remove_file(launch).unwrap();
    daemon.revive();
    let request = v1::RemoveImageRequest { image: Some(v1::ImageSpec { image, ..Default::default() }) };
    daemon.client().image_call(|mut c| async move { c.remove_image(request).await }).unwrap();
    daemon.restart();
    assert!(layer.is_dir(), "the container uses the layer");
    daemon.client().remove_pod(&pod.id).unwrap();
}

#[test]
fn a_pod_with_a_directory_is_not_reported_as_not_found() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let unknown = "0123456789abcdef".repeat(4);
    let dirs = [daemon.env.state().join("pods").join(&unknown), container_dir(&daemon, &pod, &unknown)];
    dirs.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    let refusals = [
        client.stop_pod(&unknown).unwrap_err(),
        client.remove_pod(&unknown).unwrap_err(),
        client.try_pod_status(&unknown).unwrap_err(),
        client.stop(&unknown, 0).unwrap_err(),
        client.remove(&unknown).unwrap_err(),
        client.try_status(&unknown).unwrap_err(),
    ];
    for refusal in refusals {
        assert!(refusal.code() != Code::NotFound && refusal.message().contains(&unknown), "{refusal:?}");
    }
    dirs.iter().for_each(|dir| fs::remove_dir(dir).unwrap());
    client.stop_pod(&unknown).unwrap();
    client.remove(&unknown).unwrap();
}
