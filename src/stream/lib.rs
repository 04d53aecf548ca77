//! What clients of exec, attach and port-forward speak once their connection was upgraded: SPDY/3.1 ([`spdy`]) or WebSocket
//! ([`ws`]), and on top of either what Kubernetes made of them ([`remote_command`], [`port_forward`]).
//!
//! ```text
//! upgrade    what the client asks for, and the answer
//! session    a connection and the task that listens to it
//!   wire → spdy | ws → streams | channels → inbox → Input      bytes of the client's
//!   Output → gate → outlet                                     bytes for the client
//! ```
//!
//! A client is hostile until proven otherwise: frames are refused by their first bytes, header blocks by what they would
//! unfold to, streams and waiting bytes are counted, and a connection on which nothing moves ends. Bytes are passed on as they
//! come: no frame and no message is ever kept whole, but for those of base64.
#![forbid(unsafe_code)]

mod channels;
mod chunk;
mod clock;
mod gate;
mod inbox;
mod outlet;
mod output;
pub mod port_forward;
pub mod remote_command;
mod resize;
mod session;
pub mod spdy;
mod status;
mod streams;
pub mod upgrade;
mod wire;
pub mod ws;

pub use chunk::Chunk;
pub use inbox::{Broken, Input};
pub use output::Output;
pub use resize::{Resizes, Size};
pub use session::Io;
pub use status::Outcome;

#[cfg(test)]
mod captures;
#[cfg(test)]
mod tests;
