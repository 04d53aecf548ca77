//! `crisp explain`: shows requested, applied and actual limits of a pod or container.

mod print;
mod view;

use std::io;

use config::ConfigError;
use cri_api::v1;
use view::{ContainerView, PodView, View};

use super::cgroup_files::FilesError;
use super::client::{CallError, ConnectError, Cri, call};
use super::common_args::CommonArgs;
use super::target::{self, Target, TargetError};
use super::verbose_info::NotCrisp;
use super::{cgroup_files, verbose_info};

/// Arguments of `crisp explain`.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    settings: CommonArgs,
    /// Pod or container: ID or ID prefix, name, POD/CONTAINER or NAMESPACE/POD.
    #[arg(value_name = "CONTAINER|POD")]
    target: String,
    /// Print all information as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
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
    #[error("printing")]
    Print(#[source] io::Error),
}

/// Runs `crisp explain`.
pub fn explain(args: ExplainArgs) -> Result<(), ExplainError> {
    let ExplainArgs { settings, target, json } = args;
    let config = settings.load()?;
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ExplainError::Start)?;
    let view = tokio.block_on(async {
        let cri = Cri::connect(&config.listen).await?;
        match target::find(&cri, &target).await? {
            Target::Container(id) => Ok::<_, ExplainError>(View::Container(Box::new(container(&cri, &id).await?))),
            Target::Pod(id) => Ok(View::Pod(Box::new(pod(&cri, &id).await?))),
        }
    })?;
    let mut out = io::stdout().lock();
    if json { print::json(&mut out, &view) } else { print::text(&mut out, &view) }.map_err(ExplainError::Print)
}

async fn container(cri: &Cri, id: &str) -> Result<ContainerView, ExplainError> {
    let ask = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    let answer =
        cri.runtime().container_status(ask).await.map_err(call("reading the container's status"))?.into_inner();
    let info: verbose_info::ContainerInfo = verbose_info::read(&answer.info)?;
    let group = cgroup_files::group(&cgroup_files::layout()?, &info.cgroup)?;
    Ok(view::container(answer.status.unwrap_or_default(), &info, &group))
}

async fn pod(cri: &Cri, id: &str) -> Result<PodView, ExplainError> {
    let ask = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: true };
    let answer = cri.runtime().pod_sandbox_status(ask).await.map_err(call("reading the pod's status"))?.into_inner();
    let info: verbose_info::PodInfo = verbose_info::read(&answer.info)?;
    let group = cgroup_files::group(&cgroup_files::layout()?, &info.cgroup.path)?;
    let filter = v1::ContainerFilter { pod_sandbox_id: id.to_owned(), ..Default::default() };
    let listed = cri.runtime().list_containers(v1::ListContainersRequest { filter: Some(filter) }).await;
    let mut containers = Vec::new();
    for listed in listed.map_err(call("listing containers"))?.into_inner().containers {
        match container(cri, &listed.id).await {
            Ok(view) => containers.push(view),
            // The container was removed after it was listed.
            Err(ExplainError::Call(error)) if error.status.code() == tonic::Code::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(view::pod(answer.status.unwrap_or_default(), &info, &group, containers))
}
