//! `crisp resize`: resizes a container, or several containers of a pod, in place.
//!
//! The current limits come from the daemon. Calls are made in the order of KEP-1287 ([`order`]). If
//! a call fails, all earlier ones are rolled back, last first. The daemon makes each single call
//! atomic.

mod change_arg;
mod execute;
mod forecast;
mod order;
mod parent_limits;
mod pod_limits;
mod print;
mod quantity_arg;
mod report;
mod targets;

use std::fmt;
use std::time::Duration;

use change_arg::{Change, ChangeError, Named};
use execute::RollBack;
use order::Step;
use quantity_arg::QuantityArg;
use report::Report;
use targets::Targets;

use super::client::Cri;
use super::command::{self, CommandError};
use super::common_args::CommonArgs;
use super::signals;
use super::signals::Interrupt;
use super::target::{self, Target};

/// Arguments of `crisp resize`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  crisp resize web --cpu 500m --memory 256Mi          a container by its name, if it is unique
  crisp resize default/shop/web --memory 256Mi        by namespace, pod and container
  crisp resize 4f2a --cpu 250m/1                      request 250m, limit 1
  crisp resize web --memory '?'                       the smallest memory limit that would be accepted now
  crisp resize shop/web --cpu-quota 20000 --cpu-shares 512
  crisp resize shop web=cpu:500m,memory:256Mi log=memory:64Mi --dry-run
                                                      several containers of a pod at once

If crisp manages the pod's cgroup, the pod's limits follow its containers, unless --keep-pod, --pod-cpu or --pod-memory
is set. On a Kubernetes node the kubelet overrides these changes at the pod's next resize.")]
pub struct ResizeArgs {
    #[command(flatten)]
    settings: CommonArgs,
    /// Pod or container: name, NAMESPACE/POD, POD/CONTAINER, NAMESPACE/POD/CONTAINER, ID or unique prefix of an ID.
    #[arg(value_name = "POD|CONTAINER")]
    target: String,
    /// Changes per container of a pod: `NAME=KEY:VALUE,…`; keys are the option names below.
    #[arg(value_name = "NAME=CHANGE", value_parser = str::parse::<Named>)]
    containers: Vec<Named>,
    #[command(flatten)]
    change: Change,
    /// CPUs of the pod's cgroup, instead of the value that follows from its containers.
    #[arg(long, value_name = "[REQUEST/]LIMIT", conflicts_with = "keep_pod")]
    pod_cpu: Option<QuantityArg>,
    /// Memory of the pod's cgroup, instead of the value that follows from its containers.
    #[arg(long, value_name = "[REQUEST/]LIMIT", conflicts_with = "keep_pod")]
    pod_memory: Option<QuantityArg>,
    /// Do not change the limits of the pod's cgroup.
    #[arg(long)]
    keep_pod: bool,
    /// Only print the steps, in order.
    #[arg(long)]
    dry_run: bool,
    /// With --memory '?': also reclaim page cache in small steps for up to 3 s, and count how much is read back. Needs
    /// cgroup v2.
    #[arg(long)]
    probe: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("{0}")]
    Change(String),
    #[error("{0}")]
    Asked(&'static str),
    #[error("container {name:?} not found in pod {pod}: expected one of {}", has.join(", "))]
    NoSuchContainer { pod: String, name: String, has: Vec<String> },
    #[error("container {0:?} is given twice: combine its changes, as in web=cpu:500m,memory:256Mi")]
    Twice(String),
    #[error("container {name} is {state}: only created or running containers can be resized")]
    NotAlive { name: String, state: &'static str },
    #[error("the kubelet or another client manages the pod's cgroup {0}; --pod-cpu and --pod-memory cannot be used")]
    ClientsPod(String),
    #[error("{step}{what}: {problem}; {undone}")]
    Step { step: Position, what: String, problem: String, undone: RollBack },
    #[error(transparent)]
    Levels(#[from] cgroup::LevelError),
    #[error(transparent)]
    Forecast(#[from] forecast::ForecastFailure),
    #[error("resize interrupted; {0}")]
    Interrupted(RollBack),
}

/// The position of a step, in an error.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    pub(self) index: usize,
    pub(self) all: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.all > 1 { write!(f, "step {} of {}, ", self.index + 1, self.all) } else { Ok(()) }
    }
}

impl ResizeError {
    /// Returns the exit code of the program.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted(_) => signals::EXIT_CODE,
            _ => 1,
        }
    }
}

