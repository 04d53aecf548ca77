//! A container that is resized, with its expected limits.

use cri_api::v1;

use super::resources::{Limits, Shape, in_words};
use super::target::{Target, update};
use super::views;
use crate::support::client::{Asked, Client, Pod};
use crate::support::harness::{seconds, wait_for};
use crate::support::kernel_state;

/// A container, with everything that was requested for it.
#[derive(Debug)]
pub(super) struct Container<'t> {
    target: &'t Target,
    pub(super) id: String,
    pub(super) cgroup: String,
    name: String,
    asked: Limits,
    life: Option<Life>,
}

/// The values that a restart would change.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Life {
    first_process: Option<(i32, u64)>,
    started_at: i64,
    attempt: u32,
    state: v1::ContainerState,
}

impl<'t> Container<'t> {
    /// Runs a container that only waits.
    pub(super) fn run(target: &'t Target, pod: &Pod, name: &str, shape: &Shape) -> Self {
        Self::run_config(target, pod, target.idle(name), shape.resources())
    }

    pub(super) fn run_config(
        target: &'t Target,
        pod: &Pod,
        config: v1::ContainerConfig,
        resources: v1::LinuxContainerResources,
    ) -> Self {
        let mut container = Self::create(target, pod, config, resources);
        container.start();
        container
    }

    /// Creates a container without starting it.
    pub(super) fn create(
        target: &'t Target,
        pod: &Pod,
        mut config: v1::ContainerConfig,
        resources: v1::LinuxContainerResources,
    ) -> Self {
        let (asked, name) = (Limits::of(&resources), config.metadata.as_ref().unwrap().name.clone());
        config.linux.get_or_insert_default().resources = Some(resources);
        let id = target.client().try_create(pod, config).unwrap();
        let cgroup = format!("{}/{id}", pod.config.linux.as_ref().unwrap().cgroup_parent);
        Self { target, id, cgroup, name, asked, life: None }
    }

    /// Starts the container, and checks it against its creation.
    pub(super) fn start(&mut self) {
        self.client().start(&self.id).unwrap();
        // Other processes may start and exit meanwhile; the first one stays.
        wait_for("the container's first process", seconds(10), || self.first_process());
        self.life = Some(self.life());
        self.check();
    }

    fn client(&self) -> &Client {
        self.target.client()
    }

    /// The limits that must be active.
    pub(super) fn requested(&self) -> &Limits {
        &self.asked
    }

    /// Sends UpdateContainerResources; if it succeeds, the requested limits must be active.
    pub(super) fn try_update(&mut self, patch: v1::LinuxContainerResources) -> Asked<()> {
        let after = self.asked.after(&patch);
        update(self.client(), &self.id, patch)?;
        self.asked = after;
        Ok(())
    }

    /// Sends a change that must succeed, and checks all views.
    pub(super) fn update(&mut self, patch: v1::LinuxContainerResources) {
        self.grant(patch);
        self.check();
    }

    /// The same without the view from inside, if the container has too little CPU for it.
    pub(super) fn update_seen_from_outside(&mut self, patch: v1::LinuxContainerResources) {
        self.grant(patch);
        self.blame(self.differences_outside());
    }

    fn grant(&mut self, patch: v1::LinuxContainerResources) {
        let name = self.name.clone();
        let asked = in_words(&patch);
        self.try_update(patch)
            .unwrap_or_else(|e| panic!("{name} was refused {asked}: {:?}: {}", e.code(), e.message()));
    }

    /// Sends a change that must be refused, and checks that nothing has changed.
    pub(super) fn refuse(&mut self, patch: v1::LinuxContainerResources) -> tonic::Status {
        let before = self.asked.clone();
        let asked = in_words(&patch);
        let Err(refusal) = self.try_update(patch) else { panic!("{} was granted {asked}", self.name) };
        assert_eq!(self.asked, before);
        let lines = self.differences();
        let words = refusal.message();
        assert!(lines.is_empty(), "{} was refused {asked} ({words}), and yet:\n  {}", self.name, lines.join("\n  "));
        refusal
    }

    /// Adds the request of another caller to the requested limits.
    pub(super) fn expect(&mut self, asked: Limits) {
        self.asked = asked;
    }

    /// Compares all views with the requested limits, the status first.
    pub(super) fn check(&self) {
        self.blame(self.differences());
    }

    fn differences(&self) -> Vec<String> {
        let mut lines = self.differences_outside();
        lines.extend(views::inside(self.client(), &self.id, &self.asked));
        lines
    }

    fn differences_outside(&self) -> Vec<String> {
        let status = self.client().status(&self.id);
        let mut lines = views::in_status(&status, &self.asked, self.target.may_report_nothing());
        lines.extend(views::in_kernel(&self.cgroup, &self.asked));
        match views::oom_kills(&self.cgroup) {
            0 => {}
            number => lines.push(format!("the kernel: {number} OOM kills")),
        }
        let (now, then) = (self.life_of(&status), self.life.as_ref());
        if Some(&now) != then {
            lines.push(format!("not the same container any more: {now:?}, not {then:?}"));
        }
        lines
    }

    fn blame(&self, lines: Vec<String>) {
        assert!(lines.is_empty(), "{} differs from the request {:?}:\n  {}", self.name, self.asked, lines.join("\n  "));
    }

    fn life(&self) -> Life {
        self.life_of(&self.client().status(&self.id))
    }

    fn life_of(&self, status: &v1::ContainerStatus) -> Life {
        Life {
            first_process: self.first_process(),
            started_at: status.started_at,
            attempt: status.metadata.as_ref().unwrap().attempt,
            state: status.state(),
        }
    }

    /// Returns the pid and the start time.
    fn first_process(&self) -> Option<(i32, u64)> {
        self.pids().first().map(|pid| (*pid, kernel_state::started(*pid)))
    }

    /// Returns the container's processes, the first one first.
    pub(super) fn pids(&self) -> Vec<i32> {
        let (pod, id) = self.cgroup.rsplit_once('/').unwrap();
        kernel_state::pids_in(id, pod)
    }

    /// Returns a process in the container by its name.
    pub(super) fn process(&self, name: &str) -> Option<i32> {
        let pids = self.pids();
        kernel_state::processes().into_iter().find(|p| p.name == name && pids.contains(&p.pid)).map(|p| p.pid)
    }

    /// Returns the content of a file of its cgroup.
    pub(super) fn file(&self, controller: &str, name: &str) -> String {
        let path = kernel_state::cgroup_dir(controller, &self.cgroup).join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        text.trim().to_owned()
    }
}
