//! The stream of container events; ends if its client reads too slowly.

use std::sync::Arc;

use cri_api::v1;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tonic::{Response, Status};

use super::list_stream::Chunks;
use crate::convert;
use crate::runtime::{Event, Runtime, Subscription};

pub(super) fn stream(runtime: &Runtime) -> Response<Chunks<v1::ContainerEventResponse>> {
    Response::new(event_stream(runtime.events().subscribe()))
}

fn event_stream(Subscription { early, live }: Subscription) -> Chunks<v1::ContainerEventResponse> {
    let early = tokio_stream::iter(early).map(Ok);
    let wire = |event: Result<Arc<Event>, BroadcastStreamRecvError>| match event {
        Ok(event) => Ok(convert::event::event(&event)),
        // The stream ends here: a client would rely on a stream with a gap.
        Err(BroadcastStreamRecvError::Lagged(lost)) => Err(Status::resource_exhausted(format!(
            "the client reads too slowly, {lost} events were lost: subscribe again and list pods and containers"
        ))),
    };
    match live {
        Some(live) => Box::pin(early.chain(BroadcastStream::new(live)).map(wire)),
        None => Box::pin(early.map(wire)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::sync::broadcast;
    use tonic::Code;

    use super::*;
    use crate::runtime::EventKind;

    fn event(id: &str) -> Arc<Event> {
        let (kind, at) = (EventKind::Stopped, SystemTime::UNIX_EPOCH);
        Arc::new(Event { id: id.to_owned(), kind, at, pod: None, containers: Vec::new() })
    }

    #[tokio::test]
    async fn earlier_events_are_sent_first() {
        let (sender, live) = broadcast::channel(4);
        sender.send(event("b")).unwrap();
        drop(sender);
        let stream = event_stream(Subscription { early: vec![event("a")], live: Some(live) });
        let ids: Vec<String> = stream.map(|event| event.unwrap().container_id).collect().await;
        assert_eq!(ids, ["a", "b"]);
    }

    #[tokio::test]
    async fn a_slow_client_gets_the_number_of_lost_events() {
        let (sender, live) = broadcast::channel(4);
        for number in 0..7 {
            sender.send(event(&number.to_string())).unwrap();
        }
        let mut stream = event_stream(Subscription { early: Vec::new(), live: Some(live) });
        let end = stream.next().await.unwrap().unwrap_err();
        assert_eq!(end.code(), Code::ResourceExhausted);
        assert!(end.message().contains("3 events were lost"), "{end:?}");
    }
}
