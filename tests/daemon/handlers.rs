//! Runtime handlers: each has its own settings, and clients can list them.

use std::fs;
use std::io::Write as _;

use cri_api::v1;
use cri_api::v1::security_profile::ProfileType;
use tonic::Code;

use crate::support::client::{Asked, IDLE, Pod, container, security};
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;
use crate::support::image_fixture::BOX;
use crate::support::kernel_state;

const STRICT: &str = r#"
[handlers.strict]
privileged = false
shm_size = 1048576
log_line_max = 300
capabilities = ["KILL"]
rlimits = { nofile = "77:88" }
seccomp = "@PROFILE@"

[handlers.other]
shm_size = 2097152
"#;

/// Returns EOPNOTSUPP for mkdir.
const PROFILE: &str = r#"{"defaultAction":"SCMP_ACT_ALLOW",
    "syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":95}]}"#;

/// Creates an environment with the two handlers in its configuration; returns also the
/// configuration before.
fn env() -> (TestEnv, String) {
    let env = TestEnv::new();
    let profile = env.dir().join("strict.json");
    fs::write(&profile, PROFILE).unwrap();
    let before = fs::read_to_string(env.config()).unwrap();
    let mut file = fs::File::options().append(true).open(env.config()).unwrap();
    write!(file, "{}", STRICT.replace("@PROFILE@", profile.to_str().unwrap())).unwrap();
    (env, before)
}

fn try_run_pod(daemon: &Daemon, handler: &str, change: impl FnOnce(&mut v1::PodSandboxConfig)) -> Asked<Pod> {
    let name = if handler.is_empty() { "default" } else { handler };
    let mut config = daemon.pod_config(name);
    change(&mut config);
    let request = v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.to_owned() };
    let answer = daemon.client().call(|mut c| async move { c.run_pod_sandbox(request).await });
    answer.map(|answer| Pod { id: answer.pod_sandbox_id, config })
}

fn run_pod(daemon: &Daemon, handler: &str) -> Pod {
    try_run_pod(daemon, handler, |_| {}).unwrap()
}

fn confined(name: &str, command: &[&str]) -> v1::ContainerConfig {
    let mut config = container(name, command);
    let profile_type = ProfileType::RuntimeDefault.into();
    security(&mut config).seccomp = Some(v1::SecurityProfile { profile_type, localhost_ref: String::new() });
    config
}

/// Returns the limits and the size of /dev/shm, as seen by the container's first process and by an
/// exec.
fn limits(daemon: &Daemon, id: &str) -> [String; 2] {
    let exec = daemon.client().exec_script(id, "ulimit -Sn; ulimit -Hn; df -k /dev/shm | tail -n 1 | awk '{print $2}'");
    let first = fs::read_to_string(format!("/proc/{}/limits", daemon.pids(id)[0])).unwrap();
    let files: Vec<&str> =
        first.lines().find(|l| l.starts_with("Max open files")).unwrap().split_whitespace().collect();
    [exec.replace('\n', " ").trim().to_owned(), format!("{} {}", files[3], files[4])]
}

