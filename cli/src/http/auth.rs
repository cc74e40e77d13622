//! Access control: the names by which clients reach the daemon, and a token, in a header or, for a
//! browser, in a cookie that proves it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, HOST, HeaderName, RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use axum_extra::extract::cookie::CookieJar;
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::{Digest, Sha256, Sha512};
use subtle::ConstantTimeEq;
use tokio::sync::watch;

use super::assets::hex;
use super::connections::Peer;
use super::logins::Logins;
use super::params::Params;
use super::problem::Problem;
use crate::config::{HttpConfig, Token};
use crate::status::unix_now;

/// The time after which a browser needs the token again.
const SESSION_SECONDS: u64 = 7 * 24 * 3600;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The host and the token that a client must send. A reload of the configuration replaces it.
#[derive(Clone)]
pub struct Access {
    listen: SocketAddr,
    hosts: Vec<String>,
    keys: Option<Keys>,
}

impl Access {
    /// Creates the rules of a daemon that listens on this address.
    pub fn new(config: &HttpConfig, listen: SocketAddr) -> Self {
        let keys = |token| Keys::new(token, listen.port());
        Access {
            listen,
            hosts: config.hosts.clone(),
            keys: config.token.as_ref().map(keys),
        }
    }

    /// Returns the rules of another configuration, for a daemon that still listens on this address.
    pub fn reloaded(&self, config: &HttpConfig) -> Result<Self, String> {
        config.check(self.listen)?;
        Ok(Access::new(config, self.listen))
    }

    /// Takes over other rules, and returns whether they differ.
    pub fn replace(&mut self, new: Access) -> bool {
        let token = |access: &Access| access.keys.as_ref().map(|keys| keys.token);
        let differs = token(&new) != token(self) || new.hosts != self.hosts;
        *self = new;
        differs
    }

    /// Returns whether a browser may use this address: an IP address, a name of this machine, or a
    /// configured one. Any other name may be that of a foreign page whose owner points it here.
    fn is_host(&self, host: &str) -> bool {
        let host = host.to_lowercase();
        host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || host == "localhost"
            || host.ends_with(".localhost")
            || self.hosts.contains(&host)
    }
}

/// The proofs that a client knows the token. They are compared in constant time, so that timing
/// reveals neither content nor length.
#[derive(Clone)]
struct Keys {
    token: [u8; 32],
    /// The key of the cookies. They replace the token, which no reply contains.
    key: Hmac<Sha256>,
    /// Differs between daemons on one machine, since cookies are shared by all ports of a host.
    cookie_name: String,
}

impl Keys {
    fn new(token: &Token, port: u16) -> Self {
        let key = Sha512::digest(format!("counterfoil's cookies\n{}", token.as_str()));
        Keys {
            token: Sha256::digest(token.as_str()).into(),
            key: Hmac::new(&key),
            cookie_name: format!("counterfoil-{port}"),
        }
    }

    fn is_token(&self, offered: &str) -> bool {
        self.token.ct_eq(&Sha256::digest(offered)).into()
    }

    /// Returns the header that gives a browser with the token its cookie.
    fn set_cookie(&self, is_secure: bool) -> String {
        let expires = unix_now() + SESSION_SECONDS;
        let (name, proof) = (&self.cookie_name, self.proof(expires));
        let secure = if is_secure { "; Secure" } else { "" };
        format!(
            "{name}={expires}.{proof}; Path=/; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Strict{secure}"
        )
    }

    fn proof(&self, expires: u64) -> String {
        let mut mac = self.key.clone();
        mac.update(&expires.to_be_bytes());
        hex(&mac.finalize().into_bytes())
    }

    /// Returns whether the client has a cookie that has not expired.
    fn is_session(&self, headers: &HeaderMap) -> bool {
        let cookies = CookieJar::from_headers(headers);
        let cookie = cookies.get(&self.cookie_name);
        let value = cookie.and_then(|cookie| cookie.value().split_once('.'));
        value.is_some_and(|(expires, proof)| {
            expires.parse().is_ok_and(|expires| {
                let is_proof: bool = self
                    .proof(expires)
                    .as_bytes()
                    .ct_eq(proof.as_bytes())
                    .into();
                is_proof && expires > unix_now()
            })
        })
    }
}

