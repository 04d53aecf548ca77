//! The sending side of one stream.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::chunk::Chunk;
use crate::recv_buffer::StreamError;
use crate::spdy::{self, Reason};
use crate::stream_table::StreamTable;
use crate::writer::FrameWriter;
use crate::ws;

/// A stream to the client. If it is dropped without [`SendStream::finish`], it is reset, where the
/// protocol supports it.
#[derive(Debug)]
pub struct SendStream {
    writer: Arc<FrameWriter>,
    target: SendTarget,
    over: bool,
}

#[derive(Debug)]
pub(crate) enum SendTarget {
    Stream { id: u32, streams: Arc<StreamTable> },
    Channel { number: u8, base64: bool },
}

impl SendStream {
    pub(crate) fn new(writer: Arc<FrameWriter>, target: SendTarget) -> Self {
        Self { writer, target, over: false }
    }

    /// Sends the content of the chunk and overwrites it.
    pub async fn send(&mut self, chunk: &mut Chunk) -> Result<(), StreamError> {
        let length = chunk.bytes().len();
        match &self.target {
            SendTarget::Stream { id, .. } => {
                let mut sent = 0;
                while sent < length {
                    let more = self.writer.window.pass(*id, length - sent).await.ok_or(StreamError::Reset)?;
                    let head = spdy::data_head(*id, false, more);
                    let (outer, size) = ws::head(ws::BINARY, spdy::HEAD + more);
                    let outer = if self.writer.is_tunnel() { &outer[..size] } else { &[] };
                    self.writer.send(chunk.framed(sent, more, &[outer, &head])).await?;
                    sent += more;
                }
                Ok(())
            }
            SendTarget::Channel { number, base64: false } => {
                let (head, size) = ws::head(ws::BINARY, length + 1);
                self.writer.send(chunk.framed(0, length, &[&head[..size], &[*number]])).await
            }
            SendTarget::Channel { number, base64: true } => {
                let mut text = char::from(b'0' + number).to_string();
                STANDARD.encode_string(chunk.bytes(), &mut text);
                let mut message = Vec::with_capacity(text.len() + ws::HEAD_MAX);
                ws::frame(ws::TEXT, text.as_bytes(), &mut message);
                self.writer.send(&message).await
            }
        }
    }

    /// Closes the stream. A channel cannot be closed: it ends with its connection.
    pub async fn finish(mut self) {
        self.over = true;
        if let SendTarget::Stream { id, streams } = &self.target {
            let end = spdy::data_head(*id, true, 0);
            let (outer, size) = ws::head(ws::BINARY, spdy::HEAD);
            if streams.finish(*id) {
                let outer = if self.writer.is_tunnel() { &outer[..size] } else { &[] };
                self.writer.send(&[outer, &end].concat()).await.ok();
            }
            self.writer.window.close(*id);
        }
    }

    /// Resets the stream, in both directions.
    pub fn reset(self) {}
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if let (false, SendTarget::Stream { id, streams }) = (self.over, &self.target)
            && streams.cut(*id)
        {
            self.writer.send_control(|_, to| spdy::Encoder::reset(*id, Reason::Cancel, to));
            self.writer.window.close(*id);
        }
    }
}
