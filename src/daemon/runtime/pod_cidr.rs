//! UpdateRuntimeConfig: writes a CNI configuration for the pod CIDR of this node.

use std::path::PathBuf;
use std::sync::Arc;

use config::NetworkMode;
use ipnet::IpNet;
use model::error_chain::chain;
use model::{ErrorClass, ErrorKind, RequestField};
use net::bridge::PoolInUse;
use net::cni::{PodCidrError, Rendered};
use safe_fs::FileError;

use super::{Runtime, blocking};
use crate::store::NetworkKind;

#[derive(Debug, thiserror::Error)]
pub(crate) enum SetPodCidrError {
    #[error("pod CIDR {0:?} in UpdateRuntimeConfig is not a CIDR or a comma-separated list of CIDRs")]
    Form(String),
    #[error("cannot set the pod CIDR as address pools of the built-in bridge")]
    Bridge(#[from] PoolInUse),
    #[error("cannot write a CNI configuration for the pod CIDR")]
    Cni(#[from] PodCidrError),
    #[error(transparent)]
    Disk(#[from] FileError),
}

impl ErrorClass for SetPodCidrError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Form(_) => ErrorKind::Invalid,
            Self::Bridge(e) => e.kind(),
            Self::Cni(e) => e.kind(),
            Self::Disk(e) => e.kind(),
        }
    }

    fn field(&self) -> Option<RequestField> {
        match self {
            Self::Form(_) | Self::Bridge(_) | Self::Cni(_) => Some(RequestField::PodCidr),
            Self::Disk(_) => None,
        }
    }
}

impl Runtime {
    /// `ranges` is the client's comma-separated list. As in containerd and CRI-O, an existing CNI
    /// configuration is kept.
    pub(crate) async fn set_pod_cidr(self: &Arc<Self>, ranges: String) -> Result<(), SetPodCidrError> {
        let pools = read(&ranges)?;
        let runtime = Arc::clone(self);
        blocking(move || runtime.apply_pod_cidr(&ranges, pools)).await
    }

    fn apply_pod_cidr(&self, ranges: &str, pools: Vec<IpNet>) -> Result<(), SetPodCidrError> {
        if self.settings().network.mode != NetworkMode::Bridge {
            match self.networks.cni().set_pod_cidrs(ranges)? {
                Rendered::Written(file) => {
                    tracing::info!(ranges, file = %file.display(), "wrote a CNI configuration for the pod CIDRs of the kubelet")
                }
                Rendered::NotNeeded(file) => {
                    tracing::info!(ranges, file = %file.display(), "ignoring the pod CIDRs of the kubelet: a CNI configuration exists");
                }
                Rendered::NoCidr | Rendered::NoTemplate | Rendered::Unchanged(_) => {}
            }
        }
        if self.networks.connection() == NetworkKind::Bridge {
            self.networks.bridge().set_pod_cidrs(pools)?;
            // A client sends it once, and not again to the next daemon.
            safe_fs::write_json(&self.pod_cidr_file(), &ranges)?;
        }
        Ok(())
    }

    /// Applies the pod CIDR that a client sent to an earlier daemon.
    pub(super) fn recover_pod_cidr(&self) {
        let reported = safe_fs::read_json::<String>(&self.pod_cidr_file()).map_err(SetPodCidrError::from);
        let taken = reported.and_then(|reported| match reported {
            Some(ranges) => Ok(self.networks.bridge().set_pod_cidrs(read(&ranges)?)?),
            None => Ok(()),
        });
        if let Err(error) = taken {
            tracing::warn!(
                error = chain(&error),
                "cannot apply the recorded pod CIDRs of the kubelet to the built-in bridge; it uses network.bridge.pools"
            );
        }
    }

    fn pod_cidr_file(&self) -> PathBuf {
        self.layout.state.join("addresses.json")
    }
}

fn read(ranges: &str) -> Result<Vec<IpNet>, SetPodCidrError> {
    let range = |text: &str| text.trim().parse().map_err(|_| SetPodCidrError::Form(ranges.to_owned()));
    ranges.split(',').map(range).collect()
}
