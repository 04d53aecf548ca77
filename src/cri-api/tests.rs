use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::{Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use prost::Message;
use tonic::codegen::{Service, http};

use crate::v1::container_resource_config::ContainerType;
use crate::v1::image_service_client::ImageServiceClient;
use crate::v1::runtime_service_client::RuntimeServiceClient;
use crate::v1::*;
use crate::{Quantity, dra, pluginregistration};

/// Checks that `message` is encoded as `bytes`, and `bytes` are decoded as `message`.
#[track_caller]
fn same<M: Message + Default + PartialEq + Debug>(message: &M, bytes: &[u8]) {
    assert_eq!(message.encode_to_vec(), bytes);
    assert_eq!(M::decode(bytes).as_ref(), Ok(message));
}

/// Returns a field of wire type 2 (text or message) with a number below 16.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap();
    assert!(number < 16 && length < 128);
    [&[number << 3 | 2, length], content].concat()
}

/// Returns a request of one CPU, and its encoding.
fn one_cpu() -> (KubernetesResources, Vec<u8>) {
    let one = Quantity { string: "1".into() };
    let message = KubernetesResources { requests: BTreeMap::from([("cpu".into(), one)]), limits: BTreeMap::new() };
    (message, b"\x0a\x0a\x0a\x03cpu\x12\x03\x0a\x011".to_vec())
}

/// Returns a pod with one container of one CPU, and its encoding.
fn one_container() -> (PodResourceConfig, Vec<u8>) {
    let (resources, resources_bytes) = one_cpu();
    let container = ContainerResourceConfig {
        name: "web".into(),
        r#type: ContainerType::Container.into(),
        kubernetes_resources: Some(resources.clone()),
        mounts: vec![Mount { container_path: "/m".into(), ..Default::default() }],
        devices: vec![Device { container_path: "/d".into(), ..Default::default() }],
        cdi_devices: vec![CdiDevice { name: "x.y/z=0".into() }],
    };
    let container_bytes = [
        b"\x0a\x03web\x10\x01".to_vec(),
        field(3, &resources_bytes),
        field(4, b"\x0a\x02/m"),
        field(5, b"\x0a\x02/d"),
        field(6, b"\x0a\x07x.y/z=0"),
    ]
    .concat();
    let message = PodResourceConfig { containers: vec![container], kubernetes_resources: Some(resources) };
    let bytes = [field(1, &container_bytes), field(2, &resources_bytes)].concat();
    (message, bytes)
}

#[test]
fn kubernetes_resources_are_maps_of_quantities() {
    let (mut message, mut bytes) = one_cpu();
    same(&message, &bytes);

    let half = Quantity { string: "512Mi".into() };
    message.limits.insert("memory".into(), half);
    bytes.extend(b"\x12\x11\x0a\x06memory\x12\x07\x0a\x05512Mi");
    same(&message, &bytes);
}

#[test]
fn pod_sandbox_config_has_pod_resources_at_10() {
    let (pod, bytes) = one_container();
    let config = PodSandboxConfig { pod_resources: Some(pod), ..Default::default() };
    same(&config, &field(10, &bytes));
}

#[test]
fn container_config_has_stop_signal_at_18_and_kubernetes_resources_at_19() {
    let (resources, bytes) = one_cpu();
    let config = ContainerConfig {
        stop_signal: Signal::Sigusr1.into(),
        kubernetes_resources: Some(resources),
        ..Default::default()
    };
    // Numbers from 16 on need two bytes: 18 << 3 is 0x90, 19 << 3 | 2 is 0x9a.
    let expected = [b"\x90\x01\x1d\x9a\x01\x0c", bytes.as_slice()].concat();
    same(&config, &expected);
}

#[test]
fn update_container_resources_has_kubernetes_resources_at_5() {
    let (resources, bytes) = one_cpu();
    let request = UpdateContainerResourcesRequest {
        container_id: "c".into(),
        linux: Some(LinuxContainerResources { cpu_quota: 7, ..Default::default() }),
        windows: Some(WindowsContainerResources { cpu_count: 2, ..Default::default() }),
        annotations: BTreeMap::from([("k".into(), "v".into())]),
        kubernetes_resources: Some(resources),
    };
    let expected = [
        field(1, b"c"),
        field(2, b"\x10\x07"),
        field(3, b"\x10\x02"),
        field(4, b"\x0a\x01k\x12\x01v"),
        field(5, &bytes),
    ]
    .concat();
    same(&request, &expected);
}

#[test]
fn update_pod_sandbox_resources_has_pod_resources_at_4() {
    let (pod, bytes) = one_container();
    let request = UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: "p".into(),
        overhead: Some(LinuxContainerResources::default()),
        resources: Some(LinuxContainerResources { cpu_shares: 2, ..Default::default() }),
        pod_resources: Some(pod),
    };
    let expected = [field(1, b"p"), field(2, b""), field(3, b"\x18\x02"), field(4, &bytes)].concat();
    same(&request, &expected);
}

#[test]
fn linux_container_resources_keep_their_numbers() {
    let resources = LinuxContainerResources {
        cpu_period: 1,
        cpu_quota: 2,
        cpu_shares: 3,
        memory_limit_in_bytes: 4,
        oom_score_adj: 5,
        cpuset_cpus: "6".into(),
        cpuset_mems: "7".into(),
        hugepage_limits: vec![HugepageLimit { page_size: "2MB".into(), limit: 8 }],
        unified: BTreeMap::from([("a".into(), "9".into())]),
        memory_swap_limit_in_bytes: 10,
    };
    let expected = [
        b"\x08\x01\x10\x02\x18\x03\x20\x04\x28\x05".to_vec(),
        field(6, b"6"),
        field(7, b"7"),
        field(8, b"\x0a\x032MB\x10\x08"),
        field(9, b"\x0a\x01a\x12\x019"),
        b"\x50\x0a".to_vec(),
    ]
    .concat();
    same(&resources, &expected);
}

