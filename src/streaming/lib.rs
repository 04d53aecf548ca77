//! Protocols of exec, attach and port-forward after the upgrade of the connection: SPDY/3.1
//! ([`spdy`]) or WebSocket ([`ws`]), and the Kubernetes protocols on top of them
//! ([`remote_command`], [`port_forward`]).
//!
//! ```text
//! http_upgrade   negotiates the protocol
//! session        a connection and the task that reads from it
//!   frame_reader → spdy | ws → stream_table | channels → recv_buffer → RecvStream   from the client
//!   SendStream → send_window → writer                                               to the client
//! ```
//!
//! Clients are treated as hostile: frames are checked by their first bytes, header blocks by their
//! decompressed size, the number of streams and buffered bytes is limited, and an idle connection
//! is closed. Bytes are passed on as they arrive: no frame or message is buffered whole, except
//! those in base64.
#![forbid(unsafe_code)]

mod channels;
mod chunk;
mod frame_reader;
pub mod http_upgrade;
mod idle_timer;
pub mod port_forward;
mod recv_buffer;
pub mod remote_command;
mod send_stream;
mod send_window;
mod session;
pub mod spdy;
mod status;
mod stream_table;
mod terminal_size;
mod writer;
pub mod ws;

pub use chunk::Chunk;
pub use recv_buffer::{RecvStream, StreamError};
pub use send_stream::SendStream;
pub use session::Io;
pub use status::Outcome;
pub use terminal_size::{Resizes, Size};

#[cfg(test)]
mod tests;
