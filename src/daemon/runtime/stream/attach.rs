//! Attach: connects a client to the streams of a running container.

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

/// How many bytes of a container's output a client may be behind before it is disconnected.
const BEHIND_MAX: usize = 1 << 20;

/// An attached client, which its shim serves while the socket is open.
#[derive(Debug)]
struct Attachment {
    /// It carries packets: tokio only waits for readiness.
    socket: UnixStream,
    once: bool,
    terminal: bool,
}

/// The reason why an attachment ends.
enum DetachReason {
    /// The container has exited, the client closed stdin, or the daemon shuts down.
    Done,
    /// The shim disconnected it.
    Slow,
    /// The client disconnected.
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
                        tracing::info!("disconnected an attach client that read too slowly");
                        let words = "error attaching to container: the output was not taken fast enough";
                        Outcome::Failed(words.to_owned())
                    }
                    DetachReason::Gone => return tracing::debug!("the attach client disconnected"),
                }
            }
            Err(error) => {
                let words = chain(&error);
                tracing::debug!(error = words, "attaching a client to the container failed");
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
        // Fails without the privilege: then the client may be behind by fewer bytes.
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

    /// Copies the container's output to the client, and receives the descriptors for its stdin.
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
                // A frame of a newer shim.
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

    /// Copies the client's input. Returns when the client wants to detach; never if it has no
    /// stdin, or closing stdin does not mean that.
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
                // The first size may arrive before the terminal.
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
            // The first frame of the shim shows whether the container has a stdin.
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
                // As with containerd and CRI-O, a client that attached with stdin and closes it
                // detaches.
                return;
            }
            drop(stdin);
            let word = [AttachFrame::Closed.byte()];
            // Fails only if the shim has exited, which ends the attachment.
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
