//! The classes of errors, which decide the gRPC status code.

use crate::RequestField;

/// The class of an error. Every operation's error has one; the gRPC layer maps it to a status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself is invalid; a retry will fail too.
    Invalid,
    /// The named object does not exist.
    NotFound,
    /// The name is already in use.
    Exists,
    /// The object exists, but its state does not allow the operation.
    Precondition,
    /// Another operation is in progress, or the runtime is starting or stopping; a retry may succeed.
    Busy,
    /// A limit of space, count or size was reached.
    Exhausted,
    /// The deadline expired.
    Deadline,
    /// The caller lacks the permission for the operation.
    Denied,
    /// The caller's credentials are missing or wrong.
    Unauthenticated,
    /// crisp does not support the operation.
    Unsupported,
    /// An external service failed temporarily: a registry, a network.
    Unavailable,
    /// Anything else: the host, the kernel or crisp itself failed.
    Internal,
}

/// The part of an error that programs read, sent as a `google.rpc.ErrorInfo` beside the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorDetail {
    /// A constant such as `MEMORY_BELOW_USAGE`.
    pub reason: &'static str,
    /// Short values: all headers of a response must fit into 8 KiB.
    pub metadata: Vec<(&'static str, String)>,
}

/// An error with a class, from which the gRPC layer makes a status.
pub trait ErrorClass: std::error::Error {
    fn kind(&self) -> ErrorKind;

    /// The field of the request that the error is about; an error that wraps others passes theirs on.
    fn field(&self) -> Option<RequestField> {
        None
    }

    /// The machine-readable part; an error that wraps others passes theirs on.
    fn detail(&self) -> Option<ErrorDetail> {
        None
    }
}