#[test]
fn the_settings_of_a_handler_apply_to_its_pods_alone() {
    let daemon = Daemon::on(env().0);
    let client = daemon.client();
    let (strict, other, default) = (run_pod(&daemon, "strict"), run_pod(&daemon, "other"), run_pod(&daemon, ""));
    let [in_strict, in_other, in_default] =
        [&strict, &other, &default].map(|pod| client.run_config(pod, confined("main", &IDLE)));

    assert_eq!(limits(&daemon, &in_strict), ["77 88 1024", "77 88"]);
    let (of_other, of_default) = (limits(&daemon, &in_other), limits(&daemon, &in_default));
    assert!(of_other[0].ends_with(" 2048") && of_default[0].ends_with(" 65536"), "{of_other:?} {of_default:?}");
    assert!(!of_default[1].contains("77") && of_other[1] == of_default[1], "{of_other:?} {of_default:?}");

    let capabilities = |id: &str| {
        let exec = kernel_state::status_lines(&client.exec_script(id, "cat /proc/self/status"));
        [kernel_state::status(daemon.pids(id)[0])["CapBnd"].clone(), exec["CapBnd"].clone()]
    };
    assert_eq!(capabilities(&in_strict), ["0000000000000020"; 2]);
    assert_eq!(capabilities(&in_other), ["00000000a80425fb"; 2]);

    // RuntimeDefault is the handler's profile, and adds nothing to it, although crisp's own would
    // allow more.
    let refused = client.exec(&in_strict, &["mkdir", "/tmp/d"]);
    assert!(refused.code != 0 && refused.stderr.contains("not supported"), "{refused:?}");
    assert_eq!(client.exec(&in_other, &["mkdir", "/tmp/d"]).code, 0);
    assert_eq!(client.exec(&in_strict, &["busybox", "unshare", "-U", "true"]).code, 0);
    assert!(client.exec(&in_other, &["busybox", "unshare", "-U", "true"]).code != 0);

    let lines = |pod: &Pod| {
        let long = client.finish_config(pod, container("long", &["sh", "-c", "head -c 1000 /dev/zero | tr '\\0' x"]));
        client.lines(&long.id).iter().map(|line| line.text.len()).max().unwrap()
    };
    assert_eq!((lines(&strict), lines(&default)), (300, 1000));
}

#[test]
fn all_handlers_are_reported_with_features_and_pods_report_theirs() {
    let daemon = Daemon::on(env().0);
    let client = daemon.client();
    let status = client.call(|mut c| async move { c.status(v1::StatusRequest::default()).await }).unwrap();
    let names: Vec<&str> = status.runtime_handlers.iter().map(|handler| handler.name.as_str()).collect();
    assert_eq!(names, ["", "crisp", "other", "strict"]);
    let features: Vec<_> = status.runtime_handlers.iter().map(|handler| handler.features.unwrap()).collect();
    assert!(features.iter().all(|f| f.recursive_read_only_mounts && *f == features[0]), "{features:?}");
    for handler in ["", "crisp", "strict"] {
        let pod = run_pod(&daemon, handler);
        assert_eq!(client.pod_status(&pod.id).runtime_handler, handler);
        assert_eq!(client.pods().iter().find(|p| p.id == pod.id).unwrap().runtime_handler, handler);
    }
}

#[test]
fn an_unknown_handler_is_refused_with_the_names_of_the_known() {
    let daemon = Daemon::on(env().0);
    let refusal = try_run_pod(&daemon, "kata", |_| {}).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    for word in ["runtime_handler", "\"kata\"", "\"crisp\"", "\"other\"", "\"strict\""] {
        assert!(refusal.message().contains(word), "{refusal:?}");
    }
    daemon.env.wait_until_empty(Some(daemon.pid()));
}

#[test]
fn a_handler_may_forbid_privileged_pods() {
    let daemon = Daemon::on(env().0);
    let privileged = |config: &mut v1::PodSandboxConfig| {
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    };
    let refusal = try_run_pod(&daemon, "strict", privileged).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    assert!(refusal.message().contains("privileged") && refusal.message().contains("strict"), "{refusal:?}");
    try_run_pod(&daemon, "other", privileged).unwrap();
    // A container cannot be privileged in a pod that is not, or make its pod privileged.
    let mut pod = run_pod(&daemon, "strict");
    let mut config = container("main", &["true"]);
    security(&mut config).privileged = true;
    let refusal = daemon.client().try_create(&pod, config.clone()).unwrap_err();
    assert!(refusal.message().contains("a privileged container requires a privileged pod"), "{refusal:?}");
    privileged(&mut pod.config);
    let refusal = daemon.client().try_create(&pod, config).unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    assert!(refusal.message().contains("privileged") && refusal.message().contains("strict"), "{refusal:?}");
}

