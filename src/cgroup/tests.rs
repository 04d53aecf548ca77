//! Cgroups on the real kernel, with the version of this host.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use cgroup_procs::CgroupDirs;
use model::resources::{Bytes, LimitsPatch, MemoryLimit};
use model::{CgroupPath, ErrorClass as _};

use crate::{Access, Cgroup, CgroupError, DeviceKind, DeviceRule, Layout, Version, allow_all, default_rules};

/// Long enough for emulated machines.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cgroup of the test at the top of each hierarchy, removed at the end of the test also if it fails.
pub(crate) struct Throwaway {
    pub(crate) group: Cgroup,
}

impl Throwaway {
    pub(crate) fn new() -> Self {
        let throwaway = Self::not_yet();
        assert!(!throwaway.group.create().unwrap().is_empty());
        throwaway
    }

    fn not_yet() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("/crisp-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let layout = Arc::new(Layout::detect().unwrap());
        Self { group: Cgroup::new(layout, CgroupPath::new(&name).unwrap()) }
    }

    fn child(&self, name: &str) -> Cgroup {
        self.group.child(name).unwrap()
    }

    /// Starts a shell that joins the cgroup and then runs `script`.
    fn shell(&self, script: &str) -> Command {
        shell_in(&self.group, script)
    }
}

pub(crate) fn shell_in(group: &Cgroup, script: &str) -> Command {
    let mut command = Command::new("sh");
    let joined = format!("for f in \"$@\"; do echo $$ > \"$f\" || exit 99; done\n{script}");
    command.args(["-c", &joined, "sh"]).args(group.join_files()).stdin(Stdio::null());
    command
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        let gone = self.group.kill_all(PATIENCE).and_then(|()| self.group.remove());
        if let Err(e) = gone
            && !thread::panicking()
        {
            panic!("cannot remove {}: {e:?}", self.group.path());
        }
    }
}

/// A child process that is killed at the end of its test.
pub(crate) struct Started(pub(crate) Child);

