//! The streaming server: clients of exec, attach and port-forward connect to it with the URL that
//! they got over CRI.
//!
//! A URL has a token for one request, valid once and for one minute; requests without one are
//! refused. The crate `streaming` implements the protocols, the runtime the operations.

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

/// The request that a token stands for.
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
    /// The allowed ports; all if empty.
    PortForward {
        pod: PodId,
        ports: Vec<u16>,
    },
}

impl Request {
    /// Returns the first part of its path.
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

/// Issues URLs.
#[derive(Debug)]
pub(crate) struct StreamServer {
    tokens: Tokens<Request>,
    scheme: &'static str,
    address: SocketAddr,
}

impl StreamServer {
    /// Returns the URL for this request.
    pub(crate) fn url(&self, request: Request) -> String {
        let Self { tokens, scheme, address } = self;
        let place = request.place();
        format!("{scheme}://{address}/{place}/{}", tokens.issue(request))
    }
}
