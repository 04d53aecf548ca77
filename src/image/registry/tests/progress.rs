use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::digest::Digest;
use crate::limits::Limits;
use crate::registry::tests::support::{TestEnv, made, mirrored};
use crate::test_support::{Answer, Server, route, routes};

async fn until(what: impl Fn() -> bool) {
    for _ in 0..500 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("timeout");
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_are_counted_by_their_result() {
    let made = made("x");
    let server = Server::of(&[("x:1", &made)]).await;
    let env = TestEnv::new();
    let none = env.store.traffic();
    assert!(none.succeeded == 0 && none.failed.len() == PullCause::ALL.len());
    let name = format!("{}/x:1", server.host);
    env.store.pull_named(&name, None).await.unwrap();
    let bytes = made.layers.iter().map(|layer| layer.len() as u64).sum();
    let first = PullTotals { succeeded: 1, bytes, layers: 2, ..none };
    assert_eq!(env.store.traffic(), first);
    env.store.pull_named(&name, None).await.unwrap();
    env.store.pull_named(&format!("{}/none:1", server.host), None).await.unwrap_err();
    let mut failed = first.failed.clone();
    failed.insert("not_found", 1);
    assert_eq!(env.store.traffic(), PullTotals { succeeded: 2, failed, ..first });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_active_pull_is_listed_and_counts_as_failed_when_abandoned() {
    let made = made("x");
    let (images, slow) = (routes(&[("x:1", &made)]), Digest::of(&made.layers[1]).to_string());
    let server = Server::start(move |request| {
        let pace = request.path.contains(&slow).then_some((10, Duration::from_secs(3600)));
        Answer { pace, ..route(&images, request) }
    })
    .await;
    let env = TestEnv::new();
    let (store, name) = (env.store.clone(), format!("{}/x:1", server.host));
    let pulling = tokio::spawn({
        let name = name.clone();
        async move { store.pull_named(&name, None).await }
    });
    let first = made.layers[0].len() as u64;
    until(|| env.store.traffic().pulling.iter().any(|pull| pull.layers == 1 && pull.bytes == first + 10)).await;
    let now = env.store.traffic().pulling.remove(0);
    assert_eq!((now.image, now.total, now.layers_total), (name, first + made.layers[1].len() as u64, 2));
    assert!(now.since > Duration::ZERO);
    pulling.abort();
    assert!(pulling.await.unwrap_err().is_cancelled());
    // The tasks of the layers end a little later.
    until(|| env.store.traffic().pulling.is_empty()).await;
    let traffic = env.store.traffic();
    assert_eq!((traffic.succeeded, traffic.failed["abandoned"], traffic.layers), (0, 1, 1));
    assert_eq!(traffic.bytes, first + 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_is_downloaded_again_is_not_counted_as_progress() {
    let made = made("x");
    let mut wrong = routes(&[("x:1", &made)]);
    for layer in &made.layers {
        wrong.insert(format!("/v2/x/blobs/{}", Digest::of(layer)), vec![0; layer.len()]);
    }
    let lying = Server::start(move |request| route(&wrong, request)).await;
    let images = routes(&[("x:1", &made)]);
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let good = Server::start(move |request| {
        counter.fetch_add(1, Ordering::Relaxed);
        Answer { pace: Some((1, Duration::from_millis(20))), ..route(&images, request) }
    })
    .await;
    let urls = [format!("http://{}", lying.host), format!("http://{}", good.host)];
    let env = TestEnv::with(mirrored(&urls), Limits::default());
    let store = env.store.clone();
    let pulling = tokio::spawn(async move { store.pull_named("registry.example/x:1", None).await });
    until(|| asked.load(Ordering::Relaxed) == 2).await;
    let now = env.store.traffic().pulling.remove(0);
    assert!(now.bytes < now.total / 2, "{now:?}");
    pulling.await.unwrap().unwrap();
    let bytes: u64 = made.layers.iter().map(|layer| layer.len() as u64).sum();
    assert_eq!(env.store.traffic().bytes, 2 * bytes);
}

/// Records level and message of all log events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(tracing::Level, String)>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("image")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

impl Log {
    /// Returns what an operator sees of the log since the last call.
    fn take(&self) -> Vec<String> {
        let all = std::mem::take(&mut *self.0.lock());
        all.into_iter().filter(|(level, _)| *level <= tracing::Level::INFO).map(|(_, text)| text).collect()
    }
}

#[tokio::test]
async fn a_pull_is_logged_once_at_its_end_and_not_if_nothing_was_downloaded() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let server = Server::of(&[("x:1", &made("x"))]).await;
    let env = TestEnv::new();
    let name = format!("{}/x:1", server.host);
    env.store.pull_named(&name, None).await.unwrap();
    let lines = log.take();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["pulled", &name, "bytes=", "layers=2", "seconds="] {
        assert!(lines[0].contains(part), "{part} in {lines:?}");
    }
    env.store.pull_named(&name, None).await.unwrap();
    assert_eq!(log.take(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn the_log_reports_the_progress_of_a_pull_every_ten_seconds() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let progress = Arc::<PullCounters>::default().begin();
    progress.name(&"a.b/x:1".parse().unwrap());
    progress.expect([100, 200].into_iter());
    progress.came(30);
    progress.log_progress_while(tokio::time::sleep(Duration::from_secs(25))).await;
    let lines = log.take();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for part in ["pulling", "a.b/x:1", "bytes=30", "total=300", "layers=0", "layers_total=2"] {
        assert!(lines[1].contains(part), "{part} in {lines:?}");
    }
}
