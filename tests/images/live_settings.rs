//! Registry settings that change while the daemon runs, and its metrics.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use cri_api::v1;
use serde_json::{Value, json};

use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, scrape};
use crate::support::image_fixture::Archive;
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::Registry;

/// Replaces the configuration file of a running daemon, with `more` at its end.
fn add_settings(daemon: &Daemon, before: &str, more: &str) {
    let aside = daemon.env.dir().join("aside.toml");
    fs::write(&aside, format!("{before}\n{more}")).unwrap();
    fs::rename(aside, daemon.env.config()).unwrap();
}

#[test]
fn a_mirror_added_to_the_settings_of_a_running_daemon_is_used() {
    let registry = Registry::start();
    for tag in ["1", "2", "3"] {
        registry.push(&Archive::new("x").with("Env", json!([format!("A={tag}")])), "box", tag);
    }
    let mut daemon = Daemon::start();
    let before = fs::read_to_string(daemon.env.config()).unwrap();
    daemon.client().pull("mirrored.test/box:1").unwrap_err();
    let mirror =
        format!("[registries.\"mirrored.test\"]\nmirrors = [\"http://{}\"]\nmirrors_only = true\n", registry.host());
    add_settings(&daemon, &before, &mirror);
    daemon.client().pull("mirrored.test/box:1").unwrap();

    // Invalid settings change nothing, and are logged once.
    add_settings(&daemon, &before, "[registries.\"mirrored.test\"]\ncolour = 1\n");
    daemon.client().pull("mirrored.test/box:2").unwrap();
    daemon.client().pull("mirrored.test/box:3").unwrap();
    fs::remove_file(daemon.env.config()).unwrap();
    daemon.client().pull("mirrored.test/box:3").unwrap();
    let log = daemon.env.read_log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("keeping the previous ones")).collect();
    assert_eq!(warnings.len(), 2, "{log}");
    assert!(warnings[0].contains("colour") && warnings[1].contains("crisp.toml"), "{warnings:?}");

    add_settings(&daemon, &before, "");
    daemon.client().remove_image("mirrored.test/box:1").unwrap();
    daemon.client().pull("mirrored.test/box:1").unwrap_err();
    add_settings(&daemon, &before, &mirror);
    daemon.restart();
    daemon.client().pull("mirrored.test/box:1").unwrap();
}

#[test]
fn metrics_and_info_report_pulls_and_images() {
    let registry = Registry::start();
    registry.push(&Archive::new("x").on_top(Layer::noise("some", 10_000, 7)), "box", "1");
    let env = TestEnv::new();
    let socket = env.dir().join("metrics.sock");
    let settings = fs::read_to_string(env.config()).unwrap() + &format!("[metrics]\nlisten = {socket:?}\n");
    fs::write(env.config(), settings).unwrap();
    let mut daemon = Daemon::on(env);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    daemon.client().pull(&format!("{}/box:1", registry.host())).unwrap();
    daemon.client().pull(&format!("{}/box:2", registry.host())).unwrap_err();
    let page = scrape(&socket);
    let value = |sample: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {sample}:\n{page}")).parse::<u64>().unwrap()
    };
    assert_eq!(value("crisp_image_pulls_total{outcome=\"succeeded\"}"), 1);
    assert_eq!(value("crisp_image_pulls_total{outcome=\"failed\"}"), 1);
    assert!(value("crisp_image_pull_bytes_total") > 0 && value("crisp_image_pull_layers_total") > 0);
    assert_eq!(value("crisp_image_pulls_in_progress"), 0);
    assert_eq!(value("crisp_images"), 2);
    assert!(value("crisp_image_store_bytes") > 100_000 && value("crisp_image_store_inodes") > 10);
    assert!(page.contains("crisp_build_info{version="), "{page}");

    let request = v1::StatusRequest { verbose: true };
    let info = daemon.client().call(|mut c| async move { c.status(request).await }).unwrap().info;
    let info: Value = serde_json::from_str(&info["info"]).unwrap();
    assert_eq!(info["images"]["store"], json!(daemon.env.root().join("images")));
    assert_eq!((&info["images"]["count"], &info["images"]["pulls"]), (&json!(2), &json!([])));
    assert_eq!(info["images"]["bytes"], json!(value("crisp_image_store_bytes")));
    assert!(daemon.terminate().success());
    assert!(!socket.exists());
}
