//! Attach clients of running containers. None of them blocks its container: a client that reads too
//! slowly, beyond what its socket buffers, is disconnected.

use std::os::fd::{AsFd as _, OwnedFd};

use launcher::io::attach_client::AttachClient;
use model::{ContainerId, ContainerState};
use shim_protocol::{AttachFrame, AttachRequest, Response, ShimError, ShimErrorKind};

use crate::server::container::State;
use crate::server::poller::Source;
use crate::server::requests::wrong_state;
use crate::server::{Shim, not_found, shim_error};

/// The maximum number of clients attached to one container.
const ATTACHED_MAX: usize = 128;

impl Shim {
    pub(crate) fn attach(&mut self, request: &AttachRequest, socket: Option<OwnedFd>) -> Result<Response, ShimError> {
        let id = &request.container;
        let container = self.containers.get_mut(id).ok_or_else(|| not_found(id))?;
        let State::Settled(ContainerState::Running { .. }) = &container.state else {
            return Err(wrong_state(id, container, "running"));
        };
        let socket = socket.ok_or_else(|| shim_error(ShimErrorKind::Refused, "no socket came with the request"))?;
        if container.streams.attached.len() >= ATTACHED_MAX {
            let message = format!("{ATTACHED_MAX} are attached to container {id} already");
            return Err(shim_error(ShimErrorKind::Refused, message));
        }
        self.next_attached += 1;
        let number = self.next_attached;
        let (stdout, stderr) = (request.stdio.stdout, request.stdio.stderr);
        let mut attached = AttachClient { number, socket, stdout, stderr, input: false, over: false };
        // The master of a terminal is also needed to set its size.
        if let Some(input) = container.streams.input().filter(|_| request.stdio.stdin || container.launch.tty) {
            attached.input = request.stdio.stdin;
            attached.send(AttachFrame::Stdin, &[input]);
        } else if request.stdio.stdin {
            attached.send(AttachFrame::Closed, &[]);
        }
        self.poller.watch(&attached.socket, Source::Attached(id.clone(), number));
        container.streams.attached.push(attached);
        Ok(Response::Done)
    }

    /// Handles a message of an attach client, or its disconnection.
    pub(crate) fn on_attach_message(&mut self, id: &ContainerId, number: u64) {
        let Self { containers, buffer, .. } = self;
        let Some(container) = containers.get_mut(id) else { return };
        let Some(attached) = container.streams.attached.iter_mut().find(|a| a.number == number) else { return };
        let said = sys::seqpacket::receive(&attached.socket, buffer);
        match said {
            Ok(Some((n, _))) => {
                if buffer[..n].first().copied().and_then(AttachFrame::read) == Some(AttachFrame::Closed) {
                    self.input_closed(id, number);
                }
            }
            Err(nothing) if nothing.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(None) | Err(_) => attached.over = true,
        }
        self.detach_slow(id);
    }

    /// Disconnects clients that are too slow or have disconnected.
    pub(crate) fn detach_slow(&mut self, id: &ContainerId) {
        while let Some(container) = self.containers.get_mut(id)
            && let Some(at) = container.streams.attached.iter().position(|attached| attached.over)
        {
            let AttachClient { number, socket, .. } = &container.streams.attached[at];
            let number = *number;
            self.poller.forget(socket, &Source::Attached(id.clone(), number));
            // A client that had the container's stdin and disconnected has closed it.
            self.input_closed(id, number);
            if let Some(container) = self.containers.get_mut(id) {
                container.streams.attached.retain(|attached| attached.number != number);
            }
        }
    }

    /// Closes the stdin of a container with `stdin_once` for all clients when the first one closes
    /// it.
    fn input_closed(&mut self, id: &ContainerId, number: u64) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let once = container.launch.stdin_once && !container.launch.tty;
        if once && container.streams.attached.iter().any(|a| a.number == number && a.input) {
            container.streams.close_stdin();
            // Each client has its own descriptor, and all must be closed.
            for attached in container.streams.attached.iter_mut().filter(|attached| attached.input) {
                attached.input = false;
                attached.send(AttachFrame::Closed, &[]);
            }
        }
    }

    /// Disconnects all clients after the last output.
    pub(crate) fn detach_all(&mut self, id: &ContainerId) {
        let Self { containers, poller, .. } = self;
        let Some(container) = containers.get_mut(id) else { return };
        for mut attached in container.streams.attached.drain(..) {
            if !attached.over {
                attached.send(AttachFrame::End, &[]);
            }
            poller.forget(attached.socket.as_fd(), &Source::Attached(id.clone(), attached.number));
        }
    }
}