#[test]
fn an_unlimited_quota_is_minus_one_in_ten_bytes() {
    let resources = LinuxContainerResources { cpu_quota: -1, ..Default::default() };
    same(&resources, b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
}

#[test]
fn debug_output_of_credentials_shows_no_secret() {
    let auth = AuthConfig {
        username: "someone".into(),
        password: "s3cret-1".into(),
        auth: "s3cret-2".into(),
        server_address: "registry.example".into(),
        identity_token: "s3cret-3".into(),
        registry_token: String::new(),
    };
    let request = PullImageRequest { auth: Some(auth), ..Default::default() };
    let shown = format!("{request:?}");
    assert!(shown.contains("someone"), "{shown}");
    assert!(shown.contains("password: hidden"), "{shown}");
    assert!(shown.contains("registry_token: none"), "{shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
}

/// A transport that refuses every call, with the call's path as the message.
struct Refuse;

impl Service<http::Request<tonic::body::Body>> for Refuse {
    type Response = http::Response<tonic::body::Body>;
    type Error = http::Error;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        ready(
            http::Response::builder()
                .header("grpc-status", "12")
                .header("grpc-message", request.uri().path())
                .body(tonic::body::Body::empty()),
        )
    }
}

/// Returns the path that a refused call was sent to.
#[track_caller]
fn path<T>(call: impl Future<Output = Result<T, tonic::Status>>) -> String {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(call).poll(&mut context) {
        Poll::Ready(Err(status)) => status.message().to_owned(),
        Poll::Ready(Ok(_)) => panic!("the call was not refused"),
        Poll::Pending => panic!("the call is pending although the response is ready"),
    }
}

#[test]
fn calls_use_the_paths_of_cri() {
    let mut runtime = RuntimeServiceClient::new(Refuse);
    assert_eq!(path(runtime.version(VersionRequest::default())), "/runtime.v1.RuntimeService/Version");
    assert_eq!(
        path(runtime.update_container_resources(UpdateContainerResourcesRequest::default())),
        "/runtime.v1.RuntimeService/UpdateContainerResources"
    );
    assert_eq!(
        path(runtime.update_pod_sandbox_resources(UpdatePodSandboxResourcesRequest::default())),
        "/runtime.v1.RuntimeService/UpdatePodSandboxResources"
    );
    assert_eq!(
        path(runtime.get_container_events(GetEventsRequest {})),
        "/runtime.v1.RuntimeService/GetContainerEvents"
    );

    let mut image = ImageServiceClient::new(Refuse);
    assert_eq!(path(image.pull_image(PullImageRequest::default())), "/runtime.v1.ImageService/PullImage");
    assert_eq!(path(image.stream_images(StreamImagesRequest::default())), "/runtime.v1.ImageService/StreamImages");
}

#[test]
fn servers_have_the_service_names_of_cri() {
    assert_eq!(runtime_service_server::SERVICE_NAME, "runtime.v1.RuntimeService");
    assert_eq!(image_service_server::SERVICE_NAME, "runtime.v1.ImageService");
}

#[test]
fn plugin_messages_have_the_field_numbers_of_the_kubelet() {
    let claim = dra::v1::Claim { namespace: "n".into(), uid: "u".into(), name: "c".into() };
    let claim_bytes = b"\x0a\x01n\x12\x01u\x1a\x01c";
    same(&dra::v1::NodePrepareResourcesRequest { claims: vec![claim.clone()] }, &field(1, claim_bytes));
    same(&dra::v1::NodeUnprepareResourcesRequest { claims: vec![claim] }, &field(1, claim_bytes));
    let device = dra::v1::Device {
        request_names: vec!["r".into()],
        pool_name: "p".into(),
        device_name: "d".into(),
        cdi_device_ids: vec!["v/c=d".into()],
        share_id: Some("s".into()),
    };
    let device_bytes = b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x05v/c=d\x2a\x01s";
    let prepared = dra::v1::NodePrepareResourceResponse { devices: vec![device], error: "e".into() };
    let prepared_bytes = [field(1, device_bytes), field(2, b"e")].concat();
    same(&prepared, &prepared_bytes);
    let claims = BTreeMap::from([("u".to_owned(), prepared)]);
    let entry = [field(1, b"u"), field(2, &prepared_bytes)].concat();
    same(&dra::v1::NodePrepareResourcesResponse { claims }, &field(1, &entry));
    let claims = BTreeMap::from([("u".to_owned(), dra::v1::NodeUnprepareResourceResponse { error: "e".into() })]);
    let entry = [field(1, b"u"), field(2, &field(1, b"e"))].concat();
    same(&dra::v1::NodeUnprepareResourcesResponse { claims }, &field(1, &entry));

    let info = pluginregistration::PluginInfo {
        r#type: "t".into(),
        name: "n".into(),
        endpoint: "e".into(),
        supported_versions: vec!["v".into()],
    };
    same(&info, b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v");
    same(&pluginregistration::RegistrationStatus { plugin_registered: true, error: "e".into() }, b"\x08\x01\x12\x01e");
    same(&pluginregistration::InfoRequest {}, b"");

    assert_eq!(dra::v1::dra_plugin_server::SERVICE_NAME, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin");
    assert_eq!(dra::v1beta1::dra_plugin_server::SERVICE_NAME, "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin");
    assert_eq!(pluginregistration::registration_server::SERVICE_NAME, "pluginregistration.Registration");
}
