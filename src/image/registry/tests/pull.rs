use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::registry::endpoint::{Registries, Registry};
use crate::registry::tests::support::{TestEnv, guarded, made, me};
use crate::test_support::{Answer, Made, Seen, Server, Tar, gzip, route, routes};

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_pulled_whole_and_checked_again_with_one_request() {
    let made = made("one");
    let server = Server::of(&[("a/b:1", &made)]).await;
    let env = TestEnv::new();
    let name = format!("{}/a/b:1", server.host);
    let image = env.store.pull_named(&name, None).await.unwrap();
    assert_eq!(image.id, made.id());
    assert_eq!(image.repo_tags, std::slice::from_ref(&name));
    assert_eq!(image.repo_digests, [format!("{}/a/b@{}", server.host, Digest::of(&made.manifest))]);
    assert_eq!(env.store.config(&image).unwrap().cmd, ["sh"]);
    assert_eq!((env.read(&image, "top"), env.read(&image, "etc/base")), ("one".into(), "base".into()));
    assert_eq!(env.list("tmp"), Vec::<String>::new());
    assert!(env.store.usage().bytes > 0);
    let before = server.seen().len();
    assert_eq!(env.store.pull_named(&name, None).await.unwrap(), image);
    assert_eq!(server.seen().len(), before + 1);
    assert_eq!(server.seen().last().unwrap().method, "HEAD");
    assert_eq!(env.store.blob(&image.id).unwrap(), made.config);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_pulls_download_everything_once() {
    let (one, two) = (made("one"), made("two"));
    let server = Server::of(&[("x:1", &one), ("x:2", &two)]).await;
    let env = TestEnv::new();
    let pulls = (0..20).map(|at| {
        let (store, name) = (env.store.clone(), format!("{}/x:{}", server.host, at % 2 + 1));
        tokio::spawn(async move { store.pull_named(&name, None).await })
    });
    for pull in pulls.collect::<Vec<_>>() {
        pull.await.unwrap().unwrap();
    }
    for blob in one.blobs().chain(two.blobs()) {
        assert_eq!(server.count("GET", Digest::of(blob).as_str()), 1);
    }
    assert_eq!((server.count("HEAD", "manifests"), server.count("GET", "manifests")), (20, 2));
    assert_eq!(env.list("layers").len(), 3);
    assert_eq!(env.store.list().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_callers_each_need_their_own_credentials() {
    let made = made("x");
    let server = guarded(&made, "Basic realm=\"r\"", &crate::registry::auth::basic("me", "secret")).await;
    let env = TestEnv::new();
    let pulls = (0..10).map(|at| {
        let (store, name) = (env.store.clone(), format!("{}/x:1", server.host));
        tokio::spawn(async move { store.pull_named(&name, (at % 2 == 0).then(me)).await.is_ok() })
    });
    for (at, pull) in pulls.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(pull.await.unwrap(), at % 2 == 0, "{at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_caller_does_not_stop_the_pull_of_the_others() {
    let made = made("x");
    let images = routes(&[("x:1", &made), ("y:1", &made)]);
    let calls = AtomicUsize::new(0);
    let slow = Digest::of(&made.layers[1]).to_string();
    let server = Server::start(move |request| {
        // The first request for the layer gets only a few bytes.
        let first = request.path.contains(&slow) && calls.fetch_add(1, Ordering::Relaxed) == 0;
        Answer { pace: first.then_some((10, Duration::from_secs(3600))), ..route(&images, request) }
    })
    .await;
    let env = TestEnv::new();
    let start = |name: &str| {
        let (store, name) = (env.store.clone(), format!("{}/{name}:1", server.host));
        tokio::spawn(async move { store.pull_named(&name, None).await })
    };
    let first = start("x");
    while !env.store.traffic().pulling.iter().any(|pull| pull.bytes > 10 && pull.layers == 1) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Some wait for the same image, others for the same layer of another image.
    let others: Vec<_> = ["x", "x", "y", "y"].map(start).into();
    while server.count("HEAD", "manifests") < 5 || env.store.traffic().pulling.len() < 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(others.iter().all(|other| !other.is_finished()));
    first.abort();
    for other in others {
        assert_eq!(other.await.unwrap().unwrap().id, made.id());
    }
    assert_eq!(server.count("GET", Digest::of(&made.layers[1]).as_str()), 2);
    assert_eq!(env.list("tmp"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moved_tag_leaves_the_old_image_with_its_digest() {
    let (one, two) = (made("one"), made("two"));
    let calls = AtomicUsize::new(0);
    let (old, new) = (routes(&[("x:1", &one)]), routes(&[("x:1", &two)]));
    let server = Server::start(move |request| {
        let first = calls.fetch_add(1, Ordering::Relaxed) < 5;
        route(if first { &old } else { &new }, request)
    })
    .await;
    let env = TestEnv::new();
    let name = format!("{}/x:1", server.host);
    let first = env.store.pull_named(&name, None).await.unwrap();
    assert_eq!(server.seen().len(), 5, "HEAD, manifest, config, two layers");
    let second = env.store.pull_named(&name, None).await.unwrap();
    assert_eq!(second.id, two.id());
    let first = env.store.find(first.id.as_str()).unwrap();
    assert_eq!((first.repo_tags.len(), first.repo_digests.len()), (0, 1));
    assert_eq!(env.store.find(&name).unwrap().id, two.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_by_digest_ignores_the_digest_in_the_headers_of_the_registry() {
    let (old, new) = (made("old"), made("new"));
    let images = routes(&[("x:1", &old), ("x:2", &new)]);
    let lie = Digest::of(&old.manifest).to_string();
    let server = Server::start(move |request| match request.method.as_str() {
        "HEAD" => Answer::ok("").with("docker-content-digest", lie.clone()),
        _ => route(&images, request),
    })
    .await;
    let env = TestEnv::new();
    env.store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap();
    let wanted = format!("{}/x@{}", server.host, Digest::of(&new.manifest));
    let image = env.store.pull_named(&wanted, None).await.unwrap();
    assert_eq!(image.id, new.id());
    assert_eq!(image.repo_digests, [wanted]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_entry_of_an_index_for_this_machine_is_pulled() {
    let made = made("mine");
    let (os, architecture, _) = crate::platform::host();
    let entry = |architecture: &str, content: &[u8]| {
        let platform = serde_json::json!({"os": os, "architecture": architecture});
        serde_json::json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": Digest::of(content),
            "size": content.len(), "platform": platform})
    };
    let index = serde_json::to_vec(&serde_json::json!({
        "schemaVersion": 2, "manifests": [entry("vax", b"other"), entry(architecture, &made.manifest)],
    }))
    .unwrap();
    let mut routes = routes(&[("x:1", &made)]);
    routes.insert("/v2/x/manifests/1".into(), index.clone());
    let server = Server::start(move |request| route(&routes, request)).await;
    let env = TestEnv::new();
    let image = env.store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap();
    assert_eq!(image.id, made.id());
    assert_eq!(image.repo_digests, [format!("{}/x@{}", server.host, Digest::of(&index))]);
    assert_eq!(image.manifest, Some(Digest::of(&made.manifest)));
}

#[tokio::test(flavor = "multi_thread")]
async fn basic_authentication_works_and_wrong_passwords_do_not() {
    let made = made("x");
    let server = guarded(&made, "Basic realm=\"r\"", &crate::registry::auth::basic("me", "secret")).await;
    let env = TestEnv::new();
    let name = format!("{}/x:1", server.host);
    let wrong = Credentials::Basic { username: "me".into(), password: "guess".into() };
    for credentials in [None, Some(wrong.clone())] {
        let error = env.store.pull_named(&name, credentials).await.unwrap_err();
        assert_eq!(error.kind(), model::ErrorKind::Unauthenticated, "{error:?}");
        assert!(!format!("{error:?}").contains("guess"));
    }
    env.empty();
    env.store.pull_named(&name, Some(me())).await.unwrap();
    // An image in the store is not returned to clients that may not pull it.
    let error = env.store.pull_named(&name, Some(wrong)).await.unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::Unauthenticated);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_fetched_from_the_realm_of_the_registry() {
    let made = made("x");
    let tokens = Server::start(|request| {
        let by_password =
            request.header("authorization") == Some(crate::registry::auth::basic("me", "secret").as_str());
        let by_refresh = request.method == "POST" && request.body.contains("refresh_token=fresh");
        if by_password || by_refresh { Answer::ok(r#"{"token":"T"}"#) } else { Answer::status(401) }
    })
    .await;
    let challenge = format!(r#"Bearer realm="http://{}/token?a=b",service="reg""#, tokens.host);
    let server = guarded(&made, challenge, "Bearer T").await;
    let name = format!("{}/x:1", server.host);
    let env = || TestEnv::knowing(&[&tokens]);
    env().store.pull_named(&name, Some(me())).await.unwrap();
    let asked = tokens.seen().remove(0);
    assert!(asked.path.contains("a=b") && asked.path.contains("service=reg"), "{}", asked.path);
    assert!(asked.path.contains("scope=repository%3Ax%3Apull"), "{}", asked.path);
    env().store.pull_named(&name, Some(Credentials::IdentityToken("fresh".into()))).await.unwrap();
    env().store.pull_named(&name, Some(Credentials::RegistryToken("T".into()))).await.unwrap();
    assert_eq!(env().store.pull_named(&name, None).await.unwrap_err().kind(), model::ErrorKind::Unauthenticated);
    assert!(server.seen().iter().all(|seen| !seen.header("authorization").is_some_and(|h| h.starts_with("Basic"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_another_host_sends_no_secret_and_ignores_its_challenge() {
    let made = made("x");
    let blobs = routes(&[("x:1", &made)]);
    let elsewhere = Server::start(move |request| route(&blobs, request)).await;
    let greedy = Server::start(|_| Answer::status(401).with("www-authenticate", "Basic realm=\"give\"")).await;
    for (target, works) in [(elsewhere, true), (greedy, false)] {
        let (routes, host) = (routes(&[("x:1", &made)]), target.host.clone());
        let server = Server::start(move |request: &Seen| match request.header("authorization") {
            None => Answer::status(401).with("www-authenticate", "Basic realm=\"r\""),
            Some(_) if request.path.contains("/blobs/") => {
                Answer::status(307).with("location", format!("http://{host}{}?sig=abc", request.path))
            }
            Some(_) => route(&routes, request),
        })
        .await;
        let env = TestEnv::knowing(&[&target]);
        let outcome = env.store.pull_named(&format!("{}/x:1", server.host), Some(me())).await;
        assert_eq!(outcome.is_ok(), works, "{outcome:?}");
        assert!(!target.seen().is_empty());
        assert!(target.seen().iter().all(|seen| seen.header("authorization").is_none()));
        if let Err(error) = outcome {
            assert!(!format!("{error:?}").contains("sig=abc"), "{error:?}");
            env.empty();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn circular_redirects_are_refused() {
    let server = Server::start(|request| Answer::status(302).with("location", request.path.clone())).await;
    let error = TestEnv::new().store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap_err();
    assert!(chain(&error).contains("too many redirects"), "{error:?}");
    assert!(server.seen().len() < 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_content_is_refused_and_leaves_no_files() {
    let made = made("x");
    let targets = [
        (format!("/v2/x/manifests/{}", Digest::of(&made.manifest)), true),
        (format!("/v2/x/blobs/{}", made.id()), false),
        (format!("/v2/x/blobs/{}", Digest::of(&made.layers[0])), false),
        (format!("/v2/x/blobs/{}", Digest::of(&made.layers[1])), false),
    ];
    for (path, by_digest) in targets {
        let mut routes = routes(&[("x:1", &made)]);
        let content = routes.get_mut(&path).unwrap();
        let last = content.len() - 1;
        content[last] ^= 1;
        let server = Server::start(move |request| route(&routes, request)).await;
        let env = TestEnv::new();
        let name = match by_digest {
            true => format!("{}/x@{}", server.host, Digest::of(&made.manifest)),
            false => format!("{}/x:1", server.host),
        };
        let error = env.store.pull_named(&name, None).await.unwrap_err();
        assert_eq!(error.kind(), model::ErrorKind::Invalid, "{path}: {error:?}");
        env.empty();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_transfer_is_resumed_at_its_offset() {
    let big: Vec<u8> = (0..300_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let made = Made::new(&[Tar::default().file("big", &big).end()], gzip);
    let routes = routes(&[("x:1", &made)]);
    let server = Server::start(move |request| {
        let answer = route(&routes, request);
        if answer.body.len() > 200_000 { Answer { cut: Some(200_000), ..answer } } else { answer }
    })
    .await;
    let env = TestEnv::new();
    let image = env.store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap();
    let lowers = env.store.lowers(&image).unwrap();
    assert_eq!(std::fs::read(env.store.layers_dir().join(lowers[0].directory()).join("big")).unwrap(), big);
    let asked = server.seen().iter().filter(|seen| seen.header("range").is_some()).count();
    assert!(asked >= 4, "{asked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_that_makes_no_progress_is_aborted() {
    for bytes in [0, 1] {
        let made = made("x");
        let (routes, layers) = (routes(&[("x:1", &made)]), made.layers.clone());
        let server = Server::start(move |request| {
            let is_layer = layers.iter().any(|layer| request.path.contains(Digest::of(layer).as_str()));
            Answer { cut: is_layer.then_some(bytes), ..route(&routes, request) }
        })
        .await;
        let env = TestEnv::new();
        let error = env.store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap_err();
        assert_eq!(error.kind(), model::ErrorKind::Unavailable, "{error:?}");
        assert!(server.count("GET", "/blobs/") < 10);
        env.empty();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_above_the_size_limit_are_not_read() {
    let made = made("x");
    let mut routes = routes(&[("x:1", &made)]);
    routes.insert("/v2/x/manifests/1".into(), vec![b' '; 5 << 20]);
    let server = Server::start(move |request| route(&routes, request)).await;
    let error = TestEnv::new().store.pull_named(&format!("{}/x:1", server.host), None).await.unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::Exhausted, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrors_are_tried_in_order_and_wrong_content_is_skipped() {
    let made = made("x");
    let empty = Server::start(|_| Answer::status(404)).await;
    let mut wrong = routes(&[("x:1", &made)]);
    for layer in &made.layers {
        wrong.insert(format!("/v2/x/blobs/{}", Digest::of(layer)), vec![0; layer.len()]);
    }
    let lying = Server::start(move |request| route(&wrong, request)).await;
    let good = Server::of(&[("x:1", &made)]).await;
    let env = TestEnv::new();
    let dead = "http://127.0.0.1:1".to_owned();
    let mirrors =
        [dead, format!("http://{}", empty.host), format!("http://{}", lying.host), format!("http://{}", good.host)];
    let mirrors = mirrors.iter().map(|url| url.parse().unwrap()).collect();
    let registry = Registry { mirrors, mirrors_only: true, ..Registry::default() };
    env.store.set_registries(Registries {
        hosts: [("registry.example".to_owned(), registry)].into(),
        ..Registries::default()
    });
    let image = env.store.pull_named("registry.example/x:1", Some(me())).await.unwrap();
    assert_eq!(image.repo_tags, ["registry.example/x:1"]);
    assert_eq!(env.read(&image, "top"), "x");
    for server in [&empty, &lying, &good] {
        assert!(!server.seen().is_empty());
        assert!(server.seen().iter().all(|seen| seen.path.contains("ns=registry.example")));
        assert!(server.seen().iter().all(|seen| seen.header("authorization").is_none()));
    }
    assert_eq!(env.list("tmp"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_pull_leaves_no_files() {
    let made = made("x");
    let routes: HashMap<_, _> = routes(&[("x:1", &made)]);
    // The second layer is in the manifest but is never sent.
    let stuck = Digest::of(&made.layers[1]).to_string();
    let server = Server::start(move |request| {
        if request.path.contains(&stuck) {
            std::thread::sleep(Duration::from_secs(1));
        }
        route(&routes, request)
    })
    .await;
    let env = TestEnv::new();
    let name = format!("{}/x:1", server.host);
    let outcome = tokio::time::timeout(Duration::from_millis(400), env.store.pull_named(&name, None)).await;
    assert!(outcome.is_err());
    for _ in 0..100 {
        if env.list("tmp").is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    env.empty();
    assert!(Path::new(&env.store.layers_dir()).exists());
}

#[test]
fn an_invalid_name_is_refused_before_any_request() {
    let error = Reference::candidates("Not//a name", &["docker.io".to_owned()]).unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_with_tls_never_falls_back_to_plain_http() {
    let made = made("x");
    let server = Server::of(&[("x:1", &made)]).await;
    let env = TestEnv::new();
    let mirrors = vec![format!("https://{}", server.host).parse().unwrap()];
    let registry = Registry { mirrors, mirrors_only: true, ..Registry::default() };
    env.store.set_registries(Registries {
        hosts: [("registry.example".to_owned(), registry)].into(),
        ..Registries::default()
    });
    let error = env.store.pull_named("registry.example/x:1", Some(me())).await.unwrap_err();
    assert!(matches!(error.kind(), model::ErrorKind::Unavailable | model::ErrorKind::Internal), "{error:?}");
    assert!(server.seen().iter().all(|seen| seen.method.is_empty() || !seen.path.starts_with("/v2")));
}
