//! Enters namespaces and returns from them; creates user namespaces. Runs in the shim and in its short-lived children.

pub mod saved_namespaces;
pub mod user_ns;
