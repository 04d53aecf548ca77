//! GetContainerEvents, as its clients receive it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cri_api::v1;
use cri_api::v1::ContainerEventType::{
    ContainerCreatedEvent as Created, ContainerDeletedEvent as Deleted, ContainerStartedEvent as Started,
    ContainerStoppedEvent as Stopped,
};
use cri_api::v1::runtime_service_client::RuntimeServiceClient;
use cri_api::v1::{ContainerState, PodSandboxState};
use tonic::{Code, Status};

use crate::support::client::{IDLE, container};
use crate::support::harness::{Daemon, seconds, times, wait_for};
use crate::support::kernel_state;

type Told = Result<v1::ContainerEventResponse, Status>;

/// An event client with a separate connection.
struct Listener {
    events: mpsc::Receiver<Told>,
}

impl Listener {
    fn new(socket: &Path) -> Self {
        Self::reading(socket, mpsc::channel().1)
    }

    /// Subscribes, and reads further events only after `begin` sends a message or is dropped.
    fn reading(socket: &Path, begin: mpsc::Receiver<()>) -> Self {
        let (sender, events) = mpsc::channel();
        let (listens, heard) = mpsc::channel();
        let endpoint = tonic::transport::Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        std::thread::spawn(move || {
            let clock = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            clock.block_on(async {
                let mut client = RuntimeServiceClient::new(endpoint.connect().await.unwrap());
                let mut stream = client.get_container_events(v1::GetEventsRequest {}).await.unwrap().into_inner();
                listens.send(()).unwrap();
                while let Err(mpsc::TryRecvError::Empty) = begin.try_recv() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                while let Some(event) = stream.message().await.transpose() {
                    let last = event.is_err();
                    if sender.send(event).is_err() || last {
                        return;
                    }
                }
            });
        });
        heard.recv_timeout(seconds(20)).expect("the daemon answers");
        Self { events }
    }

    fn next(&self) -> v1::ContainerEventResponse {
        self.events.recv_timeout(seconds(30)).expect("there is another event").unwrap()
    }

    fn next_of(&self, id: &str) -> v1::ContainerEventResponse {
        loop {
            let event = self.next();
            if event.container_id == id {
                return event;
            }
        }
    }

    /// Returns the events of `id` up to its removal.
    fn life_of(&self, id: &str) -> Vec<v1::ContainerEventType> {
        let mut life = Vec::new();
        while life.last() != Some(&Deleted) {
            life.push(self.next_of(id).container_event_type());
        }
        life
    }

    fn quiet(&self) {
        let more = self.events.recv_timeout(Duration::from_millis(300));
        assert!(more.is_err(), "nothing more happened: {more:?}");
    }
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

#[test]
fn every_event_of_a_pod_and_its_container_is_sent_in_order_with_statuses() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let listener = Listener::new(&daemon.env.socket());
    let begin = now();
    let mut last = begin;
    let mut next = |id: &str, kind: v1::ContainerEventType| {
        let event = listener.next();
        assert_eq!((event.container_id.as_str(), event.container_event_type()), (id, kind));
        assert!((last..=now()).contains(&event.created_at), "{event:?}");
        last = event.created_at;
        let status = event.pod_sandbox_status.clone().unwrap();
        assert_eq!(status.metadata.as_ref().unwrap().uid, "uid-of-pod", "the kubelet looks for it");
        (status, event.containers_statuses)
    };
    let pod = daemon.run_pod("pod");
    let (status, containers) = next(&pod.id, Created);
    assert_eq!((status, containers), (client.pod_status(&pod.id), vec![]));
    next(&pod.id, Started);
    let id = client.create(&pod, "main", &["sh", "-c", "echo up; exit 3"]);
    let (_, containers) = next(&id, Created);
    assert_eq!(containers, [client.status(&id)]);
    client.start(&id).unwrap();
    let (_, containers) = next(&id, Started);
    assert_eq!(containers.len(), 1);
    assert_ne!(containers[0].started_at, 0);
    let (_, containers) = next(&id, Stopped);
    assert_eq!(containers, [client.status(&id)]);
    assert_eq!((containers[0].state(), containers[0].exit_code), (ContainerState::ContainerExited, 3));
    client.remove(&id).unwrap();
    let (_, containers) = next(&id, Deleted);
    assert!(containers.is_empty());
    client.stop_pod(&pod.id).unwrap();
    let (status, _) = next(&pod.id, Stopped);
    assert_eq!(status.state(), PodSandboxState::SandboxNotready);
    client.stop_pod(&pod.id).unwrap();
    client.remove_pod(&pod.id).unwrap();
    let (status, _) = next(&pod.id, Deleted);
    assert_eq!(status.id, pod.id);
    listener.quiet();
}

