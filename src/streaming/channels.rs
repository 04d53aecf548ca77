//! Kubernetes streams over WebSocket: each message begins with its channel number.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, Bytes};

use crate::recv_buffer::{BufferBudget, RecvBuffer, RecvStream, StreamError};

/// The "channel" on which a client of version 5 closes its side of another channel.
const CLOSE: u8 = 255;
/// The longest message that is buffered whole: base64 cannot be decoded from arbitrary parts.
const BASE64_MAX: usize = 1 << 20;

/// The channels that a client writes to.
#[derive(Debug)]
pub(crate) struct Channels {
    inboxes: Vec<Option<Arc<RecvBuffer>>>,
    words: ChannelFraming,
    /// State of the current message.
    now: MessageState,
}

/// The encoding of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChannelFraming {
    pub(crate) base64: bool,
    /// Whether a client can close a channel.
    pub(crate) close: bool,
}

#[derive(Debug)]
enum MessageState {
    /// Its first byte has not arrived yet.
    Nothing,
    Bytes(usize),
    Close,
    Base64(usize, Vec<u8>),
    /// For a channel that is not read, or does not exist.
    Waste,
}

impl Channels {
    /// Creates the channels; `read` has the ones to read from.
    pub(crate) fn new(budget: &Arc<BufferBudget>, read: &[bool], words: ChannelFraming) -> Self {
        let inboxes = read.iter().map(|read| read.then(|| RecvBuffer::new(budget.clone()))).collect();
        Self { inboxes, words, now: MessageState::Nothing }
    }

    pub(crate) fn input(&self, channel: usize) -> Option<RecvStream> {
        self.inboxes.get(channel)?.clone().map(RecvStream)
    }

    fn recv_buffer(&self, channel: usize) -> Option<&Arc<RecvBuffer>> {
        self.inboxes.get(channel).and_then(Option::as_ref)
    }

    /// Handles a part of a message.
    pub(crate) async fn put(&mut self, budget: &BufferBudget, mut bytes: Bytes, first: bool, last: bool) {
        if first {
            self.now = MessageState::Nothing;
        }
        if matches!(self.now, MessageState::Nothing) && bytes.has_remaining() {
            let number = bytes.get_u8();
            self.now = match number {
                CLOSE if self.words.close => MessageState::Close,
                number if self.words.base64 => MessageState::Base64(number.wrapping_sub(b'0').into(), Vec::new()),
                number => MessageState::Bytes(number.into()),
            };
        }
        match &mut self.now {
            MessageState::Nothing | MessageState::Waste => {}
            MessageState::Bytes(channel) => {
                let channel = *channel;
                self.deliver(budget, channel, bytes).await;
            }
            MessageState::Close => {
                if let Some(recv_buffer) = bytes.first().and_then(|channel| self.recv_buffer((*channel).into())) {
                    recv_buffer.end(Ok(()));
                }
            }
            MessageState::Base64(_, text) if text.len() + bytes.len() > BASE64_MAX => self.now = MessageState::Waste,
            MessageState::Base64(channel, text) => {
                text.extend_from_slice(&bytes);
                if last && let Ok(bytes) = STANDARD.decode(&text) {
                    let channel = *channel;
                    self.deliver(budget, channel, bytes.into()).await;
                }
            }
        }
        if last {
            self.now = MessageState::Nothing;
        }
    }

    async fn deliver(&self, budget: &BufferBudget, channel: usize, bytes: Bytes) {
        if let Some(recv_buffer) = self.recv_buffer(channel) {
            recv_buffer.put(bytes);
            budget.room(recv_buffer).await;
        }
    }
}

impl Drop for Channels {
    /// Ends the readers, unless they have reached their end before.
    fn drop(&mut self) {
        for recv_buffer in self.inboxes.iter().flatten().filter(|recv_buffer| !recv_buffer.has_ended()) {
            recv_buffer.end(Err(StreamError::Lost));
        }
    }
}
