//! Streams of lists in several messages.

use std::pin::Pin;

use cri_api::Message;
use tokio_stream::Stream;
use tonic::{Response, Status};

/// A stream of list messages.
pub(super) type Chunks<R> = Pin<Box<dyn Stream<Item = Result<R, Status>> + Send>>;

/// Maximum entries of one message.
const COUNT: usize = 100;
/// Maximum bytes of a message with several entries. A client accepts 16 MiB, and labels and
/// annotations can be long.
const BYTES: usize = 1 << 20;

/// Streams `items` in messages, none of them empty; `wrap` builds a message.
pub(super) fn stream<T, R>(items: Vec<T>, wrap: fn(Vec<T>) -> R) -> Response<Chunks<R>>
where
    T: Message + 'static,
    R: 'static,
{
    Response::new(Box::pin(tokio_stream::iter(pieces(items).map(move |piece| Ok(wrap(piece))))))
}

fn pieces<T: Message>(items: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let mut rest = items.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut piece = vec![rest.next()?];
        let mut bytes = piece[0].encoded_len();
        while piece.len() < COUNT
            && let Some(next) = rest.next_if(|next| bytes + next.encoded_len() <= BYTES)
        {
            bytes += next.encoded_len();
            piece.push(next);
        }
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use cri_api::v1::ContainerMetadata;

    use super::*;

    fn named(length: usize) -> ContainerMetadata {
        ContainerMetadata { name: "n".repeat(length), attempt: 0 }
    }

    fn sizes(items: &[ContainerMetadata]) -> Vec<usize> {
        let pieces: Vec<_> = pieces(items.to_vec()).collect();
        assert_eq!(pieces.concat(), items, "each once, in order");
        pieces.iter().map(Vec::len).collect()
    }

    #[test]
    fn no_message_is_empty_or_too_long() {
        let many = |count| vec![named(5); count];
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&many(1)), [1]);
        assert_eq!(sizes(&many(COUNT)), [COUNT]);
        assert_eq!(sizes(&many(2 * COUNT + 1)), [COUNT, COUNT, 1]);
    }

    #[test]
    fn long_entries_are_sent_in_small_messages_and_the_longest_alone() {
        let (third, huge) = (named(BYTES / 3), named(3 * BYTES));
        assert_eq!(sizes(&[third.clone(), third.clone(), third.clone(), huge.clone(), huge, third]), [2, 1, 1, 1, 1]);
    }
}
