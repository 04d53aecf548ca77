//! CDI devices: injection into containers, and refusals.

mod device_access;
mod hooks;
mod hostile;
mod userns;

use std::fs;
use std::path::{Path, PathBuf};

use cri_api::v1;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::Code;

use crate::support::client::{IDLE, container, security};
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;

/// The kind of all devices here.
const KIND: &str = "tests.example/thing";

/// Two directories of specs, the second of which overrides the first, and a place for files of specs.
pub(crate) struct Specs {
    dir: TempDir,
}

impl Specs {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("crisp-cdi-").tempdir().unwrap();
        for name in ["low", "high"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns configuration lines for a daemon that uses these directories.
    pub(crate) fn settings(&self, annotations: bool) -> String {
        let (low, high) = (self.path("low"), self.path("high"));
        format!("[cdi]\nspec_dirs = [{low:?}, {high:?}]\nannotations = {annotations}\n")
    }

    pub(crate) fn daemon(&self) -> Daemon {
        Daemon::with_settings(&self.settings(false))
    }

    /// Writes a spec with these devices, such as `high/NAME.json`.
    pub(crate) fn write(&self, file: &str, devices: &[(&str, Value)]) -> PathBuf {
        let devices = devices.iter().map(|(name, edits)| json!({"name": name, "containerEdits": edits}));
        let devices: Vec<_> = devices.collect();
        let path = self.path(file);
        fs::write(&path, json!({"cdiVersion": "1.0.0", "kind": KIND, "devices": devices}).to_string()).unwrap();
        path
    }

    /// Writes a spec with the single device `d`.
    fn device(&self, edits: Value) {
        self.write("high/one.json", &[("d", edits)]);
    }

    /// Creates a directory with a file of this content.
    fn source(&self, name: &str, content: &str) -> PathBuf {
        let dir = self.path(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("file"), content).unwrap();
        dir
    }
}

/// Returns a container that requests these devices of [`KIND`].
pub(crate) fn given(name: &str, command: &[&str], devices: &[&str]) -> v1::ContainerConfig {
    let device = |name: &&str| v1::CdiDevice { name: format!("{KIND}={name}") };
    v1::ContainerConfig { cdi_devices: devices.iter().map(device).collect(), ..container(name, command) }
}

fn bind(host: &Path, inside: &str, options: &[&str]) -> Value {
    json!({"hostPath": host, "containerPath": inside, "options": options})
}

/// Returns the character device 240:MINOR, which has no driver: open(2) fails with ENXIO if it is
/// allowed, and with EPERM if not.
fn node(path: &str, minor: u32, permissions: &str) -> Value {
    json!({"path": path, "type": "c", "major": 240, "minor": minor, "permissions": permissions})
}

#[test]
fn a_device_adds_its_nodes_variables_mounts_and_groups() {
    let specs = Specs::new();
    let source = specs.source("source", "from the host\n");
    let one = json!({
        "env": ["FROM_IMAGE=no", "REQUESTED=cdi", "NEW=a=b"],
        "deviceNodes": [
            {"path": "/dev/deep/er", "type": "c", "major": 240, "minor": 7, "fileMode": 0o640, "uid": 5, "gid": 6},
            {"path": "/dev/nothing", "hostPath": "/dev/null"},
        ],
        "mounts": [
            bind(&source, "/opt/not/there", &["ro", "nosuid", "nodev", "rbind"]),
            bind(&source.join("file"), "/etc/one-file", &["bind", "ro"]),
            {"hostPath": "tmpfs", "containerPath": "/scratch", "type": "tmpfs", "options": ["size=64k", "mode=700"]},
        ],
    });
    specs.write("low/thing.json", &[("one", one), ("two", json!({"env": ["TWO=2"], "additionalGids": [4321, 0]}))]);
    let daemon = specs.daemon();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    for (name, user, owner) in [("root", 0, "0 0"), ("user", 1000, "1000 1000")] {
        let mut config = given(name, &IDLE, &["one", "two", "one"]);
        config.envs = vec![v1::KeyValue { key: "REQUESTED".into(), value: b"container".to_vec() }];
        security(&mut config).run_as_user = Some(v1::Int64Value { value: user });
        let id = client.run_config(&pod, config);
        let script = |script: &str| client.exec_script(&id, script);
        assert_eq!(script("stat -c '%t %T %a %u %g' /dev/deep/er"), "f0 7 640 5 6\n");
        assert_eq!(script("stat -c '%t %T %a %u %g' /dev/nothing"), format!("1 3 666 {owner}\n"));
        script("echo x > /dev/nothing");
        assert_eq!(script("echo $FROM_IMAGE $REQUESTED $NEW $TWO"), "no cdi a=b 2\n");
        assert_eq!(script("cat /opt/not/there/file /etc/one-file"), "from the host\n".repeat(2));
        assert!(script("id -G").split_whitespace().any(|group| group == "4321"));
        let write = client.exec(&id, &["touch", "/opt/not/there/file"]);
        assert!(write.code != 0 && write.stderr.contains("Read-only"), "{write:?}");
        assert_eq!(script("stat -f -c %T /scratch"), "tmpfs\n");
    }
}

#[test]
fn a_device_works_with_a_read_only_root_and_replaces_a_requested_mount() {
    let specs = Specs::new();
    let (ours, theirs) = (specs.source("ours", "cdi\n"), specs.source("theirs", "volume\n"));
    specs.device(json!({"mounts": [bind(&ours, "/data", &["rbind"]), bind(&ours, "/new/place", &["rbind"])]}));
    let daemon = specs.daemon();
    let pod = daemon.run_pod("pod");
    let mut config = given("main", &["sh", "-c", "cat /data/file /new/place/file; touch /x"], &["d"]);
    config.mounts = vec![v1::Mount {
        container_path: "/data".into(),
        host_path: theirs.display().to_string(),
        ..Default::default()
    }];
    security(&mut config).readonly_rootfs = true;
    let ended = daemon.client().finish_config(&pod, config);
    assert_eq!(ended.stdout, "cdi\ncdi\n");
    assert!(ended.stderr.contains("Read-only file system"), "{}", ended.stderr);
}

#[test]
fn unknown_devices_are_all_listed_before_anything_is_created() {
    let specs = Specs::new();
    specs.write("low/good.json", &[("here", json!({"env": ["A=1"]}))]);
    fs::write(specs.path("high/bad.yaml"), "cdiVersion: 1.0.0\nkind: tests.example/thing\ndevices: [{name: /}]\n")
        .unwrap();
    let daemon = specs.daemon();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    let mut config = given("main", &["true"], &["here", "one", "two"]);
    let missing = daemon.env.dir().join("not-made");
    config.mounts =
        vec![v1::Mount { container_path: "/x".into(), host_path: missing.display().to_string(), ..Default::default() }];
    let refusal = client.try_create(&pod, config).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    for word in ["tests.example/thing=one", "tests.example/thing=two", "bad.yaml: devices[0].name", "low", "high"] {
        assert!(refusal.message().contains(word), "{word}: {refusal:?}");
    }
    assert!(!refusal.message().contains("thing=here"), "{refusal:?}");
    assert!(!missing.exists() && daemon.snapshot() == before, "something was created");
    // The container name is free again, and the invalid file does not affect other devices.
    let ended = client.finish_config(&pod, given("main", &["sh", "-c", "echo $A"], &["here"]));
    assert_eq!(ended.stdout, "1\n");
}

#[test]
fn created_changed_and_removed_specs_take_effect_at_once() {
    let specs = Specs::new();
    fs::remove_dir(specs.path("high")).unwrap();
    let daemon = specs.daemon();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut runs = 0;
    let mut run = || {
        runs += 1;
        let config = given(&format!("c{runs}"), &["sh", "-c", "echo $A"], &["d"]);
        client.try_create(&pod, config).map(|id| {
            client.start(&id).unwrap();
            let status = client.wait_exited(&id);
            crate::support::client::text_of(&crate::support::client::log_lines(&status.log_path), "stdout")
        })
    };
    assert_eq!(run().unwrap_err().code(), Code::FailedPrecondition);
    specs.write("low/a.json", &[("d", json!({"env": ["A=1"]}))]);
    assert_eq!(run().unwrap(), "1\n");
    specs.write("low/a.json", &[("d", json!({"env": ["A=2"]}))]);
    assert_eq!(run().unwrap(), "2\n");
    fs::create_dir(specs.path("high")).unwrap();
    specs.write("high/b.json", &[("d", json!({"env": ["A=high"]}))]);
    assert_eq!(run().unwrap(), "high\n");
    specs.write("high/c.json", &[("d", json!({"env": ["A=other"]}))]);
    let refusal = run().unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    assert!(refusal.message().contains("b.json") && refusal.message().contains("c.json"), "{refusal:?}");
    for file in ["high/b.json", "high/c.json", "low/a.json"] {
        fs::remove_file(specs.path(file)).unwrap();
    }
    assert_eq!(run().unwrap_err().code(), Code::FailedPrecondition);
}

#[test]
fn annotations_add_devices_only_if_enabled() {
    let specs = Specs::new();
    specs.write("low/a.json", &[("d", json!({"env": ["D=1"]})), ("e", json!({"env": ["E=1"]}))]);
    let asking = |name: &str, devices: &[&str], annotation: &str| {
        let mut config = given(name, &["sh", "-c", "echo $D$E"], devices);
        config.annotations.insert("cdi.k8s.io/tests".into(), annotation.into());
        config
    };
    let daemon = specs.daemon();
    let (client, pod) = (daemon.client(), daemon.run_pod("pod"));
    let refusal = client.try_create(&pod, asking("main", &[], "tests.example/thing=d")).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    for word in ["cdi.k8s.io/tests", "tests.example/thing=d", "cdi.annotations"] {
        assert!(refusal.message().contains(word), "{refusal:?}");
    }
    // A kubelet up to 1.30 sends the same devices in both ways.
    let ended = client.finish_config(&pod, asking("both", &["d"], "tests.example/thing=d"));
    assert_eq!(ended.stdout, "1\n");
    drop(daemon);

    let daemon = Daemon::with_settings(&specs.settings(true));
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| {
        // Annotations of a pod do not apply to its containers.
        config.annotations.insert("cdi.k8s.io/tests".into(), "tests.example/thing=e".into());
    });
    let ended = client.finish_config(&pod, asking("main", &[], "tests.example/thing=d"));
    assert_eq!(ended.stdout, "1\n");
    let ended = client.finish_config(&pod, asking("both", &["d"], "tests.example/thing=d,tests.example/thing=e"));
    assert_eq!(ended.stdout, "11\n");
    let refusal = client.try_create(&pod, asking("bad", &[], "d")).unwrap_err();
    assert_eq!((refusal.code(), refusal.message().contains("cdi.k8s.io/tests")), (Code::InvalidArgument, true));
}

