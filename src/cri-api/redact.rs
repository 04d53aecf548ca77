//! Debug output that keeps secrets out of logs.

use std::fmt;

use crate::v1::AuthConfig;

/// Debug output of a secret: only whether there is one.
struct Secret<'a>(&'a str);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
}

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { username, password, auth, server_address, identity_token, registry_token } = self;
        f.debug_struct("AuthConfig")
            .field("username", username)
            .field("password", &Secret(password))
            .field("auth", &Secret(auth))
            .field("server_address", server_address)
            .field("identity_token", &Secret(identity_token))
            .field("registry_token", &Secret(registry_token))
            .finish()
    }
}
