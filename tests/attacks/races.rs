//! Attacks by a container that changes a shared volume while mounts are created in it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cri_api::v1;

use super::{Outside, Racer};
use crate::support::client::{container, security};
use crate::support::env::TestEnv;
use crate::support::harness::{Daemon, times};
use crate::support::image_fixture::Archive;

fn volume(host: &Path, inside: &str) -> v1::Mount {
    v1::Mount { container_path: inside.into(), host_path: host.display().to_string(), ..Default::default() }
}

/// Which part of which file system each mount of a process shows: the kernel's own table.
fn shown(pid: i32) -> BTreeSet<(String, String)> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields[2].to_owned(), fields[3].to_owned())
    };
    table.lines().map(line).collect()
}

/// A shared volume whose `a` is a directory and whose `b` is a link out of it, and another volume
/// to mount at `a`.
struct Shared {
    daemon: Daemon,
    outside: Outside,
    volume: PathBuf,
    inner: PathBuf,
}

impl Shared {
    fn new(link: impl FnOnce(&Outside) -> String) -> Self {
        let env = TestEnv::new();
        let outside = Outside::new(&env);
        let (volume, inner) = (env.dir().join("volume"), env.dir().join("inner"));
        fs::create_dir_all(volume.join("a/target")).unwrap();
        symlink(link(&outside), volume.join("b")).unwrap();
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), "inner\n").unwrap();
        Self { daemon: Daemon::on(env), outside, volume, inner }
    }

    fn exchange(&self) -> Racer {
        Racer::exchange(&self.volume.join("a"), &self.volume.join("b"))
    }

    /// Creates and runs containers with mounts in the volume while the attacker runs, and returns
    /// how many were created. Those show the same as one without an attacker.
    fn run(&self, rounds: usize, mounts: &[v1::Mount]) -> usize {
        let client = self.daemon.client();
        let pod = self.daemon.run_pod("pod");
        let mut config = container("main", &["sleep", "100000"]);
        config.mounts = mounts.to_vec();
        let run = |config: v1::ContainerConfig| -> Option<BTreeSet<(String, String)>> {
            let id = client.try_create(&pod, config).ok()?;
            client.start(&id).unwrap();
            let table = shown(self.daemon.pids(&id)[0]);
            client.remove(&id).unwrap();
            Some(table)
        };
        // Numbers of file systems that each container has of its own come and go.
        let of_host = |table: BTreeSet<(String, String)>| -> BTreeSet<String> {
            let roots = table.into_iter().map(|(_, root)| root);
            roots.filter(|root| Path::new(root).starts_with(self.daemon.env.dir())).collect()
        };
        let quiet = of_host(run(config.clone()).unwrap());
        let racer = self.exchange();
        let made: Vec<_> = (0..rounds).filter_map(|_| run(config.clone())).collect();
        assert!(racer.rounds() > 100);
        drop(racer);
        for table in &made {
            let found = of_host(table.clone());
            assert!(found.is_subset(&quiet), "{:?}", found.difference(&quiet));
        }
        self.outside.check("a neighbour raced");
        made.len()
    }
}

#[test]
fn a_mount_into_a_volume_that_changes_during_the_launch_stays_in_the_root() {
    for link in [|outside: &Outside| outside.absolute("dir"), |outside: &Outside| outside.climbing("dir")] {
        let shared = Shared::new(link);
        let mounts = [volume(&shared.volume, "/volume"), volume(&shared.inner, "/volume/a/target")];
        // Some get the directory, and some follow the link inside, where it leads to a place of
        // their own.
        assert!(shared.run(times(25, 4), &mounts) > 0);
    }
}

#[test]
fn a_mount_with_a_missing_target_creates_nothing_on_the_host() {
    let shared = Shared::new(|outside| outside.absolute("dir"));
    let mounts = [
        volume(&shared.volume, "/volume"),
        volume(&shared.inner, "/volume/a/new/and/deeper"),
        volume(&shared.inner.join("file"), "/volume/a/made/file"),
    ];
    shared.run(times(25, 4), &mounts);
}

#[test]
fn a_volume_replaced_by_a_link_to_proc_gets_no_mounts() {
    let shared = Shared::new(|_| "/proc/self".to_owned());
    let mounts = [volume(&shared.volume, "/volume"), volume(&shared.inner, "/volume/a/attr")];
    fs::create_dir(shared.volume.join("a/attr")).unwrap();
    shared.run(times(15, 3), &mounts);
    let shared = Shared::new(|_| "/proc/self/fd".to_owned());
    let mounts = [volume(&shared.volume, "/volume"), volume(&shared.inner.join("file"), "/volume/a/3")];
    fs::write(shared.volume.join("a/3"), "").unwrap();
    shared.run(times(15, 3), &mounts);
}

