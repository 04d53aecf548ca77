//! Compiles `proto/` to Rust, without protoc.

use std::error::Error;
use std::path::PathBuf;

/// The files to compile; they import all others.
const SERVICES: [&str; 8] = [
    "cri/runtime_service.proto",
    "cri/image_service.proto",
    "admin/images.proto",
    "health/health.proto",
    "otlp/trace.proto",
    "dra/v1.proto",
    "dra/v1beta1.proto",
    "pluginregistration/registration.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    // Read at run time, not at compile time: checkouts may share a target directory.
    let proto = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", proto.display());

    let files = protox::compile(SERVICES, [proto])?;
    tonic_prost_build::configure()
        // Ordered maps, so that the same message always has the same encoding.
        .btree_map(".")
        // Its Debug implementation, which must not show secrets, is in redact.rs.
        .skip_debug([".runtime.v1.AuthConfig"])
        .compile_fds(files)?;
    Ok(())
}
