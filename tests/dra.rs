//! Dynamic resource allocation end to end: the example driver's plugin, called as by a kubelet, and
//! containers of crisp with the prepared devices.

use std::fs;
use std::future::Future;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cri_api::dra::v1::dra_plugin_client::DraPluginClient;
use cri_api::dra::{v1 as dra, v1beta1};
use cri_api::pluginregistration::registration_client::RegistrationClient;
use cri_api::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus};
use cri_api::v1;
use rustix::process::Signal;
use serde_json::json;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use crate::cdi::Specs;
use crate::support::client::{IDLE, container};
use crate::support::harness::{kill, program, seconds, wait_for};

const DRIVER: &str = "gadgets.crisp.example";

/// A driver's plugin in its own directories, and the kubelet's client for it.
struct Driver {
    specs: Specs,
    process: Child,
    clock: Runtime,
}

impl Driver {
    fn start() -> Self {
        let specs = Specs::new();
        fs::create_dir(specs.path("allocations")).unwrap();
        let process = spawn(&specs);
        let clock = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { specs, process, clock }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.specs.path(name)
    }

    fn spec_file(&self, uid: &str) -> PathBuf {
        self.path(&format!("high/{DRIVER}-claim_{uid}.json"))
    }

    /// Waits for the plugin's registration socket.
    fn registry(&self) -> PathBuf {
        let socket = self.path(&format!("registry/{DRIVER}-reg.sock"));
        wait_for("the plugin to register", seconds(20), || UnixStream::connect(&socket).ok());
        socket
    }

