//! Drift: limits that another process wrote.

use super::*;
use crate::support::env::TestEnv;
use crate::support::harness::{scrape, seconds, wait_for};

#[test]
fn a_limit_that_another_process_wrote_is_reported_once() {
    let env = TestEnv::new();
    let socket = env.dir().join("metrics.sock");
    let settings = fs::read_to_string(env.config()).unwrap() + &format!("[metrics]\nlisten = {socket:?}\n");
    fs::write(env.config(), settings).unwrap();
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(500, 64));
    client.update(&id, limits(600, 64)).unwrap();
    let (name, foreign) =
        if kernel_state::is_v2() { ("cpu.max", "20000 100000") } else { ("cpu.cfs_quota_us", "20000") };
    fs::write(file(&daemon, &id, name), foreign).unwrap();
    for _ in 0..3 {
        assert_eq!(client.in_force(&id).cpu_quota, 20_000, "the kernel's value");
    }
    let info = client.container_info(&id)["resources"].clone();
    assert_eq!(info["drift"][0]["file"], name, "{info}");
    assert_eq!(info["drift"][0]["found"], foreign, "{info}");
    assert_eq!(info["asked"]["cpu_quota"], 60_000, "{info}");
    assert_eq!(info["actual"]["cpu_quota"], 20_000, "{info}");
    let told = |text: &str| text.matches("cgroup limit changed outside crisp").count();
    wait_for("a line in the log", seconds(5), || (told(&daemon.env.read_log()) > 0).then_some(()));
    assert_eq!(told(&daemon.env.read_log()), 1);
    let page = scrape(&socket);
    assert!(page.contains("\ncrisp_resource_drift_total 1\n"), "{page}");
    assert!(page.contains("\ncrisp_resizes_total{outcome=\"applied\",reason=\"none\"} 1\n"), "{page}");

    // A repeated request applies it again, which ends the drift.
    client.update(&id, limits(600, 64)).unwrap();
    assert_limits(&daemon, &id, 600, 64);
    assert_eq!(client.container_info(&id)["resources"]["drift"], serde_json::json!([]));
    assert!(scrape(&socket).contains("\ncrisp_resource_drifting 0\n"));
}

#[test]
fn requested_shares_are_reported_only_while_the_kernel_has_them() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(250, 64));
    assert_eq!(client.in_force(&id).cpu_shares, 256);
    let (name, foreign) = if kernel_state::is_v2() { ("cpu.weight", "10000") } else { ("cpu.shares", "262144") };
    fs::write(file(&daemon, &id, name), foreign).unwrap();
    let shown = client.in_force(&id).cpu_shares;
    // The lowest shares with this weight.
    assert!(if kernel_state::is_v2() { (200_000..=262_144).contains(&shown) } else { shown == 262_144 }, "{shown}");
}

#[test]
fn equal_values_are_not_written() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_limited(&pod, "main", limits(500, 64));
    client.update(&id, limits(600, 96)).unwrap();
    let dir = client.container_info(&id)["directory"].as_str().unwrap().to_owned();
    let record = fs::metadata(format!("{dir}/container.json")).unwrap();
    for _ in 0..3 {
        client.update(&id, limits(600, 96)).unwrap();
    }
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(fs::metadata(format!("{dir}/container.json")).unwrap().ino(), record.ino());
    assert_limits(&daemon, &id, 600, 96);
}
