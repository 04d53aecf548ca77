use std::sync::Arc;
use std::time::Duration;

use crate::digest::Digest;
use crate::registry::pull_error::PullError;
use crate::registry::tests::support::{TestEnv, guarded, made, me};
use crate::test_support::{Answer, Made, Seen, Server, route, routes};
use model::ErrorClass as _;
use model::error_chain::chain;

async fn refused(server: &Server) -> PullError {
    refused_knowing(server, &[]).await
}

/// Does the same as [`refused`]; responses may refer to `others`.
async fn refused_knowing(server: &Server, others: &[&Server]) -> PullError {
    let env = TestEnv::knowing(others);
    let error = env.store.pull_named(&format!("{}/x:1", server.host), Some(me())).await.unwrap_err();
    env.empty();
    error
}

/// Returns `made` with a changed manifest.
fn altered(made: &Made, alter: impl FnOnce(&mut serde_json::Value)) -> Made {
    let mut manifest: serde_json::Value = serde_json::from_slice(&made.manifest).unwrap();
    alter(&mut manifest);
    Made { manifest: serde_json::to_vec(&manifest).unwrap(), ..made.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn urls_in_descriptors_are_never_followed() {
    let made = made("x");
    let blobs = routes(&[("x:1", &made)]);
    let foreign = Server::start(move |request| route(&blobs, request)).await;
    let url = format!("http://{}/v2/x/blobs/{}", foreign.host, Digest::of(&made.layers[1]));
    let lured = altered(&made, |manifest| {
        manifest["layers"][1]["urls"] = serde_json::json!([url]);
        manifest["layers"][1]["mediaType"] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip".into();
        manifest["config"]["urls"] = serde_json::json!([url]);
    });
    let mut images = routes(&[("x:1", &lured)]);
    let server = {
        let images = images.clone();
        Server::start(move |request| route(&images, request)).await
    };
    TestEnv::new().store.pull_named(&format!("{}/x:1", server.host), Some(me())).await.unwrap();
    // Also if the registry itself does not have it.
    images.remove(&format!("/v2/x/blobs/{}", Digest::of(&made.layers[1])));
    let server = Server::start(move |request| route(&images, request)).await;
    assert_eq!(refused(&server).await.kind(), model::ErrorKind::NotFound);
    assert!(foreign.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_challenge_from_another_host_is_not_answered_even_after_a_redirect() {
    let tokens = Server::start(|_| Answer::ok(r#"{"token":"T"}"#)).await;
    let challenge = format!(r#"Bearer realm="http://{}/token""#, tokens.host);
    let greedy = Server::start(move |_| Answer::status(401).with("www-authenticate", challenge.clone())).await;
    let target = format!("http://{}/v2/x/manifests/1", greedy.host);
    let server = Server::start(move |_| Answer::status(302).with("location", target.clone())).await;
    let error = refused_knowing(&server, &[&greedy, &tokens]).await;
    assert!(chain(&error).contains(&greedy.host), "{}", chain(&error));
    assert!(tokens.seen().is_empty());
    assert!(greedy.seen().iter().all(|seen| seen.header("authorization").is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_and_realms_with_credentials_are_refused() {
    let other = Server::start(|_| Answer::status(404)).await;
    let answers = [
        Answer::status(302).with("location", format!("http://me:hunter2@{}/x", other.host)),
        Answer::status(401).with("www-authenticate", format!(r#"Bearer realm="http://me:hunter2@{}/x""#, other.host)),
        Answer::status(302).with("location", "ftp://elsewhere/x"),
        Answer::status(302).with("location", "http://"),
        Answer::status(302),
    ];
    for answer in answers {
        let server = Server::start(move |_| answer.clone()).await;
        let error = refused(&server).await;
        assert_eq!(error.kind(), model::ErrorKind::Invalid, "{error:?}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    assert!(other.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_response_directs_a_pull_to_a_server_on_this_node() {
    let local = Server::start(|_| Answer::ok(r#"{"token":"T"}"#)).await;
    let port = local.host.rsplit(':').next().unwrap().to_owned();
    for host in ["127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]", "0.0.0.0"] {
        let url = format!("http://{host}:{port}/sesame?x=y");
        let answers = [
            Answer::status(302).with("location", url.clone()),
            Answer::status(401).with("www-authenticate", format!(r#"Bearer realm="{url}""#)),
        ];
        for answer in answers {
            let server = Server::start(move |_| answer.clone()).await;
            let error = refused(&server).await;
            let text = chain(&error);
            assert_eq!(error.kind(), model::ErrorKind::Invalid, "{host}: {error:?}");
            assert!(
                text.contains("to allow it, add a section for that server under [registries]")
                    && !text.contains("sesame"),
                "{host}: {text}"
            );
        }
    }
    assert!(local.seen().is_empty());
    // A server in the configuration may have any address.
    let target = format!("http://{}/sesame", local.host);
    let server = Server::start(move |_| Answer::status(302).with("location", target.clone())).await;
    refused_knowing(&server, &[&local]).await;
    assert!(!local.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_do_not_repeat_untrusted_responses_of_other_servers() {
    let bodies = [
        r#"{"schemaVersion": "open-sesame"}"#,
        r#"{"schemaVersion": 2, "config": {"digest": "open-sesame", "size": 1}, "layers": []}"#,
        "open-sesame",
    ];
    for body in bodies {
        let other = Server::start(move |_| Answer::ok(body)).await;
        let target = format!("http://{}/open-sesame", other.host);
        let server = Server::start(move |_| Answer::status(302).with("location", target.clone())).await;
        let error = refused_knowing(&server, &[&other]).await;
        assert!(!chain(&error).contains("sesame") && !format!("{error:?}").contains("sesame"), "{error:?}");
    }
    let other = Server::start(|_| Answer::status(500)).await;
    let target = format!("http://{}/open-sesame", other.host);
    let server = Server::start(move |_| Answer::status(302).with("location", target.clone())).await;
    let text = chain(&refused_knowing(&server, &[&other]).await);
    assert!(text.contains(&other.host) && text.contains("500") && !text.contains("sesame"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_redirects_between_hosts_is_limited() {
    let there = Arc::new(std::sync::OnceLock::<String>::new());
    let target = there.clone();
    let one = Server::start(move |request: &Seen| {
        Answer::status(302).with("location", format!("http://{}{}", target.get().unwrap(), request.path))
    })
    .await;
    let host = one.host.clone();
    let two = Server::start(move |request: &Seen| {
        Answer::status(302).with("location", format!("http://{host}{}", request.path))
    })
    .await;
    there.set(two.host.clone()).unwrap();
    assert!(chain(&refused_knowing(&one, &[&one, &two]).await).contains("too many redirects"));
    assert!(one.seen().len() + two.seen().len() < 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_tokens_and_headers_are_not_read() {
    let tokens = Server::start(|_| Answer::ok(vec![b' '; 2 << 20])).await;
    let server = guarded(&made("x"), format!(r#"Bearer realm="http://{}/t""#, tokens.host), "Bearer T").await;
    assert_eq!(refused_knowing(&server, &[&tokens]).await.kind(), model::ErrorKind::Exhausted);
    let many = (0..200).fold(Answer::ok(""), |answer, at| answer.with(&format!("x-{at}"), "x"));
    let long = Answer::ok("").with("x", "x".repeat(4 << 20));
    for answer in [many, long] {
        let server = Server::start(move |_| answer.clone()).await;
        let error = refused(&server).await;
        assert_eq!(error.kind(), model::ErrorKind::Unavailable, "{error:?}");
        assert!(chain(&error).len() < 2000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_tokens_are_refused() {
    for token in ["", "{}", "[]", r#"{"token":""}"#, r#"{"token":"a\nb"}"#, r#"{"token":1}"#] {
        let tokens = Server::start(move |_| Answer::ok(token)).await;
        let server = guarded(&made("x"), format!(r#"Bearer realm="http://{}/t""#, tokens.host), "Bearer T").await;
        let kind = refused_knowing(&server, &[&tokens]).await.kind();
        assert!(matches!(kind, model::ErrorKind::Invalid | model::ErrorKind::Unauthenticated), "{token:?}: {kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_of_another_size_than_declared_is_refused() {
    let good = made("x");
    for (place, size) in [("config", -1), ("config", 1), ("layers", -1), ("layers", 1)] {
        let server = Server::of(&[(
            "x:1",
            &altered(&good, |manifest| {
                let descriptor = match place {
                    "config" => &mut manifest["config"],
                    _ => &mut manifest["layers"][0],
                };
                let announced = descriptor["size"].as_i64().unwrap();
                descriptor["size"] = (announced + size).into();
            }),
        )])
        .await;
        let error = refused(&server).await;
        assert_ne!(error.kind(), model::ErrorKind::Internal, "{place} {size}: {error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_must_match_its_index_entry() {
    let made = made("x");
    let (os, architecture, _) = crate::platform::host();
    let digest = Digest::of(&made.manifest);
    let right = made.manifest.len();
    for (size, kind) in [
        (right, None),
        (right + 1, Some(model::ErrorKind::Invalid)),
        (right - 1, Some(model::ErrorKind::Exhausted)),
        (usize::MAX, Some(model::ErrorKind::Exhausted)),
    ] {
        let platform = serde_json::json!({"os": os, "architecture": architecture});
        let entry = serde_json::json!({"digest": digest, "size": size, "platform": platform});
        let index = serde_json::json!({"schemaVersion": 2, "manifests": [entry]});
        let mut images = routes(&[("x:1", &made)]);
        images.insert("/v2/x/manifests/1".into(), serde_json::to_vec(&index).unwrap());
        let server = Server::start(move |request| route(&images, request)).await;
        let outcome = TestEnv::new().store.pull_named(&format!("{}/x:1", server.host), None).await;
        assert_eq!(outcome.err().map(|error| error.kind()), kind, "{size}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_indexes_are_limited() {
    let mut images = std::collections::HashMap::new();
    let mut below = made("x").manifest;
    for _ in 0..5 {
        images.insert(format!("/v2/x/manifests/{}", Digest::of(&below)), below.clone());
        let entry = serde_json::json!({"digest": Digest::of(&below), "size": below.len()});
        below = serde_json::to_vec(&serde_json::json!({"schemaVersion": 2, "manifests": [entry]})).unwrap();
    }
    images.insert("/v2/x/manifests/1".into(), below);
    let server = Server::start(move |request| route(&images, request)).await;
    assert!(chain(&refused(&server).await).contains("too many levels of other indexes"));
    assert!(server.seen().len() < 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_in_tiny_pieces_yields_the_same_image() {
    let images = routes(&[("x:1", &made("x"))]);
    let server =
        Server::start(move |request| Answer { pace: Some((1, Duration::from_micros(10))), ..route(&images, request) })
            .await;
    let env = TestEnv::new();
    let image = env.store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap();
    assert_eq!(env.read(&image, "top"), "x");
}
