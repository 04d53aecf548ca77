//! Transfers that break off, stall, lie or never end: resumed, or refused in time with nothing left of them.

use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::support::harness::{Daemon, seconds, slow};
use crate::support::image_fixture::{Archive, Blob, Pieces};
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::Registry;
pub(crate) use crate::support::registry_proxy::{Act, Proxy, Request, Way};

/// Waits no longer than a second for anything to come, a little longer where all takes longer.
fn hasty() -> String {
    format!("[image]\nstall_timeout = {}", slow().min(5))
}

const LARGE: usize = 1 << 20;

/// A daemon that pulls one image through a proxy.
struct Line {
    daemon: Daemon,
    proxy: Proxy,
    /// The layer that matters.
    layer: Blob,
    config: Blob,
    image: String,
    _registry: Registry,
}

impl Line {
    /// `rule` says what is done with requests for the layer.
    fn with_settings(settings: &str, size: usize, rule: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        let registry = Registry::start();
        let pieces = Archive::bare(Layer::noise("noise", size, 6)).pieces();
        registry.push_pieces(&pieces, "box", "1");
        let Pieces { mut layers, config, .. } = pieces;
        let layer = layers.remove(0);
        let mine = layer.clone();
        let proxy =
            Proxy::before(&registry, move |request| if request.is_for(&mine) { rule(request) } else { Act::pass() });
        let image = format!("{}/box:1", proxy.host());
        Self { daemon: Daemon::with_settings(settings), proxy, layer, config, image, _registry: registry }
    }

    fn new(size: usize, rule: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Self {
        Self::with_settings("", size, rule)
    }

    /// The image arrives, whole.
    fn arrives(&self) {
        let id = self.daemon.client().pull(&self.image).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        self.daemon.check_store(2);
        self.daemon.client().remove_image(&id).unwrap();
        self.daemon.check_nothing_left();
    }

    /// The pull ends in good time, with a word on the registry and nothing in the store.
    fn fails(&self) -> Status {
        let begin = Instant::now();
        let refusal = self.daemon.client().pull(&self.image).unwrap_err();
        assert!(begin.elapsed() < seconds(40), "it took {:?}", begin.elapsed());
        let told = [self.proxy.host(), self.layer.digest.clone(), self.config.digest.clone()];
        assert!(told.iter().any(|word| refusal.message().contains(word)), "{refusal:?}");
        self.daemon.check_nothing_left();
        refusal
    }

    fn size(&self) -> u64 {
        u64::try_from(self.layer.bytes.len()).unwrap()
    }
}

#[test]
fn a_connection_cut_again_and_again_is_resumed_where_it_broke() {
    let line = Line::new(LARGE, |_| Act::Pass(Way::Cut(300_000)));
    line.arrives();
    let parts: Vec<Request> = line.proxy.requests().into_iter().filter(|part| part.is_for(&line.layer)).collect();
    assert_eq!(parts.len(), 4, "{parts:?}");
    assert!(parts.iter().skip(1).all(|part| part.header("range").is_some()), "{parts:?}");
    let sent: u64 = parts.iter().map(|part| part.sent).sum();
    assert_eq!(sent, line.size(), "nothing came twice");
}

#[test]
fn a_connection_that_is_always_cut_ends_the_pull() {
    let line = Line::new(LARGE, |request| Act::Pass(Way::Cut(if request.nth == 0 { 100_000 } else { 0 })));
    assert_eq!(line.fails().code(), Code::Unavailable);
    assert!(line.proxy.blob_bytes() < 150_000);
    line.proxy.rule(|_| Act::pass());
    line.arrives();
}

#[test]
fn a_stalled_transfer_is_resumed_and_one_that_stalls_always_given_up() {
    let line = Line::with_settings(&hasty(), LARGE, |request| match request.nth {
        0 => Act::Pass(Way::Stall(300_000)),
        _ => Act::pass(),
    });
    line.arrives();
    assert!(line.proxy.blob_bytes() < line.size() + 10_000, "what had come was not fetched again");
    line.proxy.rule(|request| Act::Pass(if request.is_blob() { Way::Stall(100) } else { Way::Whole }));
    let refusal = line.fails();
    assert!([Code::Unavailable, Code::DeadlineExceeded].contains(&refusal.code()), "{refusal:?}");
}

#[test]
fn a_slow_transfer_is_not_a_stalled_one() {
    // Long enough that a pause on a busy machine is none, and still less than all of it takes.
    let stall = seconds(3);
    let settings = format!("[image]\nstall_timeout = {}", stall.as_secs());
    let line = Line::with_settings(&settings, 260_000, move |_| Act::Pass(Way::Slow(20_000, stall / 10)));
    let begin = Instant::now();
    line.arrives();
    assert!(begin.elapsed() > stall, "it was slow");
    assert_eq!(line.proxy.count(|request| request.is_for(&line.layer)), 1);
}

#[test]
fn one_changed_byte_is_noticed_wherever_it_is() {
    let line = Line::new(LARGE, |_| Act::Pass(Way::Flip(500_000)));
    let refusal = line.fails();
    assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal:?}");
    assert!(refusal.message().contains(&line.layer.digest), "{refusal:?}");
    let config = line.config.clone();
    line.proxy.rule(move |request| Act::Pass(if request.is_for(&config) { Way::Flip(10) } else { Way::Whole }));
    assert_eq!(line.fails().code(), Code::InvalidArgument);
    line.proxy.rule(|_| Act::pass());
    line.arrives();
}

