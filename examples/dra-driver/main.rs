//! An example of a DRA driver's kubelet plugin (KEP-3063): the part of a driver that runs on a node.
//!
//! The kubelet finds the plugin by a socket in its plugin registry directory ([`service`]), and
//! requests it to prepare the claims of a pod before the pod's containers are created. To prepare a
//! claim ([`claims`]), the plugin reads its allocation ([`gadgets`]), writes a CDI spec ([`spec`]),
//! and returns the names of the CDI devices. The kubelet passes the names to the container runtime,
//! which reads the spec.
//!
//! The devices here are *gadgets*: a file defines them with device nodes that every machine has.
//! Allocations are read from files, instead of from the API server. `README.md` lists what else a
//! real driver does.
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

/// Example of a DRA driver's kubelet plugin.
#[derive(Debug, Parser)]
struct Args {
    /// Name of the driver, as in ResourceClaims and DeviceClasses.
    #[arg(long, default_value = "gadgets.crisp.example")]
    driver: String,
    /// File with the node's gadgets; see gadgets.json in this program's source directory.
    #[arg(long)]
    gadgets: PathBuf,
    /// Directory of allocations, with a file UID.json per claim that contains the `results` of the claim's
    /// `status.allocation.devices`.
    #[arg(long)]
    allocations: PathBuf,
    /// State directory of the driver. It must survive a reboot, as the kubelet's state of prepared claims does.
    #[arg(long, default_value = "/var/lib/kubelet/plugins/gadgets.crisp.example")]
    plugin_dir: PathBuf,
    /// The kubelet's plugin registry directory.
    #[arg(long, default_value = "/var/lib/kubelet/plugins_registry")]
    registry_dir: PathBuf,
    /// The container runtime's directory of CDI specs.
    #[arg(long, default_value = "/var/run/cdi")]
    cdi_dir: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Args { driver, gadgets, allocations, plugin_dir, registry_dir, cdi_dir } = Args::parse();
    spec::check_driver(&driver)?;
    let gadgets = Gadgets::read(&gadgets, allocations).context("reading the gadgets")?;
    for dir in [&plugin_dir, &registry_dir, &cdi_dir] {
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let claims = Claims::open(&driver, gadgets, plugin_dir.join("claims"), cdi_dir).context("opening the claims")?;

    // The plugin socket first: the registration refers to it.
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
        Some(reason) = refusals.recv() => Err(anyhow::anyhow!("the kubelet refused the registration: {reason}")),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    // The registration socket first: when it is removed, the kubelet unregisters the plugin.
    fs::remove_file(registry).ok();
    fs::remove_file(own).ok();
    ended
}

/// Creates a socket for root only; replaces the socket of an earlier run. The kubelet sends the
/// socket's path as `:authority`, which [`AuthorityRewriter`] replaces.
async fn listen(path: &Path) -> anyhow::Result<impl Stream<Item = io::Result<AuthorityRewriter<UnixStream>>>> {
    if UnixStream::connect(path).await.is_ok() {
        bail!("another process listens on {}", path.display());
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", path.display()));
        }
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(UnixListenerStream::new(listener).map(|accepted| accepted.map(AuthorityRewriter::new)))
}
