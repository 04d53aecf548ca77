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
