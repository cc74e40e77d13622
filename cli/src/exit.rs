//! The exit codes of commands, as monitoring plugins expect them.

use std::io;
use std::process::{ExitCode, Termination};

use counterfoil::ErrorKind;

use crate::reason::{Advice, text_of};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    Ok = 0,
    /// Something is late, was refused, or failed.
    Warning = 1,
    /// A server is unavailable, or an error was found.
    Critical = 2,
    /// The command line or the configuration is invalid.
    Usage = 3,
}

impl Exit {
    pub fn warning_if(is_so: bool) -> Self {
        if is_so { Exit::Warning } else { Exit::Ok }
    }
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}

/// The advice about servers that cannot be reached.
const REDIS_ADVICE: &str =
    "Check that Redis is running, and its address; `counterfoil check` names why it refuses calls";
const MYSQL_ADVICE: &str = "Check that MySQL is running, and its address and user";

/// An error that ends a command, with advice.
pub struct Failure {
    pub exit: Exit,
    pub message: String,
}

impl From<counterfoil::Error> for Failure {
    fn from(error: counterfoil::Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::InvalidInput => Exit::Usage,
            ErrorKind::Redis | ErrorKind::Store | ErrorKind::AccessDenied => Exit::Critical,
            _ => Exit::Warning,
        };
        let text = text_of(&error);
        let message = match (Advice::about(&error), error.kind()) {
            (Some(advice), _) => format!("{text}. {}", advice.what_to_do),
            (None, ErrorKind::Redis) => format!("{text}. {REDIS_ADVICE}"),
            (None, ErrorKind::Store) => format!("{text}. {MYSQL_ADVICE}"),
            (None, _) => text,
        };
        Failure::new(exit, message)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::warning(error.to_string())
    }
}

impl Failure {
    fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure {
            exit,
            message: message.into(),
        }
    }

    /// Returns a function that turns an error into a failure whose message begins with the pair.
    pub fn of_pair<E: Into<Failure>>(pair: &str) -> impl FnOnce(E) -> Failure {
        move |error| {
            let Failure { exit, message } = error.into();
            Failure::new(exit, format!("pair {pair}: {message}"))
        }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, message)
    }

    pub fn critical(message: impl Into<String>) -> Self {
        Failure::new(Exit::Critical, message)
    }

    pub fn warning(message: impl Into<String>) -> Self {
        Failure::new(Exit::Warning, message)
    }
}
