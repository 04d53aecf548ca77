//! `crisp resize`: resizes a container, or several containers of a pod, in place.
//!
//! The current limits come from the daemon. Calls are made in the order of KEP-1287 ([`order`]). If
//! a call fails, all earlier ones are rolled back, last first. The daemon makes each single call
//! atomic.

mod change_arg;
mod execute;
mod order;
mod pod_limits;
mod print;
mod quantity_arg;
mod targets;

use change_arg::{Change, ChangeError, Named};
use quantity_arg::QuantityArg;
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
  crisp resize web --cpu 500m --memory 256Mi          a container by name
  crisp resize 4f2a --cpu 250m/1                      request 250m, limit 1
  crisp resize shop/web --cpu-quota 20000 --cpu-shares 512
  crisp resize shop web=cpu:500m,memory:256Mi log=memory:64Mi --dry-run
                                                      several containers of a pod at once

If crisp manages the pod's cgroup, the pod's limits follow its containers, unless --keep-pod, --pod-cpu or --pod-memory
is set. On a Kubernetes node the kubelet overrides these changes at the pod's next resize.")]
pub struct ResizeArgs {
    #[command(flatten)]
    settings: CommonArgs,
    /// Container or pod: ID or ID prefix, name, POD/CONTAINER or NAMESPACE/POD.
    #[arg(value_name = "CONTAINER|POD")]
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
    #[error("container {0:?} is given twice")]
    Twice(String),
    #[error("container {name} is {state}: only created or running containers can be resized")]
    NotAlive { name: String, state: &'static str },
    #[error("cgroup {0} is managed by the client; --pod-cpu and --pod-memory cannot be used")]
    ClientsPod(String),
    #[error("step {step} of {all} ({what}): {problem}; {undone}")]
    Step { step: usize, all: usize, what: String, problem: String, undone: String },
    #[error("interrupted; {0}")]
    Interrupted(String),
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
    let ResizeArgs { settings, target, containers, change, pod_cpu, pod_memory, keep_pod, dry_run } = args;
    let of_pod = Change::of_pod(pod_cpu, pod_memory);
    let (cri, target) = connect(settings, &target).await?;
    let mut group = match target {
        Target::Container(id) => {
            if !containers.is_empty() {
                return Err(ResizeError::Asked(
                    "NAME=CHANGE is only for pods; for a container, use --cpu, --memory or another option",
                ));
            }
            if change.is_empty() {
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
    if dry_run {
        return Ok(print::plan(&group, &steps).map_err(CommandError::Print)?);
    }
    let before = print::kernel(&group, &steps);
    // From here on, a signal causes a rollback.
    let interrupt = Interrupt::note().map_err(CommandError::Start)?;
    execute::execute(&cri, &group, &steps, &interrupt).await?;
    Ok(print::done(&group, &before, &print::kernel(&group, &steps)).map_err(CommandError::Print)?)
}

async fn connect(settings: CommonArgs, target: &str) -> Result<(Cri, Target), CommandError> {
    let cri = Cri::connect(&settings.load()?.listen).await?;
    let target = target::find(&cri, target).await?;
    Ok((cri, target))
}
