//! Sends all pods and containers to a plugin.

use std::time::Duration;

use prost::encoding::message;

use crate::api::{ContainerUpdate, SynchronizeResponse};
use crate::host::Object;
use crate::wire::{ANSWER_WITH_UPDATES, Call, CallError, Connection, MESSAGE_MAX, decode};

/// One message while all objects fit: libraries before v0.7 take each message for the whole set.
/// The difference to the limit of a message is for the envelope.
const WHOLE: usize = MESSAGE_MAX - 1024;
/// The size of messages if there are several.
const CHUNK: usize = 1 << 20;
/// The field `more`, set.
const MORE: [u8; 2] = [3 << 3, 1];

/// A plugin that could not be synchronized.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SyncError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the plugin does not collect the messages of a set: {0} bytes of pods and containers need several")]
    NoChunks(usize),
    #[error("{kind} {id} has {size} bytes, at most {WHOLE}")]
    Object { kind: &'static str, id: String, size: usize },
}

/// The outcome of a synchronization.
#[derive(Debug)]
pub(crate) struct Synchronized {
    pub(crate) updates: Vec<ContainerUpdate>,
    pub(crate) objects: usize,
}

/// Sends the objects, of which at most the bytes of one message are in memory. `time` is the limit
/// of each message.
pub(crate) async fn synchronize(
    connection: &Connection,
    objects: impl Iterator<Item = Object> + Send,
    time: Duration,
) -> Result<Synchronized, SyncError> {
    let mut count = 0;
    let mut sent = 0;
    let mut unsent = Unsent::default();
    for object in objects {
        count += 1;
        unsent.add(&object)?;
        // Once the set does not fit one message, it is sent in small ones.
        while unsent.bytes.len() > if sent == 0 { WHOLE } else { CHUNK } {
            let mut chunk = unsent.take_chunk();
            sent += chunk.len();
            chunk.extend_from_slice(&MORE);
            let answer = send(connection, chunk, time).await?;
            if !answer.more || !answer.update.is_empty() {
                return Err(SyncError::NoChunks(sent + unsent.bytes.len()));
            }
        }
    }
    let answer = send(connection, unsent.bytes, time).await?;
    Ok(Synchronized { updates: answer.update, objects: count })
}

/// Encoded objects, and where a message may end.
#[derive(Debug, Default)]
struct Unsent {
    bytes: Vec<u8>,
    ends: std::collections::VecDeque<usize>,
}

impl Unsent {
    fn add(&mut self, object: &Object) -> Result<(), SyncError> {
        let before = self.bytes.len();
        let (kind, id) = match object {
            Object::Pod(pod) => {
                message::encode(1, pod, &mut self.bytes);
                ("pod", &pod.id)
            }
            Object::Container(container) => {
                message::encode(2, container, &mut self.bytes);
                ("container", &container.id)
            }
        };
        let size = self.bytes.len() - before;
        if size > WHOLE {
            return Err(SyncError::Object { kind, id: id.clone(), size });
        }
        self.ends.push_back(self.bytes.len());
        Ok(())
    }

    /// Removes as many objects as fit a message of several, at least one.
    fn take_chunk(&mut self) -> Vec<u8> {
        let mut end = self.ends.pop_front().unwrap_or(self.bytes.len());
        while let Some(next) = self.ends.front().filter(|next| **next <= CHUNK) {
            end = *next;
            self.ends.pop_front();
        }
        let rest = self.bytes.split_off(end);
        self.ends.iter_mut().for_each(|next| *next -= end);
        std::mem::replace(&mut self.bytes, rest)
    }
}

async fn send(connection: &Connection, payload: Vec<u8>, time: Duration) -> Result<SynchronizeResponse, SyncError> {
    let exchange = async {
        let call = Call { method: "Synchronize", payload, timeout: time, traceparent: None };
        connection.send(call).await?.wait().await
    };
    let answer = tokio::time::timeout(time, exchange).await.map_err(|_| CallError::TimedOut(time))??;
    Ok(decode(&answer, &ANSWER_WITH_UPDATES)?)
}
