//! Hostile specs, images and volumes that try to exceed the rights of a CDI device.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use cri_api::v1;
use serde_json::{Value, json};
use tonic::Code;

use super::{Specs, bind, given};
use crate::support::env::TestEnv;
use crate::support::harness::Daemon;
use crate::support::image_fixture::Archive;

/// Returns hooks that make the launcher attach mounts before it enters the root.
fn gate() -> Value {
    json!([{"hookName": "createContainer", "path": "/bin/true"}])
}

#[test]
fn a_spec_with_invalid_paths_is_refused_by_its_field() {
    let specs = Specs::new();
    let source = specs.source("source", "");
    let daemon = specs.daemon();
    let pod = daemon.run_pod("pod");
    let before = daemon.snapshot();
    for (edits, words) in [
        (json!({"mounts": [bind(&source, "/proc", &["rbind"])]}), "mounts[0].containerPath"),
        (json!({"mounts": [bind(&source, "/", &["rbind"])]}), "mounts[0].containerPath"),
        (json!({"mounts": [bind(&source, "/a/../../b", &["rbind"])]}), "mounts[0].containerPath"),
        (json!({"mounts": [bind(&source, "relative", &["rbind"])]}), "mounts[0].containerPath"),
        (json!({"mounts": [bind(Path::new("../x"), "/x", &["rbind"])]}), "mounts[0].hostPath"),
        (json!({"deviceNodes": [{"path": "/dev/../etc/x", "hostPath": "/dev/null"}]}), "deviceNodes[0].path"),
        (json!({"deviceNodes": [{"path": "/etc/x", "hostPath": "/dev/null"}]}), "deviceNodes[0].path"),
        (json!({"hooks": [{"hookName": "createRuntime", "path": "true"}]}), "hooks[0].path"),
        (json!({"hooks": [{"hookName": "whenever", "path": "/bin/true"}]}), "hooks[0].hookName"),
    ] {
        specs.device(edits);
        let refusal = daemon.client().try_create(&pod, given("main", &["true"], &["d"])).unwrap_err();
        assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal:?}");
        assert!(refusal.message().contains("one.json: devices[0]") && refusal.message().contains(words), "{refusal:?}");
    }
    for (edits, words) in [
        (json!({"mounts": [bind(&source, "/proc/sys", &["rbind"])]}), "/proc/sys"),
        (json!({"mounts": [bind(&source, "/proc/self/fd", &["rbind"])], "hooks": gate()}), "/proc/self/fd"),
        (json!({"mounts": [bind(&source, "/x", &["rbind", "fancy"])]}), "fancy"),
    ] {
        specs.device(edits);
        let refusal = daemon.client().try_create(&pod, given("main", &["true"], &["d"])).unwrap_err();
        assert!(refusal.message().contains(words), "{refusal:?}");
    }
    for (edits, words) in [
        (json!({"intelRdt": {"closID": "x"}}), "intelRdt"),
        (json!({"mounts": [{"hostPath": "/dev/x", "containerPath": "/x", "type": "ext4"}]}), "ext4"),
    ] {
        specs.device(edits);
        let refusal = daemon.client().try_create(&pod, given("main", &["true"], &["d"])).unwrap_err();
        assert_eq!((refusal.code(), refusal.message().contains(words)), (Code::Unimplemented, true), "{refusal:?}");
    }
    daemon.wait_until_like(&before);
}

