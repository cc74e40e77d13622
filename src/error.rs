//! The one error type of the crate.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;

use sqlx::mysql::MySqlDatabaseError;

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
    /// The pair or the reconciler has been shut down, or the tokio runtime on which the pair was made
    /// has ended. A hit was not counted.
    Closed,
}

/// An error of counterfoil: opaque, with query methods.
///
/// `{}` prints the error's own message, and `{:#}` also its sources, each once. So does `{:#}` of
/// anyhow.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
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
        let source: Arc<dyn StdError + Send + Sync> = Arc::from(source.into());
        let text = source.to_string();
        let repeats = |cause: &dyn StdError| text.contains(&cause.to_string());
        self.source = Some(if source.source().is_some_and(repeats) {
            Arc::new(WithoutSource(source))
        } else {
            source
        });
        self
    }

    pub(crate) fn with_kind(self, kind: ErrorKind) -> Self {
        Error { kind, ..self }
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

    /// Returns the code of the server's error, such as `OOM` of Redis and `1040` of MySQL, or else the
    /// kind of the connection's error, such as `TimedOut`. It is the same for errors whose texts
    /// differ in a time or the id of a connection.
    pub fn code(&self) -> Option<String> {
        let cause = without_source(self.source.as_deref()?);
        if let Some(error) = cause.downcast_ref::<redis::RedisError>() {
            let io = StdError::source(error).and_then(|source| source.downcast_ref());
            return Some(match (error.code(), io) {
                _ if error.is_timeout() => format!("{:?}", io::ErrorKind::TimedOut),
                (Some(code), _) => code.to_owned(),
                (None, Some(io)) => format!("{:?}", io::Error::kind(io)),
                (None, None) => format!("{:?}", error.kind()),
            });
        }
        match cause.downcast_ref::<sqlx::Error>() {
            Some(sqlx::Error::Database(error)) => Some(match error.try_downcast_ref() {
                Some(error) => MySqlDatabaseError::number(error).to_string(),
                None => error.code()?.into_owned(),
            }),
            Some(sqlx::Error::Io(error)) => Some(format!("{:?}", error.kind())),
            Some(sqlx::Error::PoolTimedOut) => Some("PoolTimedOut".to_owned()),
            _ => cause.downcast_ref::<Error>()?.code(),
        }
    }

    /// Returns the source if it is an error of the redis crate.
    pub(crate) fn redis_error(&self) -> Option<&redis::RedisError> {
        redis_error(self.source.as_deref()?)
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::InvalidInput, message)
    }

    pub(crate) fn mismatch(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::Mismatch, message)
    }

    pub(crate) fn corrupt(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::Corrupt, message)
    }

    /// An error of kind [`Redis`](ErrorKind::Redis).
    pub(crate) fn redis(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::Redis, message)
    }

    /// An error of kind [`Store`](ErrorKind::Store).
    pub(crate) fn store(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(ErrorKind::Store, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut source = self.source();
        while let Some(cause) = source.filter(|_| f.alternate()) {
            match redirected_to(cause) {
                Some(node) => write!(f, ": redirected to {node}, which may be unreachable")?,
                None => write!(f, ": {cause}{}", explanation(cause))?,
            }
            source = cause.source();
        }
        Ok(())
    }
}

/// Returns what follows the text of a cause: an explanation of an error of rustls that only names a
/// rule. `openssl req -x509` makes the certificates of an authority by default.
fn explanation(cause: &dyn StdError) -> &'static str {
    if cause.to_string().contains("CaUsedAsEndEntity") {
        ": the server's certificate is one of an authority (CA:TRUE). Make one that is not, which may also be \
         self-signed: openssl req -x509 -newkey rsa:2048 -nodes -days 825 -keyout server.key -out server.pem \
         -subj /CN=HOST -addext subjectAltName=DNS:HOST -addext basicConstraints=critical,CA:FALSE, with \
         IP:ADDRESS in place of DNS:HOST if the URL has an address"
    } else {
        ""
    }
}

/// Returns the node of a redirection. Its text has no slot, so that the calls that one dead node
/// fails have one reason.
fn redirected_to<'e>(cause: &'e (dyn StdError + 'static)) -> Option<&'e str> {
    let (node, _) = redis_error(cause)?.redirect_node()?;
    Some(node)
}

/// Returns the cause if it is an error of the redis crate.
pub(crate) fn redis_error<'e>(
    cause: &'e (dyn StdError + 'static),
) -> Option<&'e redis::RedisError> {
    without_source(cause).downcast_ref()
}

/// Returns the error that [`WithoutSource`] wraps, or the cause itself.
fn without_source<'e>(cause: &'e (dyn StdError + 'static)) -> &'e (dyn StdError + 'static) {
    let outer = cause.downcast_ref::<WithoutSource>();
    outer.map_or(cause, |outer| &*outer.0)
}

/// Prints the kind, then the text of `{:#}`: for a `main` that returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self:#}", self.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

/// An error whose text includes that of its source, as is usual in redis and sqlx. It hides the
/// source, so that a chain prints each message once.
#[derive(Debug)]
struct WithoutSource(Arc<dyn StdError + Send + Sync>);

impl fmt::Display for WithoutSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for WithoutSource {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_printed_once() {
        let refused = || std::io::Error::other("connection refused");
        let lost = Error::new(ErrorKind::Store, "nothing was saved")
            .with_source(sqlx::Error::Io(refused()));
        let unknown = Error::new(ErrorKind::OutcomeUnknown, "a reply was lost").with_source(
            Error::new(ErrorKind::Redis, "not executed")
                .with_source(redis::RedisError::from(refused())),
        );
        assert!(unknown.redis_error().is_none());
        for error in [lost, unknown] {
            let mut chain = vec![error.to_string()];
            let mut source = error.source();
            while let Some(cause) = source {
                chain.push(cause.to_string());
                source = cause.source();
            }
            assert_eq!(chain.join(": "), format!("{error:#}"));
            assert_eq!(chain[0], error.message);
            let printed = format!("{error:#}");
            assert_eq!(
                printed.matches("connection refused").count(),
                1,
                "{printed}"
            );
        }
    }

    #[test]
    fn the_slots_of_a_node_have_one_reason() {
        let moved = |reply: &str| {
            let reply = redis::parse_redis_value(format!("-MOVED {reply}\r\n").as_bytes());
            let error = reply.and_then(redis::Value::extract_error).unwrap_err();
            format!("{:#}", Error::redis("not executed").with_source(error))
        };
        assert_eq!(moved("4073 node:1"), moved("12 node:1"));
        assert!(moved("4073 node:2").contains("redirected to node:2"));
    }
}
