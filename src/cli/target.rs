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
    #[error("pod or container {0:?} not found; list them with `crictl pods` and `crictl ps -a`")]
    Nothing(String),
    #[error("{word:?} is ambiguous, it matches: {}", found.join(", "))]
    Several { word: String, found: Vec<String> },
}

/// A pod or container that an argument may refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    target: Target,
    /// All names that refer to it.
    names: Vec<String>,
    alive: bool,
}

impl Candidate {
    fn id(&self) -> &str {
        match &self.target {
            Target::Container(id) | Target::Pod(id) => id,
        }
    }

    fn words(&self) -> String {
        let kind = match &self.target {
            Target::Container(_) => "container",
            Target::Pod(_) => "pod",
        };
        let name = self.names.last().map_or("", String::as_str);
        format!("{kind} {name} ({})", short(self.id()))
    }
}

/// Finds the pod or container for an ID or ID prefix, a name, `POD/CONTAINER` or `NAMESPACE/POD`.
pub(super) async fn find(cri: &Cri, word: &str) -> Result<Target, TargetError> {
    let pods = cri.runtime().list_pod_sandbox(v1::ListPodSandboxRequest::default()).await;
    let pods = pods.map_err(call("listing pods"))?.into_inner().items;
    let containers = cri.runtime().list_containers(v1::ListContainersRequest::default()).await;
    let containers = containers.map_err(call("listing containers"))?.into_inner().containers;
    choose(word, &candidates(&pods, &containers))
}

fn candidates(pods: &[v1::PodSandbox], containers: &[v1::Container]) -> Vec<Candidate> {
    let pod_name = |id: &str| {
        let pod = pods.iter().find(|pod| pod.id == id)?;
        pod.metadata.as_ref().map(|meta| meta.name.clone())
    };
    let container = |container: &v1::Container| {
        let name = container.metadata.as_ref().map(|meta| meta.name.clone()).unwrap_or_default();
        let within = pod_name(&container.pod_sandbox_id).map(|pod| format!("{pod}/{name}"));
        Candidate {
            target: Target::Container(container.id.clone()),
            names: [Some(name), within].into_iter().flatten().collect(),
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
        ([], _) => Err(TargetError::Nothing(word.to_owned())),
        ([one], _) | (_, [one]) => Ok(one.target.clone()),
        (several, _) => {
            let found = several.iter().map(|one| one.words()).collect();
            Err(TargetError::Several { word: word.to_owned(), found })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(id: &str, name: &str, alive: bool) -> Candidate {
        let names = vec![name.to_owned(), format!("shop/{name}")];
        Candidate { target: Target::Container(id.to_owned()), names, alive }
    }

    fn pod(id: &str, name: &str) -> Candidate {
        let names = vec![name.to_owned(), format!("default/{name}")];
        Candidate { target: Target::Pod(id.to_owned()), names, alive: true }
    }

    #[test]
    fn a_target_is_found_by_id_name_or_id_prefix() {
        let all = [container("abc1", "web", true), container("abd2", "db", true), pod("fff3", "shop")];
        for (word, id) in [("abc1", "abc1"), ("abc", "abc1"), ("db", "abd2"), ("shop/web", "abc1")] {
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
        assert!(matches!(choose("", &all), Err(TargetError::Nothing(_))));
        assert!(matches!(choose("x", &all), Err(TargetError::Nothing(_))));
    }

    #[test]
    fn the_running_container_is_chosen_among_attempts() {
        let all = [container("abc1", "web", false), container("abd2", "web", true)];
        assert_eq!(choose("web", &all).unwrap(), Target::Container("abd2".to_owned()));
    }
}
