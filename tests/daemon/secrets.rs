//! Secrets of requests are in no log, no span and no metric.

use std::fs;
use std::path::Path;

use cri_api::{Message as _, v1};
use serde_json::json;

use crate::cdi::{Specs, given};
use crate::support::client::container;
use crate::support::env::{TestEnv, write_secret};
use crate::support::harness::{Daemon, scrape};
pub(crate) use crate::support::otlp_collector::{Collector, Manner};

const PASSWORD: &str = "swordfish99";
const AUTH: &str = "opensesame1";
const IDENTITY: &str = "tokentoken7";
const REGISTRY: &str = "registry-token-5";
const FILE: &str = "for-you-only";
const FILE_AUTH: &str = "bWU6Zm9yLXlvdS1vbmx5";
const VARIABLE: &str = "hunter2hunter2";
const ARGUMENT: &str = "argument-12345";
const EXEC: &str = "exec-argument-6";
const ANNOTATION: &str = "annotated-value-8";
const POD_ANNOTATION: &str = "annotated-pod-9";
const DEVICE: &str = "cdi-variable-10";
const SECRETS: [&str; 12] =
    [PASSWORD, AUTH, IDENTITY, REGISTRY, FILE, FILE_AUTH, VARIABLE, ARGUMENT, EXEC, ANNOTATION, POD_ANNOTATION, DEVICE];

fn secret(name: &str) -> v1::ContainerConfig {
    let mut config = container(name, &["sh", "-c", &format!(": {ARGUMENT}")]);
    config.envs.push(v1::KeyValue { key: "PASSWORD".into(), value: VARIABLE.into() });
    config.annotations.insert("example.com/secret".into(), ANNOTATION.into());
    config
}

/// Sends every kind of request that contains a secret, valid and invalid; returns the tokens of the
/// URLs.
fn pass_secrets_around(daemon: &Daemon) -> Vec<String> {
    let client = daemon.client();
    let pod = daemon.run_pod_with("pod", |config| {
        config.annotations.insert("example.com/secret".into(), POD_ANNOTATION.into());
    });
    client.finish_config(&pod, secret("main"));
    // A refused container, and one whose program cannot be executed.
    client.try_create(&pod, secret("main")).unwrap_err();
    let mut bad = secret("bad");
    bad.command = vec!["/no/such/program".into(), ARGUMENT.into()];
    let id = client.try_create(&pod, bad).unwrap();
    client.start(&id).unwrap_err();
    client.try_exec(&id, &["sh", EXEC], 1).unwrap_err();
    client.try_status(&id).unwrap();
    let running = client.run_idle(&pod, "runs");
    client.exec(&running, &["sh", "-c", &format!(": {EXEC}; exit 3")]);
    client.try_exec(&running, &["/no/such/program", EXEC], 1).unwrap_err();
    let mut device = given("device", &["true"], &["d"]);
    device.envs = secret("x").envs;
    client.finish_config(&pod, device);
    client.try_create(&pod, given("missing", &["true"], &["d", "other"])).unwrap_err();
    for auth in [
        v1::AuthConfig { username: "u".into(), password: PASSWORD.into(), ..Default::default() },
        v1::AuthConfig { auth: AUTH.into(), ..Default::default() },
        v1::AuthConfig { identity_token: IDENTITY.into(), ..Default::default() },
        v1::AuthConfig { registry_token: REGISTRY.into(), ..Default::default() },
        v1::AuthConfig::default(),
    ] {
        let image = v1::ImageSpec { image: "127.0.0.1:1/none:1".into(), ..Default::default() };
        let pull = v1::PullImageRequest { image: Some(image), auth: Some(auth), sandbox_config: None };
        client.image_call(|mut c| async move { c.pull_image(pull).await }).unwrap_err();
    }
    let exec = v1::ExecRequest {
        container_id: running,
        cmd: vec!["sh".into(), EXEC.into()],
        stdout: true,
        ..Default::default()
    };
    let url = client.call(|mut c| async move { c.exec(exec).await }).unwrap().url;
    client.remove_everything();
    vec![url.rsplit('/').next().unwrap().to_owned()]
}

fn settings(level: &str, login: &Path, specs: &Specs, collector: &Collector, metrics: &Path) -> String {
    format!(
        "[log]\nlevel = \"{level}\"\n[image]\ncredentials = {login:?}\n[metrics]\nlisten = {metrics:?}\n{}{}",
        specs.settings(false),
        collector.settings()
    )
}

#[test]
fn secrets_reach_neither_log_nor_spans_nor_metrics() {
    for level in ["debug", "trace", "trace,h2=info"] {
        let (specs, collector) = (Specs::new(), Collector::new(Manner::Takes));
        specs.write("high/one.json", &[("d", json!({"env": [format!("TOKEN={DEVICE}")]}))]);
        let (login, metrics) = (specs.path("login.json"), specs.path("metrics.sock"));
        let auths = json!({"auths": {"127.0.0.1:1": {"auth": FILE_AUTH}}});
        write_secret(&login, &auths.to_string());
        let env = TestEnv::with_settings(&settings(level, &login, &specs, &collector, &metrics));
        let mut daemon = Daemon::on(env);
        let tokens = pass_secrets_around(&daemon);
        let page = scrape(&metrics);
        daemon.terminate();
        let log = daemon.env.read_log();
        assert!(log.contains("DEBUG"), "the log is verbose enough to have them");
        assert!(!collector.spans().is_empty(), "the spans are exported");
        let spans: Vec<u8> = collector.requests().iter().flat_map(|request| request.encode_to_vec()).collect();
        let spans = String::from_utf8_lossy(&spans);
        for secret in SECRETS.iter().copied().chain(tokens.iter().map(String::as_str)) {
            assert!(secret.len() > 5, "{tokens:?}");
            for (place, text) in [("the log", &*log), ("spans", &*spans), ("metrics", &*page)] {
                let line = text.lines().find(|line| line.contains(secret));
                assert_eq!(line, None, "{secret} is in {place} at level {level}");
            }
        }
        assert!(fs::metadata(login).is_ok());
    }
}
