//! What a look at the servers found, and what to do about it.

use std::fmt;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Counts can be lost in a crash of a server or machine; never doubled.
    Warning,
    /// It will not work, or counts can be lost in daily operation, or doubled.
    Error,
}

/// One thing that the start-up checks noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at: `redis maxmemory-policy`, `mysql table visitors`.
    pub subject: String,
    /// What was found.
    pub message: String,
    /// What to do about it, in a sentence.
    pub advice: String,
}

impl Finding {
    pub(crate) fn new(
        severity: Severity,
        subject: impl Into<String>,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Finding { severity, subject: subject.into(), message: message.into(), advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {}: {}. {}", self.subject, self.message, self.advice)
    }
}
