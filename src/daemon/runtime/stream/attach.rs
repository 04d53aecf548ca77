//! Attach: taking part in the streams of a container that runs.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use model::ContainerId;
use model::error_chain::chain;
use shim_protocol::{AttachFrame, AttachRequest, Stdio};
use streaming::remote_command::{ClientStreams, RemoteCommand, StdioOptions};
use streaming::{Chunk, Outcome, RecvStream, Resizes, SendStream};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};

use super::copy::Terminal;
use super::exec_sync::ExecError;
use super::shutdown::ShutdownWatch;
use crate::runtime::Runtime;

/// How far a client may fall behind what a container prints before it is let go, in bytes.
const BEHIND_MAX: usize = 1 << 20;

/// A place at a container, kept by its shim for as long as the socket is open.
#[derive(Debug)]
struct Attachment {
    /// Of packets; tokio only waits for it, what is sent and received is ours.
    socket: UnixStream,
    once: bool,
    terminal: bool,
}

/// Why an attachment ends.
enum DetachReason {
    /// The container has ended, or the client wants no more, or there is a farewell.
    Done,
    /// The shim let go of it.
    Slow,
    /// The client is gone.
    Gone,
}

impl Runtime {
    /// Connects a client to the streams of a container until either ends. Takes no lock.
    pub(crate) async fn attach_stream(
        self: &Arc<Self>,
        container: &ContainerId,
        options: StdioOptions,
        remote: RemoteCommand,
    ) {
        let RemoteCommand { streams, talk } = remote;
        let (disconnected, mut watch) = (talk.gone(), self.stream_shutdown.watch());
        let outcome = match self.attach_to_shim(container, options).await {
            Ok(attachment) => {
                let end = tokio::select! {
                    end = attachment.copy_streams(streams, &mut watch) => end,
                    () = disconnected => DetachReason::Gone,
                };
                match end {
                    DetachReason::Done => watch.shutdown_status().unwrap_or(Outcome::Success),
                    DetachReason::Slow => {
                        tracing::info!(%container, "a client that was attached did not keep up and was let go");
                        let words = "error attaching to container: the output was not taken fast enough";
                        Outcome::Failed(words.to_owned())
                    }
                    DetachReason::Gone => return tracing::debug!(%container, "the client that was attached is gone"),
                }
            }
            Err(error) => {
                let words = chain(&error);
                tracing::debug!(%container, error = words, "attach");
                Outcome::Failed(format!("error attaching to container: {words}"))
            }
        };
        talk.end(&outcome).await;
    }

    async fn attach_to_shim(&self, container: &ContainerId, options: StdioOptions) -> Result<Attachment, ExecError> {
        let (record, sandbox) = self.running_in_sandbox(container.as_str())?;
        let container = record.id.clone();
        let StdioOptions { stdin, stdout, stderr, tty: _ } = options;
        let stdio = Stdio { stdin, stdout, stderr };
        let (ours, theirs) = sys::seqpacket::pair().map_err(ExecError::Pipe)?;
        // Without the right to that, a client may fall behind less far.
        sys::seqpacket::make_room(&theirs, BEHIND_MAX).ok();
        let request = AttachRequest { container: container.clone(), stdio };
        if let Err(source) = sandbox.attach(request, theirs.as_fd()).await {
            return Err(ExecError::Shim { container, source });
        }
        let socket = UnixStream::from_std(ours.into()).map_err(ExecError::Pipe)?;
        Ok(Attachment { socket, once: record.spec.stdin_once, terminal: record.spec.tty })
    }
}

impl Attachment {
    /// Copies the streams in both directions.
    async fn copy_streams(self, streams: ClientStreams, watch: &mut ShutdownWatch) -> DetachReason {
        let ClientStreams { stdin, stdout, stderr, resizes } = streams;
        let (give, given) = watch::channel(None);
        let enough = Notify::new();
        let typed = async {
            tokio::select! {
                () = self.copy_stdin(stdin, resizes, given) => {}
                () = watch.wait_shutdown() => {}
            }
            enough.notify_one();
            std::future::pending().await
        };
        tokio::select! {
            end = self.listen(stdout, stderr, give, &enough) => end,
            end = typed => end,
        }
    }

