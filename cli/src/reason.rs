//! The reasons of failures: a text for people, the advice that follows from the kind of the error,
//! and a kind by which the log recognizes a failure that it has already.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use counterfoil::admin::Finding;
use counterfoil::{Error, ErrorKind, sqlx};
use serde::{Serialize, Serializer};

/// The advice about an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The recommended action, in a sentence without a period.
    pub what_to_do: Cow<'static, str>,
    /// The command, without the program's name, that does it or shows more.
    pub command: Cow<'static, str>,
}

/// The numbers of MySQL's errors about a missing privilege: on a schema, a table, a column, a server.
const DENIED: [&str; 4] = ["1044", "1142", "1143", "1227"];
/// The codes of a refused login to Redis, for which a cluster's client has a name of its own, and to
/// MySQL.
const REFUSED_LOGIN: [&str; 5] = [
    "NOAUTH",
    "WRONGPASS",
    "AuthenticationFailed",
    "1045",
    "1698",
];

impl Advice {
    fn new(
        what_to_do: impl Into<Cow<'static, str>>,
        command: impl Into<Cow<'static, str>>,
    ) -> Self {
        Advice {
            what_to_do: what_to_do.into(),
            command: command.into(),
        }
    }

    fn check(what_to_do: &'static str) -> Self {
        Advice::new(what_to_do, "check")
    }

    fn acl() -> Self {
        Advice::new(
            "`counterfoil acl daemon` prints the rules that the user needs in Redis. If \
             `rename-command` hides a command, remove it from redis.conf",
            "acl daemon",
        )
    }

    fn grants() -> Self {
        Advice::new(
            "`counterfoil grants daemon` prints the privileges that the user needs in MySQL",
            "grants daemon",
        )
    }

    /// Returns the advice about a family whose hits in Redis go to another database, if the text is
    /// the library's error about that, which begins with the family. It has no kind of its own.
    fn adopt(text: &str) -> Option<Self> {
        let (family, what) = text.split_once(": ")?;
        let (namespace, _) = family.split_once('/')?;
        what.contains("in this Redis go to the database").then(|| {
            let what_to_do = format!(
                "If this database is to take over, run `counterfoil adopt {namespace}`, which drops what \
                 waits in Redis for the other one. A copy of the other one needs a Redis or namespace \
                 of its own"
            );
            // what is copied from the page drops nothing yet
            Advice::new(what_to_do, format!("adopt {namespace} --dry-run"))
        })
    }

    /// Returns the advice about an error, or `None` if there is none beyond its text, or if a server
    /// is unreachable: what to do then depends on where the error is shown.
    pub fn about(error: &Error) -> Option<Self> {
        let (text, code) = (format!("{error:#}"), error.code().unwrap_or_default());
        let is_mysql = code.starts_with(|first: char| first.is_ascii_digit());
        if let Some(adopt) = Advice::adopt(&text) {
            return Some(adopt);
        }
        if DENIED.contains(&code.as_str()) {
            return Some(Advice::grants());
        }
        Some(match error.kind() {
            // it names the command itself
            _ if text.contains("`counterfoil ") => return None,
            _ if REFUSED_LOGIN.contains(&code.as_str()) => Advice::check(
                "Correct the user or the password of that server in the configuration",
            ),
            ErrorKind::AccessDenied if !is_mysql => Advice::acl(),
            ErrorKind::Mismatch if is_mysql => Advice::check(
                "Create what is missing in MySQL, or correct the family's description of its table",
            ),
            ErrorKind::Mismatch => Advice::check(
                "`counterfoil check` compares the family's settings with those in MySQL, and \
                 `counterfoil reconfigure` changes partitions, durability and bounds",
            ),
            ErrorKind::Corrupt if text.contains("WRONGTYPE") => Advice::check(
                "Stop the program that wrote the key, and rename the key away (TYPE shows which)",
            ),
            ErrorKind::Corrupt if code == "BADSTATE" => {
                Advice::check("Set the batch aside, as \"BADSTATE\" in the operations manual says")
            }
            ErrorKind::Range => Advice::check("Correct the row: a value is a signed 64-bit number"),
            ErrorKind::OutcomeUnknown => Advice::check(
                "It was counted once or not at all: read the counter before you repeat it",
            ),
            _ => return None,
        })
    }

