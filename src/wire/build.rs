//! Compiles `proto/` to Rust, without protoc.

use std::error::Error;
use std::path::Path;

/// The files with the two services; everything else is imported by them.
const SERVICES: [&str; 2] = ["cri/runtime_service.proto", "cri/image_service.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
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