#[test]
fn a_verbose_status_shows_devices_and_their_specs_after_a_restart() {
    let specs = Specs::new();
    let file = specs.write("low/a.json", &[("d", json!({"env": ["D=1"]}))]);
    let mut daemon = specs.daemon();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run_config(&pod, given("main", &IDLE, &["d"]));
    fs::remove_file(&file).unwrap();
    daemon.restart();
    let status = daemon.client().try_status(&id).unwrap();
    let info: Value = serde_json::from_str(&status.info["info"]).unwrap();
    assert_eq!(info["cdiDevices"], json!([{"name": "tests.example/thing=d", "spec": file}]));
    assert_eq!(daemon.client().exec_script(&id, "echo $D"), "1\n", "a running container keeps its devices");
}

#[test]
fn labels_of_an_image_do_not_request_devices() {
    let specs = Specs::new();
    specs.device(json!({"env": ["D=1"]}));
    let env = TestEnv::with_settings(&specs.settings(true));
    let image = crate::support::image_fixture::Archive::new("crisp.test/labelled:1")
        .with("Labels", json!({"cdi.k8s.io/tests": "tests.example/thing=d"}));
    env.import(&image);
    let daemon = Daemon::on(env);
    let pod = daemon.run_pod("pod");
    let mut config = container("main", &["sh", "-c", "echo .$D."]);
    config.image = Some(v1::ImageSpec { image: "crisp.test/labelled:1".into(), ..Default::default() });
    assert_eq!(daemon.client().finish_config(&pod, config).stdout, "..\n");
}