#[test]
fn a_spec_that_other_users_may_write_is_refused() {
    let specs = Specs::new();
    specs.device(json!({"env": ["A=1"]}));
    let daemon = specs.daemon();
    let pod = daemon.run_pod("pod");
    let file = specs.path("high/one.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let refusal = daemon.client().try_create(&pod, given("main", &["true"], &["d"])).unwrap_err();
    assert!(
        refusal.message().contains("one.json: the CDI spec (cdi.spec_dirs) must not be world-writable"),
        "{refusal:?}"
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::chown(&file, Some(1000), None).unwrap();
    let refusal = daemon.client().try_create(&pod, given("main", &["true"], &["d"])).unwrap_err();
    assert!(refusal.message().contains("one.json: the CDI spec (cdi.spec_dirs) belongs to user 1000"), "{refusal:?}");
}

/// Before the launcher enters the root, a link of the image would resolve on the host.
#[test]
fn links_of_an_image_do_not_lead_a_mount_out_of_the_root() {
    let specs = Specs::new();
    let source = specs.source("source", "from the host\n");
    let outside = specs.source("outside", "untouched\n");
    let env = TestEnv::with_settings(&specs.settings(false));
    let image = Archive::new("crisp.test/links:1")
        .with_link("absolute", outside.to_str().unwrap())
        .with_link("climbing", &format!("../../../../../../..{}", outside.display()))
        .with_link("kernel", "/proc")
        .with_link("itself", "/");
    env.import(&image);
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut number = 0;
    let mut run = |target: &str, gated: bool| {
        let mut edits = json!({"mounts": [bind(&source, target, &["rbind"])]});
        if gated {
            edits["hooks"] = gate();
        }
        specs.device(edits);
        number += 1;
        let script = format!("cat {target}/file");
        let mut config = given(&format!("c{number}"), &["sh", "-c", &script], &["d"]);
        config.image = Some(v1::ImageSpec { image: "crisp.test/links:1".into(), ..Default::default() });
        client.try_create(&pod, config).map(|id| {
            client.start(&id).unwrap();
            let status = client.wait_exited(&id);
            crate::support::client::text_of(&crate::support::client::log_lines(&status.log_path), "stdout")
        })
    };
    for gated in [false, true] {
        for target in ["/absolute", "/absolute/new", "/climbing/new", "/itself/new"] {
            assert_eq!(run(target, gated).unwrap(), "from the host\n", "{target} {gated}");
        }
        for target in ["/kernel", "/kernel/1", "/kernel/sys/kernel", "/itself"] {
            let refusal = run(target, gated).unwrap_err();
            assert!(refusal.message().contains("mounts are not allowed there"), "{target} {gated}: {refusal:?}");
        }
    }
    let left: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["file"], "a file was created outside of the root");
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "untouched\n");
}

/// As in runc's CVE-2021-30465: a container with the same volume replaces a directory in it with a link
/// during the mounts.
#[test]
fn a_mount_target_replaced_by_a_link_does_not_lead_outside() {
    let specs = Specs::new();
    let (source, volume) = (specs.source("source", "from the host\n"), specs.source("volume", ""));
    let outside = specs.source("outside", "untouched\n");
    fs::create_dir(volume.join("target")).unwrap();
    specs.device(json!({"mounts": [bind(&source, "/volume/target/new", &["rbind"])], "hooks": gate()}));
    let daemon = specs.daemon();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    std::os::unix::fs::symlink(&outside, volume.join("link")).unwrap();
    let racer = {
        let (target, link) = (volume.join("target"), volume.join("link"));
        let mut rounds = 0u32;
        crate::attacks::Racer::start(move || {
            let (flags, here) = (rustix::fs::RenameFlags::EXCHANGE, rustix::fs::CWD);
            rustix::fs::renameat_with(here, &target, here, &link, flags).ok();
            rounds += 1;
            if rounds.is_multiple_of(64) {
                // The kernel unmounts only while no rename runs; without a pause it may starve on a busy host.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        })
    };
    for number in 0..crate::support::harness::times(30, 5) {
        let mut config = given(&format!("c{number}"), &["true"], &["d"]);
        config.mounts = vec![v1::Mount {
            container_path: "/volume".into(),
            host_path: volume.display().to_string(),
            ..Default::default()
        }];
        // Both results are valid; the test checks only that nothing is created outside.
        if let Ok(id) = client.try_create(&pod, config) {
            client.remove(&id).unwrap();
        }
    }
    drop(racer);
    let left: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["file"], "a file was created outside of the root");
}

#[test]
fn variables_and_files_of_an_image_do_not_reach_host_hooks() {
    const IMAGE: &str = "crisp.test/preload:1";
    const MOMENTS: [&str; 5] = ["prestart", "createRuntime", "createContainer", "poststart", "poststop"];
    let specs = Specs::new();
    let here = specs.path("");
    let note = |moment| {
        let script = format!("(cat /proc/$$/environ | tr '\\0' '\\n'; pwd) > {}{moment}", here.display());
        // Without its own variables, so that inherited ones are visible.
        json!({"hookName": moment, "path": "/bin/sh", "args": ["sh", "-c", script], "timeout": 60})
    };
    specs.device(json!({"hooks": MOMENTS.map(note)}));
    let env = TestEnv::with_settings(&specs.settings(false));
    let preload = json!(["LD_PRELOAD=./evil.so", "LD_LIBRARY_PATH=.", "BASH_ENV=evil", "ENV=evil"]);
    env.import(&Archive::new(IMAGE).with("Env", preload).with("WorkingDir", json!("/work")));
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let mut config = given("main", &crate::support::client::IDLE, &["d"]);
    config.image.as_mut().unwrap().image = IMAGE.into();
    config.envs.push(v1::KeyValue { key: "LD_AUDIT".into(), value: b"./evil.so".to_vec() });
    let id = client.run_config(&pod, config);
    client.stop(&id, 0).unwrap();
    client.remove(&id).unwrap();
    for moment in MOMENTS {
        assert_eq!(fs::read_to_string(specs.path(moment)).unwrap(), "/\n", "{moment}");
    }
}
