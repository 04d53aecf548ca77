//! Enters namespaces and returns from them; creates user namespaces. Runs in the shim and in its short-lived children.

pub mod create_user_ns;
pub mod saved_namespaces;
