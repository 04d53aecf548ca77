//! Paths of Unix sockets, also in the form of CRI clients: `unix:///run/crisp/crisp.sock`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

/// The environment variable with the socket of the CRI runtime, which crictl and critest read too.
pub const ENDPOINT_VARIABLE: &str = "CONTAINER_RUNTIME_ENDPOINT";

/// A text that names no Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid socket {0:?}: expected a path or unix:///PATH")]
pub struct InvalidSocket(String);

/// Returns the path of a socket given as a path, or as a URL with the scheme `unix`.
pub fn socket_path(text: impl Into<OsString>) -> Result<PathBuf, InvalidSocket> {
    let text: OsString = text.into();
    let invalid = || InvalidSocket(text.to_string_lossy().into_owned());
    let bytes = text.as_bytes();
    // The kubelet accepts both forms of a URL without a host.
    let path = [&b"unix://"[..], b"unix:"].iter().find_map(|scheme| bytes.strip_prefix(*scheme));
    match path {
        Some(path) if path.starts_with(b"/") => Ok(OsString::from_vec(path.to_vec()).into()),
        None if !bytes.is_empty() && !bytes.windows(3).any(|part| part == b"://") => Ok(text.into()),
        Some(_) | None => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_unix_urls_name_a_socket() {
        for text in ["/run/a.sock", "unix:///run/a.sock", "unix:/run/a.sock"] {
            assert_eq!(socket_path(text).unwrap(), PathBuf::from("/run/a.sock"), "{text}");
        }
        assert_eq!(socket_path("a.sock").unwrap(), PathBuf::from("a.sock"));
    }

    #[test]
    fn other_urls_are_refused() {
        for text in ["", "unix://", "unix://a.sock", "unix:a.sock", "tcp://127.0.0.1:1", "npipe:////./pipe/a"] {
            let words = socket_path(text).unwrap_err().to_string();
            assert!(words.contains("unix:///PATH"), "{text}: {words}");
        }
    }
}
