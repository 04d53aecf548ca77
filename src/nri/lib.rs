//! NRI, the Node Resource Interface: plugins that change containers when they are created and
//! updated.
#![forbid(unsafe_code)]

pub mod api;
pub mod event;
pub mod identity;
pub mod merge;
pub mod required;
pub mod settings;
pub mod validate;
