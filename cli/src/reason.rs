//! The reasons of failures: a text for people, and a kind, by which the log recognizes a failure
//! that it has already.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use counterfoil::admin::Finding;
use counterfoil::{ErrorKind, sqlx};
use serde::{Serialize, Serializer};

/// The reason of a failure. The text may differ in each attempt, for instance by a time or the id of
/// a connection. The kind does not, so the log has it once while the state lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub text: String,
    kind: String,
}

impl Reason {
    /// Creates the reason of a reply that did not arrive in time.
    pub fn silence(limit: Duration) -> Self {
        Reason {
            text: format!("no reply within {} s", limit.as_secs()),
            kind: "silence".to_owned(),
        }
    }

    /// Creates the reason of an error, with this text.
    pub fn new(text: String, error: &counterfoil::Error) -> Self {
        let code = error.code().unwrap_or_default();
        Reason {
            text,
            kind: format!("{:?} {code}", error.kind()),
        }
    }

    /// Creates the reason that a finding of `check` gives.
    pub fn of_finding(finding: &Finding) -> Self {
        Reason {
            text: finding.message.clone(),
            kind: finding.subject.clone(),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<counterfoil::Error> for Reason {
    fn from(error: counterfoil::Error) -> Self {
        Reason::new(format!("{error:#}"), &error)
    }
}

/// The error of a connection to MySQL that is not the library's, such as that of a probe.
impl From<sqlx::Error> for Reason {
    fn from(error: sqlx::Error) -> Self {
        let text = format!("{error:#}");
        let wrapped = counterfoil::Error::new(ErrorKind::Store, "").with_source(error);
        Reason::new(text, &wrapped)
    }
}

/// The kinds of reasons that the log has of a state that lasts. A reason that comes back, in
/// alternation with others, is in the log once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedReasons(BTreeSet<String>);

impl LoggedReasons {
    /// Notes a reason. Returns true if the log does not have its kind yet.
    pub fn note(&mut self, reason: &Reason) -> bool {
        self.0.insert(reason.kind.clone())
    }
}

#[cfg(test)]
impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        Reason {
            text: text.to_owned(),
            kind: text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_state_is_logged_once_by_each_of_its_kinds() {
        let expired = |seconds: u64| {
            let what = format!("certificate expired: verification time {seconds}");
            Reason::from(sqlx::Error::Io(io::Error::new(
                io::ErrorKind::InvalidData,
                what,
            )))
        };
        let reset = || Reason::from(sqlx::Error::Io(io::ErrorKind::ConnectionReset.into()));
        let silent = || Reason::silence(Duration::from_secs(3));
        let mut logged = LoggedReasons::default();
        for (reason, is_new) in [
            (expired(1), true),
            (expired(2), false),
            (reset(), true),
            (silent(), true),
            (expired(3), false),
            (silent(), false),
            (reset(), false),
        ] {
            assert_eq!(logged.note(&reason), is_new, "{reason:?}");
        }
    }
}
