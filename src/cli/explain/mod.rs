//! `crisp explain`: shows requested, applied and actual limits of a pod or container.

mod inside;
mod list;
mod print;
mod view;

use std::path::Path;

use cri_api::v1;
use view::{ContainerView, PodView, View};

use super::client::{Cri, call};
use super::command::{self, CommandError};
use super::common_args::CommonArgs;
use super::target::{self, Target};
use super::{cgroup_files, output, verbose_info};

/// Arguments of `crisp explain`.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    settings: CommonArgs,
    /// Pod or container: name, NAMESPACE/POD, POD/CONTAINER, NAMESPACE/POD/CONTAINER, ID or unique prefix of an ID;
    /// without it, all pods and containers are listed.
    #[arg(value_name = "POD|CONTAINER")]
    target: Option<String>,
    /// Show what the main process of each container can see and was sized for: CPUs, cgroups, Go, Java, Node.js.
    #[arg(long)]
    inside: bool,
    /// Print all information as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `crisp explain`.
pub fn explain(args: ExplainArgs) -> Result<(), CommandError> {
    let ExplainArgs { settings, target, inside, json } = args;
    let config = settings.load()?;
    let view = command::run(view(&config.listen, target.as_deref(), inside)).map_err(CommandError::Start)??;
    let mut out = output::stdout();
    if json { print::json(&mut out, &view) } else { print::text(&mut out, &view) }.map_err(CommandError::Print)
}

async fn view(socket: &Path, target: Option<&str>, inside: bool) -> Result<View, CommandError> {
    let cri = Cri::connect(socket).await?;
    let Some(target) = target else { return Ok(View::List(list::entries(&target::all(&cri).await?))) };
    match target::find(&cri, target).await? {
        Target::Container(id) => Ok(View::Container(Box::new(container(&cri, &id, inside).await?))),
        Target::Pod(id) => Ok(View::Pod(Box::new(pod(&cri, &id, inside).await?))),
    }
}

async fn container(cri: &Cri, id: &str, inside: bool) -> Result<ContainerView, CommandError> {
    let ask = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    let answer =
        cri.runtime().container_status(ask).await.map_err(call("reading the container's status"))?.into_inner();
    let info: verbose_info::ContainerInfo = verbose_info::read(&answer.info)?;
    let group = cgroup_files::group(&cgroup_files::layout()?, &info.cgroup)?;
    let observed = info.resources.actual.clone().unwrap_or_default();
    let look = |pid| inside::look(pid, &info.cgroup, &observed);
    let inside = info.pid.filter(|_| inside).and_then(|pid| tokio::task::block_in_place(|| look(pid)));
    Ok(view::container(answer.status.unwrap_or_default(), &info, &group, inside))
}

async fn pod(cri: &Cri, id: &str, inside: bool) -> Result<PodView, CommandError> {
    let ask = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
    let answer = cri.runtime().pod_sandbox_status(ask).await.map_err(call("reading the pod's status"))?.into_inner();
    let info: verbose_info::PodInfo = verbose_info::read(&answer.info)?;
    let group = cgroup_files::group(&cgroup_files::layout()?, &info.cgroup.path)?;
    let filter = v1::ContainerFilter { pod_sandbox_id: id.to_owned(), ..Default::default() };
    let listed = cri.runtime().list_containers(v1::ListContainersRequest { filter: Some(filter) }).await;
    let mut containers = Vec::new();
    for listed in listed.map_err(call("listing containers"))?.into_inner().containers {
        match container(cri, &listed.id, inside).await {
            Ok(view) => containers.push(view),
            // The container was removed after it was listed.
            Err(CommandError::Call(error)) if error.status.code() == tonic::Code::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(view::pod(answer.status.unwrap_or_default(), &info, &group, containers))
}
