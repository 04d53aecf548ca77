//! Resize conformance: the behaviour that a kubelet relies on when it resizes a running pod.
//!
//! The tests run with a [`target::Target`]: crisp, started for the test, or any other CRI runtime
//! at the socket in `CRISP_RESIZE_SOCKET` (`hack/dev resize`). They require CRI, KEP-1287 and the
//! kubelet's expectations, and nothing that only crisp guarantees. After each change three views
//! are compared with the request: the first ContainerStatus, the kernel's files, and the same files
//! read inside the container. The container must not be restarted, and no process in it killed.
//!
//! The other runtime must use the cgroupfs driver, since the tests create the pods' cgroups. All
//! pods use the host's network. Variables:
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
