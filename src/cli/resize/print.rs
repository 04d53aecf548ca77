//! Prints steps and kernel values.

use std::fmt;
use std::io::{self, Write as _};
use std::time::Duration;

use cgroup::{Cgroup, CgroupFs as _, Knob};
use model::resources::LimitsPatch;
use serde::Serialize;

use super::super::cgroup_files::readable;
use super::super::color::{Color, columns};
use super::super::{output, units};
use super::order::{Owner, Step};
use super::targets::Targets;

/// Text of the step that changes no limit.
pub(super) const DECLARED: &str = "update the declared resources of the pod (KEP-4112)";

/// Owner, name and value of a cgroup file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CurrentValues {
    pub(super) owner: String,
    pub(super) file: String,
    pub(super) value: String,
}

/// One setting that a step changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct FieldChange {
    setting: &'static str,
    /// None if it was not set.
    from: Option<String>,
    to: String,
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, from, to } = self;
        write!(f, "{setting} {} → {to}", from.as_deref().unwrap_or("not set"))
    }
}

/// Describes a step: `container web: memory 64Mi → 128Mi`.
pub(super) fn words(group: &Targets, step: &Step) -> String {
    let owner = owner_name(group, step.owner);
    let fields: Vec<String> = fields(&step.back, &step.to).iter().map(ToString::to_string).collect();
    format!("{owner}: {}", fields.join(", "))
}

pub(super) fn owner_name(group: &Targets, owner: Owner) -> String {
    match owner {
        Owner::Pod => format!("pod {}", group.pod.name),
        Owner::Container(index) => {
            let name = group.containers.get(index).map_or("", |member| member.name.as_str());
            format!("container {name}")
        }
    }
}

