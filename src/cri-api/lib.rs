//! CRI v1 with the KEP-4112 extension, as generated from `proto/`.
//!
//! Nouns: [`v1`] has every message and enum of the package `runtime.v1`, the traits
//! [`RuntimeService`](v1::runtime_service_server::RuntimeService) and
//! [`ImageService`](v1::image_service_server::ImageService) for a server, and
//! [`RuntimeServiceClient`](v1::runtime_service_client::RuntimeServiceClient) and
//! [`ImageServiceClient`](v1::image_service_client::ImageServiceClient) for a client. [`Quantity`] is
//! the one type from elsewhere: an amount as a pod spec writes it. [`admin`] is the package `crisp.admin.v1`, our own:
//! what `crisp image` asks of a running daemon. [`health`] is `grpc.health.v1`, gRPC's own, [`otlp`] how spans
//! are handed to a collector. [`dra`] and [`pluginregistration`]
//! are what a kubelet asks of the plugins of resource drivers: crisp itself speaks neither, the example driver and its test do.
//!
//! Flow: `build.rs` compiles the files with protox and hands them to prost and tonic; a server turns a
//! message into our own types at once and a response back at the very end, so that nothing else has to
//! know what is written here.
//!
//! Limits: these types check nothing. An enum field is an `i32` that may hold no known value, a message
//! field is an `Option`, and proto3 cannot tell 0 or "" from absent: `proto/` says field by field what
//! they mean. The generated clients bring no transport of their own: give them a channel.

#![forbid(unsafe_code)]

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
/// Tells how long a message is.
pub use prost::Message;

/// Modules as deep as the packages' names: the generated code finds one package from the other by a
/// path of `super`s.
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "the generators' style is not ours to change"
)]
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
