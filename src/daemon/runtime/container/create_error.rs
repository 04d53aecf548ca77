//! The errors of CreateContainer and their classes.

use std::io;
use std::path::PathBuf;

use config::NoSuchHandler;
use model::{ContainerId, ErrorClass, ErrorKind, PodId, RequestField};
use oci::OciError;
use oci::cdi::CdiError;
use safe_fs::FileError;
use safe_fs::log_file::LogError;
use security::seccomp::SeccompError;
use security::{ApparmorError, RelabelError, SelinuxError};

use super::devices::DevicesError;
use super::pod_resources_check::ResourceMismatch;
use super::volumes::{ImageVolumeError, MountError};
use crate::failpoint::InjectedFailure;
use crate::runtime::LookupError;
use crate::runtime::pod::handler::HandlerMissing;
use crate::runtime::resize::notice::selection::NoticeError;
use crate::sandbox_client::SandboxError;
use crate::store::NameTaken;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    #[error(transparent)]
    Look(#[from] LookupError),
    #[error(
        "cannot create a container: the sandbox of pod {0} is not ready; the pod was stopped, or its shim is not connected"
    )]
    PodNotReady(PodId),
    /// The cleanup starts when the threads that still create it end.
    #[error("cannot create a container: pod {0} is being stopped")]
    GivenUp(PodId),
    #[error(transparent)]
    Handler(#[from] HandlerMissing),
    #[error(transparent)]
    ImageHandler(NoSuchHandler),
    #[error("choosing the runtime handler for the image of an image volume")]
    MountImageHandler { index: usize, source: NoSuchHandler },
    #[error("the pod configuration in the request belongs to another pod: expected the metadata of pod {0}")]
    OtherPod(PodId),
    #[error(transparent)]
    NameTaken(#[from] NameTaken),
    #[error(transparent)]
    Notice(#[from] NoticeError),
    #[error("reading the limits of the new container")]
    ReadLimits(#[source] cgroup::ApplyError),
    #[error(transparent)]
    NotAsAnnounced(#[from] ResourceMismatch),
    #[error("image {0:?} of the container not found: pull it first")]
    NoSuchImage(String),
    #[error("image {0} has no layers, so no container can run from it")]
    NoLayers(String),
    #[error("a privileged container requires a privileged pod: set security_context.privileged of the pod too")]
    PrivilegedAlone,
    #[error("the runtime handler {0:?} does not allow privileged containers")]
    Privileged(String),
    #[error("opening the mount's source {path} on the host")]
    MountSource { path: PathBuf, source: io::Error },
    #[error(transparent)]
    ImageMount(#[from] MountError),
    #[error("checking the paths that the container's image declares as VOLUME")]
    Declared(#[from] ImageVolumeError),
    #[error("copying files of the container's image to the directories of its VOLUME declarations")]
    Volumes(#[from] image::VolumeError),
    #[error("target container {0:?} for the PID namespace is not running in this pod")]
    Target(String),
    #[error("reading the stop signal of the container's image")]
    StopSignal(#[from] model::UnknownSignal),
    #[error("reading the users of the container's image")]
    Accounts(#[from] image::AccountsError),
    #[error(transparent)]
    ImageConfig(#[from] image::ConfigError),
    #[error("finding the container's user in its image")]
    User(#[from] image::UserError),
    #[error(transparent)]
    Devices(#[from] DevicesError),
    #[error(transparent)]
    Cdi(#[from] CdiError),
    #[error(transparent)]
    Oci(#[from] OciError),
    #[error(transparent)]
    Seccomp(#[from] SeccompError),
    #[error("loading the default seccomp profile (container.seccomp)")]
    DefaultSeccomp(#[source] SeccompError),
    #[error(transparent)]
    Apparmor(#[from] ApparmorError),
    #[error(transparent)]
    Selinux(#[from] SelinuxError),
    #[error("setting the SELinux label of the mount's source")]
    Relabel { index: usize, source: RelabelError },
    #[error("setting SELinux labels of the directories of the image's VOLUME declarations")]
    VolumeLabels(#[source] RelabelError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("reserving the image layers of the container")]
    Layers(#[from] image::HoldError),
    #[error(transparent)]
    Disk(#[from] FileError),
    #[error("determining the path of the container's cgroup")]
    CgroupPath(#[from] model::InvalidCgroupPath),
    #[error("creating the container's cgroup")]
    Cgroup(#[from] cgroup::CgroupError),
    #[error(transparent)]
    Limits(#[from] cgroup::ApplyError),
    #[error("applying the container's device rules")]
    DeviceRules(#[from] cgroup::DeviceError),
    #[error("failed to create container {0}")]
    Shim(ContainerId, #[source] SandboxError),
    #[error("{0}")]
    OomScore(String),
    #[error(transparent)]
    Fault(#[from] InjectedFailure),
}

impl ErrorClass for CreateError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Look(e) => e.kind(),
            Self::PodNotReady(_) | Self::GivenUp(_) | Self::Target(_) | Self::OomScore(_) => ErrorKind::Precondition,
            Self::OtherPod(_) | Self::StopSignal(_) | Self::CgroupPath(_) | Self::NoLayers(_) => ErrorKind::Invalid,
            Self::Handler(e) => e.kind(),
            Self::ImageHandler(e) | Self::MountImageHandler { source: e, .. } => e.kind(),
            Self::NameTaken(e) => e.kind(),
            Self::Notice(e) => e.kind(),
            Self::ReadLimits(e) => e.kind(),
            Self::NotAsAnnounced(e) => e.kind(),
            Self::NoSuchImage(_) => ErrorKind::NotFound,
            Self::MountSource { .. } | Self::PrivilegedAlone | Self::Privileged(_) => ErrorKind::Invalid,
            Self::ImageMount(e) => e.kind(),
            Self::Declared(e) => e.kind(),
            Self::Volumes(e) => e.kind(),
            Self::Accounts(e) => e.kind(),
            Self::ImageConfig(e) => e.kind(),
            Self::User(e) => e.kind(),
            Self::Devices(e) => e.kind(),
            Self::Cdi(e) => e.kind(),
            Self::Oci(e) => e.kind(),
            Self::Seccomp(e) => e.kind(),
            Self::Apparmor(e) => e.kind(),
            Self::Selinux(e) => e.kind(),
            Self::Relabel { source, .. } | Self::VolumeLabels(source) => source.kind(),
            Self::Log(e) => e.kind(),
            Self::Layers(e) => e.kind(),
            Self::Disk(e) => e.kind(),
            Self::Cgroup(e) => e.kind(),
            Self::Limits(e) => e.kind(),
            Self::DeviceRules(e) => e.kind(),
            Self::Shim(_, e) => e.kind(),
            // The file is the operator's, not the client's.
            Self::DefaultSeccomp(_) | Self::Fault(_) => ErrorKind::Internal,
        }
    }

    fn field(&self) -> Option<RequestField> {
        Some(match self {
            Self::ImageHandler(_) => RequestField::ImageHandler,
            Self::MountImageHandler { index, .. } => RequestField::MountImageHandler(*index),
            Self::OtherPod(_) => RequestField::PodMetadata,
            Self::NoSuchImage(_) => RequestField::Image,
            Self::PrivilegedAlone | Self::Privileged(_) => RequestField::Privileged,
            Self::MountSource { .. } => RequestField::Mounts,
            Self::ImageMount(e) => return e.field(),
            Self::Target(_) => RequestField::PidTarget,
            Self::Devices(e) => return e.field(),
            Self::Cdi(e) => return e.field(),
            Self::Oci(e) => return e.field(),
            Self::Seccomp(_) => RequestField::Seccomp,
            Self::Apparmor(_) => RequestField::Apparmor,
            Self::Selinux(_) => RequestField::SelinuxOptions,
            Self::Relabel { index, .. } => RequestField::MountRelabel(*index),
            Self::Limits(_) => RequestField::Resources,
            Self::OomScore(_) => RequestField::OomScoreAdj,
            Self::Look(_) | Self::PodNotReady(_) | Self::GivenUp(_) | Self::Handler(_) | Self::NameTaken(_) => {
                return None;
            }
            Self::NotAsAnnounced(_) | Self::NoLayers(_) | Self::Declared(_) | Self::Volumes(_) => return None,
            Self::StopSignal(_) | Self::Accounts(_) | Self::ImageConfig(_) | Self::User(_) => return None,
            Self::DefaultSeccomp(_) | Self::VolumeLabels(_) | Self::Log(_) | Self::Layers(_) => return None,
            Self::Disk(_) | Self::CgroupPath(_) | Self::Cgroup(_) | Self::DeviceRules(_) => return None,
            Self::Shim(..) | Self::Fault(_) | Self::Notice(_) | Self::ReadLimits(_) => return None,
        })
    }
}