#[test]
fn two_containers_that_exchange_links_gain_no_access_to_the_host() {
    let env = TestEnv::new();
    let outside = Outside::new(&env);
    let shared = env.dir().join("volume");
    fs::create_dir(&shared).unwrap();
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    // The attackers are containers, which replace a directory by a link and back.
    let swap = format!(
        "cd /volume; while :; do mkdir -p proc/sub; busybox mv proc real; ln -s {} proc; rm proc; rm -r real; done 2> /dev/null",
        outside.climbing("dir")
    );
    for name in ["one", "two"] {
        let mut config = container(name, &["sh", "-c", &swap]);
        config.mounts = vec![volume(&shared, "/volume")];
        client.run_config(&pod, config);
    }
    for round in 0..times(25, 4) {
        let script = format!("cat /volume/proc/target/secret {}; cat /proc/self/comm", outside.absolute("file"));
        let mut config = container(&format!("c{round}"), &["sh", "-c", &script]);
        config.mounts = vec![volume(&shared, "/volume"), volume(&shared, "/volume/proc/sub")];
        config.working_dir = "/volume/proc/sub".into();
        if let Ok(id) = client.try_create(&pod, config) {
            if client.start(&id).is_ok() {
                client.wait_exited(&id);
                let printed = crate::support::client::text_of(&client.lines(&id), "stdout");
                assert_eq!(printed, "cat\n", "{printed}");
            }
            client.remove(&id).unwrap();
        }
    }
    outside.check("containers raced");
}

#[test]
fn masks_in_a_volume_that_changes_during_the_launch_hide_nothing_of_the_host() {
    let shared = Shared::new(|outside| outside.absolute("dir"));
    fs::write(shared.volume.join("a/file"), "").unwrap();
    let client = shared.daemon.client();
    let pod = shared.daemon.run_pod("pod");
    let null =
        || fs::metadata("/dev/null").map(|meta| (std::os::unix::fs::MetadataExt::mode(&meta), meta.modified().is_ok()));
    let before = null().unwrap();
    let racer = shared.exchange();
    let mut made = 0;
    for _ in 0..times(20, 3) {
        let mut config = container("main", &["true"]);
        config.mounts = vec![volume(&shared.volume, "/volume")];
        let paths = ["/volume/a/file", "/volume/a/target", "/volume/b/file", "/volume/b/target"];
        security(&mut config).masked_paths = paths.map(str::to_owned).into();
        security(&mut config).readonly_paths = ["/volume/a", "/volume/b"].map(str::to_owned).into();
        if let Ok(id) = client.try_create(&pod, config) {
            client.start(&id).unwrap();
            client.wait_exited(&id);
            client.remove(&id).unwrap();
            made += 1;
        }
    }
    drop(racer);
    assert!(made > 0);
    assert_eq!(null().unwrap(), before);
    shared.outside.check("masks were raced");
    // The attacker can write to the volume as before.
    fs::write(shared.volume.join("still"), "writable").unwrap();
}

#[test]
fn renames_by_another_container_do_not_prevent_a_launch() {
    let env = TestEnv::new();
    // As many images have it: /var/run is a link upwards, and the kubelet mounts a secret below it.
    env.import(&Archive::new("crisp.test/run:1").with_dir("run").with_dir("var").with_link("var/run", "../run"));
    let elsewhere = env.dir().join("elsewhere");
    fs::create_dir_all(elsewhere.join("a")).unwrap();
    fs::create_dir_all(elsewhere.join("b")).unwrap();
    let daemon = Daemon::on(env);
    let client = daemon.client();
    let pod = daemon.run_pod("pod");
    let secret = daemon.env.dir().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("token"), "token\n").unwrap();
    let _racer = Racer::exchange(&elsewhere.join("a"), &elsewhere.join("b"));
    for round in 0..times(20, 3) {
        let mut config = container(&format!("c{round}"), &["cat", "/var/run/secrets/deep/token"]);
        config.image.as_mut().unwrap().image = "crisp.test/run:1".into();
        config.mounts = vec![volume(&secret, "/var/run/secrets/deep"), volume(&secret, "/var/run/../run/again")];
        config.working_dir = "/var/run/work".into();
        assert_eq!(client.finish_config(&pod, config).stdout, "token\n");
    }
}
