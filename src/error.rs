//! The one error type of the crate.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// Shorthand for a result with counterfoil's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in one word, for a `match`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An id, a name, a delta or a setting is not allowed. Nothing was done.
    InvalidInput,
    /// The family is known with another configuration, or the table is not what the family's target says.
    Mismatch,
    /// A server is set up in a way under which counts would be lost, and starting was not forced.
    Unsafe,
    /// A server does not accept the credentials, or its user lacks a permission. Nothing was done, and no waiting mends it.
    AccessDenied,
    /// Redis could not be reached or refused the call; it was **not** executed, or may be executed again without harm.
    Redis,
    /// The database could not be reached or refused the transaction; nothing of it was kept.
    Store,
    /// The call may or may not have been executed: its reply was lost and could not be asked for again, or is an error that
    /// does not say whether a part was done.
    OutcomeUnknown,
    /// A value is outside the signed 64-bit range.
    Range,
    /// A key in Redis, or a reply, is not of the shape that the bundle writes.
    Corrupt,
    /// More hits wait for Redis than this process keeps; this one was not counted, and may be tried again later. Or a family
    /// that is to be [reconfigured](crate::Counterfoil::reconfigure) has hits pending.
    Busy,
    /// The pair or the reconciler has been shut down. A hit was not counted.
    Closed,
}

/// An error of counterfoil: opaque, with questions on it.
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error with a message that names what was wrong and where. For implementors of [`Store`](crate::Store).
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Error { kind, message: message.into(), source: None }
    }

    /// The same error with the one below it as its source.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without anything being changed. An error whose
    /// [outcome is unknown](Self::outcome_unknown) is not retryable: a second call could count twice.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, ErrorKind::Redis | ErrorKind::Store | ErrorKind::Busy)
    }

    /// Whether the call may have been executed although it failed (docs/protocol.md, section 3.2).
    pub fn outcome_unknown(&self) -> bool {
        self.kind == ErrorKind::OutcomeUnknown
    }

    /// The same error for somebody else whom it concerns.
    pub(crate) fn again(&self) -> Self {
        Error::new(self.kind, self.to_string())
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::InvalidInput, message)
    }

    pub(crate) fn corrupt(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::Corrupt, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

/// For the `main` of a program that returns it: the kind, then what [`Display`](fmt::Display) says.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}
