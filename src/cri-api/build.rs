//! Compiles `proto/` to Rust, without protoc.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

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
    let proto = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", proto.display());

    let files = protox::compile(SERVICES, [proto])?;
    let services = files.file.iter().flat_map(|file| file.service.iter().map(|service| (file.package(), service)));
    let rpcs: Vec<_> = services
        .flat_map(|(package, service)| {
            service.method.iter().map(move |rpc| (format!("{package}.{}", service.name()), rpc.name()))
        })
        .collect();
    // A slice in the syntax of Rust, for `include!`.
    fs::write(Path::new(&env::var("OUT_DIR")?).join("rpcs.rs"), format!("&{rpcs:?}"))?;
    tonic_prost_build::configure()
        // Ordered maps, so that the same message always has the same encoding.
        .btree_map(".")
        // Its Debug implementation, which must not show secrets, is in redact.rs.
        .skip_debug([".runtime.v1.AuthConfig"])
        .compile_fds(files)?;
    Ok(())
}
