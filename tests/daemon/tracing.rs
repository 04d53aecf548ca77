//! Spans of requests, as a collector receives them.

use cri_api::otlp::span::SpanKind;
use cri_api::{otlp, v1};
use tonic::{Code, Request};

use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, scrape, seconds, wait_for};
pub(crate) use crate::support::otlp_collector::{Collector, Manner, attribute};

/// Returns the header of the caller's span, sampled or not.
fn parent(trace: u8, sampled: bool) -> String {
    format!("00-{}-{}-0{}", format!("{trace:02x}").repeat(16), "cd".repeat(8), u8::from(sampled))
}

fn traced<T>(message: T, parent: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("traceparent", parent.parse().unwrap());
    request.metadata_mut().insert("tracestate", "vendor=1".parse().unwrap());
    request
}

/// Waits for a span of this trace, or of any trace, and of this RPC.
fn wait_span(collector: &Collector, trace: Option<u8>, rpc: &str) -> otlp::Span {
    wait_for(&format!("a span of {rpc}"), seconds(30), || {
        collector.spans().into_iter().find(|span| {
            attribute(&span.attributes, "rpc.method").as_deref() == Some(rpc)
                && trace.is_none_or(|trace| span.trace_id == [trace; 16])
        })
    })
}

#[test]
fn a_request_is_a_child_of_its_callers_span_and_its_steps_are_its_children() {
    let collector = Collector::new(Manner::Takes);
    let env = TestEnv::connected(&collector.settings());
    let mut daemon = Daemon::on(at_home(env, &collector));
    let client = daemon.client();
    let run = v1::RunPodSandboxRequest { config: Some(daemon.pod_config("pod")), ..Default::default() };
    let run = traced(run, &parent(0xa1, true));
    let pod = client.call(|mut c| async move { c.run_pod_sandbox(run).await }).unwrap().pod_sandbox_id;
    let span = wait_span(&collector, Some(0xa1), "RunPodSandbox");
    assert_eq!(span.name, "runtime.v1.RuntimeService/RunPodSandbox");
    assert_eq!((span.parent_span_id.as_slice(), span.trace_state.as_str()), ([0xcd; 8].as_slice(), "vendor=1"));
    assert_eq!((span.kind(), span.flags), (SpanKind::Server, 0x301));
    assert!(span.status.is_none() && span.start_time_unix_nano < span.end_time_unix_nano);
    for (key, value) in [
        ("rpc.system", "grpc"),
        ("rpc.service", "runtime.v1.RuntimeService"),
        ("rpc.grpc.status_code", "0"),
        ("crisp.pod", &pod),
        ("k8s.namespace.name", "tests"),
        ("k8s.pod.name", "pod"),
        ("k8s.pod.uid", "uid-of-pod"),
    ] {
        assert_eq!(attribute(&span.attributes, key).as_deref(), Some(value), "{key}");
    }
    for step in ["shim.spawn", "sandbox.create", "network.connect"] {
        let spans = collector.spans();
        let step = spans.iter().find(|span| span.name == step).unwrap_or_else(|| panic!("{step} in {spans:?}"));
        assert_eq!((&step.trace_id, &step.parent_span_id), (&span.trace_id, &span.span_id));
        assert_eq!((step.kind(), step.flags), (SpanKind::Internal, 0x101));
        assert!(step.start_time_unix_nano >= span.start_time_unix_nano);
        assert!(step.end_time_unix_nano <= span.end_time_unix_nano);
    }
    let about = collector.requests()[0].resource_spans[0].resource.clone().unwrap().attributes;
    assert_eq!(attribute(&about, "service.name").as_deref(), Some("node-7"));
    assert!(attribute(&about, "host.name").is_some_and(|name| !name.is_empty()));

    // A request that is not sampled, one that fails, and one that starts a trace.
    let gone = |parent: &str| {
        let status = traced(v1::ContainerStatusRequest { container_id: "abc".into(), verbose: false }, parent);
        client.call(|mut c| async move { c.container_status(status).await }).unwrap_err()
    };
    gone(&parent(0xa2, false));
    assert_eq!(gone(&parent(0xa3, true)).code(), Code::NotFound);
    let span = wait_span(&collector, Some(0xa3), "ContainerStatus");
    assert_eq!(attribute(&span.attributes, "rpc.grpc.status_code").as_deref(), Some("5"));
    assert_eq!(attribute(&span.attributes, "container.id").as_deref(), Some("abc"));
    client.remove_pod(&pod).unwrap();
    // Remaining spans are sent at the shutdown.
    assert!(daemon.terminate().success());
    let span = wait_span(&collector, None, "RemovePodSandbox");
    assert!(span.parent_span_id.is_empty() && span.trace_id != [0; 16]);
    assert!(collector.spans().iter().all(|span| span.trace_id != [0xa2; 16]), "this trace was not sampled");
}

/// A daemon in a separate network namespace reaches the collector through a Unix socket, which this
/// copies to the collector.
fn at_home(env: TestEnv, collector: &Collector) -> TestEnv {
    let socket = env.dir().join("otlp.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let address = collector.address;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut near, mut far) = (stream.unwrap(), std::net::TcpStream::connect(address).unwrap());
            let (mut back, mut forth) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut near, &mut forth));
            std::thread::spawn(move || std::io::copy(&mut far, &mut back));
        }
    });
    let text = std::fs::read_to_string(env.config()).unwrap();
    let text = text.replace(&format!("\"{address}\""), &format!("\"unix://{}\"", socket.display()));
    std::fs::write(env.config(), text).unwrap();
    env
}

#[test]
fn a_failing_collector_affects_neither_requests_nor_the_shutdown() {
    let dead = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("[tracing]\nendpoint = \"{}\"\ntimeout = 1\n", listener.local_addr().unwrap())
    };
    // Connections are opened, but never accepted.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf = (format!("[tracing]\nendpoint = \"{}\"\ntimeout = 1\n", deaf.local_addr().unwrap()), deaf);
    let hanging = Collector::new(Manner::Hangs);
    let away = Collector::new(Manner::Refuses(Code::Unavailable));
    let strict = Collector::new(Manner::Refuses(Code::PermissionDenied));
    for settings in [dead, deaf.0, hanging.settings(), away.settings(), strict.settings()] {
        let mut daemon = Daemon::with_settings(&settings);
        let pod = daemon.run_pod("pod");
        let ended = daemon.client().script(&pod, "main", "echo fine");
        assert_eq!(ended.stdout, "fine\n");
        wait_for("a word of it", seconds(30), || {
            let log = daemon.env.read_log();
            log.contains("trace collector unreachable").then_some(())
        });
        daemon.client().remove_pod(&pod.id).unwrap();
        assert!(daemon.terminate().success(), "{settings}");
        let log = daemon.env.read_log();
        assert_eq!(log.matches("trace collector unreachable").count(), 1, "reported once: {log}");
    }
}

#[test]
fn rejected_spans_are_counted() {
    for (manner, some_arrive) in [(Manner::Refuses(Code::InvalidArgument), false), (Manner::Picks, true)] {
        let collector = Collector::new(manner);
        let daemon = Daemon::on(TestEnv::with_metrics(&collector.settings()));
        daemon.run_pod("pod");
        let count = |outcome: &str| -> u64 {
            let page = scrape(&daemon.env.metrics());
            let sample = format!("crisp_spans_total{{outcome=\"{outcome}\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&sample)).unwrap().parse().unwrap()
        };
        wait_for("some to be dropped", seconds(30), || (count("dropped") > 0).then_some(()));
        assert_eq!(count("exported") > 0, some_arrive);
    }
}
