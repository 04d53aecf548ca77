//! An example of a resource driver's kubelet plugin (KEP-3063): the part of a driver that runs on a node.
//!
//! A kubelet finds it by a socket in the directory that it watches for plugins ([`service`] answers there), and asks it
//! to prepare the claims of a pod before the pod's containers are made. Preparing ([`claims`]) means: look up what the
//! claim was allocated ([`gadgets`]), write a CDI spec for it ([`spec`]), and name the CDI devices in it. The kubelet
//! passes the names on to the container runtime, which reads the spec.
//!
//! The devices here are *gadgets*, which a file makes up out of device nodes that every machine has. Where a real driver
//! asks the API server what a claim was allocated, this one reads a file, too. `README.md` says what else is missing.
#![forbid(unsafe_code)]

mod claims;
mod gadgets;
mod service;
mod spec;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use anyhow::{Context as _, bail};
use claims::Claims;
use clap::Parser;
use cri_api::dra;
use cri_api::pluginregistration::registration_server::RegistrationServer;
use gadgets::Gadgets;
use h2_authority::AuthorityRewriter;
use service::{Plugin, Registrar};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Server;

/// An example of a resource driver's kubelet plugin.
#[derive(Debug, Parser)]
struct Args {
    /// The driver's name, as ResourceClaims and DeviceClasses have it.
    #[arg(long, default_value = "gadgets.crisp.example")]
    driver: String,
    /// The node's gadgets: a file like gadgets.json beside this program's source.
    #[arg(long)]
    gadgets: PathBuf,
    /// What claims were allocated: a directory with a file UID.json for each, which has the `results` of the claim's
    /// `status.allocation.devices`.
    #[arg(long)]
    allocations: PathBuf,
    /// The driver's own directory. It outlives a reboot, as the kubelet's knowledge of prepared claims does.
    #[arg(long, default_value = "/var/lib/kubelet/plugins/gadgets.crisp.example")]
    plugin_dir: PathBuf,
    /// Where the kubelet looks for plugins.
    #[arg(long, default_value = "/var/lib/kubelet/plugins_registry")]
    registry_dir: PathBuf,
    /// Where the container runtime looks for CDI specs.
    #[arg(long, default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Args { driver, gadgets, allocations, plugin_dir, registry_dir, cdi_dir } = Args::parse();
    spec::check_driver(&driver)?;
    let gadgets = Gadgets::read(&gadgets, allocations).context("reading the gadgets")?;
    for dir in [&plugin_dir, &registry_dir, &cdi_dir] {
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    let claims = Claims::open(&driver, gadgets, plugin_dir.join("claims"), cdi_dir).context("opening the claims")?;

    // First what is to be used, then what tells of it.
    let (own, registry) = (plugin_dir.join("dra.sock"), registry_dir.join(format!("{driver}-reg.sock")));
    let plugin = Plugin::new(Arc::new(claims));
    let services = Server::builder()
        .add_service(dra::v1::dra_plugin_server::DraPluginServer::new(plugin.clone()))
        .add_service(dra::v1beta1::dra_plugin_server::DraPluginServer::new(plugin))
        .serve_with_incoming(listen(&own).await?);
    let (refused, mut refusals) = mpsc::channel(1);
    let registrar = Registrar::new(driver, &own, refused);
    let registration =
        Server::builder().add_service(RegistrationServer::new(registrar)).serve_with_incoming(listen(&registry).await?);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let ended = tokio::select! {
        served = services => served.context("serving the plugin"),
        served = registration => served.context("serving the registration"),
        Some(reason) = refusals.recv() => Err(anyhow::anyhow!("the kubelet does not take this plugin: {reason}")),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // In the other order: the kubelet takes a registration that is gone for a plugin that is gone.
    fs::remove_file(registry).ok();
    fs::remove_file(own).ok();
    ended
}

/// A socket for root alone, in place of one that an earlier run left behind. The kubelet takes its path for a host.
async fn listen(path: &Path) -> anyhow::Result<impl Stream<Item = io::Result<AuthorityRewriter<UnixStream>>>> {
    if UnixStream::connect(path).await.is_ok() {
        bail!("somebody else listens at {}", path.display());
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", path.display()));
        }
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("listening at {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(UnixListenerStream::new(listener).map(|accepted| accepted.map(AuthorityRewriter::new)))
}
