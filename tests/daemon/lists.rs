//! Lists: filters, streams, and their time.

use std::time::{Duration, Instant};

use cri_api::v1;
use tonic::Code;

use crate::support::client::{Asked, Client, Pod, container};
use crate::support::harness::{Daemon, times};

/// Creates two pods, one with label `tier=front`; a running container in each, and an exited one in
/// the first.
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
fn a_listed_container_has_its_pod_and_image() {
    let shop = Shop::new();
    let filter = v1::ContainerFilter { id: shop.other.clone(), ..Default::default() };
    let listed = shop.client().containers_like(filter).remove(0);
    let status = shop.client().status(&shop.other);
    assert_eq!(listed.pod_sandbox_id, shop.back.id);
    assert_eq!((listed.image, listed.image_ref), (status.image, status.image_ref));
    assert_eq!((listed.created_at, listed.image_id), (status.created_at, status.image_id));
}

#[test]
fn a_unique_id_prefix_is_accepted() {
    let shop = Shop::new();
    let short = &shop.running[..13];
    assert_eq!(shop.client().status(short).id, shop.running);
    assert_eq!(shop.client().pod_status(&shop.front.id[..13]).id, shop.front.id);
    shop.client().stop(short, 5).unwrap();
    assert_eq!(shop.client().status(&shop.running).state(), v1::ContainerState::ContainerExited);
    shop.client().remove(short).unwrap();
    assert_eq!(shop.containers(v1::ContainerFilter::default()), ["exited", "other"]);
}

impl Client {
    /// Returns the messages of a stream of pods.
    fn stream_pods(&self, filter: Option<v1::PodSandboxFilter>) -> Asked<Vec<Vec<v1::PodSandbox>>> {
        let request = v1::StreamPodSandboxesRequest { filter };
        self.call(|mut c: v1::runtime_service_client::RuntimeServiceClient<_>| async move {
            let (mut stream, mut all) = (c.stream_pod_sandboxes(request).await?.into_inner(), Vec::new());
            while let Some(message) = stream.message().await? {
                all.push(message.pod_sandboxes);
            }
            Ok(tonic::Response::new(all))
        })
    }

    fn stream_containers(&self, filter: Option<v1::ContainerFilter>) -> Asked<Vec<Vec<v1::Container>>> {
        let request = v1::StreamContainersRequest { filter };
        self.call(|mut c: v1::runtime_service_client::RuntimeServiceClient<_>| async move {
            let (mut stream, mut all) = (c.stream_containers(request).await?.into_inner(), Vec::new());
            while let Some(message) = stream.message().await? {
                all.push(message.containers);
            }
            Ok(tonic::Response::new(all))
        })
    }
}

#[test]
fn a_stream_equals_the_list_and_accepts_the_same_filters() {
    let shop = Shop::new();
    let client = shop.client();
    assert_eq!(client.stream_pods(None).unwrap().concat(), client.pods());
    assert_eq!(client.stream_containers(None).unwrap().concat(), client.containers());
    let front = v1::PodSandboxFilter { label_selector: labels(&[("tier", "front")]), ..Default::default() };
    assert_eq!(client.stream_pods(Some(front.clone())).unwrap().concat(), client.pods_like(front));
    let of = v1::ContainerFilter { pod_sandbox_id: shop.front.id.clone(), ..Default::default() };
    assert_eq!(client.stream_containers(Some(of.clone())).unwrap().concat(), client.containers_like(of));
    let none = v1::PodSandboxFilter { id: "0".repeat(64), ..Default::default() };
    assert!(client.stream_pods(Some(none)).unwrap().is_empty(), "no piece is empty");
    let bad = v1::PodSandboxFilter { state: Some(v1::PodSandboxStateValue { state: 7 }), ..Default::default() };
    assert_eq!(client.stream_pods(Some(bad)).unwrap_err().code(), Code::InvalidArgument);
    let bad = v1::ContainerFilter { state: Some(v1::ContainerStateValue { state: 9 }), ..Default::default() };
    assert_eq!(client.stream_containers(Some(bad)).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn long_lists_are_streamed_in_bounded_messages() {
    let daemon = Daemon::start();
    let client = daemon.client();
    assert!(client.stream_pods(None).unwrap().is_empty() && client.stream_containers(None).unwrap().is_empty());
    let long = |map: &mut std::collections::BTreeMap<String, String>| map.insert("long".into(), "x".repeat(600 << 10));
    for name in ["a", "b", "c"] {
        let pod = daemon.run_pod_with(name, |config| drop(long(&mut config.annotations)));
        let mut config = container(name, &["true"]);
        long(&mut config.annotations);
        client.try_create(&pod, config).unwrap();
    }
    let sizes = |pieces: &[usize]| pieces.to_vec();
    let pods = client.stream_pods(None).unwrap();
    assert_eq!(pods.iter().map(Vec::len).collect::<Vec<_>>(), sizes(&[1, 1, 1]));
    assert_eq!(pods.concat(), client.pods());
    let containers = client.stream_containers(None).unwrap();
    assert_eq!(containers.iter().map(Vec::len).collect::<Vec<_>>(), sizes(&[1, 1, 1]));
    assert_eq!(containers.concat(), client.containers());
}

#[test]
fn an_item_of_a_long_list_takes_no_longer_than_one_of_a_short_list() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let fill = |from: usize, to: usize| {
        for number in from..to {
            let pod = daemon.run_pod(&format!("pod-{number}"));
            client.create(&pod, "main", &["true"]);
        }
    };
    let fastest = |list: &dyn Fn() -> usize, count: usize| {
        let took = (0..times(50, 5)).map(|_| {
            let begin = Instant::now();
            assert_eq!(list(), count);
            begin.elapsed()
        });
        took.min().unwrap()
    };
    let pods = || client.pods().len();
    let containers = || client.containers().len();
    let streamed = || client.stream_containers(None).unwrap().concat().len();
    let measure = |count: usize| [&pods as &dyn Fn() -> usize, &containers, &streamed].map(|list| fastest(list, count));
    let (few, many) = (10, many());
    fill(0, few);
    let short = measure(few);
    fill(few, many);
    let long = measure(many);
    eprintln!("pods, containers, streamed: {short:?} for {few}, {long:?} for {many}");
    for (short, long) in short.into_iter().zip(long) {
        let (few, many) = (u32::try_from(few).unwrap(), u32::try_from(many).unwrap());
        let allowed = 2 * short / few * many;
        assert!(long <= allowed.max(Duration::from_millis(5)), "{long:?} for {many}, and {short:?} for {few}");
    }
}

/// Pods of a long list; `CRISP_TEST_MANY` for more.
fn many() -> usize {
    std::env::var("CRISP_TEST_MANY").ok().map_or_else(|| times(60, 20), |text| text.parse().unwrap())
}
