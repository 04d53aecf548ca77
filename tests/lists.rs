//! Which pods and containers a list has.

use wire::v1;

use crate::client::{Client, Pod, container};
use crate::harness::Daemon;

/// Two pods, one with label `tier=front`; a running container in each, and an exited one in the first.
struct Shop {
    daemon: Daemon,
    front: Pod,
    back: Pod,
    running: String,
    exited: String,
    other: String,
}

impl Shop {
    fn new() -> Self {
        let daemon = Daemon::start();
        let client = daemon.client();
        let labelled = |name: &'static str, tier: &'static str| {
            daemon.run_pod_with(name, |config| {
                config.labels.insert("tier".into(), tier.into());
                config.labels.insert("app".into(), "shop".into());
            })
        };
        let (front, back) = (labelled("front", "front"), labelled("back", "back"));
        let running = client.run_idle(&front, "running");
        let mut config = container("exited", &["true"]);
        config.labels.insert("role".into(), "done".into());
        let exited = client.finish_config(&front, config).id;
        let other = client.run_idle(&back, "other");
        Self { front, back, running, exited, other, daemon }
    }

    fn client(&self) -> &Client {
        self.daemon.client()
    }

    fn pods(&self, filter: v1::PodSandboxFilter) -> Vec<String> {
        let mut names: Vec<_> =
            self.client().pods_like(filter).into_iter().map(|pod| pod.metadata.unwrap().name).collect();
        names.sort();
        names
    }

    fn containers(&self, filter: v1::ContainerFilter) -> Vec<String> {
        let found = self.client().containers_like(filter).into_iter();
        let mut names: Vec<_> = found.map(|container| container.metadata.unwrap().name).collect();
        names.sort();
        names
    }
}

fn labels(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn pods_are_listed_by_id_state_and_label() {
    let shop = Shop::new();
    let all = v1::PodSandboxFilter::default;
    assert_eq!(shop.pods(all()), ["back", "front"]);
    assert_eq!(shop.pods(v1::PodSandboxFilter { id: shop.front.id.clone(), ..all() }), ["front"]);
    assert_eq!(shop.pods(v1::PodSandboxFilter { id: shop.back.id[..20].to_owned(), ..all() }), ["back"]);
    assert!(shop.pods(v1::PodSandboxFilter { id: "0".repeat(64), ..all() }).is_empty());
    let selector = |pairs: &[(&str, &str)]| v1::PodSandboxFilter { label_selector: labels(pairs), ..all() };
    assert_eq!(shop.pods(selector(&[("tier", "front")])), ["front"]);
    assert_eq!(shop.pods(selector(&[("app", "shop")])), ["back", "front"]);
    assert!(shop.pods(selector(&[("app", "shop"), ("tier", "none")])).is_empty());
    shop.client().stop_pod(&shop.back.id).unwrap();
    let state = |state: v1::PodSandboxState| v1::PodSandboxFilter {
        state: Some(v1::PodSandboxStateValue { state: state.into() }),
        ..all()
    };
    assert_eq!(shop.pods(state(v1::PodSandboxState::SandboxReady)), ["front"]);
    assert_eq!(shop.pods(state(v1::PodSandboxState::SandboxNotready)), ["back"]);
}

#[test]
fn containers_are_listed_by_id_pod_state_and_label() {
    let shop = Shop::new();
    let all = v1::ContainerFilter::default;
    assert_eq!(shop.containers(all()), ["exited", "other", "running"]);
    assert_eq!(shop.containers(v1::ContainerFilter { id: shop.running.clone(), ..all() }), ["running"]);
    assert_eq!(shop.containers(v1::ContainerFilter { id: shop.other[..20].to_owned(), ..all() }), ["other"]);
    assert!(shop.containers(v1::ContainerFilter { id: "0".repeat(64), ..all() }).is_empty());
    let of = |pod: &Pod| v1::ContainerFilter { pod_sandbox_id: pod.id.clone(), ..all() };
    assert_eq!(shop.containers(of(&shop.front)), ["exited", "running"]);
    assert!(shop.containers(v1::ContainerFilter { id: shop.exited.clone(), ..of(&shop.back) }).is_empty());
    let state = |state: v1::ContainerState| v1::ContainerFilter {
        state: Some(v1::ContainerStateValue { state: state.into() }),
        ..all()
    };
    assert_eq!(shop.containers(state(v1::ContainerState::ContainerRunning)), ["other", "running"]);
    assert_eq!(shop.containers(state(v1::ContainerState::ContainerExited)), ["exited"]);
    assert!(shop.containers(state(v1::ContainerState::ContainerCreated)).is_empty());
    assert_eq!(
        shop.containers(v1::ContainerFilter { label_selector: labels(&[("role", "done")]), ..all() }),
        ["exited"]
    );
}

#[test]
fn a_listed_container_says_whose_it_is_and_what_it_runs() {
    let shop = Shop::new();
    let filter = v1::ContainerFilter { id: shop.other.clone(), ..Default::default() };
    let listed = shop.client().containers_like(filter).remove(0);
    let status = shop.client().status(&shop.other);
    assert_eq!(listed.pod_sandbox_id, shop.back.id);
    assert_eq!((listed.image, listed.image_ref), (status.image, status.image_ref));
    assert_eq!((listed.created_at, listed.image_id), (status.created_at, status.image_id));
}

#[test]
fn an_id_may_be_cut_short_as_long_as_it_means_one() {
    let shop = Shop::new();
    let short = &shop.running[..13];
    assert_eq!(shop.client().status(short).id, shop.running);
    assert_eq!(shop.client().pod_status(&shop.front.id[..13]).id, shop.front.id);
    shop.client().stop(short, 5).unwrap();
    assert_eq!(shop.client().status(&shop.running).state(), v1::ContainerState::ContainerExited);
    shop.client().remove(short).unwrap();
    assert_eq!(shop.containers(v1::ContainerFilter::default()), ["exited", "other"]);
}