    /// Passes on what the container prints, and what to write its stdin to.
    async fn listen(
        &self,
        mut stdout: Option<SendStream>,
        mut stderr: Option<SendStream>,
        give: watch::Sender<Option<Arc<Terminal>>>,
        enough: &Notify,
    ) -> DetachReason {
        let mut chunk = Chunk::with_room(sys::seqpacket::MAX);
        let end = loop {
            let received =
                self.socket.async_io(Interest::READABLE, || sys::seqpacket::receive(&self.socket, chunk.tagged_room()));
            let received = tokio::select! {
                biased;
                received = received => received,
                () = enough.notified() => break DetachReason::Done,
            };
            let Ok(Some((count, fds))) = received else { break DetachReason::Slow };
            let word = chunk.tagged_room().first().copied().and_then(AttachFrame::read);
            chunk.fill(count.saturating_sub(1));
            let to = match word {
                Some(AttachFrame::Stdout) => &mut stdout,
                Some(AttachFrame::Stderr) => &mut stderr,
                Some(AttachFrame::Stdin) => {
                    give.send_replace(fds.into_iter().next().and_then(|fd| Terminal::new(fd).ok()).map(Arc::new));
                    continue;
                }
                Some(AttachFrame::Closed) => {
                    give.send_replace(None);
                    continue;
                }
                Some(AttachFrame::End) => break DetachReason::Done,
                // From a shim that is newer.
                None => continue,
            };
            if let Some(to) = to
                && to.send(&mut chunk).await.is_err()
            {
                return DetachReason::Gone;
            }
        };
        for output in [stdout, stderr].into_iter().flatten() {
            output.finish().await;
        }
        end
    }

    /// Carries what the client types. Returns when it wants no more; never where it has no stdin, or that is not all it came
    /// for.
    async fn copy_stdin(
        &self,
        stdin: Option<RecvStream>,
        resizes: Option<Resizes>,
        given: watch::Receiver<Option<Arc<Terminal>>>,
    ) {
        let size = async {
            let (Some(mut resizes), true) = (resizes, self.terminal) else { return std::future::pending().await };
            let mut given = given.clone();
            while let Some(size) = resizes.next().await {
                // The first size may be here before the terminal is.
                if let Ok(terminal) = given.wait_for(Option::is_some).await.map(|terminal| terminal.clone())
                    && let Some(terminal) = terminal
                {
                    terminal.set_size(size);
                }
            }
            std::future::pending().await
        };
        let write = async {
            let Some(mut stdin) = stdin else { return std::future::pending().await };
            let mut given = given.clone();
            // The shim says first whether the container has a stdin at all.
            given.changed().await.ok();
            let had = given.borrow().is_some();
            while had && let Ok(Some(bytes)) = stdin.next().await {
                let Some(to) = given.borrow().clone() else { break };
                let closed = given.wait_for(Option::is_none);
                let written = tokio::select! {
                    written = to.write_all(&bytes) => written,
                    _ = closed => break,
                };
                if written.is_err() {
                    break;
                }
            }
            if had && (!self.once || self.terminal) && given.borrow().is_some() {
                // As with the peers: who attached with stdin and closes it has had enough.
                return;
            }
            drop(stdin);
            let word = [AttachFrame::Closed.byte()];
            // Fails where the shim is gone, which ends it all.
            let told = || sys::seqpacket::send(&self.socket, &word, &[]);
            self.socket.async_io(Interest::WRITABLE, told).await.ok();
            std::future::pending().await
        };
        tokio::select! {
            () = size => {}
            () = write => {}
        }
    }
}
