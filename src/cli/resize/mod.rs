//! `crisp resize`: changes a container, or several of a pod, in place, all of it or nothing.
//!
//! What is in force is asked of the daemon, the order of the calls is that of KEP-1287 ([`order`]), and a call that fails has
//! all earlier ones taken back, last first. Each call by itself is made whole or not at all by the daemon.

mod change_arg;
mod execute;
mod order;
mod pod_limits;
mod print;
mod quantity_arg;
mod targets;

use std::io;

use change_arg::{Change, ChangeError, Named};
use config::ConfigError;
use quantity_arg::QuantityArg;
use targets::Targets;

use super::cgroup_files::FilesError;
use super::client::{CallError, ConnectError, Cri};
use super::common_args::CommonArgs;
use super::signals;
use super::signals::Interrupt;
use super::target::{self, Target, TargetError};
use super::verbose_info::NotCrisp;

/// What is to be changed, and how.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  crisp resize web --cpu 500m --memory 256Mi          a container by its name
  crisp resize 4f2a --cpu 250m/1                      request 250m, limit 1
  crisp resize shop/web --cpu-quota 20000 --cpu-shares 512
  crisp resize shop web=cpu:500m,memory:256Mi log=memory:64Mi --dry-run
                                                      several containers of a pod at once

The limits of a pod whose cgroup is crisp's own follow its containers, unless --keep-pod, --pod-cpu or --pod-memory say
otherwise. Under a kubelet, that one decides: what is changed here, it changes back at the next resize of the pod.")]
pub struct ResizeArgs {
    #[command(flatten)]
    settings: CommonArgs,
    /// A container or pod: its id or the beginning of it, its name, POD/CONTAINER or NAMESPACE/POD.
    #[arg(value_name = "CONTAINER|POD")]
    target: String,
    /// For a pod, what changes of which container: NAME=KEY:VALUE,… with the names of the options below as keys.
    #[arg(value_name = "NAME=CHANGE", value_parser = str::parse::<Named>)]
    containers: Vec<Named>,
    #[command(flatten)]
    change: Change,
    /// The pod's own CPUs, in place of what follows from its containers.
    #[arg(long, value_name = "[REQUEST/]LIMIT", conflicts_with = "keep_pod")]
    pod_cpu: Option<QuantityArg>,
    /// The pod's own memory.
    #[arg(long, value_name = "[REQUEST/]LIMIT", conflicts_with = "keep_pod")]
    pod_memory: Option<QuantityArg>,
    /// Leave the pod's own limits as they are.
    #[arg(long)]
    keep_pod: bool,
    /// Only show the steps, in their order.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("starting")]
    Start(#[source] io::Error),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    NotCrisp(#[from] NotCrisp),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("{0}")]
    Change(String),
    #[error("{0}")]
    Asked(&'static str),
    #[error("pod {pod} has no container {name:?}: it has {}", has.join(", "))]
    NoSuchContainer { pod: String, name: String, has: Vec<String> },
    #[error("container {0:?} is named twice")]
    Twice(String),
    #[error("container {name} is {state}: only what is created or runs can be resized")]
    NotAlive { name: String, state: &'static str },
    #[error("the cgroup {0} is its client's, which alone sizes it: leave --pod-cpu and --pod-memory out")]
    ClientsPod(String),
    #[error("step {step} of {all}, {what}, failed: {problem}; {undone}")]
    Step { step: usize, all: usize, what: String, problem: String, undone: String },
    #[error("interrupted; {0}")]
    Interrupted(String),
    #[error("printing")]
    Print(#[source] io::Error),
}

impl ResizeError {
    /// What the program ends with.
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

/// Changes it.
pub fn resize(args: ResizeArgs) -> Result<(), ResizeError> {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ResizeError::Start)?;
    tokio.block_on(run(args))
}

async fn run(args: ResizeArgs) -> Result<(), ResizeError> {
    let ResizeArgs { settings, target, containers, change, pod_cpu, pod_memory, keep_pod, dry_run } = args;
    let config = settings.load()?;
    let of_pod = Change::of_pod(pod_cpu, pod_memory);
    let cri = Cri::connect(&config.listen).await?;
    let group = match target::find(&cri, &target).await? {
        Target::Container(id) => {
            if !containers.is_empty() {
                return Err(ResizeError::Asked(
                    "NAME=CHANGE is for pods: of a container, give --cpu, --memory and the like",
                ));
            }
            if change.is_empty() {
                return Err(ResizeError::Asked("nothing to change: give --cpu, --memory or another amount"));
            }
            Targets::of_container(&cri, &id, change).await?
        }
        Target::Pod(id) => {
            if !change.is_empty() {
                return Err(ResizeError::Asked("of a pod, say which container: NAME=cpu:500m,memory:256Mi"));
            }
            if containers.is_empty() && of_pod.is_empty() {
                return Err(ResizeError::Asked(
                    "nothing to change: give NAME=cpu:500m,memory:256Mi, --pod-cpu or --pod-memory",
                ));
            }
            Targets::of_pod(&cri, &id, containers).await?
        }
    };
    let mut group = group;
    group.size_pod(&of_pod, keep_pod)?;
    let steps = group.steps();
    if dry_run {
        return print::plan(&group, &steps).map_err(ResizeError::Print);
    }
    let before = print::kernel(&group, &steps);
    // From here on a signal has all of it taken back.
    let interrupt = Interrupt::note().map_err(ResizeError::Start)?;
    execute::execute(&cri, &group, &steps, &interrupt).await?;
    print::done(&group, &before, &print::kernel(&group, &steps)).map_err(ResizeError::Print)
}