#[test]
fn a_container_that_exits_at_once_has_a_start_event_first() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let listener = Listener::new(&daemon.env.socket());
    for number in 0..times(30, 5) {
        let id = client.run(&pod, &format!("c{number}"), &["true"]);
        client.remove(&id).unwrap();
        assert_eq!(listener.life_of(&id), [Created, Started, Stopped, Deleted]);
    }
}

#[test]
fn a_container_that_never_ran_has_no_start_event() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let listener = Listener::new(&daemon.env.socket());
    let id = client.create(&pod, "none", &["/no/such/program"]);
    client.start(&id).unwrap_err();
    client.remove(&id).unwrap();
    assert_eq!(listener.life_of(&id), [Created, Stopped, Deleted]);
    let id = client.create(&pod, "created", &["true"]);
    client.remove(&id).unwrap();
    assert_eq!(listener.life_of(&id), [Created, Stopped, Deleted]);
    let mut config = container("bad", &["true"]);
    config.image.as_mut().unwrap().image = "none.example/none:1".into();
    client.try_create(&pod, config).unwrap_err();
    listener.quiet();
}

#[test]
fn removing_a_pod_sends_events_of_its_containers() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let ids = ["a", "b"].map(|name| client.run_idle(&pod, name));
    let listener = Listener::new(&daemon.env.socket());
    client.remove_pod(&pod.id).unwrap();
    let mut lives: BTreeMap<String, Vec<v1::ContainerEventType>> = BTreeMap::new();
    while lives.get(&pod.id).is_none_or(|life| life.last() != Some(&Deleted)) {
        let event = listener.next();
        assert!(event.pod_sandbox_status.is_some(), "{event:?}");
        lives.entry(event.container_id.clone()).or_default().push(event.container_event_type());
    }
    assert_eq!(lives.len(), 3);
    assert!(lives.values().all(|life| *life == [Stopped, Deleted]), "{lives:?}");
    assert!(ids.iter().all(|id| lives.contains_key(id)));
}