impl Started {
    pub(crate) fn by(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.0.kill());
        // Without waiting: a frozen process exits once its cgroup is thawed.
        drop(self.0.try_wait());
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn dirs(group: &Cgroup) -> Vec<PathBuf> {
    group.join_files().iter().map(|file| file.parent().unwrap().to_owned()).collect()
}

#[test]
#[ignore = "needs root"]
fn a_cgroup_is_created_in_every_tree_with_its_parents_and_undone_alone() {
    let top = Throwaway::new();
    let leaf = top.child("pod").child("c1").unwrap();
    assert!(!leaf.exists());
    let made = leaf.create().unwrap();
    assert!(dirs(&leaf).iter().all(|dir| dir.is_dir()));
    assert!(leaf.create().unwrap().is_empty(), "everything exists already");
    made.undo().unwrap();
    assert!(!leaf.exists() && !top.child("pod").exists() && top.group.exists());
}

#[test]
#[ignore = "needs root"]
fn every_new_level_accepts_processes_and_limits() {
    let top = Throwaway::new();
    let leaf = top.child("pod").child("c1").unwrap();
    assert!(!leaf.create().unwrap().is_empty());
    let memory = Some(MemoryLimit::Bytes(Bytes(64 << 20)));
    let settings = leaf.apply(&LimitsPatch { memory, ..LimitsPatch::default() }).unwrap();
    assert_eq!(leaf.observe(&settings).unwrap().observed.memory, Some(Bytes(64 << 20)));
    let status = shell_in(&leaf, "exit 7").status().unwrap();
    assert_eq!(status.code(), Some(7), "99: the shell could not join the cgroup");
}

#[test]
#[ignore = "needs root"]
fn processes_are_found_also_in_nested_cgroups() {
    let top = Throwaway::new();
    assert!(top.group.is_empty().unwrap());
    let nested = top.child("nested");
    assert!(!nested.create().unwrap().is_empty());
    let child = Started::by(&mut shell_in(&nested, "exec sleep 1000"));
    wait_until("the process in the nested cgroup", || !top.group.is_empty().unwrap());
    wait_until("its pid", || top.group.procs().unwrap().iter().any(|pid| pid.get() == child.0.id()));
    // On v2 a cgroup with controllers for its children has no processes: nested ones are killed through the parent.
    top.group.kill_all(PATIENCE).unwrap();
    assert!(top.group.is_empty().unwrap() && nested.procs().unwrap().is_empty());
}

#[test]
#[ignore = "needs root"]
fn the_join_files_lead_to_the_same_directories_as_the_layout() {
    let top = Throwaway::new();
    assert_eq!(CgroupDirs::of_join_files(&top.group.join_files()), top.group.process_dirs());
}

#[test]
#[ignore = "needs root"]
fn processes_that_keep_forking_are_killed() {
    let top = Throwaway::new();
    let script = "for i in 1 2 3 4 5 6 7 8; do while :; do /bin/true; done & done; wait";
    let _child = Started::by(&mut top.shell(script));
    wait_until("eight loops", || top.group.procs().unwrap().len() > 8);
    top.group.kill_all(PATIENCE).unwrap();
    thread::sleep(Duration::from_millis(100));
    assert!(top.group.is_empty().unwrap());
    assert!(top.group.procs().unwrap().is_empty());
}

#[test]
#[ignore = "needs root"]
fn frozen_processes_do_not_run_until_thawed_and_can_be_killed() {
    let top = Throwaway::new();
    let counter = std::env::temp_dir().join(format!("crisp-test-counter-{}", std::process::id()));
    let script = format!("while :; do echo x >> {}; done", counter.display());
    let _child = Started::by(&mut top.shell(&script));
    let size = || fs::metadata(&counter).map_or(0, |meta| meta.len());
    wait_until("the first lines", || size() > 0);
    top.group.freeze(PATIENCE).unwrap();
    assert!(top.group.is_frozen().unwrap());
    let still = size();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(size(), still);
    top.group.thaw().unwrap();
    wait_until("more lines", || size() > still);
    top.group.freeze(PATIENCE).unwrap();
    top.group.kill_all(PATIENCE).unwrap();
    assert!(!top.group.is_frozen().unwrap());
    fs::remove_file(&counter).unwrap();
}

#[test]
#[ignore = "needs root"]
fn removing_a_cgroup_removes_those_that_the_container_created_in_it() {
    let top = Throwaway::new();
    for dir in dirs(&top.group) {
        fs::create_dir_all(dir.join("a/b/c")).unwrap();
        fs::create_dir_all(dir.join("a/d")).unwrap();
    }
    top.child("a").freeze(PATIENCE).unwrap();
    top.group.remove().unwrap();
    assert!(!top.group.exists());
    top.group.remove().unwrap();
}

#[test]
#[ignore = "needs root"]
fn removing_a_frozen_cgroup_thaws_its_killed_processes() {
    let top = Throwaway::new();
    let mut child = Started::by(&mut top.shell("exec sleep 1000"));
    wait_until("the process", || !top.group.is_empty().unwrap());
    top.group.freeze(PATIENCE).unwrap();
    child.0.kill().unwrap();
    top.group.remove().unwrap();
    assert!(!top.group.exists());
}

#[test]
#[ignore = "needs root"]
fn killing_thaws_an_empty_cgroup_too() {
    let top = Throwaway::new();
    top.group.freeze(PATIENCE).unwrap();
    top.group.kill_all(PATIENCE).unwrap();
    assert!(!top.group.is_frozen().unwrap());
}

#[test]
#[ignore = "needs root"]
fn a_cgroup_with_a_live_process_is_not_removed() {
    let top = Throwaway::new();
    let mut child = Started::by(&mut top.shell("exec sleep 1000"));
    wait_until("the process in every tree", || {
        top.group.join_files().iter().all(|file| fs::read_to_string(file).is_ok_and(|text| !text.is_empty()))
    });
    let busy = top.group.remove().unwrap_err();
    assert!(matches!(busy, CgroupError::Remove { .. }), "{busy:?}");
    assert_eq!(busy.kind(), model::ErrorKind::Busy);
    assert!(child.0.try_wait().unwrap().is_none(), "the process must still run");
}

#[test]
#[ignore = "needs root"]
fn an_oom_kill_is_counted_in_the_metrics() {
    let top = Throwaway::new();
    assert_eq!(top.group.oom_kills(), Some(0));
    let memory = Some(MemoryLimit::Bytes(Bytes(16 << 20)));
    top.group.apply(&LimitsPatch { memory, memory_swap: memory, ..LimitsPatch::default() }).unwrap();
    let status = top.shell("exec tail /dev/zero").status().unwrap();
    assert!(!status.success());
    assert!(top.group.oom_kills().unwrap() >= 1);
}

#[test]
#[ignore = "needs root"]
fn a_change_of_a_missing_cgroup_is_not_found() {
    let never = Throwaway::not_yet();
    let memory = Some(MemoryLimit::Bytes(Bytes(16 << 20)));
    let failed = never.group.apply(&LimitsPatch { memory, ..LimitsPatch::default() }).unwrap_err();
    assert_eq!(failed.kind(), model::ErrorKind::NotFound, "{failed:?}");
    assert!(never.group.procs().unwrap().is_empty() && never.group.is_empty().unwrap());
    assert_eq!(never.group.oom_kills(), None);
}

/// Device nodes to try, in a directory of their own.
struct Nodes(PathBuf);

impl Nodes {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("crisp-test-nodes-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    /// Creates a node from within `group`, and returns whether that succeeded and whether it could be opened.
    fn make_and_open(&self, group: &Cgroup, kind: &str, major: u32, minor: u32) -> (bool, bool) {
        let node = self.0.join(format!("{kind}{major}-{minor}"));
        let node = node.display();
        let script = format!(
            "r=0; rm -f {node}; mknod {node} {kind} {major} {minor} || exit 1; (exec 3<{node}) 2>/dev/null && r=2; exit $((r + 4))"
        );
        let code = shell_in(group, &script).stderr(Stdio::null()).status().unwrap().code().unwrap();
        assert_ne!(code, 99, "the shell could not join the cgroup");
        (code & 4 != 0, code & 2 != 0)
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[test]
#[ignore = "needs root"]
fn devices_outside_the_policy_can_be_created_but_not_opened() {
    let top = Throwaway::new();
    let nodes = Nodes::new();
    assert_eq!(nodes.make_and_open(&top.group, "c", 1, 7), (true, true), "no policy yet");
    top.group.set_devices(&default_rules()).unwrap();
    assert_eq!(nodes.make_and_open(&top.group, "c", 1, 3), (true, true), "null");
    assert_eq!(nodes.make_and_open(&top.group, "c", 1, 7), (true, true), "full");
    assert_eq!(nodes.make_and_open(&top.group, "c", 1, 11), (true, false), "kmsg");
    assert_eq!(nodes.make_and_open(&top.group, "b", 7, 0), (true, false), "a block device");
}

#[test]
#[ignore = "needs root"]
fn a_policy_replaces_the_earlier_one() {
    let top = Throwaway::new();
    let nodes = Nodes::new();
    let tighter = |rule: &DeviceRule| rule.minor != Some(7) && rule.minor.is_some();
    let mut rules: Vec<DeviceRule> = default_rules().into_iter().filter(tighter).collect();
    top.group.set_devices(&rules).unwrap();
    assert_eq!(nodes.make_and_open(&top.group, "c", 1, 7), (false, false), "neither created nor opened");
    rules.push(DeviceRule::allow(DeviceKind::Char, Some(1), Some(7), Access::ALL));
    top.group.set_devices(&rules).unwrap();
    assert_eq!(nodes.make_and_open(&top.group, "c", 1, 7), (true, true));
    top.group.set_devices(&[]).unwrap();
    assert_eq!(nodes.make_and_open(&top.group, "c", 1, 7), (false, false));
    top.group.set_devices(&allow_all()).unwrap();
    assert_eq!(nodes.make_and_open(&top.group, "c", 1, 7), (true, true));
    if top.group.layout().version() == Version::V2 {
        let dir = fs::File::open(dirs(&top.group).remove(0)).unwrap();
        assert_eq!(sys::bpf::device_programs(&dir).unwrap().len(), 0, "no program is left behind");
    }
}

#[test]
#[ignore = "needs root"]
fn on_v1_a_process_is_in_every_tree_and_sees_one_directory_each() {
    let top = Throwaway::new();
    let Layout::V1 { hierarchies, unified } = top.group.layout() else {
        assert!(top.group.mounts().is_empty());
        assert_eq!(top.group.join_files().len(), 1);
        return;
    };
    assert_eq!(top.group.mounts().len(), hierarchies.len());
    assert_eq!(top.group.join_files().len(), hierarchies.len() + usize::from(unified.is_some()));
    assert!(top.group.mounts().iter().all(|shown| shown.dir.join("cgroup.procs").exists()));
    let seen = top.shell("cat /proc/$$/cgroup").stderr(Stdio::inherit()).output().unwrap();
    let seen = String::from_utf8(seen.stdout).unwrap();
    let path = top.group.path().as_str();
    assert!(seen.lines().count() > hierarchies.len());
    // Without a v2 mount that hierarchy cannot be reached, and every process is at its root.
    let joined = |line: &str| line.ends_with(path) || (unified.is_none() && line == "0::/");
    assert!(seen.lines().all(joined), "{seen}");
}

#[test]
#[ignore = "needs root"]
fn releasing_a_foreign_pod_removes_only_its_directory_in_the_v2_tree() {
    let pod = Throwaway::new();
    let container = pod.child("c1");
    assert!(!container.create().unwrap().is_empty());
    pod.group.release_foreign().unwrap();
    assert!(container.exists() && dirs(&pod.group).iter().all(|dir| dir.is_dir()), "a cgroup in use must stay");
    container.remove().unwrap();
    pod.group.release_foreign().unwrap();
    let there = dirs(&pod.group).iter().filter(|dir| dir.is_dir()).count();
    let hybrid = matches!(pod.group.layout(), Layout::V1 { unified: Some(_), .. });
    assert_eq!(there, dirs(&pod.group).len() - usize::from(hybrid));
}

#[test]
#[ignore = "needs root"]
fn lowering_memory_below_unreclaimable_usage_fails_and_kills_no_process() {
    let top = Throwaway::new();
    let limit = |mib: u64| {
        let limit = Some(MemoryLimit::Bytes(Bytes(mib << 20)));
        LimitsPatch { memory: limit, memory_swap: limit, ..LimitsPatch::default() }
    };
    let settings = top.group.apply(&limit(128)).unwrap();
    let before = top.group.observe(&settings).unwrap();
    let mut command = top.shell("x=$(head -c 30000000 /dev/zero | tr '\\0' a); echo ready; read x; exit 3");
    let mut child = Started::by(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let failed = top.group.apply(&limit(8)).unwrap_err();
    assert_eq!(failed.kind(), model::ErrorKind::Precondition, "{failed:?}");
    assert!(failed.to_string().contains("memory limit (8388608) below current usage ("), "{failed}");
    assert_eq!(top.group.observe(&settings).unwrap(), before);
    assert_eq!(before.drift, []);
    assert_eq!(top.group.oom_kills(), Some(0));
    drop(child.0.stdin.take());
    assert_eq!(child.0.wait().unwrap().code(), Some(3), "the process must still run");
}

/// Returns large files of the build, after removing them from the page cache.
fn cold_files(bytes: u64) -> Vec<PathBuf> {
    let built = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let files = fs::read_dir(built).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<(u64, PathBuf)> = files
        .filter(|path| path.extension().is_some_and(|kind| kind == "rlib"))
        .map(|path| (fs::metadata(&path).unwrap().len(), path))
        .collect();
    files.sort_unstable();
    let mut all = 0;
    let mut cold = Vec::new();
    while all < bytes {
        let (size, path) = files.pop().expect("enough libraries");
        let file = fs::File::open(&path).unwrap();
        // Dirty pages stay in the cache.
        file.sync_data().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        all += size;
        cold.push(path);
    }
    cold
}

#[test]
#[ignore = "needs root"]
fn page_cache_is_reclaimed_for_a_lower_limit() {
    let top = Throwaway::new();
    let limit = |mib: u64| {
        let limit = Some(MemoryLimit::Bytes(Bytes(mib << 20)));
        LimitsPatch { memory: limit, memory_swap: limit, ..LimitsPatch::default() }
    };
    top.group.apply(&limit(512)).unwrap();
    for file in cold_files(64 << 20) {
        assert!(top.shell("exec cat \"$FILE\" > /dev/null").env("FILE", file).status().unwrap().success());
    }
    let usage = match top.group.layout().version() {
        Version::V1 => "memory.usage_in_bytes",
        Version::V2 => "memory.current",
    };
    let usage = fs::read_to_string(top.group.dir_of("memory").unwrap().join(usage)).unwrap();
    assert!(usage.trim().parse::<u64>().unwrap() > 32 << 20, "only {usage} bytes of page cache");
    let settings = top.group.apply(&limit(16)).unwrap();
    let now = top.group.observe(&settings).unwrap();
    assert_eq!((now.observed.memory, now.drift.len()), (Some(Bytes(16 << 20)), 0));
    assert_eq!(top.group.oom_kills(), Some(0));
}

#[test]
#[ignore = "needs root"]
fn a_process_does_not_freeze_or_kill_its_own_cgroup() {
    // In a separate process: that of the tests must stay in its cgroup.
    let name = "CRISP_TEST_JOIN_AND_KILL";
    if std::env::var_os(name).is_some() {
        let path = CgroupPath::new(&std::env::var(name).unwrap()).unwrap();
        let group = Cgroup::new(Arc::new(Layout::detect().unwrap()), path);
        assert!(matches!(group.kill_all(PATIENCE), Err(CgroupError::Own(_))));
        assert!(matches!(group.freeze(PATIENCE), Err(CgroupError::Own(_))));
        return;
    }
    let top = Throwaway::new();
    let test = "tests::a_process_does_not_freeze_or_kill_its_own_cgroup";
    let program = std::env::current_exe().unwrap();
    let script = format!("exec {} --include-ignored --exact {test}", program.display());
    let output = top.shell(&script).env(name, top.group.path().as_str()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}
