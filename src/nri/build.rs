//! Compiles `proto/nri/` to Rust, without protoc.

use std::env;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    // Read at run time, not at compile time: checkouts may share a target directory.
    let proto = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", proto.display());

    let files = protox::compile(["nri/nri.proto"], [proto])?;
    prost_build::Config::new()
        // Ordered maps, so that the same message always has the same encoding.
        .btree_map(["."])
        // A list in an answer of two bytes per element must not take a kilobyte per element.
        .boxed(".nri.pkg.api.v1alpha1.ContainerUpdate.linux")
        .boxed(".nri.pkg.api.v1alpha1.LinuxContainerUpdate.resources")
        .compile_fds(files)?;
    Ok(())
}