pub(super) fn fields(from: &LimitsPatch, to: &LimitsPatch) -> Vec<FieldChange> {
    let change = |setting, from: Option<String>, to: Option<String>| to.map(|to| FieldChange { setting, from, to });
    let cpus = |patch: &LimitsPatch| patch.cpu_quota.map(|quota| units::cpus(quota, patch.cpu_period));
    let period = |patch: &LimitsPatch| patch.cpu_period.map(|period| period.micros().0.to_string());
    let shares = |patch: &LimitsPatch| patch.cpu_shares.map(|shares| shares.get().to_string());
    let other_period = from.cpu_period != to.cpu_period;
    let set = |set: &Option<model::resources::CpuSet>| set.as_ref().map(|set| set.as_str().to_owned());
    [
        change("memory", from.memory.map(units::memory), to.memory.map(units::memory)),
        change("memory + swap", from.memory_swap.map(units::memory), to.memory_swap.map(units::memory)),
        change("cpu limit", cpus(from), cpus(to)),
        change("cpu period", period(from), period(to).filter(|_| other_period)),
        change("cpu shares", shares(from), shares(to)),
        change("cpus", set(&from.cpuset_cpus), set(&to.cpuset_cpus)),
        change("memory nodes", set(&from.cpuset_mems), set(&to.cpuset_mems)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Prints warnings to stderr.
pub(super) fn warnings(warnings: &[String]) -> io::Result<()> {
    warnings.iter().try_for_each(|text| writeln!(output::stderr(), "crisp: warning: {text}"))
}

/// Prints a completed step.
pub(super) fn completed(what: &str, took: Duration) {
    let color = Color::stdout();
    // A failed write to stdout must not stop the resize.
    let took = color.faint(&units::milliseconds(took));
    writeln!(output::stdout(), "{}  {what}  {took}", color.good("ok")).ok();
}

/// Prints the numbered steps.
pub(super) fn plan(group: &Targets, steps: &[Step]) -> io::Result<()> {
    let mut out = output::stdout();
    if steps.is_empty() {
        return writeln!(out, "no change: these limits are already active");
    }
    for (index, step) in steps.iter().enumerate() {
        writeln!(out, "{}. {}", index + 1, words(group, step))?;
    }
    if group.declared.is_some() {
        writeln!(out, "{}. {DECLARED}", steps.len() + 1)?;
    }
    writeln!(out, "dry run: nothing was changed")
}

/// Prints lines that need no table.
pub(super) fn lines(lines: &[String]) -> io::Result<()> {
    lines.iter().try_for_each(|line| writeln!(output::stdout(), "{line}"))
}

/// Reads every file that the steps write.
pub(super) fn kernel(group: &Targets, steps: &[Step]) -> Vec<CurrentValues> {
    let mut held: Vec<CurrentValues> = Vec::new();
    for step in steps {
        let cgroup: Option<&Cgroup> = match step.owner {
            Owner::Pod => Some(&group.pod.group),
            Owner::Container(index) => group.containers.get(index).map(|member| &member.group),
        };
        let Some(cgroup) = cgroup else { continue };
        let read = |knob: &Knob| {
            let value = cgroup.read(knob).ok()?.trim().to_owned();
            Some(CurrentValues { owner: owner_name(group, step.owner), file: knob.file().to_owned(), value })
        };
        held.extend(cgroup::knobs(cgroup.layout().version(), &step.to).iter().filter_map(read));
    }
    held.sort_by(|a, b| (&a.owner, &a.file).cmp(&(&b.owner, &b.file)));
    held.dedup();
    held
}

/// Prints the kernel's values before and after.
pub(super) fn done(group: &Targets, before: &[CurrentValues], after: &[CurrentValues]) -> io::Result<()> {
    let (mut out, color) = (output::stdout(), Color::stdout());
    if after.is_empty() {
        return writeln!(out, "no change: these limits are already active");
    }
    let head = ["", "FILE", "BEFORE", "AFTER"].map(str::to_owned);
    let mut rows = vec![head];
    for CurrentValues { owner, file, value } in after {
        let was = before.iter().find(|was| was.owner == *owner && was.file == *file);
        if was.is_some_and(|was| was.value == *value) {
            continue;
        }
        let was = was.map_or_else(|| "-".to_owned(), |was| readable(file, &was.value));
        rows.push([owner.clone(), file.clone(), was, readable(file, value)]);
    }
    for (index, line) in columns(&rows).iter().enumerate() {
        let line = if index == 0 { color.faint(line) } else { line.clone() };
        writeln!(out, "{line}")?;
    }
    if !group.pod.ours && !group.containers.is_empty() {
        let path = group.pod.group.path();
        writeln!(
            out,
            "{}",
            color.faint(&format!("cgroup {path} of the pod is managed by the client and was not changed"))
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use model::resources::{Bytes, CpuPeriod, CpuQuota, CpuShares, MemoryLimit, Micros};

    use super::*;

    #[test]
    fn a_step_is_described_with_old_and_new_values() {
        let patch = |micros: u64, mib: u64| LimitsPatch {
            cpu_quota: Some(CpuQuota::Micros(Micros(micros))),
            cpu_period: CpuPeriod::new(100_000).ok(),
            memory: Some(MemoryLimit::Bytes(Bytes(mib << 20))),
            ..LimitsPatch::default()
        };
        let texts =
            |from: &LimitsPatch, to: &LimitsPatch| fields(from, to).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(texts(&patch(25_000, 64), &patch(100_000, 128)), ["memory 64Mi → 128Mi", "cpu limit 250m → 1"]);
        let free = LimitsPatch { cpu_quota: Some(CpuQuota::Unlimited), ..LimitsPatch::default() };
        assert_eq!(texts(&free, &patch(25_000, 64))[1..2], ["cpu limit no limit → 250m"]);
        let shares = LimitsPatch { cpu_shares: CpuShares::new(2048).ok(), ..LimitsPatch::default() };
        assert_eq!(texts(&LimitsPatch::default(), &shares), ["cpu shares not set → 2048"]);
    }
}
