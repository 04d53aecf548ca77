//! Attacks by processes that can write to the directory of all pods' logs.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Instant;

use cri_api::v1;
use tonic::Code;

use super::Outside;
use crate::support::client::{Pod, container};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, seconds};

#[test]
fn a_log_that_is_not_a_regular_file_in_the_pods_directory_is_refused() {
    let env = TestEnv::new();
    let outside = Outside::new(&env);
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let logs = daemon.env.logs().join("pod");
    let pod = daemon.run_pod("pod");
    symlink(outside.dir(), logs.join("link")).unwrap();
    symlink(outside.absolute("file"), logs.join("file.log")).unwrap();
    symlink(outside.absolute("made"), logs.join("dangling.log")).unwrap();
    symlink("/proc/self/fd/1", logs.join("magic.log")).unwrap();
    fs::create_dir(logs.join("directory.log")).unwrap();
    for name in ["fifo.log", "device.log"] {
        let kind = if name == "fifo.log" { rustix::fs::FileType::Fifo } else { rustix::fs::FileType::CharacterDevice };
        let number = rustix::fs::makedev(1, 5);
        rustix::fs::mknodat(rustix::fs::CWD, logs.join(name), kind, 0o600.into(), number).unwrap();
    }
    let bad = [
        "../outside/file",
        "link/file",
        "link/made",
        "file.log",
        "dangling.log",
        "magic.log",
        "directory.log",
        "fifo.log",
        "device.log",
        "/etc/made",
        "a/../../outside/made",
        ".",
        "..",
    ];
    for path in bad {
        let begin = Instant::now();
        let mut config = container("main", &["echo", "x"]);
        config.log_path = path.into();
        let refusal = client.try_create(&pod, config).expect_err(path);
        assert!(matches!(refusal.code(), Code::InvalidArgument | Code::FailedPrecondition), "{path}: {refusal:?}");
        assert!(refusal.message().contains("log_path"), "{path}: {refusal:?}");
        assert!(begin.elapsed() < seconds(5), "{path} was waited for");
    }
    outside.check("logs");
    // Nor later, when a log is begun anew.
    let id = client.run_idle(&pod, "main");
    for target in ["file.log", "fifo.log", "device.log"] {
        let log = logs.join("main.log");
        fs::rename(&log, logs.join("main.old")).unwrap();
        fs::rename(logs.join(target), &log).unwrap();
        let refusal = client.reopen_log(&id).expect_err(target);
        assert!(refusal.message().contains("main.log"), "{target}: {refusal:?}");
        fs::rename(&log, logs.join(target)).unwrap();
        fs::rename(logs.join("main.old"), &log).unwrap();
    }
    client.reopen_log(&id).unwrap();
    outside.check("logs begun anew");
}

#[test]
fn a_log_directory_that_is_a_link_is_not_followed() {
    let env = TestEnv::new();
    let outside = Outside::new(&env);
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let logs = daemon.env.logs();
    // A process that may write to the directory of all pods' logs replaces one by a link.
    let mut config = daemon.pod_config("pod");
    let own = logs.join("pod");
    fs::remove_dir(&own).unwrap();
    symlink(outside.absolute("dir"), &own).unwrap();
    let make = |config: &v1::PodSandboxConfig| -> Result<(), tonic::Status> {
        let id = client.try_run_pod(config.clone())?;
        let pod = Pod { id, config: config.clone() };
        client.try_create(&pod, container("main", &["echo", "x"])).map(drop)
    };
    for directory in [own.clone(), own.join("."), own.join("")] {
        config.log_directory = directory.display().to_string();
        config.metadata.as_mut().unwrap().attempt += 1;
        let refusal = make(&config).expect_err("it was followed");
        assert!(refusal.message().contains("log_directory"), "{refusal:?}");
    }
    outside.check("a linked directory of logs");
    // The directory of a running container is replaced.
    fs::remove_file(&own).unwrap();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "idle");
    fs::rename(&own, logs.join("old")).unwrap();
    symlink(outside.absolute("dir"), &own).unwrap();
    let refusal = client.reopen_log(&id).unwrap_err();
    assert!(refusal.message().contains("log_directory"), "{refusal:?}");
    outside.check("a directory of logs replaced by a link");
    // Where all of them are may be a link, as where /var/log lies on another disk.
    let elsewhere = daemon.env.dir().join("elsewhere");
    symlink(&logs, &elsewhere).unwrap();
    fs::create_dir(logs.join("linked")).unwrap();
    let pod = daemon.run_pod_with("linked", |config| {
        config.log_directory = elsewhere.join("linked").display().to_string();
    });
    assert_eq!(client.script(&pod, "main", "echo logged").stdout, "logged\n");
}
