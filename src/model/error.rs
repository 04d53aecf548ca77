//! What an error means to the caller, apart from its text.

/// The class of a failure. Every operation's error names one; the gRPC edge turns it into a status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself is wrong and will stay wrong.
    Invalid,
    /// The named thing does not exist.
    NotFound,
    /// The name is taken.
    Exists,
    /// The thing exists but is in no state for this.
    Precondition,
    /// Someone else is at it, or the runtime is starting or stopping; trying again may help.
    Busy,
    /// A limit of space, count or size was hit.
    Exhausted,
    /// The time given was not enough.
    Deadline,
    /// The caller has not shown the right to do this.
    Denied,
    /// The caller's credentials are missing or wrong.
    Unauthenticated,
    /// crisp does not do this (yet).
    Unsupported,
    /// Something outside failed that may come back: a registry, a network.
    Unavailable,
    /// Anything else: the host, the kernel or crisp itself failed.
    Internal,
}

/// An error that knows its class. The edge looks at nothing else.
pub trait ErrorClass: std::error::Error {
    fn kind(&self) -> ErrorKind;
}