    fn call<T, F: Future<Output = Result<Response<T>, Status>>>(
        &self,
        socket: &Path,
        ask: impl FnOnce(Channel) -> F,
    ) -> Result<T, Status> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        self.clock.block_on(async {
            let answer = tokio::time::timeout(seconds(20), ask(endpoint.connect_lazy())).await;
            answer.expect("the plugin responds in time").map(Response::into_inner)
        })
    }

    /// Registers the plugin as a kubelet does.
    fn register(&self) -> PluginInfo {
        let socket = self.registry();
        let info = self.call(&socket, |c| async { RegistrationClient::new(c).get_info(InfoRequest {}).await }).unwrap();
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        let notify = |c| async { RegistrationClient::new(c).notify_registration_status(status).await };
        self.call(&socket, notify).unwrap();
        info
    }

    fn endpoint(&self) -> PathBuf {
        self.path("plugin/dra.sock")
    }

    fn prepare(&self, uid: &str) -> dra::NodePrepareResourceResponse {
        let request = dra::NodePrepareResourcesRequest { claims: vec![claim(uid)] };
        let asked = |c| async { DraPluginClient::new(c).node_prepare_resources(request).await };
        let mut answer = self.call(&self.endpoint(), asked).unwrap();
        assert_eq!(answer.claims.len(), 1);
        answer.claims.remove(uid).unwrap()
    }

    fn unprepare(&self, uid: &str) -> String {
        let request = dra::NodeUnprepareResourcesRequest { claims: vec![claim(uid)] };
        let asked = |c| async { DraPluginClient::new(c).node_unprepare_resources(request).await };
        let mut answer = self.call(&self.endpoint(), asked).unwrap();
        assert_eq!(answer.claims.len(), 1);
        answer.claims.remove(uid).unwrap().error
    }

    /// Allocates devices to a claim, as the scheduler and the API server do.
    fn allocate(&self, uid: &str, gadgets: &[(&str, &str)]) {
        let results = gadgets.iter().map(
            |(request, device)| json!({"request": request, "driver": DRIVER, "pool": "this-node", "device": device}),
        );
        let text = json!({ "results": results.collect::<Vec<_>>() }).to_string();
        fs::write(self.path(&format!("allocations/{uid}.json")), text).unwrap();
    }

    /// Stops the plugin with `signal` and starts it again.
    fn restart(&mut self, signal: Signal) {
        kill(i32::try_from(self.process.id()).unwrap(), signal);
        let process = &mut self.process;
        let status = wait_for("the plugin to exit", seconds(10), || process.try_wait().unwrap());
        assert_eq!(status.success(), signal == Signal::TERM, "{status}");
        assert_eq!(self.path("registry").read_dir().unwrap().count(), usize::from(signal != Signal::TERM));
        self.process = spawn(&self.specs);
        wait_for("the plugin to respond", seconds(10), || {
            let socket = self.registry();
            self.call(&socket, |c| async { RegistrationClient::new(c).get_info(InfoRequest {}).await }).ok()
        });
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn spawn(specs: &Specs) -> Child {
    let gadgets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/dra-driver/gadgets.json");
    Command::new(program("dra-driver"))
        .arg("--gadgets")
        .arg(gadgets)
        .arg("--allocations")
        .arg(specs.path("allocations"))
        .arg("--plugin-dir")
        .arg(specs.path("plugin"))
        .arg("--registry-dir")
        .arg(specs.path("registry"))
        .arg("--cdi-dir")
        .arg(specs.path("high"))
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

fn claim(uid: &str) -> dra::Claim {
    dra::Claim { namespace: "default".into(), uid: uid.into(), name: "mine".into() }
}

/// Returns a container with the devices of a prepared claim.
fn with_devices(name: &str, devices: &[dra::Device]) -> v1::ContainerConfig {
    let ids = devices.iter().flat_map(|device| &device.cdi_device_ids);
    let cdi_devices = ids.map(|name| v1::CdiDevice { name: name.clone() }).collect();
    v1::ContainerConfig { cdi_devices, ..container(name, &IDLE) }
}

#[test]
fn a_claim_is_prepared_used_and_unprepared() {
    let driver = Driver::start();
    let info = driver.register();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", DRIVER));
    assert_eq!(info.endpoint, driver.endpoint().display().to_string());
    assert_eq!(info.supported_versions, ["v1.DRAPlugin", "v1beta1.DRAPlugin"]);

    let uid = "0f9d8c7b-1111-2222-3333-444455556666";
    driver.allocate(uid, &[("big", "gadget-0"), ("small", "gadget-1")]);
    let prepared = driver.prepare(uid);
    assert_eq!(prepared.error, "");
    let [big, small] = &prepared.devices[..] else { panic!("{prepared:?}") };
    assert_eq!((big.pool_name.as_str(), big.device_name.as_str()), ("this-node", "gadget-0"));
    assert_eq!((&big.request_names, &small.request_names), (&vec!["big".to_owned()], &vec!["small".to_owned()]));
    assert_eq!(big.cdi_device_ids, [format!("{DRIVER}/claim={uid}-gadget-0")]);
    let spec = fs::read(driver.spec_file(uid)).unwrap();
    assert_eq!((driver.prepare(uid), fs::read(driver.spec_file(uid)).unwrap()), (prepared.clone(), spec));

    let daemon = driver.specs.daemon();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_config(&pod, with_devices("main", &prepared.devices));
    assert_eq!(client.exec_script(&id, "stat -c '%t %T' /dev/gadgets/gadget-0 /dev/gadgets/gadget-1"), "1 3\n1 5\n");
    client.exec_script(&id, "echo x > /dev/gadgets/gadget-0");
    assert_eq!(client.exec_script(&id, "head -c 3 /dev/gadgets/gadget-1 | wc -c"), "3\n");
    assert_eq!(client.exec_script(&id, "echo $GADGETS_CLAIM $GADGET_0 $GADGET_1"), format!("{uid} big small\n"));
    assert!(client.exec_script(&id, "cat /run/gadgets/claim.json").contains("\"namespace\": \"default\""));
    let write = client.exec(&id, &["touch", "/run/gadgets/x"]);
    assert!(write.stderr.contains("Read-only"), "{write:?}");
    // A container may use a single request of the claim.
    let one = client.run_config(&pod, with_devices("one", std::slice::from_ref(small)));
    assert_eq!(client.exec_script(&one, "ls /dev/gadgets; echo $GADGET_0"), "gadget-1\n\n");

    for _ in 0..2 {
        assert_eq!(driver.unprepare(uid), "");
        assert!(!driver.spec_file(uid).exists());
        assert_eq!(driver.path("plugin/claims").read_dir().unwrap().count(), 0);
    }
    let refusal = client.try_create(&pod, with_devices("late", &prepared.devices)).unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    assert!(refusal.message().contains(&big.cdi_device_ids[0]), "{refusal:?}");
    assert_eq!(
        client.exec_script(&id, "ls /dev/gadgets"),
        "gadget-0\ngadget-1\n",
        "a running container keeps its devices"
    );
}

#[test]
fn an_older_kubelet_gets_the_same_responses() {
    let driver = Driver::start();
    driver.register();
    driver.allocate("u1", &[("r", "gadget-0")]);
    let claims = vec![v1beta1::Claim { namespace: "default".into(), uid: "u1".into(), name: "mine".into() }];
    let request = v1beta1::NodePrepareResourcesRequest { claims: claims.clone() };
    let asked = |c| async { v1beta1::dra_plugin_client::DraPluginClient::new(c).node_prepare_resources(request).await };
    let answer = driver.call(&driver.endpoint(), asked).unwrap();
    assert_eq!(answer.claims["u1"].devices[0].cdi_device_ids, driver.prepare("u1").devices[0].cdi_device_ids);
    let request = v1beta1::NodeUnprepareResourcesRequest { claims };
    let asked =
        |c| async { v1beta1::dra_plugin_client::DraPluginClient::new(c).node_unprepare_resources(request).await };
    assert_eq!(driver.call(&driver.endpoint(), asked).unwrap().claims["u1"].error, "");
    assert!(!driver.spec_file("u1").exists());
}

#[test]
fn a_claim_that_cannot_be_prepared_fails_alone() {
    let driver = Driver::start();
    driver.register();
    driver.allocate("good", &[("r", "gadget-0")]);
    driver.allocate("same", &[("r", "gadget-0")]);
    driver.allocate("odd", &[("r", "gadget-7")]);
    let hostile = "../../../etc/cdi/x";
    let uids = ["good", "same", "odd", "unknown", hostile];
    let request = dra::NodePrepareResourcesRequest { claims: uids.map(claim).to_vec() };
    let asked = |c| async { DraPluginClient::new(c).node_prepare_resources(request).await };
    let answer = driver.call(&driver.endpoint(), asked).unwrap();
    assert_eq!(answer.claims.len(), uids.len());
    assert_eq!(answer.claims["good"].error, "");
    for (uid, words) in [("same", "gadget-0 is in use by claim good"), ("odd", "gadget-7"), ("unknown", "unknown.json")]
    {
        assert!(answer.claims[uid].error.contains(words), "{:?}", answer.claims[uid]);
    }
    assert!(answer.claims[hostile].error.contains("invalid claim uid"), "{:?}", answer.claims[hostile]);
    assert!(driver.unprepare(hostile).contains("invalid claim uid"));
    let files: Vec<_> = driver.path("high").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files, [driver.spec_file("good")]);
}

#[test]
fn a_killed_plugin_recovers_its_prepared_claims() {
    let mut driver = Driver::start();
    driver.register();
    driver.allocate("u1", &[("r", "gadget-0")]);
    driver.allocate("u2", &[("r", "gadget-0")]);
    let prepared = driver.prepare("u1");
    for signal in [Signal::KILL, Signal::TERM] {
        driver.restart(signal);
        assert!(driver.prepare("u2").error.contains("in use by claim u1"));
        // After a reboot /var/run is empty.
        fs::remove_file(driver.spec_file("u1")).unwrap();
        assert_eq!(driver.prepare("u1"), prepared);
        assert!(driver.spec_file("u1").exists());
    }
    driver.restart(Signal::TERM);
    assert_eq!(driver.unprepare("u1"), "");
    assert_eq!(driver.prepare("u2").error, "");
}

#[test]
fn a_plugin_exits_if_the_kubelet_rejects_its_registration() {
    let mut driver = Driver::start();
    let status = RegistrationStatus { plugin_registered: false, error: "no room".into() };
    let notify = |c| async { RegistrationClient::new(c).notify_registration_status(status).await };
    // The plugin may exit before it sends a response.
    driver.call(&driver.registry(), notify).ok();
    let process = &mut driver.process;
    let ended = wait_for("the plugin to exit", seconds(10), || process.try_wait().unwrap());
    assert_eq!(ended.code(), Some(1));
    assert_eq!(driver.path("registry").read_dir().unwrap().count(), 0);
}
