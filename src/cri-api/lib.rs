//! CRI v1 with the KEP-4112 extension, generated from `proto/`.
//!
//! [`v1`] has all messages and enums of the package `runtime.v1`, the server traits
//! [`RuntimeService`](v1::runtime_service_server::RuntimeService) and
//! [`ImageService`](v1::image_service_server::ImageService), and the clients
//! [`RuntimeServiceClient`](v1::runtime_service_client::RuntimeServiceClient) and
//! [`ImageServiceClient`](v1::image_service_client::ImageServiceClient). [`Quantity`] is the only
//! type from another package: an amount as in a pod spec. [`admin`] is crisp's package
//! `crisp.admin.v1`: the requests of `crisp image` and `crisp history` to a daemon. [`health`] is
//! `grpc.health.v1`, and [`otlp`] sends spans to a trace collector. [`dra`] and
//! [`pluginregistration`] are the kubelet's requests to plugins of DRA drivers: crisp does not use
//! them, only the example driver and its test.
//!
//! `build.rs` compiles the files with protox, prost and tonic. A server converts messages to
//! crisp's own types immediately, and responses back at the end, so that other crates do not depend
//! on this one.
//!
//! These types validate nothing. An enum field is an `i32` that may have an unknown value, a
//! message field is an `Option`, and proto3 does not distinguish 0 or "" from absent: `proto/`
//! documents the meaning for each field. The generated clients need a channel from the caller.

#![forbid(unsafe_code)]

pub mod json;
mod redact;
#[cfg(test)]
mod tests;

pub use generated::crisp::admin::v1 as admin;
pub use generated::grpc::health::v1 as health;
pub use generated::k8s::io::apimachinery::pkg::api::resource::Quantity;
pub use generated::k8s::io::kubelet::pkg::apis::dra;
pub use generated::opentelemetry::proto::collector::trace::v1 as otlp;
pub use generated::pluginregistration;
pub use generated::runtime::v1;
/// For the encoded length of messages.
pub use prost::Message;

/// The RPCs of all services in `proto/`: the full name of the service, and the name of the RPC.
pub const RPCS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/rpcs.rs"));

/// Modules nested like the package names: the generated code refers to other packages by paths of
/// `super`.
#[allow(clippy::all, clippy::allow_attributes_without_reason, clippy::too_many_lines, reason = "generated code")]
mod generated {
    pub(crate) mod crisp {
        pub(crate) mod admin {
            /// The package `crisp.admin.v1`.
            pub mod v1 {
                tonic::include_proto!("crisp.admin.v1");
            }
        }
    }
    pub(crate) mod grpc {
        pub(crate) mod health {
            /// The package `grpc.health.v1`.
            pub mod v1 {
                tonic::include_proto!("grpc.health.v1");
            }
        }
    }
    pub(crate) mod opentelemetry {
        pub(crate) mod proto {
            pub(crate) mod collector {
                pub(crate) mod trace {
                    /// The package `opentelemetry.proto.collector.trace.v1`.
                    pub mod v1 {
                        tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
                    }
                }
            }
        }
    }
    pub(crate) mod runtime {
        /// The package `runtime.v1`.
        pub mod v1 {
            tonic::include_proto!("runtime.v1");
        }
    }
    /// The package `pluginregistration`.
    pub mod pluginregistration {
        tonic::include_proto!("pluginregistration");
    }
    pub(crate) mod k8s {
        pub(crate) mod io {
            pub(crate) mod kubelet {
                pub(crate) mod pkg {
                    pub(crate) mod apis {
                        /// The packages `k8s.io.kubelet.pkg.apis.dra`.
                        pub mod dra {
                            /// The package `k8s.io.kubelet.pkg.apis.dra.v1`.
                            pub mod v1 {
                                tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
                            }
                            /// The package `k8s.io.kubelet.pkg.apis.dra.v1beta1`.
                            pub mod v1beta1 {
                                tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
                            }
                        }
                    }
                }
            }
            pub(crate) mod apimachinery {
                pub(crate) mod pkg {
                    pub(crate) mod api {
                        pub(crate) mod resource {
                            tonic::include_proto!("k8s.io.apimachinery.pkg.api.resource");
                        }
                    }
                }
            }
        }
    }
}