    /// Returns the advice about a finding of `check`: the finding's own, or that of the error which
    /// it reports.
    pub fn of_finding(finding: &Finding) -> Self {
        if let Some(adopt) = Advice::adopt(&finding.message) {
            adopt
        } else if finding.subject == "redis acl" {
            Advice::acl()
        } else if finding.message.starts_with("this user has no ") {
            Advice::grants()
        } else {
            Advice::new(finding.advice.clone(), "check")
        }
    }
}

/// The reason of a failure. The text may differ in each attempt, for instance by a time or the id of
/// a connection. The kind does not, so the log has it once while the state lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub text: String,
    pub advice: Option<Advice>,
    kind: String,
}

impl Reason {
    /// Creates the reason of a reply that did not arrive in time.
    pub fn silence(limit: Duration) -> Self {
        Reason {
            text: format!("no reply within {} s", limit.as_secs()),
            advice: None,
            kind: "silence".to_owned(),
        }
    }

    /// Creates the reason of an error, with this text.
    pub fn new(text: String, error: &Error) -> Self {
        let code = error.code().unwrap_or_default();
        Reason {
            text,
            advice: Advice::about(error),
            kind: format!("{:?} {code}", error.kind()),
        }
    }

    /// Creates the reason that a finding of `check` gives.
    pub fn of_finding(finding: &Finding) -> Self {
        Reason {
            text: finding.message.clone(),
            advice: None,
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

impl From<Error> for Reason {
    fn from(error: Error) -> Self {
        Reason::new(text_of(&error), &error)
    }
}

/// Returns the text of an error with its causes in one line, to which a sentence may be added. That
/// Redis refuses a login is said once: its own reply says no more, except that a password is missing.
pub fn text_of(error: &Error) -> String {
    let outer = error.to_string();
    if outer.ends_with("rejected the credentials") {
        return match error.code().as_deref() {
            Some("NOAUTH") => format!("{outer}: it wants a password"),
            _ => outer,
        };
    }
    let text = format!("{error:#}");
    let lines: Vec<_> = text.lines().collect();
    lines.join(" ").trim_end_matches([' ', '.']).to_owned()
}

/// The error of a connection to MySQL that is not the library's, such as that of a probe.
impl From<sqlx::Error> for Reason {
    fn from(error: sqlx::Error) -> Self {
        let wrapped = Error::new(ErrorKind::Store, "").with_source(error);
        let text = format!("{wrapped:#}");
        Reason::new(text.trim_start_matches(": ").to_owned(), &wrapped)
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
            advice: None,
            kind: text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use counterfoil::redis;

    use super::*;

    /// A right that Redis or MySQL denies, and settings that differ, need different commands.
    #[test]
    fn advice_follows_from_the_kind_of_the_error() {
        let replied = |code: &str| redis::make_extension_error(code.to_owned(), None);
        let denied = |error: Error| error.with_source(replied("WRONGPASS"));
        let adopted = "shop/views: its hits in this Redis go to the database \"a\", and this process has \"b\"";
        for (error, command) in [
            (
                Error::new(ErrorKind::Mismatch, adopted),
                Some("adopt shop --dry-run"),
            ),
            (
                Error::new(ErrorKind::Mismatch, "shop/views: partitions is 4"),
                Some("check"),
            ),
            (
                Error::new(ErrorKind::AccessDenied, "shop/views: lacks +hset"),
                Some("acl daemon"),
            ),
            (
                denied(Error::new(ErrorKind::AccessDenied, "Redis denies access")),
                Some("check"),
            ),
            (
                denied(Error::new(ErrorKind::Store, "the server refuses the user")),
                Some("check"),
            ),
            (Error::new(ErrorKind::Store, "unreachable"), None),
            (Error::new(ErrorKind::InvalidInput, "wrong"), None),
        ] {
            let advice = Advice::about(&error);
            let given = advice.as_ref().map(|advice| &*advice.command);
            assert_eq!(given, command, "{error}");
        }
    }

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
