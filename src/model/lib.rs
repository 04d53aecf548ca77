//! The data types of crisp: pods, containers, their states and limits.
//!
//! No I/O, no async, no wire types. A [`PodSpec`] or [`ContainerSpec`] is a client's request; a
//! [`ContainerState`] is the current state. [`resources`] has limits as requested
//! ([`resources::LimitsPatch`]) and as read from the kernel ([`resources::ObservedLimits`]),
//! [`pod_resources`] has requests and limits of a pod spec, [`stats`] has resource usage, and
//! [`metrics`] has further counters. Every error of an operation has an [`ErrorKind`].
//!
//! The terms are those of CRI: pod, container, image. "Sandbox" means only *how* a pod is isolated.
#![forbid(unsafe_code)]

pub mod cdi_name;
mod cgroup_path;
mod container;
mod container_state;
mod error;
pub mod error_chain;
mod id;
pub mod metrics;
mod pod;
pub mod pod_resources;
mod quantity;
mod request_field;
pub mod resources;
mod security;
mod signal;
mod socket_path;
pub mod stats;
mod update;
mod user_ns;

pub use cgroup_path::{CgroupPath, InvalidCgroupPath};
pub use container::{ContainerMeta, ContainerSpec, Device, IdMapping, ImageName, Mount, MountSource, Propagation};
pub use container_state::{AbnormalExit, ContainerState, Exit, WrongState};
pub use error::{ErrorClass, ErrorDetail, ErrorKind};
pub use id::{ContainerId, IdError, InvalidLayerDirectory, LayerNumber, PodId};
pub use pod::{Bandwidth, BitRate, Dns, PodMeta, PodSpec, PodState, PortMapping, Protocol, RepeatedPod};
pub use quantity::{InvalidQuantity, Quantity};
pub use request_field::RequestField;
pub use security::{
    CAPABILITIES, Capabilities, ContainerSecurity, GroupsPolicy, Namespaces, NsMode, PodSecurity, Profile, SeLinux,
    UserNs, UserRef,
};
pub use signal::{Signal, UnknownSignal};
pub use socket_path::{ENDPOINT_VARIABLE, InvalidSocket, socket_path};
pub use update::{ContainerUpdate, PodUpdate};
pub use user_ns::{ID_LINES_MAX, ID_TEXT_MAX, id_map_text};
