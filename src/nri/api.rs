//! The messages of NRI, generated from `proto/nri/`.

pub use generated::nri::pkg::api::v1alpha1::*;
/// Requests and limits of KEP-4112, as in CRI: the messages of the fields 50112.
pub use generated::runtime::v1 as kubernetes;

/// Modules nested like the package names: the generated code refers to other packages by paths of
/// `super`.
#[allow(
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated code"
)]
mod generated {
    pub(crate) mod nri {
        pub(crate) mod pkg {
            pub(crate) mod api {
                /// The package `nri.pkg.api.v1alpha1`.
                pub mod v1alpha1 {
                    include!(concat!(env!("OUT_DIR"), "/nri.pkg.api.v1alpha1.rs"));
                }
            }
        }
    }
    pub(crate) mod runtime {
        /// The part of the package `runtime.v1` that describes resources.
        pub mod v1 {
            include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));
        }
    }
    pub(crate) mod k8s {
        pub(crate) mod io {
            pub(crate) mod apimachinery {
                pub(crate) mod pkg {
                    pub(crate) mod api {
                        pub(crate) mod resource {
                            include!(concat!(env!("OUT_DIR"), "/k8s.io.apimachinery.pkg.api.resource.rs"));
                        }
                    }
                }
            }
        }
    }
}
