//! The result of a resize as JSON; docs/json.md has its form.

use std::io::{self, Write as _};
use std::time::Duration;

use serde::Serialize;

use super::super::output;
use super::order::{Owner, Step};
use super::print::{self, CurrentValues, FieldChange};
use super::targets::Targets;
use super::{Position, ResizeError};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    dry_run: bool,
    /// Whether any limit differs from before.
    changed: bool,
    warnings: Vec<String>,
    steps: Vec<StepReport>,
    files: Vec<FileReport>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct StepReport {
    /// `pod`, `container`, or `declaration` for the pod's declared resources (KEP-4112).
    kind: &'static str,
    name: String,
    id: String,
    changes: Vec<FieldChange>,
    state: StepState,
    milliseconds: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum StepState {
    /// Not executed.
    Planned,
    Applied,
    Failed,
    RolledBack,
    /// Applied, and the rollback failed.
    NotRolledBack,
}

/// A cgroup file that the steps wrote.
#[derive(Debug, Serialize)]
struct FileReport {
    owner: String,
    file: String,
    before: Option<String>,
    after: String,
}

impl Report {
    pub(super) fn new(group: &Targets, steps: &[Step], dry_run: bool) -> Self {
        let step = |kind, name: &str, id: &str, changes| StepReport {
            kind,
            name: name.to_owned(),
            id: id.to_owned(),
            changes,
            state: StepState::Planned,
            milliseconds: None,
        };
        let pod = &group.pod;
        let mut reports: Vec<StepReport> = Vec::new();
        for one in steps {
            let changes = print::fields(&one.back, &one.to);
            let report = match one.owner {
                Owner::Pod => Some(step("pod", &pod.name, &pod.id, changes)),
                Owner::Container(index) => {
                    group.containers.get(index).map(|member| step("container", &member.name, &member.id, changes))
                }
            };
            reports.extend(report);
        }
        reports.extend(group.declared.as_ref().map(|_| step("declaration", &pod.name, &pod.id, Vec::new())));
        let warnings = group.warnings.clone();
        Self { dry_run, changed: false, warnings, steps: reports, files: Vec::new(), error: None }
    }

    /// Records the durations of the completed steps, and the error of the one that failed.
    pub(super) fn end(&mut self, times: &[Duration], error: Option<&ResizeError>) {
        for (step, time) in self.steps.iter_mut().zip(times) {
            (step.state, step.milliseconds) = (StepState::Applied, Some(time.as_secs_f64() * 1000.0));
        }
        let undone = match error {
            Some(ResizeError::Step { step: Position { index, .. }, undone, .. }) => {
                if let Some(step) = self.steps.get_mut(*index) {
                    step.state = StepState::Failed;
                }
                Some(undone)
            }
            Some(ResizeError::Interrupted(undone)) => Some(undone),
            Some(_) | None => None,
        };
        if let Some(undone) = undone {
            for (index, step) in self.steps.iter_mut().enumerate().take(times.len()) {
                let left = undone.left.iter().any(|(at, _)| *at == index);
                step.state = if left { StepState::NotRolledBack } else { StepState::RolledBack };
            }
        }
        self.changed =
            self.steps.iter().any(|step| matches!(step.state, StepState::Applied | StepState::NotRolledBack));
        self.error = error.map(ToString::to_string);
    }

    /// Records the files with their values before and after.
    pub(super) fn files(&mut self, before: &[CurrentValues], after: &[CurrentValues]) {
        let file = |now: &CurrentValues| FileReport {
            owner: now.owner.clone(),
            file: now.file.clone(),
            before: before
                .iter()
                .find(|was| was.owner == now.owner && was.file == now.file)
                .map(|was| was.value.clone()),
            after: now.value.clone(),
        };
        self.files = after.iter().map(file).collect();
    }

    pub(super) fn print(&self) -> io::Result<()> {
        let mut out = output::stdout();
        serde_json::to_writer_pretty(&mut out, self)?;
        writeln!(out)
    }
}