#[test]
fn a_registry_that_is_busy_is_asked_again_when_it_says() {
    for (status, wait) in [("429 Too Many Requests", Some("1")), ("503 Service Unavailable", None)] {
        let busy = move || {
            let headers = wait.map(|wait| ("Retry-After", wait.to_owned()));
            Act::Answer(status, headers.into_iter().collect(), Vec::new())
        };
        let line = Line::new(1000, |_| Act::pass());
        line.proxy.rule(move |request| if request.nth == 0 { busy() } else { Act::pass() });
        line.arrives();
        line.proxy.rule(move |_| busy());
        assert_eq!(line.fails().code(), Code::Unavailable, "{status}");
    }
}

#[test]
fn a_registry_that_ignores_ranges_is_read_past_what_is_known() {
    let first =
        |later: Way| move |request: &Request| Act::Pass(if request.nth == 0 { Way::Cut(300_000) } else { later });
    let line = Line::new(LARGE, first(Way::NoRange));
    line.arrives();
    // One that says it heeds them and does not sends something else than was asked for.
    let lying = Line::new(LARGE, first(Way::FalseRange));
    assert_eq!(lying.fails().code(), Code::InvalidArgument);
}

#[test]
fn what_a_registry_says_of_lengths_is_not_believed() {
    // Less than comes: the rest is asked for. More than comes: broken off, but all of it is here.
    let line = Line::new(LARGE, |request| Act::Pass(if request.nth == 0 { Way::Length(1000) } else { Way::Whole }));
    line.arrives();
    line.proxy.rule(|request| match request.is_manifest() {
        true => Act::Pass(Way::Length(10 << 30)),
        false => Act::pass(),
    });
    assert_eq!(line.fails().code(), Code::ResourceExhausted);

    let mut pieces = Archive::bare(Layer::noise("noise", 1000, 7)).pieces();
    let mut manifest: serde_json::Value = serde_json::from_slice(&pieces.manifest.bytes).unwrap();
    let size = manifest["layers"][0]["size"].as_u64().unwrap();
    for wrong in [size - 1, size + 1, 0, u64::MAX] {
        manifest["layers"][0]["size"] = wrong.into();
        pieces.manifest = Blob::of(&manifest);
        let forger = Proxy::of(pieces.clone());
        let refusal = line.daemon.client().pull(&format!("{}/box:1", forger.host())).unwrap_err();
        assert!(
            [Code::InvalidArgument, Code::Unavailable, Code::ResourceExhausted].contains(&refusal.code()),
            "{wrong}: {refusal:?}"
        );
    }
    line.daemon.check_nothing_left();
}

const OK: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n";
const OK_BODY: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";

#[test]
fn what_never_ends_is_not_read_to_the_end() {
    let line = Line::with_settings(&hasty(), 1000, |_| Act::pass());
    let now = Duration::ZERO;
    // Headers, a manifest, a config, a layer.
    let headers = format!("X-More: {}\r\n", "x".repeat(1000)).into_bytes();
    line.proxy.rule(move |_| Act::Endless(OK, headers.clone(), now));
    line.fails();
    line.proxy.rule(move |request| match request.verb.as_str() {
        "GET" => Act::Endless(OK_BODY, b"          ".repeat(1000), now),
        _ => Act::pass(),
    });
    assert_eq!(line.fails().code(), Code::ResourceExhausted);
    for blob in [line.config.clone(), line.layer.clone()] {
        line.proxy.rule(move |request| match request.is_for(&blob) {
            true => Act::Endless(OK_BODY, b"          ".repeat(1000), now),
            false => Act::pass(),
        });
        let refusal = line.fails();
        assert!([Code::ResourceExhausted, Code::InvalidArgument].contains(&refusal.code()), "{refusal:?}");
    }
    let memory = crate::support::kernel_state::holding(line.daemon.pid()).rss;
    assert!(memory < 150 << 10, "the daemon takes {memory} KiB");
}

#[test]
fn headers_that_come_a_byte_at_a_time_are_not_waited_for() {
    let line = Line::with_settings(&hasty(), 1000, |_| Act::pass());
    line.proxy.rule(|_| Act::Endless("HTTP/1.1 200 OK\r\nX: ", b"x".to_vec(), Duration::from_millis(200)));
    let refusal = line.fails();
    assert!([Code::Unavailable, Code::DeadlineExceeded].contains(&refusal.code()), "{refusal:?}");
}
