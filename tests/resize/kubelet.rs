//! A pod that is resized in the order and with the calls of the kubelet.
//!
//! For memory, then for CPU: the pod's cgroup is raised, containers are lowered, containers are
//! raised, the pod's cgroup is lowered. The kubelet writes the pod's cgroup itself, and calls the
//! runtime before every write. Each call for a container has all of its resources: the call for
//! memory has the earlier CPU.

use std::fs;

use cri_api::v1;

use super::container::Container;
use super::resources::{PERIOD, Shape, Span, quota, shares};
use super::target::{Target, update_pod};
use crate::support::client::Pod;
use crate::support::kernel_state;

#[derive(Debug)]
pub(super) struct KubeletPod<'t> {
    target: &'t Target,
    pod: Pod,
    containers: Vec<Container<'t>>,
    shapes: Vec<Shape>,
}

type Part = fn(&Shape) -> Span;

impl<'t> KubeletPod<'t> {
    pub(super) fn run(target: &'t Target, name: &str, shapes: &[Shape]) -> Self {
        let pod = target.run_pod(name);
        let run = |(number, shape)| Container::run(target, &pod, &format!("c{number}"), shape);
        let containers = shapes.iter().enumerate().map(run).collect();
        let new = Self { target, pod, containers, shapes: shapes.to_vec() };
        for (file, value) in
            [new.memory_file(shapes), new.quota_file(shapes), Some(new.shares_file(shapes))].into_iter().flatten()
        {
            new.write(file, &value);
        }
        new
    }

    /// Resizes every container to its new shape. A changed container is checked after each call,
    /// all containers at the end.
    pub(super) fn resize(&mut self, to: &[Shape]) {
        assert_eq!(to.len(), self.shapes.len());
        let from = self.shapes.clone();
        self.resize_memory(&from, to);
        self.resize_cpu(&from, to);
        self.shapes = to.to_vec();
        self.containers.iter().for_each(Container::check);
        self.check_own_cgroup();
    }

    fn resize_memory(&mut self, from: &[Shape], to: &[Shape]) {
        let (old, new) = (total(from, |s| s.memory).limit, total(to, |s| s.memory).limit);
        if old > 0 && new > old {
            self.write_and_notify(self.memory_file(to), to);
        }
        self.update_containers(from, to, |s| s.memory, |from, to| Shape { cpu: from.cpu, memory: to.memory });
        if new > 0 && (old == 0 || new < old) {
            self.write_and_notify(self.memory_file(to), to);
        }
    }

    fn resize_cpu(&mut self, from: &[Shape], to: &[Shape]) {
        let (old, new) = (total(from, |s| s.cpu), total(to, |s| s.cpu));
        if old.limit > 0 && new.limit > old.limit {
            self.write_and_notify(self.quota_file(to), to);
        }
        if new.request > old.request {
            self.write_and_notify(Some(self.shares_file(to)), to);
        }
        self.update_containers(from, to, |s| s.cpu, |_, to| *to);
        if new.request < old.request {
            self.write_and_notify(Some(self.shares_file(to)), to);
        }
        if new.limit > 0 && (old.limit == 0 || new.limit < old.limit) {
            self.write_and_notify(self.quota_file(to), to);
        }
    }

    /// Lowered containers before raised ones.
    fn update_containers(
        &mut self,
        from: &[Shape],
        to: &[Shape],
        part: Part,
        change: impl Fn(&Shape, &Shape) -> Shape,
    ) {
        let changed = (0..to.len()).filter(|at| part(&from[*at]) != part(&to[*at]));
        let (shrinking, growing): (Vec<_>, Vec<_>) = changed.partition(|at| part(&to[*at]).is_below(part(&from[*at])));
        for at in shrinking.into_iter().chain(growing) {
            self.containers[at].update(change(&from[at], &to[at]).resources());
        }
    }

    fn write_and_notify(&self, change: Option<(&str, String)>, to: &[Shape]) {
        let Some((file, value)) = change else { return };
        let (cpu, memory) = (total(to, |s| s.cpu), total(to, |s| s.memory));
        let resources = v1::LinuxContainerResources {
            cpu_period: PERIOD,
            cpu_quota: if cpu.limit > 0 { quota(cpu.limit) } else { -1 },
            cpu_shares: shares(cpu.request),
            memory_limit_in_bytes: if memory.limit > 0 { memory.limit } else { no_limit() },
            ..Default::default()
        };
        update_pod(self.target.client(), &self.pod.id, resources);
        self.write(file, &value);
    }

    fn write(&self, file: &str, value: &str) {
        let path = self.path(file);
        fs::write(&path, value).unwrap_or_else(|e| panic!("{}: {value}: {e}", path.display()));
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        let controller = file.split('.').next().unwrap();
        kernel_state::cgroup_dir(controller, &self.pod.config.linux.as_ref().unwrap().cgroup_parent).join(file)
    }

    /// Checks that the runtime has not changed the pod's cgroup.
    fn check_own_cgroup(&self) {
        for (file, value) in [self.memory_file(&self.shapes), self.quota_file(&self.shapes)].into_iter().flatten() {
            let found = fs::read_to_string(self.path(file)).unwrap();
            assert_eq!(found.trim(), value, "the runtime has changed {file} of the pod, which is not its own");
        }
    }

    fn memory_file(&self, shapes: &[Shape]) -> Option<(&'static str, String)> {
        let limit = total(shapes, |s| s.memory).limit;
        let file = if kernel_state::is_v2() { "memory.max" } else { "memory.limit_in_bytes" };
        (limit > 0).then(|| (file, limit.to_string()))
    }

    fn quota_file(&self, shapes: &[Shape]) -> Option<(&'static str, String)> {
        let limit = total(shapes, |s| s.cpu).limit;
        let (file, value) = match kernel_state::is_v2() {
            true => ("cpu.max", format!("{} {PERIOD}", quota(limit))),
            false => ("cpu.cfs_quota_us", quota(limit).to_string()),
        };
        (limit > 0).then_some((file, value))
    }

    fn shares_file(&self, shapes: &[Shape]) -> (&'static str, String) {
        let shares = shares(total(shapes, |s| s.cpu).request);
        match kernel_state::is_v2() {
            true => ("cpu.weight", (1 + (shares - 2) * 9999 / 262_142).to_string()),
            false => ("cpu.shares", shares.to_string()),
        }
    }
}

/// Returns the limit of the pod: none if one container has none.
fn total(shapes: &[Shape], part: Part) -> Span {
    let spans: Vec<Span> = shapes.iter().map(part).collect();
    let limited = spans.iter().all(|span| span.limit > 0);
    let or_limit = |span: &Span| if span.request > 0 { span.request } else { span.limit };
    Span {
        request: spans.iter().map(or_limit).sum(),
        limit: if limited { spans.iter().map(|span| span.limit).sum() } else { 0 },
    }
}

/// Unlimited memory, as the kubelet reads it from the pod's cgroup.
pub(super) fn no_limit() -> i64 {
    if kernel_state::is_v2() { -1 } else { 9_223_372_036_854_771_712 }
}
