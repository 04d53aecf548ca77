use std::num::NonZeroU32;

use super::super::tests::support::{container_config, container_record, map, pod_config, pod_record, time};
use model::{AbnormalExit, Exit};

use super::*;

const SECOND: i64 = 1_000_000_000;

fn exited(code: i32, oom: bool, trouble: Option<AbnormalExit>) -> v1::ContainerStatus {
    let mut record = container_record();
    let exit = Exit { code, at: time(300), oom, abnormal: trouble };
    record.state = ContainerState::Exited { started: Some(time(201)), exit };
    container(&record, None)
}

#[test]
fn a_pods_status_has_every_field() {
    let record = pod_record();
    let config = pod_config();
    let options = config.linux.unwrap().security_context.unwrap().namespace_options;
    assert_eq!(
        pod(&record),
        v1::PodSandboxStatus {
            id: "01".repeat(32),
            metadata: config.metadata,
            state: v1::PodSandboxState::SandboxReady.into(),
            created_at: 100 * SECOND + 5,
            network: Some(v1::PodSandboxNetworkStatus {
                ip: "10.1.0.2".into(),
                additional_ips: vec![v1::PodIp { ip: "fd00::2".into() }],
            }),
            linux: Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options }) }),
            labels: map(&[("lk", "lv")]),
            annotations: map(&[("ak", "av")]),
            runtime_handler: "crisp".into(),
        }
    );
}

#[test]
fn a_pods_list_entry_has_every_field() {
    let mut record = pod_record();
    record.state = PodState::NotReady;
    assert_eq!(
        pod_item(&record),
        v1::PodSandbox {
            id: "01".repeat(32),
            metadata: pod_config().metadata,
            state: v1::PodSandboxState::SandboxNotready.into(),
            created_at: 100 * SECOND + 5,
            labels: map(&[("lk", "lv")]),
            annotations: map(&[("ak", "av")]),
            runtime_handler: "crisp".into(),
        }
    );
}

#[test]
fn a_pod_without_addresses_has_an_empty_one() {
    let mut record = pod_record();
    record.ips.clear();
    assert_eq!(pod(&record).network, Some(v1::PodSandboxNetworkStatus::default()));
}

#[test]
fn a_containers_status_has_every_field() {
    let mut config = container_config();
    config.mounts[1].image.as_mut().unwrap().image_ref = "sha256:abcdef".into();
    assert_eq!(
        container(&container_record(), None),
        v1::ContainerStatus {
            id: "02".repeat(32),
            metadata: config.metadata,
            state: v1::ContainerState::ContainerRunning.into(),
            created_at: 200 * SECOND + 5,
            started_at: 201 * SECOND + 5,
            finished_at: 0,
            exit_code: 0,
            image: Some(v1::ImageSpec { image: "busybox".into(), ..config.image.unwrap() }),
            image_ref: "a.example/b@sha256:def".into(),
            reason: String::new(),
            message: String::new(),
            labels: map(&[("lk", "lv")]),
            annotations: map(&[("ak", "av")]),
            mounts: config.mounts,
            log_path: "/var/log/pods/web/main/0.log".into(),
            resources: None,
            image_id: "sha256:abc".into(),
            user: Some(v1::ContainerUser {
                linux: Some(v1::LinuxContainerUser { uid: 1000, gid: 2000, supplemental_groups: vec![7, 8] }),
            }),
            stop_signal: v1::Signal::Sigterm.into(),
        }
    );
}

#[test]
fn a_containers_list_entry_has_every_field() {
    let config = container_config();
    assert_eq!(
        container_item(&container_record()),
        v1::Container {
            id: "02".repeat(32),
            pod_sandbox_id: "01".repeat(32),
            metadata: config.metadata,
            image: config.image,
            image_ref: "a.example/b@sha256:def".into(),
            state: v1::ContainerState::ContainerRunning.into(),
            created_at: 200 * SECOND + 5,
            labels: map(&[("lk", "lv")]),
            annotations: map(&[("ak", "av")]),
            image_id: "sha256:abc".into(),
        }
    );
}

#[test]
fn an_exit_has_its_reason() {
    let cases = [
        (exited(0, false, None), 0, "Completed", ""),
        (exited(3, false, None), 3, "Error", ""),
        (exited(137, true, None), 137, "OOMKilled", ""),
        (exited(0, true, None), 0, "OOMKilled", ""),
        (exited(128, false, Some(AbnormalExit::Start("no such file".into()))), 128, "StartError", "no such file"),
        (exited(255, false, Some(AbnormalExit::Lost("shim gone".into()))), 255, "ShimLost", "shim gone"),
    ];
    for (status, code, reason, message) in cases {
        assert_eq!(status.state(), v1::ContainerState::ContainerExited);
        assert_eq!((status.exit_code, status.reason.as_str(), status.message.as_str()), (code, reason, message));
        assert_eq!((status.started_at, status.finished_at), (201 * SECOND + 5, 300 * SECOND + 5));
    }
}

#[test]
fn a_container_that_never_started_has_no_times() {
    let mut record = container_record();
    record.state = ContainerState::Created { pid: NonZeroU32::MIN };
    let status = container(&record, None);
    assert_eq!((status.state(), status.started_at), (v1::ContainerState::ContainerCreated, 0));
    assert_eq!((status.finished_at, status.reason.as_str()), (0, ""));
}

#[test]
fn a_status_shows_the_active_limits() {
    use model::resources::{CpuShares, Micros, ObservedLimits};
    let observed = ObservedLimits {
        cpu_period: Some(Micros(100_000)),
        cpu_shares: Some(CpuShares::new(512).unwrap()),
        ..ObservedLimits::default()
    };
    let now = cgroup::CurrentLimits { observed, drift: vec![] };
    let resources = container(&container_record(), Some(&now)).resources.unwrap().linux.unwrap();
    assert_eq!((resources.cpu_period, resources.cpu_shares), (100_000, 512));
}
