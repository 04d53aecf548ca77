//! One plugin: its registration, its synchronization, and the queue of its calls.
//!
//! ```text
//! handshake   RegisterPlugin, Configure
//! registered  a plugin after its registration
//! ask         a call to it
//! session     from one synchronization to the next: a queue, with one call at a time
//! worker      sends the calls of a session
//! sync        Synchronize, in messages of limited size
//! ```

mod ask;
mod handshake;
mod registered;
mod session;
mod sync;
mod worker;

pub(crate) use ask::Ask;
pub(crate) use handshake::{HandshakeError, Registration, register};
pub(crate) use registered::Registered;
pub(crate) use session::{Session, Times, Waiting};
pub(crate) use worker::{End, Worker};
