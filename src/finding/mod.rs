//! Findings of the checks of both servers.

pub mod clock;

use std::fmt;

use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// No action is needed.
    Info,
    /// Counts can be lost in a crash of a server or machine; never doubled.
    Warning,
    /// Counterfoil cannot work, or counts can be lost in daily operation, or doubled.
    Error,
}

/// One result of the checks at startup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The setting or table that was checked: `redis maxmemory-policy`, `mysql table visitors`.
    pub subject: String,
    /// The result of the check.
    pub message: String,
    /// The recommended action, in a sentence.
    pub advice: String,
}

impl Finding {
    /// Creates a finding.
    pub fn new(
        severity: Severity,
        subject: impl Into<String>,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Finding {
            severity,
            subject: subject.into(),
            message: message.into(),
            advice: advice.into(),
        }
    }

    pub(crate) fn error(
        subject: impl Into<String>,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Finding::new(Severity::Error, subject, message, advice)
    }

    pub(crate) fn warning(
        subject: impl Into<String>,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Finding::new(Severity::Warning, subject, message, advice)
    }
}

/// Logs these findings as warnings.
pub(crate) fn warn_of(findings: &[Finding], is_meant: impl Fn(&Finding) -> bool) {
    for found in findings.iter().filter(|found| is_meant(found)) {
        tracing::warn!("{}: {}. {}", found.subject, found.message, found.advice);
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}: {}. {}",
            self.severity, self.subject, self.message, self.advice
        )
    }
}

/// Returns the numbers of a server's version: [8, 0, 36] of `8.0.36-28`.
pub(crate) fn version_numbers(version: &str) -> [u32; 3] {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    [(); 3].map(|()| numbers.next().and_then(|it| it.parse().ok()).unwrap_or(0))
}
