//! Reopens a log. A child opens the file, since the file system of the log may hang.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use launcher::launch::client_paths::spawn_log_opener;
use launcher::launch::report::{Report, receive};
use model::ContainerId;
use nix::unistd::Pid;
use shim_protocol::{LogPath, Response, ShimError, ShimErrorKind};

use crate::server::container::Caller;
use crate::server::poller::Source;
use crate::server::requests::start_error;
use crate::server::{Shim, not_found, shim_error};

/// A log that is being opened.
#[derive(Debug)]
pub(crate) struct LogReopening {
    caller: Caller,
    opener: Pid,
    socket: OwnedFd,
}

impl Shim {
    /// Continues in the given file at once, or in that of the path when it is open.
    pub(crate) fn reopen(&mut self, caller: Caller, id: &ContainerId, log: Option<LogPath>, file: Option<OwnedFd>) {
        let begun = match log {
            Some(log) => self.begin_reopen(caller, id, &log),
            None => self.reopen_with(id, file).map(|()| self.reply(caller, Ok(Response::Done))),
        };
        if let Err(error) = begun {
            self.reply(caller, Err(error));
        }
    }

    fn reopen_with(&mut self, id: &ContainerId, file: Option<OwnedFd>) -> Result<(), ShimError> {
        let container = self.containers.get_mut(id).ok_or_else(|| not_found(id))?;
        let file = file.ok_or_else(|| shim_error(ShimErrorKind::Refused, "no log file came with the request"))?;
        container.streams.reopen(File::from(file));
        Ok(())
    }

    fn begin_reopen(&mut self, caller: Caller, id: &ContainerId, log: &LogPath) -> Result<(), ShimError> {
        let container = self.containers.get_mut(id).ok_or_else(|| not_found(id))?;
        if container.reopening.is_some() {
            let message = format!("the log of container {id} is being opened already");
            return Err(shim_error(ShimErrorKind::State, message));
        }
        let (opener, socket) = spawn_log_opener(log).map_err(|error| start_error(&error, ShimErrorKind::Internal))?;
        self.poller.watch(&socket, Source::LogOpened(id.clone()));
        container.reopening = Some(LogReopening { caller, opener, socket });
        Ok(())
    }

    /// Handles the result of the child.
    pub(crate) fn on_log_opened(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let Some(LogReopening { caller, opener, socket }) = container.reopening.take() else { return };
        let answer = match receive(&socket, &mut self.buffer) {
            Err(nothing) if nothing.kind() == io::ErrorKind::WouldBlock => {
                container.reopening = Some(LogReopening { caller, opener, socket });
                return;
            }
            Ok(Some((Report::Log, mut files))) => match files.pop() {
                Some(file) => {
                    container.streams.reopen(File::from(file));
                    Ok(Response::Done)
                }
                None => Err(shim_error(ShimErrorKind::Internal, "the opened log did not arrive")),
            },
            Ok(Some((Report::Refused { kind, message }, _))) => Err(shim_error(kind, message)),
            Ok(_) | Err(_) => Err(shim_error(ShimErrorKind::Internal, "the process that opens the log exited")),
        };
        self.poller.forget(&socket, &Source::LogOpened(id.clone()));
        self.reply(caller, answer);
    }

    /// Cancels a reopen in progress: its container has exited.
    pub(crate) fn end_reopen(&mut self, id: &ContainerId) {
        let under_way = self.containers.get_mut(id).and_then(|container| container.reopening.take());
        if let Some(LogReopening { caller, opener, socket }) = under_way {
            self.poller.forget(&socket, &Source::LogOpened(id.clone()));
            sys::signal::send(opener.as_raw(), 9).ok();
            self.reply(caller, Err(shim_error(ShimErrorKind::State, "the container exited during the request")));
        }
    }
}
