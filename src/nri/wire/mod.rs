//! The connection to a plugin: a trunk with two logical connections, and ttrpc on each.
//!
//! ```text
//! decoder     bytes → trunk frames → ttrpc messages, with bounds on each
//! encode      ttrpc message → the frames that plugins in Go can read
//! rpc         Request and Response of ttrpc
//! field_count bounds the number of fields of an answer before it is decoded
//! connection  the tasks: pending calls as a client, requests as a server
//! ```

mod connection;
mod decoder;
mod encode;
mod field_count;
mod rpc;

pub(crate) use connection::{Arrived, Call, Connection, decode};
pub use connection::{CallError, CloseReason};
pub use decoder::{Decoder, Message, WireError};
pub(crate) use encode::frames;
pub(crate) use field_count::{ANSWER_TO_CREATE, ANSWER_WITH_UPDATES, FLAT, Shape};
pub use field_count::{FIELDS_MAX, count_fields};
pub(crate) use rpc::Code;
#[cfg(test)]
pub(crate) use rpc::{Request, Response, Status};

/// The largest ttrpc message; libraries in Go close the connection at a larger one.
pub const MESSAGE_MAX: usize = 4 << 20;
/// Bytes of the header of a trunk frame.
const FRAME_HEADER: usize = 8;
/// Bytes of the header of a ttrpc message.
const MESSAGE_HEADER: usize = 10;
/// The largest trunk frame: a whole message with its header.
const FRAME_MAX: usize = MESSAGE_MAX + MESSAGE_HEADER;

/// A logical connection of the trunk, named by the service on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// The runtime is the client and the plugin the server.
    Plugin,
    /// The plugin is the client and the runtime the server.
    Runtime,
}

impl Service {
    pub(crate) fn id(self) -> u32 {
        match self {
            Self::Plugin => 1,
            Self::Runtime => 2,
        }
    }

    fn of_id(id: u32) -> Option<Self> {
        [Self::Plugin, Self::Runtime].into_iter().find(|service| service.id() == id)
    }
}

/// The type of a ttrpc message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Request,
    Response,
}

impl Kind {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Request => 1,
            Self::Response => 2,
        }
    }
}
