//! NRI, the Node Resource Interface: plugins that change containers when they are created and
//! updated. Version v0.12.2 of the protocol, without WebAssembly plugins.
//!
//! ```text
//! listen, launch   connections and pre-installed programs
//! wire             trunk and ttrpc
//! plugin           one plugin: registration, synchronization, a queue with one call at a time
//! roster           all plugins: order, joining, the requests that consult them
//! merge            answers → one adjustment with an owner per field        (pure)
//! validate         the built-in validator                                  (pure)
//! required         plugins without which a request fails                   (pure)
//! ```
//!
//! # Use
//!
//! The daemon implements [`Host`](host::Host), and creates a [`Roster`]. Each request that changes a
//! pod or container holds a [`Turn`]: [`Roster::begin_required`] for RunPodSandbox, CreateContainer
//! and UpdateContainerResources, [`Roster::begin`] for all others. The turn is held until the record
//! of the pod or container is changed. Messages are built by the daemon; [`api`] has their types.
//!
//! | step | calls |
//! |---|---|
//! | RunPodSandbox, before its record is written | [`Turn::run_pod`], [`Turn::undo_pod`] |
//! | UpdatePodSandboxResources | [`Turn::update_pod`], then `notify(PostUpdatePodSandbox)` |
//! | CreateContainer | [`Turn::create_container`], then `notify(PostCreateContainer)` |
//! | CreateContainer fails in a later step | [`Turn::undo_container`] |
//! | StartContainer, between process and program | [`Turn::start_container`] |
//! | the program runs | `notify(PostStartContainer)` |
//! | UpdateContainerResources | [`Turn::update_container`], then `notify(PostUpdateContainer)` |
//! | a container has ended, once | [`Turn::stop_container`], whose answers are updates |
//! | RemoveContainer, StopPodSandbox, RemovePodSandbox | [`Turn::notify`] |
//!
//! No call waits for a plugin longer than its request timeout in the queue and as long again for the
//! answer, or than its sync timeout while it is being synchronized.
//!
//! # Trust
//!
//! Plugins are programs of root, but their bytes are checked like those of a tenant: the size of
//! each frame, message, list and queue is limited, and a plugin that violates the protocol or does
//! not answer is disconnected without an effect on others. Errors and logs never have values of
//! variables.
#![forbid(unsafe_code)]

pub mod api;
pub mod event;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod host;
pub mod identity;
pub mod launch;
mod listen;
pub mod merge;
mod plugin;
pub mod required;
mod roster;
pub mod settings;
pub mod validate;
pub mod wire;

#[cfg(test)]
mod tests;

pub use listen::ListenError;
pub use roster::{PluginState, RequestError, Roster, Stopping, Turn};
