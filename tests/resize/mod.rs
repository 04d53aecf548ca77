//! Resize conformance: what a kubelet relies on when it changes the resources of a running pod.
//!
//! Every test here speaks to a [`target::Target`]: crisp, started for the test, or any other CRI
//! runtime whose socket `CRISP_RESIZE_SOCKET` names (`hack/dev resize`). They hold a runtime to
//! CRI's own words, KEP-1287 and what the kubelet does, and to nothing that only crisp promises.
//! After each change three views are compared with the request: the first ContainerStatus, the
//! kernel's files, and the same files as seen from inside the container; and the container must be
//! the one that was started, with nothing in it killed.
//!
//! The other runtime must use the cgroupfs driver, since the tests make the pods' cgroups. All pods use the network of
//! the host. Variables:
//!
//! - `CRISP_RESIZE_SOCKET`: the socket of the runtime; crisp itself without it
//! - `CRISP_RESIZE_IMAGE`: an image with busybox, pulled where it is missing
//! - `CRISP_RESIZE_RESTART`: a shell command that restarts the runtime, for the tests in [`restarts`]

mod container;
mod kubelet;
mod resources;
mod target;
mod views;

mod cases;
mod concurrency;
mod memory;
mod patches;
mod pods;
mod refusals;
mod restarts;
mod states;
mod status;
