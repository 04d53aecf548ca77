//! Transfers that break, stall, have wrong content or never end: resumed, or refused in time
//! without leftovers.

use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::support::harness::{Daemon, seconds, slow};
use crate::support::image_fixture::{Archive, Blob, Pieces};
use crate::support::layer_fixture::Layer;
use crate::support::registry_fixture::Registry;
pub(crate) use crate::support::registry_proxy::{Act, Proxy, Request, Way};

/// Settings with a stall timeout of 1 s, or more on slow machines.
fn hasty() -> String {
    format!("[image]\nstall_timeout = {}", slow().min(5))
}

const LARGE: usize = 1 << 20;

/// A daemon that pulls one image through a proxy.
struct Line {
    daemon: Daemon,
    proxy: Proxy,
    /// The layer whose transfer is manipulated.
    layer: Blob,
    config: Blob,
    image: String,
    _registry: Registry,
}

impl Line {
    /// Creates the image and the proxy; `rule` handles requests for the layer.
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

    /// Checks that the pull succeeds.
    fn arrives(&self) {
        let id = self.daemon.client().pull(&self.image).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        self.daemon.check_store(2);
        self.daemon.client().remove_image(&id).unwrap();
        self.daemon.check_nothing_left();
    }

    /// Checks that the pull fails in time, with an error that names the registry or a blob, and
    /// leaves nothing in the store.
    fn fails(&self) -> Status {
        let begin = Instant::now();
        let refusal = self.daemon.client().pull(&self.image).unwrap_err();
        assert!(begin.elapsed() < seconds(40), "it took {:?}", begin.elapsed());
        let names = [self.proxy.host(), self.layer.digest.clone(), self.config.digest.clone()];
        assert!(names.iter().any(|name| refusal.message().contains(name)), "{refusal:?}");
        self.daemon.check_nothing_left();
        refusal
    }

    fn size(&self) -> u64 {
        u64::try_from(self.layer.bytes.len()).unwrap()
    }
}

#[test]
fn a_connection_that_breaks_repeatedly_is_resumed_at_the_offset() {
    let line = Line::new(LARGE, |_| Act::Pass(Way::Cut(300_000)));
    line.arrives();
    let parts: Vec<Request> = line.proxy.requests().into_iter().filter(|part| part.is_for(&line.layer)).collect();
    assert_eq!(parts.len(), 4, "{parts:?}");
    assert!(parts.iter().skip(1).all(|part| part.header("range").is_some()), "{parts:?}");
    let sent: u64 = parts.iter().map(|part| part.sent).sum();
    assert_eq!(sent, line.size(), "no byte is received twice");
}

#[test]
fn a_connection_that_always_breaks_fails_the_pull() {
    let line = Line::new(LARGE, |request| Act::Pass(Way::Cut(if request.nth == 0 { 100_000 } else { 0 })));
    assert_eq!(line.fails().code(), Code::Unavailable);
    assert!(line.proxy.blob_bytes() < 150_000);
    line.proxy.rule(|_| Act::pass());
    line.arrives();
}

#[test]
fn a_stalled_transfer_is_resumed_and_fails_if_it_always_stalls() {
    let line = Line::with_settings(&hasty(), LARGE, |request| match request.nth {
        0 => Act::Pass(Way::Stall(300_000)),
        _ => Act::pass(),
    });
    line.arrives();
    assert!(line.proxy.blob_bytes() < line.size() + 10_000, "received bytes are not downloaded again");
    line.proxy.rule(|request| Act::Pass(if request.is_blob() { Way::Stall(100) } else { Way::Whole }));
    let refusal = line.fails();
    assert!([Code::Unavailable, Code::DeadlineExceeded].contains(&refusal.code()), "{refusal:?}");
}

#[test]
fn a_slow_transfer_is_not_treated_as_stalled() {
    // Longer than a pause on a busy machine, and shorter than the whole transfer.
    let stall = seconds(3);
    let settings = format!("[image]\nstall_timeout = {}", stall.as_secs());
    let line = Line::with_settings(&settings, 260_000, move |_| Act::Pass(Way::Slow(20_000, stall / 10)));
    let begin = Instant::now();
    line.arrives();
    assert!(begin.elapsed() > stall, "the transfer was slow");
    assert_eq!(line.proxy.count(|request| request.is_for(&line.layer)), 1);
}

#[test]
fn one_changed_byte_is_detected_in_every_part() {
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
fn a_busy_registry_is_retried_after_the_requested_pause() {
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
fn a_registry_that_ignores_ranges_is_read_from_the_offset() {
    let first =
        |later: Way| move |request: &Request| Act::Pass(if request.nth == 0 { Way::Cut(300_000) } else { later });
    let line = Line::new(LARGE, first(Way::NoRange));
    line.arrives();
    // A registry that accepts a range but sends another one.
    let lying = Line::new(LARGE, first(Way::FalseRange));
    assert_eq!(lying.fails().code(), Code::InvalidArgument);
}

#[test]
fn wrong_lengths_of_a_registry_are_detected() {
    // Less than the real length: the rest is requested. More: the connection breaks, but the blob
    // is complete.
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
fn endless_responses_are_not_read_to_the_end() {
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
    assert!(memory < 150 << 10, "the daemon uses {memory} KiB");
}

#[test]
fn headers_sent_byte_by_byte_time_out() {
    let line = Line::with_settings(&hasty(), 1000, |_| Act::pass());
    line.proxy.rule(|_| Act::Endless("HTTP/1.1 200 OK\r\nX: ", b"x".to_vec(), Duration::from_millis(200)));
    let refusal = line.fails();
    assert!([Code::Unavailable, Code::DeadlineExceeded].contains(&refusal.code()), "{refusal:?}");
}
