//! The exit codes of commands, as monitoring plugins expect them.

use std::process::{ExitCode, Termination};

use counterfoil::ErrorKind;

use crate::config::ConfigError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    Ok = 0,
    /// Something is late, was refused, or failed.
    Warning = 1,
    /// A server is unavailable, or an error was found.
    Critical = 2,
    /// The command line or the configuration is wrong.
    Usage = 3,
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        ExitCode::from(self as u8)
    }
}

/// An error that ends a command, with advice.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure {
            exit: Exit::Usage,
            message: format!("{error:#}"),
        }
    }
}

impl From<counterfoil::Error> for Failure {
    fn from(error: counterfoil::Error) -> Self {
        let (exit, advice) = match error.kind() {
            ErrorKind::InvalidInput => (Exit::Usage, ""),
            ErrorKind::Redis => (Exit::Critical, ". Is Redis there, and its address right?"),
            ErrorKind::Store => (
                Exit::Critical,
                ". Is MySQL there, and its address and user right?",
            ),
            ErrorKind::AccessDenied => (
                Exit::Critical,
                ". `counterfoil acl daemon` prints what its user needs",
            ),
            ErrorKind::OutcomeUnknown => (
                Exit::Warning,
                ". It was counted once or not at all, and nobody can tell: read the counter before you repeat it",
            ),
            _ => (Exit::Warning, ""),
        };
        Failure {
            exit,
            message: format!("{error:#}{advice}"),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure {
            exit: Exit::Warning,
            message: format!("{error:#}"),
        }
    }
}

impl Failure {
    pub fn usage(message: impl Into<String>) -> Self {
        Failure {
            exit: Exit::Usage,
            message: message.into(),
        }
    }

    pub fn critical(message: impl Into<String>) -> Self {
        Failure {
            exit: Exit::Critical,
            message: message.into(),
        }
    }

    pub fn warning(message: impl Into<String>) -> Self {
        Failure {
            exit: Exit::Warning,
            message: message.into(),
        }
    }
}