impl From<ChangeError> for ResizeError {
    fn from(error: ChangeError) -> Self {
        Self::Change(error.to_string())
    }
}

/// Runs `crisp resize`.
pub fn resize(args: ResizeArgs) -> Result<(), ResizeError> {
    command::run(run(args)).map_err(CommandError::Start)?
}

async fn run(args: ResizeArgs) -> Result<(), ResizeError> {
    let ResizeArgs { settings, target, containers, change, pod_cpu, pod_memory, keep_pod, dry_run, probe, json } = args;
    let is_forecast = change.is_forecast()?;
    if is_forecast && (pod_cpu.is_some() || pod_memory.is_some() || keep_pod || dry_run || !containers.is_empty()) {
        return Err(ChangeError::Forecast.into());
    }
    if probe && !is_forecast {
        return Err(ResizeError::Asked("--probe needs --memory '?'"));
    }
    let of_pod = Change::of_pod(pod_cpu, pod_memory);
    let (cri, target) = connect(settings, &target).await?;
    if is_forecast {
        return forecast::print(&Targets::forecasts(&cri, &target, probe).await?, json);
    }
    let mut group = match target {
        Target::Container(id) => {
            if !containers.is_empty() {
                return Err(ResizeError::Asked(
                    "NAME=CHANGE is only for pods; for a container, use --cpu, --memory or another option",
                ));
            }
            if change.is_empty() && of_pod.is_empty() {
                return Err(ResizeError::Asked("nothing to change: use --cpu, --memory or another option"));
            }
            Targets::of_container(&cri, &id, change).await?
        }
        Target::Pod(id) => {
            if !change.is_empty() {
                return Err(ResizeError::Asked(
                    "the target is a pod: name a container (NAME=cpu:500m,memory:256Mi) or use --pod-cpu, --pod-memory",
                ));
            }
            if containers.is_empty() && of_pod.is_empty() {
                return Err(ResizeError::Asked(
                    "nothing to change: use NAME=cpu:500m,memory:256Mi, --pod-cpu or --pod-memory",
                ));
            }
            Targets::of_pod(&cri, &id, containers).await?
        }
    };
    group.size_pod(&of_pod, keep_pod)?;
    let steps = group.steps();
    group.warnings.extend(parent_limits::warnings(&group)?);
    print::warnings(&group.warnings).map_err(CommandError::Print)?;
    let report = Report::new(&group, &steps, dry_run);
    if dry_run {
        let printed = if json { report.print() } else { print::plan(&group, &steps) };
        return Ok(printed.map_err(CommandError::Print)?);
    }
    change_all(&cri, &group, &steps, report, json).await
}

/// Makes the changes, and prints them with the kernel's values before and after.
async fn change_all(
    cri: &Cri,
    group: &Targets,
    steps: &[Step],
    mut report: Report,
    json: bool,
) -> Result<(), ResizeError> {
    let before = print::kernel(group, steps);
    // From here on, a signal causes a rollback.
    let interrupt = Interrupt::note().map_err(CommandError::Start)?;
    let mut times = Vec::new();
    let mut completed = |what: &str, took: Duration| {
        times.push(took);
        if !json {
            print::completed(what, took);
        }
    };
    let changed = execute::execute(cri, group, steps, &interrupt, &mut completed).await;
    let after = print::kernel(group, steps);
    let printed = match (&changed, json) {
        (_, true) => {
            report.end(&times, changed.as_ref().err());
            report.files(&before, &after);
            report.print()
        }
        (Ok(()), false) => {
            let effective = parent_limits::effective(group)?;
            print::done(group, &before, &after).and_then(|()| print::lines(&effective))
        }
        (Err(_), false) => Ok(()),
    };
    // The failure of a step is the one to report.
    changed?;
    Ok(printed.map_err(CommandError::Print)?)
}

async fn connect(settings: CommonArgs, target: &str) -> Result<(Cri, Target), CommandError> {
    let cri = Cri::connect(&settings.load()?.listen).await?;
    let target = target::find(&cri, target).await?;
    Ok((cri, target))
}
