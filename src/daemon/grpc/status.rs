//! From an error to a gRPC status: the one place that chooses codes.

use model::error_chain::chain;
use model::{Classed, Kind};
use tonic::{Code, Status};

/// The error's class as a code, and its whole chain as the message.
pub(super) fn of<E: Classed>(error: E) -> Status {
    Status::new(code(error.kind()), chain(&error))
}

fn code(kind: Kind) -> Code {
    match kind {
        Kind::Invalid => Code::InvalidArgument,
        Kind::NotFound => Code::NotFound,
        Kind::Exists => Code::AlreadyExists,
        Kind::Precondition => Code::FailedPrecondition,
        Kind::Busy | Kind::Unavailable => Code::Unavailable,
        Kind::Exhausted => Code::ResourceExhausted,
        Kind::Deadline => Code::DeadlineExceeded,
        Kind::Denied => Code::PermissionDenied,
        Kind::Unauthenticated => Code::Unauthenticated,
        Kind::Unsupported => Code::Unimplemented,
        Kind::Internal => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("reading the book")]
    struct Reading(#[source] std::io::Error);

    impl Classed for Reading {
        fn kind(&self) -> Kind {
            Kind::NotFound
        }
    }

    #[test]
    fn the_message_is_the_whole_chain() {
        let status = of(Reading(std::io::Error::other("page 3 is missing")));
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(status.message(), "reading the book: page 3 is missing");
    }
}