/// The rules, and the clients that broke them.
pub struct Auth {
    pub access: watch::Receiver<Access>,
    pub logins: Logins,
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

#[derive(Deserialize)]
pub struct TokenParams {
    token: Option<String>,
}

impl Auth {
    /// Returns the reply to a client without the right token, `None` for one that has it.
    fn refusal(&self, keys: &Keys, offered: Option<&str>, client: IpAddr) -> Option<Response> {
        let Some(offered) = offered else {
            return Some(unauthorized("the token is missing"));
        };
        if let Some(pause) = self.logins.pause(client) {
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens");
            return Some(([(RETRY_AFTER, pause.as_secs() + 1)], problem).into_response());
        }
        if keys.is_token(offered) {
            return None;
        }
        self.logins.failed(client);
        Some(unauthorized("the token is wrong"))
    }
}

/// Requires a known host name and, if there is one, the token. A browser sends it once, as
/// `/?token=...`.
pub async fn require(
    State(auth): State<Arc<Auth>>,
    params: Result<Params<TokenParams>, Problem>,
    request: Request,
    next: Next,
) -> Response {
    let access = auth.access.borrow().clone();
    if !host(&request).is_some_and(|host| access.is_host(&host)) {
        let unknown = "the host name of the request is unknown";
        return Problem::new(StatusCode::MISDIRECTED_REQUEST, unknown)
            .advise("add it to `hosts` in the configuration, or use localhost or an IP address")
            .into_response();
    }
    let login = match params {
        Ok(Params(TokenParams { token })) if request.uri().path() == "/" => token,
        _ => None,
    };
    // redirects to the page without the token in its address
    let home = Redirect::to("/");
    let headers = request.headers();
    match (&access.keys, login) {
        (None, None) => next.run(request).await,
        (None, Some(_)) => home.into_response(),
        (Some(keys), None) if keys.is_session(headers) => next.run(request).await,
        (Some(keys), None) => match auth.refusal(keys, bearer(headers), client(&request)) {
            Some(refusal) => refusal,
            None => next.run(request).await,
        },
        (Some(keys), Some(token)) => {
            let refusal = auth.refusal(keys, Some(&token), client(&request));
            let proto = headers.get(FORWARDED_PROTO);
            let is_secure = proto.is_some_and(|proto| proto == "https");
            let cookie = [(SET_COOKIE, keys.set_cookie(is_secure))];
            refusal.unwrap_or_else(|| (cookie, home).into_response())
        }
    }
}

fn unauthorized(why: &str) -> Response {
    let advice =
        "send the header Authorization: Bearer TOKEN; in a browser open /?token=TOKEN once";
    let problem = Problem::new(StatusCode::UNAUTHORIZED, why).advise(advice);
    let challenge = "Bearer realm=\"counterfoil\"";
    ([(WWW_AUTHENTICATE, challenge)], problem).into_response()
}

/// Returns the host that the client addressed, without the port.
fn host(request: &Request) -> Option<String> {
    let stated = request.headers().get(HOST);
    let stated = stated.and_then(|host| host.to_str().ok()?.parse().ok());
    let authority: Authority = request.uri().authority().cloned().or(stated)?;
    Some(authority.host().to_owned())
}

/// Returns the address of the client, as a proxy on this machine states it, if there is one.
fn client(request: &Request) -> IpAddr {
    let peer = request.extensions().get();
    let &Peer(peer) = peer.unwrap_or(&Peer(Ipv4Addr::UNSPECIFIED.into()));
    let mut stated = request.headers().get_all(FORWARDED_FOR).iter();
    let stated = stated.next_back().and_then(|list| {
        let last = list.to_str().ok()?.rsplit(',').next()?;
        last.trim().parse().ok()
    });
    stated.filter(|_| peer.is_loopback()).unwrap_or(peer)
}

#[cfg(test)]
mod tests {
    use axum::http::header::COOKIE;

    use super::*;

    #[test]
    fn a_cookie_is_valid_for_its_time_token_and_port() {
        let keys = |token: &str, port| Keys::new(&Token::new(token.to_owned()).expect(token), port);
        let ours = keys("secret", 9292);
        let cookie = |keys: &Keys, expires: u64| {
            let value = format!("{}={expires}.{}", keys.cookie_name, keys.proof(expires));
            HeaderMap::from_iter([(COOKIE, value.parse().expect("a header"))])
        };
        let now = unix_now();
        assert!(ours.is_session(&cookie(&ours, now + 60)));
        assert!(!ours.is_session(&cookie(&ours, now - 1)));
        assert!(!ours.is_session(&cookie(&keys("other", 9292), now + 60)));
        assert!(!ours.is_session(&cookie(&keys("secret", 9293), now + 60)));
    }
}
