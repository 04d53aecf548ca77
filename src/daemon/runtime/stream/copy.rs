//! Copies bytes between clients and pipes or terminals.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use bytes::{Buf as _, Bytes};
use rustix::termios::{Winsize, tcsetwinsize};
use streaming::{Chunk, RecvStream, Resizes, SendStream, Size};
use tokio::io::{AsyncWrite, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::watch;

/// The size of a read in bytes: at first, and when there is much output.
const LEAST: usize = 4 << 10;
const MOST: usize = 128 << 10;
/// The maximum number of pieces of a client that are written at once.
pub(crate) const PIECES: usize = 16;
/// The maximum size of a pipe.
const LEFT_MAX: usize = 1 << 20;

/// Becomes true when the program has exited.
type Ended = watch::Receiver<bool>;

/// Returns when the program has exited.
async fn end_of(ended: &mut Ended) {
    // The sender was dropped: no message will come.
    ended.wait_for(|ended| *ended).await.ok();
}

/// A chunk that grows while there is much output.
pub(crate) struct CopyBuffer {
    chunk: Chunk,
    size: usize,
}

impl CopyBuffer {
    pub(crate) fn new() -> Self {
        Self { chunk: Chunk::with_room(LEAST), size: LEAST }
    }

    /// Reads once and returns the number of bytes; 0 at the end.
    fn read(&mut self, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        let count = read(self.chunk.room())?;
        self.chunk.fill(count);
        Ok(count)
    }

    pub(crate) async fn send(&mut self, to: &mut SendStream) -> Result<(), streaming::StreamError> {
        let full = self.chunk.bytes().len() == self.size;
        to.send(&mut self.chunk).await?;
        if full && self.size < MOST {
            *self = Self { chunk: Chunk::with_room(MOST), size: MOST };
        }
        Ok(())
    }

    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.chunk.room()
    }

    pub(crate) fn fill(&mut self, count: usize) {
        self.chunk.fill(count);
    }
}

/// The next step of a stream that is read.
enum CopyStep {
    Read,
    Over,
}

/// Copies a client's input to a pipe, until either ends or the program exits.
pub(crate) async fn write_pipe(from: Option<RecvStream>, to: Option<OwnedFd>, mut ended: Ended) {
    let (Some(mut from), Some(Ok(mut to))) = (from, to.map(pipe::Sender::from_owned_fd)) else { return };
    let carry = async {
        // The pipe is closed in any case, so that a program that reads it notices.
        while let Ok(pieces) = from.next_pieces(PIECES).await
            && !pieces.is_empty()
            && write_all(&mut to, pieces).await.is_ok()
        {}
    };
    tokio::select! {
        () = carry => {}
        () = end_of(&mut ended) => {}
    }
}

/// Writes all pieces, in as few calls as possible.
pub(crate) async fn write_all(to: &mut (impl AsyncWrite + Unpin), mut pieces: VecDeque<Bytes>) -> io::Result<()> {
    while !pieces.is_empty() {
        let mut slices = [IoSlice::new(&[]); PIECES];
        let count = slices.iter_mut().zip(&pieces).map(|(slice, piece)| *slice = IoSlice::new(piece)).count();
        let mut written = to.write_vectored(&slices[..count]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while let Some(first) = pieces.front_mut()
            && written > 0
        {
            let part = written.min(first.len());
            first.advance(part);
            written -= part;
            if first.is_empty() {
                pieces.pop_front();
            }
        }
    }
    Ok(())
}

/// Copies a program's output to a client, until its end.
pub(crate) async fn read_pipe(from: Option<OwnedFd>, to: Option<SendStream>, mut ended: Ended) {
    let Some(mut to) = to else { return };
    let mut buffer = CopyBuffer::new();
    if let Some(Ok(from)) = from.map(pipe::Receiver::from_owned_fd) {
        let mut left = LEFT_MAX;
        loop {
            let turn = tokio::select! {
                biased;
                ready = from.readable() => if ready.is_ok() { CopyStep::Read } else { CopyStep::Over },
                () = end_of(&mut ended) => CopyStep::Over,
            };
            let read = match turn {
                CopyStep::Read => buffer.read(|room| from.try_read(room)),
                // Reads without waiting for tokio, whose readiness may be older than the last
                // bytes.
                CopyStep::Over => buffer.read(|room| Ok(rustix::io::read(&from, room)?)),
            };
            match (read, turn) {
                (Ok(0), _) => break,
                (Ok(count), _) => {
                    if buffer.send(&mut to).await.is_err() {
                        return;
                    }
                    if *ended.borrow() {
                        left = left.saturating_sub(count);
                    }
                }
                (Err(error), CopyStep::Read) if error.kind() == io::ErrorKind::WouldBlock => {}
                (Err(_), _) => break,
            }
            if left == 0 {
                break;
            }
        }
    }
    to.finish().await;
}

/// The master of a terminal.
///
/// Not a socket, despite the type: tokio only waits for readiness.
#[derive(Debug)]
pub(crate) struct Terminal(UnixStream);

impl Terminal {
    /// Any file that can be waited for and written to; only a terminal can be read from and
    /// resized.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self(UnixStream::from_std(fd.into())?))
    }

    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let write = || Ok(rustix::io::write(&self.0, bytes)?);
            bytes = &bytes[self.0.async_io(Interest::WRITABLE, write).await?..];
        }
        Ok(())
    }

    /// Copies a client's input. Its end has no effect: a terminal stays open.
    pub(crate) async fn write(&self, from: Option<RecvStream>, mut ended: Ended) {
        let Some(mut from) = from else { return };
        let carry = async {
            while let Ok(Some(bytes)) = from.next().await {
                if self.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            () = carry => {}
            () = end_of(&mut ended) => {}
        }
    }

    /// Copies the output, until the last process that has the terminal open exits, or the program
    /// does.
    pub(crate) async fn read(&self, to: Option<SendStream>, mut ended: Ended) {
        let mut buffer = CopyBuffer::new();
        let mut to = to;
        loop {
            let into = |room: &mut [u8]| Ok(rustix::io::read(&self.0, room)?);
            let read = tokio::select! {
                biased;
                read = self.0.async_io(Interest::READABLE, || buffer.read(into)) => Some(read),
                () = end_of(&mut ended) => None,
            };
            // Reads without waiting for tokio, whose readiness may be older than the last bytes.
            let read = read.unwrap_or_else(|| buffer.read(into));
            match (read, &mut to) {
                // A terminal returns EIO after its last user closed it.
                (Ok(0) | Err(_), _) => break,
                (Ok(_), Some(to)) => {
                    if buffer.send(to).await.is_err() {
                        return;
                    }
                }
                // The client requested no output; it is read so that the program does not block.
                (Ok(_), None) => {}
            }
        }
        if let Some(to) = to {
            to.finish().await;
        }
    }

    pub(crate) async fn resize(&self, sizes: Option<Resizes>, mut ended: Ended) {
        let Some(mut sizes) = sizes else { return };
        let follow = async {
            while let Some(size) = sizes.next().await {
                self.set_size(size);
            }
        };
        tokio::select! {
            () = follow => {}
            () = end_of(&mut ended) => {}
        }
    }

    pub(crate) fn set_size(&self, Size { width, height }: Size) {
        let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
        // A file that is no longer a terminal has no size.
        tcsetwinsize(&self.0, size).ok();
    }
}
