//! Compiles `proto/` to Rust, without protoc.

use std::error::Error;
use std::path::PathBuf;

/// The files with the services; everything else is imported by them.
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
    // Asked for now, not when this was compiled: checkouts may share what is built.
    let proto = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", proto.display());

    let files = protox::compile(SERVICES, [proto])?;
    tonic_prost_build::configure()
        // Ordered maps: the same message always has the same bytes.
        .btree_map(".")
        // Its Debug, which must not show secrets, is in redact.rs.
        .skip_debug([".runtime.v1.AuthConfig"])
        .compile_fds(files)?;
    Ok(())
}
