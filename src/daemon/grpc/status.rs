//! Converts errors to gRPC statuses: the only place that chooses codes.

use std::collections::HashMap;
use std::fmt::Display;

use model::error_chain::chain;
use model::{ErrorClass, ErrorDetail, ErrorKind};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::convert::request_field::WirePath;

/// Returns a status with the error's class as the code; the message is the field, if any, and the
/// error chain.
pub(super) fn of<E: ErrorClass>(error: E) -> Status {
    match error.field() {
        Some(field) => of_field(&WirePath(&field), &error),
        None => with_detail(&error, chain(&error)),
    }
}

/// Returns the status of an error that is about the field with this path.
pub(super) fn of_field<E: ErrorClass>(path: &dyn Display, error: &E) -> Status {
    with_detail(error, format!("{path}: {}", chain(error)))
}

/// The domain of the reasons in details.
const DOMAIN: &str = "crisp";

fn with_detail<E: ErrorClass>(error: &E, message: String) -> Status {
    let code = code(error.kind());
    let Some(ErrorDetail { reason, metadata }) = error.detail() else {
        return Status::new(code, shortened(message, MESSAGE_MAX));
    };
    let metadata: HashMap<String, String> = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
    // The details repeat the message.
    Status::with_error_details(code, shortened(message, MESSAGE_MAX / 2), details)
}

/// The longest message. A client closes the connection at headers of some 8 KiB, and percent encoding
/// makes a byte up to three.
const MESSAGE_MAX: usize = 2048;

/// Cuts the middle out of a message that repeats a long value of a request or an image.
fn shortened(message: String, most: usize) -> String {
    if message.len() <= most {
        return message;
    }
    let boundary = |at: &usize| message.is_char_boundary(*at);
    let beginning = (0..=most * 3 / 4).rev().find(boundary).unwrap_or_default();
    let end = (message.len() - most / 4..message.len()).find(boundary).unwrap_or(message.len());
    format!("{} … {}", &message[..beginning], &message[end..])
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
    use model::RequestField;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("reading the book")]
    struct Reading(#[source] std::io::Error);

    impl ErrorClass for Reading {
        fn kind(&self) -> ErrorKind {
            ErrorKind::NotFound
        }

        fn field(&self) -> Option<RequestField> {
            Some(RequestField::MountRelabel(3))
        }
    }

    #[test]
    fn a_message_that_repeats_a_long_value_is_shortened() {
        let long = "ä".repeat(2_000_000);
        let message = of(Reading(std::io::Error::other(format!("page {long} is missing")))).message().to_owned();
        assert!(message.len() < 2100, "{}", message.len());
        assert!(
            message.starts_with("config.mounts[3].selinux_relabel: reading the book: page ää")
                && message.ends_with("ää is missing"),
            "{message}"
        );
    }

    #[derive(Debug, thiserror::Error)]
    #[error("lowering {}", .0)]
    struct Lowering(String);

    impl ErrorClass for Lowering {
        fn kind(&self) -> ErrorKind {
            ErrorKind::Precondition
        }

        fn detail(&self) -> Option<ErrorDetail> {
            let metadata = (0..10).map(|_| ("limitBytes", u64::MAX.to_string())).collect();
            Some(ErrorDetail { reason: "MEMORY_BELOW_USAGE", metadata })
        }
    }

    #[test]
    fn a_detail_is_sent_beside_the_message_within_the_size_of_headers() {
        let status = of(Lowering("ä".repeat(2_000_000)));
        let info = status.get_details_error_info().unwrap();
        assert_eq!((info.domain.as_str(), info.reason.as_str()), ("crisp", "MEMORY_BELOW_USAGE"));
        assert_eq!(info.metadata["limitBytes"], u64::MAX.to_string());
        let headers = status.into_http::<()>();
        let size: usize = headers.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        assert!((2000..8192).contains(&size), "{size}");
        assert!(of(Reading(std::io::Error::other("x"))).details().is_empty());
    }

    #[test]
    fn the_message_is_the_field_and_the_whole_chain() {
        let status = of(Reading(std::io::Error::other("page 3 is missing")));
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(status.message(), "config.mounts[3].selinux_relabel: reading the book: page 3 is missing");
    }
}
