use std::collections::HashMap;
use std::time::{Duration, Instant};

use model::ErrorClass as _;
use model::error_chain::chain;
use sync::Mutex;

use crate::digest::Digest;
use crate::limits::Limits;
use crate::registry::endpoint::Registries;
use crate::registry::tests::support::{TestEnv, guarded, made, me, mirrored};
use crate::test_support::{Answer, Made, Server, Tar, gzip, route, routes};

/// An incompressible layer.
fn noise() -> Vec<u8> {
    (0..300_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn impatient() -> TestEnv {
    TestEnv::with(Registries::default(), Limits { stall: Duration::from_millis(300), ..Limits::default() })
}

/// Serves `images`, but answers the first request for each path with `first`.
async fn unwilling(images: HashMap<String, Vec<u8>>, first: Answer) -> Server {
    let asked = Mutex::new(HashMap::<String, usize>::new());
    Server::start(move |request| {
        let mut asked = asked.lock();
        let count = asked.entry(format!("{} {}", request.method, request.path)).or_default();
        *count += 1;
        if *count == 1 { first.clone() } else { route(&images, request) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_a_transient_error_is_retried() {
    let mut pulls = tokio::task::JoinSet::new();
    for status in [429, 500, 502, 503, 504] {
        pulls.spawn(async move {
            let server = unwilling(routes(&[("x:1", &made("x"))]), Answer::status(status)).await;
            let env = TestEnv::new();
            env.store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap();
            assert_eq!(server.seen().len(), 10, "HEAD, manifest, config, two layers, each twice");
            assert_eq!(env.store.traffic().retries, 5, "{status}");
        });
    }
    while let Some(done) = pulls.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_responses_are_requested_again() {
    let server =
        unwilling(routes(&[("x:1", &made("x"))]), Answer { cut: Some(3), ..Answer::ok("not all of it") }).await;
    let env = TestEnv::new();
    // The response to HEAD has no body to interrupt.
    env.store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap_err();
    env.store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_request_is_retried_too() {
    let tokens = unwilling([("/token".to_owned(), br#"{"token":"T"}"#.to_vec())].into(), Answer::status(503)).await;
    let challenge = format!(r#"Bearer realm="http://{}/token""#, tokens.host);
    let server = guarded(&made("x"), challenge, "Bearer T").await;
    let env = TestEnv::knowing(&[&tokens]);
    env.store.pull_named(&format!("{}/x:1", server.host), Some(me())).await.unwrap();
    assert_eq!((tokens.seen().len(), env.store.traffic().retries), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_waits_as_long_as_the_server_requests() {
    let first = Answer::status(429).with("retry-after", "1");
    let server = unwilling(routes(&[("x:1", &made("x"))]), first).await;
    let began = Instant::now();
    TestEnv::new().store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap();
    // HEAD, manifest, config and the layers, which are fetched concurrently.
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permanent_error_is_not_retried() {
    for status in [400, 403, 404, 410, 501] {
        let server = Server::start(move |_| Answer::status(status)).await;
        let env = TestEnv::new();
        env.store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap_err();
        assert_eq!((server.seen().len(), env.store.traffic().retries), (1, 0), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_pull_lists_every_endpoint_with_its_error() {
    let (absent, broken) = (Server::start(|_| Answer::status(404)).await, Server::start(|_| Answer::status(503)).await);
    let dead = "http://127.0.0.1:1".to_owned();
    let urls = [dead.clone(), format!("http://{}", absent.host), format!("http://{}", broken.host)];
    let env = TestEnv::with(mirrored(&urls), Limits::default());
    let error = env.store.pull_named("registry.example/x:1", None).await.unwrap_err();
    let text = chain(&error);
    for part in [&urls[..], &["refused".into(), "404".into(), "503".into()]].concat() {
        assert!(text.contains(&part), "{part} in {text}");
    }
    assert!(!text.contains('\n'), "{text}");
    assert_eq!(error.kind(), model::ErrorKind::Unavailable);
    assert_eq!((absent.seen().len(), broken.seen().len()), (1, 4));
    assert_eq!(env.store.traffic().retries, 6, "of the unreachable and the failing endpoint");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_failed_once_is_not_tried_first_again() {
    let broken = Server::start(|_| Answer::status(503)).await;
    let good = Server::of(&[("x:1", &made("x"))]).await;
    let urls = [format!("http://{}", broken.host), format!("http://{}", good.host)];
    let env = TestEnv::with(mirrored(&urls), Limits::default());
    env.store.pull_named("registry.example/x:1", None).await.unwrap();
    assert_eq!((broken.count("HEAD", ""), broken.count("GET", "")), (4, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_aborted_at_every_step() {
    for part in ["HEAD /v2/x/manifests/1", "GET /v2/x/manifests/1", "GET /v2/x/blobs/"] {
        let images = routes(&[("x:1", &made("x"))]);
        let server = Server::start(move |request| {
            let silent = format!("{} {}", request.method, request.path).starts_with(part);
            let pace = silent.then_some((1, Duration::from_secs(3600)));
            // Without a body, the head never arrives.
            match (silent, request.method.as_str()) {
                (true, "HEAD") => Answer { never: true, ..Answer::default() },
                _ => Answer { pace, ..route(&images, request) },
            }
        })
        .await;
        let env = impatient();
        let name = format!("{}/x:1", server.host);
        let pull = env.store.pull_named(&name, None);
        let error = tokio::time::timeout(Duration::from_secs(20), pull).await.expect(part).unwrap_err();
        assert_eq!(error.kind(), model::ErrorKind::Unavailable);
        assert!(chain(&error).contains("no progress for 0.3 s"), "{}", chain(&error));
        env.empty();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trickling_server_is_aborted_and_a_slow_one_is_not() {
    let made = Made::new(&[Tar::default().file("big", &noise()).end()], gzip);
    let layer = Digest::of(&made.layers[0]).to_string();
    for (pace, works) in [((8000, Duration::from_millis(60)), false), ((60_000, Duration::from_millis(60)), true)] {
        let (images, slow) = (routes(&[("x:1", &made)]), layer.clone());
        let server = Server::start(move |request| {
            let pace = request.path.contains(&slow).then_some(pace);
            Answer { pace, ..route(&images, request) }
        })
        .await;
        let env = impatient();
        let began = Instant::now();
        let outcome = env.store.pull_named(&format!("{}/x:1", server.host), None).await;
        assert_eq!(outcome.is_ok(), works, "{outcome:?}");
        assert!(began.elapsed() > Duration::from_secs(1), "longer than one stall");
        match works {
            true => assert_eq!(server.count("GET", &layer), 1),
            false => assert_eq!(server.count("GET", &layer), 4, "aborted after some attempts"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trickling_document_is_aborted() {
    // The first is below the minimum rate of a blob; the second is above, but would take too long.
    for (size, pace) in [(40 << 10, (1 << 10, 150)), (3 << 20, (70 << 10, 100))] {
        let mut made = made("x");
        made.manifest.extend(vec![b' '; size]);
        let images = routes(&[("x:1", &made)]);
        let pace = (pace.0, Duration::from_millis(pace.1));
        let server = Server::start(move |request| {
            let pace = (request.method == "GET").then_some(pace);
            Answer { pace, ..route(&images, request) }
        })
        .await;
        let began = Instant::now();
        let error = impatient().store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap_err();
        assert_eq!(error.kind(), model::ErrorKind::Unavailable, "{error:?}");
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_transfer_is_resumed_at_its_offset() {
    let made = Made::new(&[Tar::default().file("big", &noise()).end()], gzip);
    let images = routes(&[("x:1", &made)]);
    let server = Server::start(move |request| {
        let answer = route(&images, request);
        // Half a megabyte at once, then nothing for longer than the stall time.
        let pace = (answer.body.len() > 400_000).then_some((400_000, Duration::from_secs(3600)));
        Answer { pace, ..answer }
    })
    .await;
    let env = impatient();
    let image = env.store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap();
    let lowers = env.store.lowers(&image).unwrap();
    assert_eq!(std::fs::read(env.store.layers_dir().join(lowers[0].directory()).join("big")).unwrap(), noise());
    let traffic = env.store.traffic();
    assert_eq!(traffic.bytes, made.layers[0].len() as u64, "no byte is received twice");
    assert!(traffic.retries >= 2, "{traffic:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complete_blob_is_accepted_if_the_connection_breaks_after_it() {
    let made = made("x");
    let blob = Digest::of(&made.layers[0]).to_string();
    let (images, size) = (routes(&[("x:1", &made)]), made.layers[0].len());
    let server = Server::start(move |request| {
        if !request.path.contains(&blob) {
            return route(&images, request);
        }
        if request.header("range").is_some() {
            return Answer::status(416);
        }
        let mut answer = route(&images, request);
        answer.body.push(0);
        Answer { cut: Some(size), ..answer }
    })
    .await;
    TestEnv::new().store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap();
}
