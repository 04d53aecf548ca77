//! Resolves a command-line argument to a pod or container.

use cri_api::v1;

use super::client::{CallError, Cri, call};
use super::image::table::short;

/// The pod or container found, by ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Container(String),
    Pod(String),
}

#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("pod or container {word:?} not found{}; `crisp explain` lists all", near(.like))]
    Nothing { word: String, like: Vec<String> },
    #[error("name or ID {word:?} is ambiguous: {}", listed(.found))]
    Several { word: String, found: Vec<String> },
}

/// The most candidates in an error.
const SHOWN: usize = 10;
/// The shortest name that a longer unknown one is compared with.
const LIKE_MIN: usize = 3;

fn near(like: &[String]) -> String {
    if like.is_empty() { String::new() } else { format!("; did you mean {}?", listed(like)) }
}

fn listed(names: &[String]) -> String {
    let rest = names.len().saturating_sub(SHOWN);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{}{more}", names[..names.len() - rest].join(", "))
}

/// A pod or container that an argument may refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) target: Target,
    /// All names that refer to it, the full one last.
    names: Vec<String>,
    pub(super) alive: bool,
}

impl Candidate {
    pub(super) fn id(&self) -> &str {
        match &self.target {
            Target::Container(id) | Target::Pod(id) => id,
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match &self.target {
            Target::Container(_) => "container",
            Target::Pod(_) => "pod",
        }
    }

    /// Returns `NAMESPACE/POD` or `NAMESPACE/POD/CONTAINER`.
    pub(super) fn full_name(&self) -> &str {
        self.names.last().map_or("", String::as_str)
    }

    fn words(&self) -> String {
        format!("{} {} ({})", self.kind(), self.full_name(), short(self.id()))
    }
}

/// Finds the pod or container for an ID, a unique ID prefix, a unique name, `POD/CONTAINER`, `NAMESPACE/POD` or
/// `NAMESPACE/POD/CONTAINER`.
pub(super) async fn find(cri: &Cri, word: &str) -> Result<Target, TargetError> {
    choose(word, &all(cri).await?)
}

/// Lists all pods and containers, by full name.
pub(super) async fn all(cri: &Cri) -> Result<Vec<Candidate>, CallError> {
    let pods = cri.runtime().list_pod_sandbox(v1::ListPodSandboxRequest::default()).await;
    let pods = pods.map_err(call("listing pods"))?.into_inner().items;
    let containers = cri.runtime().list_containers(v1::ListContainersRequest::default()).await;
    let containers = containers.map_err(call("listing containers"))?.into_inner().containers;
    let mut all = candidates(&pods, &containers);
    all.sort_by(|a, b| (a.full_name(), a.id()).cmp(&(b.full_name(), b.id())));
    Ok(all)
}

fn candidates(pods: &[v1::PodSandbox], containers: &[v1::Container]) -> Vec<Candidate> {
    let meta_of = |id: &str| pods.iter().find(|pod| pod.id == id)?.metadata.as_ref();
    let container = |container: &v1::Container| {
        let name = container.metadata.as_ref().map(|meta| meta.name.clone()).unwrap_or_default();
        let mut names = vec![name.clone()];
        if let Some(v1::PodSandboxMetadata { name: pod, namespace, .. }) = meta_of(&container.pod_sandbox_id) {
            names.extend([format!("{pod}/{name}"), format!("{namespace}/{pod}/{name}")]);
        }
        Candidate {
            target: Target::Container(container.id.clone()),
            names,
            alive: container.state() == v1::ContainerState::ContainerRunning,
        }
    };
    let pod = |pod: &v1::PodSandbox| {
        let meta = pod.metadata.clone().unwrap_or_default();
        Candidate {
            target: Target::Pod(pod.id.clone()),
            names: vec![meta.name.clone(), format!("{}/{}", meta.namespace, meta.name)],
            alive: pod.state() == v1::PodSandboxState::SandboxReady,
        }
    };
    containers.iter().map(container).chain(pods.iter().map(pod)).collect()
}

/// Chooses by full ID, then name, then ID prefix; if several match, the only running one is chosen.
fn choose(word: &str, all: &[Candidate]) -> Result<Target, TargetError> {
    let exact = || all.iter().filter(|one| one.id() == word).collect::<Vec<_>>();
    let named = || all.iter().filter(|one| one.names.iter().any(|name| name == word)).collect::<Vec<_>>();
    let begun = || all.iter().filter(|one| !word.is_empty() && one.id().starts_with(word)).collect::<Vec<_>>();
    let found = [exact(), named(), begun()].into_iter().find(|found| !found.is_empty()).unwrap_or_default();
    let alive: Vec<_> = found.iter().copied().filter(|one| one.alive).collect();
    match (&found[..], &alive[..]) {
        ([], _) => Err(TargetError::Nothing { word: word.to_owned(), like: similar(word, all) }),
        ([one], _) | (_, [one]) => Ok(one.target.clone()),
        (several, _) => {
            let found = several.iter().map(|one| one.words()).collect();
            Err(TargetError::Several { word: word.to_owned(), found })
        }
    }
}

/// Returns the full names with the last part of `word`: the namespace or pod may be another one.
fn similar(word: &str, all: &[Candidate]) -> Vec<String> {
    let last = word.rsplit('/').next().filter(|last| !last.is_empty());
    let Some(last) = last else { return Vec::new() };
    let like = all.iter().map(Candidate::full_name).filter(|name| {
        name.rsplit('/')
            .next()
            .is_some_and(|own| own.starts_with(last) || (last.starts_with(own) && own.len() >= LIKE_MIN))
    });
    like.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(id: &str, name: &str, alive: bool) -> Candidate {
        let names = vec![name.to_owned(), format!("shop/{name}"), format!("default/shop/{name}")];
        Candidate { target: Target::Container(id.to_owned()), names, alive }
    }

    fn pod(id: &str, name: &str) -> Candidate {
        let names = vec![name.to_owned(), format!("default/{name}")];
        Candidate { target: Target::Pod(id.to_owned()), names, alive: true }
    }

    #[test]
    fn a_target_is_found_by_id_name_or_id_prefix() {
        let all = [container("abc1", "web", true), container("abd2", "db", true), pod("fff3", "shop")];
        for (word, id) in
            [("abc1", "abc1"), ("abc", "abc1"), ("db", "abd2"), ("shop/web", "abc1"), ("default/shop/db", "abd2")]
        {
            assert_eq!(choose(word, &all).unwrap(), Target::Container(id.to_owned()), "{word}");
        }
        for word in ["f", "shop", "default/shop"] {
            assert_eq!(choose(word, &all).unwrap(), Target::Pod("fff3".to_owned()), "{word}");
        }
    }

    #[test]
    fn an_ambiguous_target_is_refused_with_the_matches() {
        let all = [container("abc1", "web", true), container("abd2", "web", true)];
        let words = choose("ab", &all).unwrap_err().to_string();
        assert!(words.contains("abc1") && words.contains("abd2"), "{words}");
        assert!(matches!(choose("web", &all), Err(TargetError::Several { .. })));
        assert!(words.contains("default/shop/web"), "{words}");
    }

    #[test]
    fn an_unknown_target_is_refused_with_similar_names_and_the_command_that_lists_all() {
        let all = [container("abc1", "web", true), pod("fff3", "shop")];
        for word in ["", "x", "default"] {
            let words = choose(word, &all).unwrap_err().to_string();
            assert!(words.ends_with(" not found; `crisp explain` lists all"), "{word}: {words}");
        }
        for word in ["we", "other/web", "web-1"] {
            let words = choose(word, &all).unwrap_err().to_string();
            assert!(words.contains("did you mean default/shop/web?"), "{word}: {words}");
        }
    }

    #[test]
    fn an_error_names_at_most_ten_candidates() {
        let names: Vec<String> = (0..12).map(|number| number.to_string()).collect();
        assert_eq!(listed(&names), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
        assert_eq!(listed(&names[..2]), "0, 1");
    }

    #[test]
    fn the_running_container_is_chosen_among_attempts() {
        let all = [container("abc1", "web", false), container("abd2", "web", true)];
        assert_eq!(choose("web", &all).unwrap(), Target::Container("abd2".to_owned()));
    }
}