#[test]
fn a_burst_of_exits_reaches_every_client_despite_a_stalled_one() {
    let mut daemon = Daemon::start();
    let pods: Vec<_> = (0..10).map(|number| daemon.run_pod(&format!("pod-{number}"))).collect();
    let gate = daemon.env.dir().join("gate");
    fs::create_dir(&gate).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        gate.join("open"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let count = burst();
    let listeners: Vec<_> = (0..3).map(|_| Listener::new(&daemon.env.socket())).collect();
    let (listen, begin) = mpsc::channel();
    let deaf = Listener::reading(&daemon.env.socket(), begin);
    let mut ids = BTreeSet::new();
    for number in 0..count {
        // All containers wait for a writer of the FIFO.
        let mut config = container(&format!("c{number}"), &["cat", "/gate/open"]);
        config.mounts.push(v1::Mount {
            container_path: "/gate".into(),
            host_path: gate.display().to_string(),
            ..Default::default()
        });
        config.log_path = String::new();
        ids.insert(daemon.client().run_config(&pods[number % pods.len()], config));
    }
    wait_for("all of them to come to the gate", seconds(60), || {
        let all = kernel_state::processes_of(daemon.env.dir(), daemon.env.cgroup(), Some(daemon.pid()));
        (all.iter().filter(|process| process.name == "cat").count() == count).then_some(())
    });
    let begin = Instant::now();
    let opened = gate.join("open");
    let open = std::thread::spawn(move || {
        // Each time it is opened, the containers that have reached it by then continue.
        for _ in 0..200 {
            drop(fs::OpenOptions::new().read(true).write(true).open(&opened).unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    for listener in &listeners {
        let mut stopped = BTreeSet::new();
        while stopped.len() < ids.len() {
            let event = listener.next();
            if event.container_event_type() == Stopped {
                assert!(stopped.insert(event.container_id), "reported once");
            }
        }
        assert_eq!(stopped, ids);
    }
    eprintln!("{count} exits were reported to {} listeners within {:?}", listeners.len(), begin.elapsed());
    open.join().unwrap();
    daemon.client().remove_everything();
    drop((listen, deaf));
    let status = daemon.terminate();
    assert!(status.success());
}

/// Containers that exit at the same time.
fn burst() -> usize {
    times(1000, 10)
}

#[test]
fn exits_while_no_daemon_ran_are_sent_after_the_restart() {
    let mut daemon = Daemon::start();
    let pod = daemon.run_pod("pod");
    let id = daemon.client().run(&pod, "main", &["sh", "-c", "sleep 0.3; exit 17"]);
    let before = daemon.client().run(&pod, "before", &["true"]);
    daemon.client().wait_exited(&before);
    let lives = daemon.client().run_idle(&pod, "lives");
    let pid = daemon.pids(&lives)[0];
    daemon.kill9();
    wait_for("the container to end", seconds(20), || daemon.pids(&id).is_empty().then_some(()));
    assert!(kernel_state::is_alive(pid));
    daemon.revive();
    for _ in 0..2 {
        let listener = Listener::new(&daemon.env.socket());
        let event = listener.next();
        assert_eq!((event.container_id.as_str(), event.container_event_type()), (id.as_str(), Stopped));
        let ended = event.containers_statuses.iter().find(|status| status.id == id).unwrap();
        assert_eq!((ended.exit_code, ended.state()), (17, ContainerState::ContainerExited));
        assert!(event.created_at >= ended.finished_at);
        assert_eq!(event.pod_sandbox_status, Some(daemon.client().pod_status(&pod.id)));
        listener.quiet();
    }
    let listener = Listener::new(&daemon.env.socket());
    listener.next_of(&id);
    daemon.client().stop(&lives, 5).unwrap();
    assert_eq!(listener.next().container_id, lives, "and what happens from then on");
}

#[test]
fn a_pod_whose_shim_was_killed_has_a_stop_event() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let id = client.run_idle(&pod, "main");
    let listener = Listener::new(&daemon.env.socket());
    crate::support::harness::kill(daemon.shims()[0], rustix::process::Signal::KILL);
    let event = listener.next();
    assert_eq!((event.container_id.as_str(), event.container_event_type()), (id.as_str(), Stopped));
    let event = listener.next();
    assert_eq!((event.container_id.as_str(), event.container_event_type()), (pod.id.as_str(), Stopped));
    assert_eq!(event.pod_sandbox_status.unwrap().state(), PodSandboxState::SandboxNotready);
    listener.quiet();
}

#[test]
fn an_event_client_does_not_delay_the_shutdown() {
    let mut daemon = Daemon::start();
    let listener = Listener::new(&daemon.env.socket());
    let begin = Instant::now();
    assert!(daemon.terminate().success());
    assert!(begin.elapsed() < seconds(5), "{:?}", begin.elapsed());
    let end = listener.events.recv_timeout(seconds(5));
    match end {
        Err(mpsc::RecvTimeoutError::Disconnected) => {}
        Ok(Err(status)) => assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
        other => panic!("the stream goes on: {other:?}"),
    }
}

#[test]
fn a_pods_status_has_its_containers_and_the_time() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let other = daemon.run_pod("other");
    client.run_idle(&other, "other");
    let empty = client.try_pod_status(&pod.id).unwrap();
    assert!(empty.containers_statuses.is_empty() && empty.timestamp > 0);
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: false };
    let brief = client.call(|mut runtime| async move { runtime.pod_sandbox_status(request).await }).unwrap();
    assert_eq!(brief.timestamp, 0, "a kubelet that finds a time starts init containers again and again");
    let mut config = container("main", &IDLE);
    config.linux.as_mut().unwrap().resources =
        Some(v1::LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() });
    let running = client.run_config(&pod, config);
    client.wait_printed(&running, "idle");
    let exited = client.script(&pod, "exited", "exit 2").id;
    let begin = now();
    let status = client.try_pod_status(&pod.id).unwrap();
    assert!((begin..=now()).contains(&status.timestamp));
    let mut expected = [&running, &exited].map(|id| client.status(id)).to_vec();
    expected.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(status.containers_statuses, expected);
}
