//! A store for one test, and test images and registries.

use std::sync::Arc;

use crate::limits::Limits;
use crate::record::Image;
use crate::reference::Reference;
use crate::registry::endpoint::{Credentials, Registries, Registry, RegistryLogin};
use crate::registry::pull::PullRequest;
use crate::registry::pull_error::PullError;
use crate::store::Store;
use crate::test_support::{Answer, Made, Server, Tar, gzip, route, routes};

pub(crate) struct TestEnv {
    pub(crate) store: Arc<Store>,
    directory: tempfile::TempDir,
}

impl TestEnv {
    pub(crate) fn new() -> Self {
        Self::with(Registries::default(), Limits::default())
    }

    /// Creates a store with a section for each of `servers`, so that responses may name them though
    /// they are on this node.
    pub(crate) fn knowing(servers: &[&Server]) -> Self {
        let hosts = servers.iter().map(|server| (server.host.clone(), Registry::default())).collect();
        Self::with(Registries { hosts, ..Registries::default() }, Limits::default())
    }

    pub(crate) fn with(registries: Registries, limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path(), registries, limits).unwrap();
        store.remove_unused().unwrap();
        Self { store: Arc::new(store), directory }
    }

    /// Lists `directory` of the store.
    pub(crate) fn list(&self, directory: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path().join(directory)).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn read(&self, image: &Image, path: &str) -> String {
        let lowers = self.store.lowers(image).unwrap();
        let found = lowers.iter().map(|lower| self.store.layers_dir().join(lower.directory()).join(path));
        let found = found.into_iter().find(|path| path.exists());
        std::fs::read_to_string(found.unwrap_or_else(|| panic!("{path} is in no layer"))).unwrap()
    }

    /// Checks that the store has no files.
    pub(crate) fn empty(&self) {
        for directory in ["layers", "images", "tmp"] {
            assert_eq!(self.list(directory), Vec::<String>::new(), "{directory}");
        }
    }
}

impl Store {
    /// Pulls the image `name` with credentials for the registry in the name, or docker.io.
    pub(crate) async fn pull_named(&self, name: &str, given: Option<Credentials>) -> Result<Arc<Image>, PullError> {
        let registry = name.parse::<Reference>().unwrap().registry().to_owned();
        self.pull_as(name, given.map(|credentials| RegistryLogin { registry, credentials })).await
    }

    /// Pulls the image `name` with `credentials`.
    pub(crate) async fn pull_as(
        &self,
        name: &str,
        credentials: Option<RegistryLogin>,
    ) -> Result<Arc<Image>, PullError> {
        let candidates = Reference::candidates(name, &self.search()).unwrap();
        self.pull(PullRequest { candidates, credentials }).await
    }
}

pub(crate) fn base() -> Vec<u8> {
    Tar::default().dir("etc").file("etc/base", b"base").end()
}

/// An image of two layers, distinguished by a text in the upper one.
pub(crate) fn made(text: &str) -> Made {
    Made::new(&[base(), Tar::default().file("top", text.as_bytes()).end()], gzip)
}

/// A registry that requires `Authorization: wanted` and otherwise sends `challenge`.
pub(crate) async fn guarded(made: &Made, challenge: impl Into<String>, wanted: &str) -> Server {
    let (routes, challenge, wanted) = (routes(&[("x:1", made)]), challenge.into(), wanted.to_owned());
    Server::start(move |request| match request.header("authorization") {
        Some(value) if value == wanted => route(&routes, request),
        _ => Answer::status(401).with("www-authenticate", challenge.clone()),
    })
    .await
}

pub(crate) fn me() -> Credentials {
    Credentials::Basic { username: "me".into(), password: "secret".into() }
}

/// `registry.example`, available only from these mirrors.
pub(crate) fn mirrored(urls: &[String]) -> Registries {
    let mirrors = urls.iter().map(|url| url.parse().unwrap()).collect();
    let registry = Registry { mirrors, mirrors_only: true, ..Registry::default() };
    Registries { hosts: [("registry.example".to_owned(), registry)].into(), ..Registries::default() }
}
