//! The streaming server: where clients of exec, attach and port-forward go with the URL that they got over CRI.
//!
//! A URL names a request by a token that is good once and for a minute; nothing is answered without one. What is spoken then
//! is for the crate `streaming`, what is done for the runtime.

mod handler;
mod listener;
mod places;
mod tokens;
mod unauthenticated;

use std::net::SocketAddr;

use model::{ContainerId, PodId};
use streaming::remote_command::StdioOptions;

pub(crate) use listener::{BindError, Listener};
use tokens::{TokenPayload, Tokens};

/// What a client was promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Exec {
        pod: PodId,
        container: ContainerId,
        command: Vec<String>,
        wants: StdioOptions,
    },
    Attach {
        pod: PodId,
        container: ContainerId,
        wants: StdioOptions,
    },
    /// Only to these ports; any where there are none.
    PortForward {
        pod: PodId,
        ports: Vec<u16>,
    },
}

impl Request {
    /// The first part of its path.
    fn place(&self) -> &'static str {
        match self {
            Self::Exec { .. } => "exec",
            Self::Attach { .. } => "attach",
            Self::PortForward { .. } => "portforward",
        }
    }
}

impl TokenPayload for Request {
    fn pod(&self) -> &PodId {
        match self {
            Self::Exec { pod, .. } | Self::Attach { pod, .. } | Self::PortForward { pod, .. } => pod,
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Exec { command, .. } => command.iter().map(|word| size_of::<String>() + word.capacity()).sum(),
            Self::Attach { .. } => 0,
            Self::PortForward { ports, .. } => size_of_val(&**ports),
        }
    }
}

/// Hands out URLs.
#[derive(Debug)]
pub(crate) struct StreamServer {
    tokens: Tokens<Request>,
    scheme: &'static str,
    address: SocketAddr,
}

impl StreamServer {
    /// Where a client has to go with this request, once and soon.
    pub(crate) fn url(&self, request: Request) -> String {
        let Self { tokens, scheme, address } = self;
        let place = request.place();
        format!("{scheme}://{address}/{place}/{}", tokens.issue(request))
    }
}
