//! TLS between this machine and the servers: the rule, and the protection of a connection.

use std::fmt;

use serde::Deserialize;

/// The rule for servers on other machines.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsRule {
    #[default]
    Required,
    Off,
}

/// The protection of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// Without TLS to another machine.
    Plain,
    /// Without TLS, and does not leave this machine.
    Local,
    /// With TLS, but anyone may be the server.
    Unverified,
    Verified,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Plain => "no TLS",
            Transport::Local => "no TLS, on this machine",
            Transport::Unverified => "TLS, the certificate is not verified",
            Transport::Verified => "TLS, the certificate is verified",
        })
    }
}

/// The advice for a connection that would be readable on its way.
pub const NO_TLS: &str = "or tls = \"off\" if you trust the network";
