use super::*;
use crate::registry::endpoint::Registries;
use crate::registry::tests::support::{TestEnv, made, me};
use crate::test_support::{Answer, Server};

fn searching(hosts: &[&str]) -> TestEnv {
    let search = hosts.iter().map(|&host| host.to_owned()).collect();
    TestEnv::with(Registries { search, ..Registries::default() }, Limits::default())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_registry_that_has_a_short_name_wins() {
    let (one, two) = (made("one"), made("two"));
    let absent = Server::start(|_| Answer::status(404)).await;
    let guarded = Server::start(|_| Answer::status(401).with("www-authenticate", "Basic realm=\"r\"")).await;
    let first = Server::of(&[("a/x:1", &one)]).await;
    let second = Server::of(&[("a/x:1", &two), ("a/y:1", &two)]).await;
    let env = searching(&[&absent.host, &guarded.host, &first.host, &second.host]);
    let image = env.store.pull_named("a/x:1", Some(me())).await.unwrap();
    assert_eq!(image.repo_tags, [format!("{}/a/x:1", first.host)]);
    assert!(second.seen().is_empty(), "not queried after it was found");
    for server in [&absent, &guarded, &first] {
        assert!(server.seen().iter().all(|seen| seen.header("authorization").is_none()), "no credentials are sent");
    }
    // It is found in the store by the same list.
    assert_eq!(env.store.find("a/x:1"), Some(image.clone()));
    assert_eq!(env.store.find(&image.id.hex()[..12]), Some(image.clone()));
    assert_eq!(env.store.find("a/y:1"), None);
    env.store.pull_named("a/y:1", None).await.unwrap();
    env.store.remove("a/x:1").unwrap();
    assert_eq!(env.store.find("a/x:1"), None);
    assert!(env.store.find("a/y:1").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_search_reports_the_errors_of_all_registries() {
    let (one, two) = (Server::start(|_| Answer::status(404)).await, Server::start(|_| Answer::status(403)).await);
    let env = searching(&[&one.host, &two.host]);
    let error = env.store.pull_named("x", None).await.unwrap_err();
    let text = chain(&error);
    for part in [&one.host, &two.host, "404", "403"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(error.kind(), model::ErrorKind::Denied);
    let absent = searching(&[&one.host]).store.pull_named("x", None).await.unwrap_err();
    assert_eq!(absent.kind(), model::ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_has_the_name_but_wrong_content_ends_the_search() {
    let good = made("x");
    let spoiled = Server::start(|request| match request.method.as_str() {
        "HEAD" => Answer::ok("").with("docker-content-digest", Digest::of(b"x").to_string()),
        _ => Answer::status(404),
    })
    .await;
    let second = Server::of(&[("x:1", &good)]).await;
    let error = searching(&[&spoiled.host, &second.host]).store.pull_named("x:1", None).await.unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::NotFound, "{error:?}");
    assert!(second.seen().is_empty());
    // A registry without HEAD is queried with GET.
    let silent = Server::start(|request| match request.method.as_str() {
        "HEAD" => Answer::status(405),
        _ => Answer::status(404),
    })
    .await;
    searching(&[&silent.host, &second.host]).store.pull_named("x:1", None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn short_names_are_refused_if_no_registry_to_search_is_configured() {
    let env = searching(&[]);
    let error = Reference::candidates("busybox", &env.store.search()).unwrap_err();
    assert_eq!(error.kind(), model::ErrorKind::Invalid);
    assert!(error.to_string().contains("has no registry, and no registry to search is configured"), "{error}");
    assert_eq!(env.store.find("busybox"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_registry_ends_the_search_and_is_named() {
    let second = Server::of(&[("x:1", &made("x"))]).await;
    let broken = Server::start(|_| Answer::status(503)).await;
    for first in ["127.0.0.1:1", &broken.host] {
        let error = searching(&[first, &second.host]).store.pull_named("x:1", None).await.unwrap_err();
        assert_eq!(error.kind(), model::ErrorKind::Unavailable, "{error:?}");
        assert!(chain(&error).contains(first), "{}", chain(&error));
        assert!(second.seen().is_empty(), "the image there may be another one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_with_a_short_name_are_for_docker_hub_by_default() {
    let wanted = crate::registry::auth::basic("me", "secret");
    let server = crate::registry::tests::support::guarded(&made("x"), "Basic realm=\"r\"", &wanted).await;
    let env = searching(&[&server.host]);
    env.store.pull_named("x:1", Some(me())).await.unwrap_err();
    assert!(server.seen().iter().all(|seen| seen.header("authorization").is_none()), "it is not Docker Hub");
    let login = |registry: &str| Some(RegistryLogin { registry: registry.to_owned(), credentials: me() });
    env.store.pull_as("x:1", login("docker.io")).await.unwrap_err();
    assert!(server.seen().iter().all(|seen| seen.header("authorization").is_none()));
    env.store.pull_as("x:1", login(&server.host)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_name_is_not_a_tag_of_a_repository_named_sha256() {
    let server = Server::of(&[("library/sha256:nginx", &made("x"))]).await;
    let mirrors = vec![format!("http://{}", server.host).parse().unwrap()];
    let registry = crate::registry::endpoint::Registry { mirrors, mirrors_only: true, ..Default::default() };
    let hosts = [("docker.io".to_owned(), registry)].into();
    let env = TestEnv::with(Registries { hosts, ..Registries::default() }, Limits::default());
    env.store.pull_named("docker.io/library/sha256:nginx", None).await.unwrap();
    assert_eq!(env.store.find("nginx"), None);
    assert!(env.store.find("docker.io/library/sha256:nginx").is_some());
}
