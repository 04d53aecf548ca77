//! Starts the program of a created container.

use std::path::Path;

use libcontainer::container::Container;

/// Signals the container's first process, which waits on libcontainer's socket, to execute the
/// program.
pub fn start(container_dir: &Path, id: &str) -> Result<(), String> {
    let loaded = Container::load(container_dir.join("libcontainer").join(id));
    let started = loaded.and_then(|mut container| container.start());
    // libcontainer changes into the container's directory and does not change back on failure.
    rustix::process::chdir("/").ok();
    started.map_err(|e| e.to_string())
}
