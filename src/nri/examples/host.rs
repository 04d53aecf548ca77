//! `nri-host SOCKET [ROUNDS [OBJECTS [PLUGINS]]]`: a runtime without containers, to try an NRI plugin.
//! Starts the programs of the directory PLUGINS, or waits for a plugin; synchronizes OBJECTS
//! containers, sends the life of a pod, and prints the answers and the time of ROUNDS creations.
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nri::api::{Container, Event, LinuxContainer, LinuxResources, Mount, PodSandbox, UpdateContainerRequest};
use nri::host::{Boxed, Host, Object, Observation};
use nri::identity::Identity;
use nri::merge::{Eviction, Update};
use nri::{Roster, settings::Settings};

struct Printer(Vec<Object>);

impl Host for Printer {
    fn objects(&self) -> Box<dyn Iterator<Item = Object> + Send> {
        Box::new(self.0.clone().into_iter())
    }

    fn change_containers<'a>(
        &'a self,
        plugin: &'a Identity,
        updates: Vec<Update>,
        evictions: Vec<Eviction>,
    ) -> Boxed<'a, Vec<String>> {
        println!("{plugin} changes {updates:?} evicts {evictions:?}");
        Box::pin(async { Vec::new() })
    }

    fn observe(&self, plugin: &Identity, observation: Observation<'_>) {
        println!("{plugin} {observation:?}");
    }
}

fn pod() -> PodSandbox {
    let annotations = [
        ("devices.noderesource.dev/container.main", "- path: /dev/nri\n  type: c\n  major: 1\n  minor: 3\n"),
        (
            "mounts.noderesource.dev/container.main",
            "- source: /etc\n  destination: /host-etc\n  type: bind\n  options: [ro]\n",
        ),
        ("cdi-devices.noderesource.dev/container.main", "- vendor.com/device=null\n"),
    ];
    PodSandbox {
        id: "pod0".to_owned(),
        name: "pod".to_owned(),
        namespace: "default".to_owned(),
        annotations: annotations.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        ..PodSandbox::default()
    }
}

fn container() -> Container {
    Container {
        id: "ctr0".to_owned(),
        pod_sandbox_id: "pod0".to_owned(),
        name: "main".to_owned(),
        args: vec!["sleep".to_owned(), "inf".to_owned()],
        mounts: vec![Mount { destination: "/proc".to_owned(), r#type: "proc".to_owned(), ..Mount::default() }],
        linux: Some(LinuxContainer::default()),
        ..Container::default()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let socket = arguments.get(1).ok_or("usage: nri-host SOCKET [ROUNDS [OBJECTS [PLUGINS]]]")?;
    let rounds: u32 = arguments.get(2).map_or(Ok(100), |text| text.parse())?;
    let count: usize = arguments.get(3).map_or(Ok(0), |text| text.parse())?;
    let env = (0..40).map(|n| format!("VARIABLE_{n}=some value of a service in the cluster")).collect();
    let template = Container { env, ..container() };
    let objects = (0..count).map(|n| Object::Container(Container { id: format!("c{n}"), ..template.clone() }));
    let roster = Roster::new(Settings::default(), Arc::new(Printer(objects.collect())));
    roster.listen(Path::new(socket))?;
    if let Some(plugins) = arguments.get(4) {
        roster.launch(Path::new(plugins), Path::new(plugins)).await;
    }
    while !roster.plugins().iter().any(|plugin| plugin.is_active) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let (pod, container) = (Arc::new(pod()), Arc::new(container()));
    roster.begin().run_pod(&pod).await?;
    println!("{:#?}", roster.begin().create_container(&pod, &container).await?);
    roster.begin().notify(Event::PostCreateContainer, &pod, Some(&container));
    roster.begin().start_container(&pod, &container).await?;
    roster.begin().notify(Event::PostStartContainer, &pod, Some(&container));
    let (pod_, container_) = (Some((*pod).clone()), Some((*container).clone()));
    let limits = Some(LinuxResources::default());
    let update =
        UpdateContainerRequest { pod: pod_, container: container_, linux_resources: limits, ..Default::default() };
    println!("{:?}", roster.begin().update_container(update).await?.adjusted);
    roster.begin().notify(Event::PostUpdateContainer, &pod, Some(&container));
    println!("{:?}", roster.begin().stop_container(&pod, &container).updates().await);
    roster.begin().notify(Event::RemoveContainer, &pod, Some(&container));
    roster.begin().undo_pod(&pod);

    let mut times = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        roster.begin().create_container(&pod, &container).await?;
        times.push(begun.elapsed());
    }
    times.sort();
    println!("create: median {:?}, p99 {:?}", times[times.len() / 2], times[times.len() * 99 / 100]);
    roster.shut_down().await;
    Ok(())
}