#[test]
fn a_pod_with_a_removed_handler_keeps_running_without_new_containers() {
    let (env, without) = env();
    let mut daemon = Daemon::on(env);
    let pod = run_pod(&daemon, "strict");
    let id = daemon.client().run_config(&pod, container("first", &IDLE));
    let with = fs::read_to_string(daemon.env.config()).unwrap();
    fs::write(daemon.env.config(), without).unwrap();
    daemon.restart();
    let client = daemon.client();
    assert_eq!(client.pod_status(&pod.id).runtime_handler, "strict");
    assert_eq!(client.pod_status(&pod.id).state(), v1::PodSandboxState::SandboxReady);
    assert_eq!(client.exec_script(&id, "ulimit -Sn"), "77\n", "a running container keeps its limits");
    let refusal = client.try_create(&pod, container("second", &["true"])).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
    assert!(refusal.message().contains("\"strict\""), "{refusal:?}");
    assert!(daemon.env.read_log().contains("no longer configured"));
    fs::write(daemon.env.config(), with).unwrap();
    daemon.restart();
    let client = daemon.client();
    client.finish_config(&pod, container("second", &["true"]));
    fs::write(daemon.env.config(), fs::read_to_string(daemon.env.config()).unwrap().replace("strict]", "new]"))
        .unwrap();
    daemon.restart();
    daemon.client().stop(&id, 1).unwrap();
    daemon.client().stop_pod(&pod.id).unwrap();
    daemon.client().remove_pod(&pod.id).unwrap();
}

#[test]
fn an_image_request_may_name_any_configured_handler() {
    let daemon = Daemon::on(env().0);
    let client = daemon.client();
    let image = |handler: &str| v1::ImageSpec {
        image: BOX.to_owned(),
        runtime_handler: handler.to_owned(),
        ..Default::default()
    };
    let status = |handler: &str| {
        let request = v1::ImageStatusRequest { image: Some(image(handler)), verbose: false };
        client.image_call(|mut c| async move { c.image_status(request).await })
    };
    let list = |handler: &str| {
        let request = v1::ListImagesRequest { filter: Some(v1::ImageFilter { image: Some(image(handler)) }) };
        client.image_call(|mut c| async move { c.list_images(request).await }).map(|answer| answer.images)
    };
    let pull = |handler: &str| {
        let request = v1::PullImageRequest { image: Some(image(handler)), ..Default::default() };
        client.image_call(|mut c| async move { c.pull_image(request).await })
    };
    let remove = |handler: &str| {
        let request = v1::RemoveImageRequest { image: Some(image(handler)) };
        client.image_call(|mut c| async move { c.remove_image(request).await })
    };
    for handler in ["", "crisp", "strict"] {
        assert!(status(handler).unwrap().image.is_some(), "{handler}");
        assert_eq!(list(handler).unwrap().len(), 1, "{handler}");
    }
    let refusals = [
        ("image.runtime_handler", status("kata").map(drop)),
        ("filter.image.runtime_handler", list("kata").map(drop)),
        ("image.runtime_handler", pull("kata").map(drop)),
        ("image.runtime_handler", remove("kata").map(drop)),
    ];
    let pod = run_pod(&daemon, "strict");
    let mut config = container("main", &["true"]);
    config.image = Some(image("kata"));
    let of_container = ("config.image.runtime_handler", client.try_create(&pod, config.clone()).map(drop));
    config.image = Some(image("strict"));
    config.mounts = vec![v1::Mount {
        container_path: "/image".into(),
        image: Some(image("kata")),
        readonly: true,
        ..Default::default()
    }];
    let of_mount = ("config.mounts[0].image.runtime_handler", client.try_create(&pod, config.clone()).map(drop));
    for (field, answer) in refusals.into_iter().chain([of_container, of_mount]) {
        let refusal = answer.unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{field}: {refusal:?}");
        assert!(refusal.message().starts_with(field) && refusal.message().contains("\"kata\""), "{refusal:?}");
    }
    config.mounts[0].image = Some(image("other"));
    assert_eq!(client.finish_config(&pod, config).status.exit_code, 0);
    remove("strict").unwrap();
    assert!(status("").unwrap().image.is_none());
}
