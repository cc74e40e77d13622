//! The HTTP settings of the daemon.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use toml::Spanned;

use super::Wrong;

/// The address on which the daemon listens by default.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9292);

/// The HTTP settings of the daemon.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    pub listen: SocketAddr,
    /// The token that all requests need, except those for the state of health.
    pub token: Option<Token>,
    /// The names by which clients reach the daemon, in lower case.
    pub hosts: Vec<String>,
    /// Allows other machines without a token.
    pub allow_anonymous: bool,
}

/// A secret that clients send.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Refuses a text that a client cannot send in a header.
    pub fn new(text: String) -> Result<Self, &'static str> {
        let is_printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        if text.trim().is_empty() {
            Err("the token is empty")
        } else if text.trim() != text || !text.bytes().all(is_printable) {
            Err("the token has other than printable ASCII characters, or spaces around it")
        } else {
            Ok(Token(text))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl HttpConfig {
    /// Refuses to serve other machines by this address without a token. Only the daemon calls this: other commands
    /// may not see the credential that has the token.
    pub fn check(&self, listen: SocketAddr) -> Result<(), String> {
        if self.token.is_some() || self.allow_anonymous || listen.ip().is_loopback() {
            return Ok(());
        }
        Err(format!(
            "listen = \"{listen}\" is reachable from other machines, and there is no token: set `token`, or allow_anonymous = true"
        ))
    }
}

/// Parses an address; `off` yields `None`.
pub fn address(listen: &Spanned<String>) -> Result<Option<SocketAddr>, Wrong> {
    let text = listen.get_ref();
    if text == "off" {
        return Ok(None);
    }
    let wrong = |_| {
        let what = format!(
            "listen = {text:?} is neither ADDRESS:PORT, such as \"127.0.0.1:9292\", nor \"off\""
        );
        Wrong::new(&listen.span(), what)
    };
    text.parse().map(Some).map_err(wrong)
}

/// Checks the name of a host, and returns it in lower case.
pub fn host(name: &Spanned<String>) -> Result<String, Wrong> {
    let text = name.get_ref();
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if text.is_empty() || !text.bytes().all(is_allowed) {
        let what = format!("hosts: {text:?} is not a host name without a port");
        return Err(Wrong::new(&name.span(), what));
    }
    Ok(text.to_lowercase())
}
