//! Compiles `proto/` to Rust, without protoc.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The files to compile; they import all others.
const SERVICES: [&str; 9] = [
    "cri/runtime_service.proto",
    "cri/image_service.proto",
    "admin/images.proto",
    "admin/resizes.proto",
    "health/health.proto",
    "otlp/trace.proto",
    "dra/v1.proto",
    "dra/v1beta1.proto",
    "pluginregistration/registration.proto",
];

/// The messages of the package `runtime.v1` that are also read from JSON; see json.rs.
const JSON_MESSAGES: [&str; 8] = [
    "PodResourceConfig",
    "ContainerResourceConfig",
    "KubernetesResources",
    "Mount",
    "Device",
    "CDIDevice",
    "IDMapping",
    "ImageSpec",
];

/// The fields of these messages that may be missing, or whose values are not read as serde does.
const JSON_FIELDS: [(&str, &str); 23] = [
    ("PodResourceConfig.containers", OBJECTS),
    ("PodResourceConfig.kubernetes_resources", OBJECT),
    ("ContainerResourceConfig.type", r#"deserialize_with = "crate::json::container_type""#),
    ("ContainerResourceConfig.kubernetes_resources", OBJECT),
    ("ContainerResourceConfig.mounts", OBJECTS),
    ("ContainerResourceConfig.devices", OBJECTS),
    ("ContainerResourceConfig.CDI_devices", OBJECTS),
    ("KubernetesResources.requests", r#"default, deserialize_with = "crate::json::quantities""#),
    ("KubernetesResources.limits", r#"default, deserialize_with = "crate::json::quantities""#),
    ("Mount.host_path", "default"),
    ("Mount.readonly", "default"),
    ("Mount.selinux_relabel", "default"),
    ("Mount.propagation", r#"default, deserialize_with = "crate::json::propagation""#),
    ("Mount.uidMappings", OBJECTS),
    ("Mount.gidMappings", OBJECTS),
    ("Mount.recursive_read_only", "default"),
    ("Mount.image", OBJECT),
    ("Mount.image_sub_path", "default"),
    ("Mount.mount_options", "default"),
    ("ImageSpec.annotations", r#"default, deserialize_with = "crate::json::texts""#),
    ("ImageSpec.user_specified_image", "default"),
    ("ImageSpec.runtime_handler", "default"),
    // Only in responses.
    ("ImageSpec.image_ref", "skip"),
];
const OBJECT: &str = r#"default, deserialize_with = "crate::json::object""#;
const OBJECTS: &str = r#"default, deserialize_with = "crate::json::objects""#;

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
    let mut builder = tonic_prost_build::configure();
    for file in files.file.iter().filter(|file| file.package() == "runtime.v1") {
        for message in file.message_type.iter().filter(|message| JSON_MESSAGES.contains(&message.name())) {
            let path = format!(".{}.{}", file.package(), message.name());
            builder = builder.type_attribute(&path, "#[derive(serde::Deserialize)] #[serde(deny_unknown_fields)]");
            for field in &message.field {
                // The names of the `.proto` files are accepted too.
                let names = format!("#[serde(rename = {:?}, alias = {:?})]", field.json_name(), field.name());
                builder = builder.field_attribute(format!("{path}.{}", field.name()), names);
            }
        }
    }
    for (path, attribute) in JSON_FIELDS {
        builder = builder.field_attribute(format!(".runtime.v1.{path}"), format!("#[serde({attribute})]"));
    }
    builder
        // Ordered maps, so that the same message always has the same encoding.
        .btree_map(".")
        // Its Debug implementation, which must not show secrets, is in redact.rs.
        .skip_debug([".runtime.v1.AuthConfig"])
        .compile_fds(files)?;
    Ok(())
}
