//! Health: gRPC's health service, systemd's watchdog, and the metrics endpoint.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use cri_api::health::health_check_response::ServingStatus;
use cri_api::health::health_client::HealthClient;
use cri_api::health::{HealthCheckRequest, HealthCheckResponse};
use rustix::process::Signal;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::support::client::container;
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, kill, scrape, seconds, wait_for};

/// Runs `talk` with a client of the health service.
fn with_health<T, F: Future<Output = T>>(daemon: &Daemon, talk: impl FnOnce(HealthClient<Channel>) -> F) -> T {
    let clock = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let endpoint = Endpoint::from_shared(format!("unix://{}", daemon.env.socket().display())).unwrap();
    clock.block_on(async {
        let client = HealthClient::new(endpoint.connect().await.unwrap());
        tokio::time::timeout(seconds(20), talk(client)).await.expect("the daemon answers in time")
    })
}

fn request(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[test]
fn a_daemon_reports_serving_until_it_shuts_down() {
    let mut daemon = Daemon::start();
    with_health(&daemon, |mut health| async move {
        for service in ["", "runtime.v1.RuntimeService", "runtime.v1.ImageService"] {
            let answer = health.check(request(service)).await.unwrap().into_inner();
            assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
        }
        assert_eq!(health.check(request("none")).await.unwrap_err().code(), Code::NotFound);
    });
    let pid = daemon.pid();
    let reported = with_health(&daemon, |mut health| async move {
        let mut watch = health.watch(request("")).await.unwrap().into_inner();
        let first = watch.message().await.unwrap().unwrap();
        kill(pid, Signal::TERM);
        let mut reported = vec![first];
        while let Ok(Some(next)) = watch.message().await {
            reported.push(next);
        }
        reported
    });
    let reported: Vec<_> = reported.iter().map(HealthCheckResponse::status).collect();
    assert_eq!(reported, [ServingStatus::Serving, ServingStatus::NotServing]);
    assert!(daemon.wait_ended().success(), "a watching client does not delay the shutdown");
}

#[test]
fn systemd_is_notified_of_start_liveness_and_stop() {
    let env = TestEnv::new();
    let path = env.dir().join("notify.sock");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(seconds(20))).unwrap();
    let mut command = env.serve();
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    let mut process = command.spawn().unwrap();
    let heard = || {
        let mut buffer = [0; 256];
        let count = manager.recv(&mut buffer).expect("the daemon sends a notification");
        String::from_utf8(buffer[..count].to_vec()).unwrap().trim().to_owned()
    };
    let mut words = Vec::new();
    while words.len() < 5 {
        words.push(heard());
    }
    assert_eq!(words.iter().filter(|word| *word == "READY=1").count(), 1, "{words:?}");
    assert_eq!(words.iter().filter(|word| *word == "WATCHDOG=1").count(), 4, "{words:?}");
    // A stopped daemon sends nothing.
    let pid = i32::try_from(process.id()).unwrap();
    kill(pid, Signal::STOP);
    manager.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    while manager.recv(&mut [0; 256]).is_ok() {}
    manager.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    assert!(manager.recv(&mut [0; 256]).is_err(), "nothing comes from a daemon that stands still");
    kill(pid, Signal::CONT);
    manager.set_read_timeout(Some(seconds(20))).unwrap();
    assert_eq!(heard(), "WATCHDOG=1");
    kill(pid, Signal::TERM);
    while heard() != "STOPPING=1" {}
    let ended = wait_for("the daemon to end", seconds(20), || process.try_wait().unwrap());
    assert!(ended.success());
}

#[test]
fn the_metrics_endpoint_reports_requests_pods_shims_and_clients() {
    let env = TestEnv::with_settings("[metrics]\nlisten = \"@\"");
    let socket = env.dir().join("metrics.sock");
    let text = fs::read_to_string(env.config()).unwrap();
    fs::write(env.config(), text.replace("\"@\"", &format!("{socket:?}"))).unwrap();
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    client.run_idle(&pod, "main");
    client.script(&pod, "exited", "true");
    client.try_create(&pod, container("main", &["true"])).unwrap_err();
    let page = scrape(&socket);
    let value = |sample: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {sample} in:\n{page}")).parse().unwrap()
    };
    assert_eq!(value("crisp_pods{state=\"ready\"}"), 1.0);
    assert_eq!(value("crisp_containers{state=\"running\"}"), 1.0);
    assert_eq!(value("crisp_containers{state=\"exited\"}"), 1.0);
    assert_eq!((value("crisp_shims"), value("crisp_event_listeners")), (1.0, 0.0));
    assert_eq!(value("crisp_log_bytes_lost_total"), 0.0);
    assert_eq!(value("crisp_requests_total{rpc=\"CreateContainer\",code=\"OK\"}"), 2.0);
    assert_eq!(value("crisp_requests_total{rpc=\"CreateContainer\",code=\"ALREADY_EXISTS\"}"), 1.0);
    assert_eq!(value("crisp_request_duration_seconds_count{rpc=\"CreateContainer\"}"), 3.0);
    assert_eq!(value("crisp_request_duration_seconds_bucket{rpc=\"CreateContainer\",le=\"+Inf\"}"), 3.0);
    let sum = value("crisp_request_duration_seconds_sum{rpc=\"CreateContainer\"}");
    assert!(sum > 0.0 && sum < seconds(60).as_secs_f64(), "{sum}");
    let build = format!("crisp_build_info{{version=\"{}\",commit=\"", env!("CARGO_PKG_VERSION"));
    let build = page.lines().find_map(|line| line.strip_prefix(&build)?.strip_suffix("\"} 1")).unwrap();
    let given = option_env!("CRISP_COMMIT").unwrap_or("unknown");
    assert!(build == given || (build.len() == 40 && build.bytes().all(|byte| byte.is_ascii_hexdigit())), "{build}");
    let resident = value("process_resident_memory_bytes");
    assert!((1e6..1e9).contains(&resident), "{resident}");
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    assert!((value("process_open_fds") - open as f64).abs() < 5.0, "{open}");
    assert!(value("process_cpu_seconds_total") > 0.0 && value("process_threads") > 1.0);
    for family in ["crisp_resizes_total", "crisp_resource_drift_total", "crisp_image_pulls_total"] {
        assert!(page.contains(&format!("# TYPE {family} ")), "{family}");
    }
}
