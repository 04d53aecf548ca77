//! From an error to a gRPC status: the one place that chooses codes.

use model::error_chain::chain;
use model::{ErrorClass, ErrorKind};
use tonic::{Code, Status};

/// The error's class as a code, and its whole chain as the message.
pub(super) fn of<E: ErrorClass>(error: E) -> Status {
    Status::new(code(error.kind()), chain(&error))
}

fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Exists => Code::AlreadyExists,
        ErrorKind::Precondition => Code::FailedPrecondition,
        ErrorKind::Busy | ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Deadline => Code::DeadlineExceeded,
        ErrorKind::Denied => Code::PermissionDenied,
        ErrorKind::Unauthenticated => Code::Unauthenticated,
        ErrorKind::Unsupported => Code::Unimplemented,
        ErrorKind::Internal => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("reading the book")]
    struct Reading(#[source] std::io::Error);

    impl ErrorClass for Reading {
        fn kind(&self) -> ErrorKind {
            ErrorKind::NotFound
        }
    }

    #[test]
    fn the_message_is_the_whole_chain() {
        let status = of(Reading(std::io::Error::other("page 3 is missing")));
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(status.message(), "reading the book: page 3 is missing");
    }
}
