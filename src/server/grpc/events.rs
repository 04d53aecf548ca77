//! The stream of events, for as long as its client keeps up.

use std::sync::Arc;

use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tonic::{Response, Status};
use wire::v1;

use super::chunks::Chunks;
use crate::convert;
use crate::runtime::{Event, Listening, Runtime};

pub(super) fn stream(runtime: &Runtime) -> Response<Chunks<v1::ContainerEventResponse>> {
    let Listening { early, live } = runtime.events().listen();
    let early = tokio_stream::iter(early).map(Ok);
    let wire = |event: Result<Arc<Event>, BroadcastStreamRecvError>| match event {
        Ok(event) => Ok(convert::event::event(&event)),
        // The last word: a stream with a gap in it would be believed.
        Err(BroadcastStreamRecvError::Lagged(lost)) => Err(Status::resource_exhausted(format!(
            "events come faster than they are read, and {lost} are lost: ask for them again, and list what there is"
        ))),
    };
    match live {
        Some(live) => Response::new(Box::pin(early.chain(BroadcastStream::new(live)).map(wire))),
        None => Response::new(Box::pin(early.map(wire))),
    }
}
