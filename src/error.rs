//! The one error type of the crate.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// Shorthand for a result with counterfoil's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The category of an error, for a `match`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An id, a name, a delta or a setting is not allowed. Nothing was done.
    InvalidInput,
    /// The family is known with another configuration, or the table does not match the family's
    /// target.
    Mismatch,
    /// A server is configured so that counts would be lost, and the application did not allow that.
    Unsafe,
    /// A server does not accept the credentials, or its user lacks a permission. Nothing was done.
    /// The error is permanent until an operator changes the server.
    AccessDenied,
    /// Redis was unreachable or refused the call; it was **not** executed, or may be executed again
    /// without harm.
    Redis,
    /// The database was unreachable or refused the transaction; nothing of it was kept.
    Store,
    /// The call may or may not have been executed. Its reply was lost and could not be requested
    /// again, or is an error that does not say whether a part was done.
    OutcomeUnknown,
    /// A value is outside the signed 64-bit range.
    Range,
    /// A key in Redis, or a reply, does not have the shape that the scripts write.
    Corrupt,
    /// More hits wait for Redis than this process keeps; this one was not counted, and may be
    /// retried later. Or a family has hits pending and cannot be
    /// [reconfigured](crate::Counterfoil::reconfigure).
    Busy,
    /// The pair or the reconciler has been shut down. A hit was not counted.
    Closed,
}

/// An error of counterfoil: opaque, with query methods.
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error with a message that names what was wrong and where. For implementors of
    /// [`Store`](crate::Store).
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Error {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// Sets the source of the error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns whether the same call may succeed later without any change. An error whose [outcome
    /// is unknown](Self::outcome_unknown) is not retryable: a second call could count twice.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Redis | ErrorKind::Store | ErrorKind::Busy
        )
    }

    /// Returns whether the call may have been executed although it failed (docs/protocol.md,
    /// section 3.2).
    pub fn outcome_unknown(&self) -> bool {
        self.kind == ErrorKind::OutcomeUnknown
    }

    /// Copies the error for another caller, with its sources in the message.
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

/// Prints the kind, then the text of [`Display`](fmt::Display): for a `main` that returns the
/// error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_ref()
            .map(|source| &**source as &(dyn StdError + 'static))
    }
}
