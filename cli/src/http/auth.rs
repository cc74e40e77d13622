//! Access control: the names by which clients reach the daemon, and a token, in a header or, for a
//! browser, in a cookie that proves it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use axum::extract::{Form, FromRequest, Request, State};
use axum::http::header::{ACCEPT, AUTHORIZATION, HOST, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use axum_extra::extract::cookie::{Cookie, CookieJar, Key, SameSite, SignedCookieJar};
use serde::Deserialize;
use sha2::{Digest, Sha512};

use super::connections::Peer;
use super::error::ErrorReply;
use super::page::login;
use super::{App, AppState};
use crate::status::unix_now;

/// The time after which a browser needs the token again.
const SESSION: Duration = Duration::from_hours(7 * 24);

const CHALLENGE: &str = "Bearer realm=\"counterfoil\"";
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Derives the key that signs cookies from the token, so that no reply contains the token itself.
/// Keys are also what is compared to check a token: they have one length, and the comparison takes
/// constant time, so that timing reveals nothing about the token.
fn key(token: &str) -> Key {
    let digest = Sha512::digest(format!("counterfoil's cookies\n{token}"));
    Key::from(&digest)
}

/// Returns whether one of the cookies, whose signatures are valid, is the named one and has not
/// expired.
fn is_session(cookies: &SignedCookieJar, name: &str, now: u64) -> bool {
    cookies
        .get(name)
        .and_then(|cookie| cookie.value().parse::<u64>().ok())
        .is_some_and(|expires| expires > now)
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

impl App {
    /// Returns the key of the token, if there is one.
    pub fn key(&self) -> Option<Key> {
        let config = self.config.borrow();
        config.http.as_ref()?.token.as_deref().map(key)
    }

    /// Returns the cookie for a browser that has sent the token. The cookie names no path, so the
    /// browser sends it to the pages beside the login page.
    fn start_session(&self, key: Key, is_secure: bool) -> SignedCookieJar {
        let expires = (unix_now() + SESSION.as_secs()).to_string();
        let cookie = Cookie::build((self.cookie.clone(), expires))
            .max_age(SESSION.try_into().unwrap_or_default())
            .http_only(true)
            .same_site(SameSite::Strict)
            .secure(is_secure);
        SignedCookieJar::new(key).add(cookie)
    }

    /// Returns whether a browser may use this address: an IP address, a name of this machine, or a
    /// configured one. Any other name may belong to a foreign site whose owner lets the name point
    /// to this machine, so that scripts of the site could read the replies (DNS rebinding).
    fn is_host(&self, host: &str) -> bool {
        let host = host.to_lowercase();
        let config = self.config.borrow();
        let mut hosts = config.http.iter().flat_map(|http| &http.hosts);
        host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || host == "localhost"
            || host.ends_with(".localhost")
            || hosts.any(|known| *known == host)
    }

    /// Returns why a client that offers this token is refused, or `None` if it may pass.
    fn refusal(&self, known: &Key, offered: Option<&str>, client: IpAddr) -> Option<Refusal> {
        let Some(offered) = offered else {
            return Some(Refusal::Missing);
        };
        // the token is compared before the limit of failures: failures of others at the same
        // address must not lock out a client that knows the token
        if key(offered) == *known {
            return None;
        }
        Some(match self.logins.count_failure(client) {
            Some(pause) => Refusal::TooMany(pause),
            None => Refusal::Wrong,
        })
    }

    /// Returns the address of the client, as a configured proxy states it, or else of the connection.
    fn client(&self, request: &Request) -> IpAddr {
        let peer = match request.extensions().get() {
            // a listener for both IPv6 and IPv4 shows an address of IPv4 as one of IPv6
            Some(Peer(address)) => address.to_canonical(),
            None => Ipv4Addr::UNSPECIFIED.into(),
        };
        let config = self.config.borrow();
        let mut proxies = config.http.iter().flat_map(|http| &http.proxies);
        if !proxies.any(|proxy| proxy.to_canonical() == peer) {
            return peer;
        }
        let mut lists = request.headers().get_all(FORWARDED_FOR).iter();
        let stated = lists.next_back().and_then(|list| {
            let last = list.to_str().ok()?.rsplit(',').next()?;
            last.trim().parse().ok()
        });
        stated.unwrap_or(peer)
    }
}

/// The reason why a client may not pass.
#[derive(Clone, Copy)]
enum Refusal {
    Missing,
    Wrong,
    TooMany(Duration),
}

impl Refusal {
    /// Returns the reply to a program, or to a browser, which receives a form that leads to `next`.
    fn reply(self, next: Option<&str>) -> Response {
        let (status, why) = match self {
            Refusal::Missing => (
                StatusCode::UNAUTHORIZED,
                "The token of the daemon's configuration is needed",
            ),
            Refusal::Wrong => (StatusCode::UNAUTHORIZED, "The token is wrong"),
            Refusal::TooMany(_) => (
                StatusCode::TOO_MANY_REQUESTS,
                "Too many wrong tokens: wait a minute",
            ),
        };
        let reply = match next {
            Some(next) => login::form(status, why, next),
            None => ErrorReply::new(status, why)
                .advise("Send the header Authorization: Bearer TOKEN; a browser shows a form at /")
                .into_response(),
        };
        match self {
            Refusal::TooMany(pause) => {
                ([(RETRY_AFTER, pause.as_secs() + 1)], reply).into_response()
            }
            _ => ([(WWW_AUTHENTICATE, CHALLENGE)], reply).into_response(),
        }
    }
}

/// Requires a known host name.
pub async fn require_host(State(app): AppState, request: Request, next: Next) -> Response {
    let is_known = host(&request).is_some_and(|host| app.is_host(&host));
    if is_known {
        return next.run(request).await;
    }
    let unknown = "the host name of the request is unknown";
    ErrorReply::new(StatusCode::MISDIRECTED_REQUEST, unknown)
        .advise("Add it to `hosts` in the configuration, or use localhost or an IP address")
        .into_response()
}

/// Requires the token, if there is one: in a header or, from a browser that has logged in, proven by
/// a cookie.
pub async fn require_token(State(app): AppState, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let Some(key) = app.key() else {
        return next.run(request).await;
    };
    let cookies = SignedCookieJar::from_headers(headers, key.clone());
    if is_session(&cookies, &app.cookie, unix_now()) {
        return next.run(request).await;
    }
    match app.refusal(&key, bearer(headers), app.client(&request)) {
        Some(refusal) => {
            let page = accepts_pages(headers).then(|| login::next(request.uri()));
            refusal.reply(page.as_deref())
        }
        None => next.run(request).await,
    }
}

/// Returns whether a browser requests a page, rather than a program data.
fn accepts_pages(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    accepted.is_some_and(|accept| accept.contains("text/html"))
}

/// The form with the token.
#[derive(Deserialize)]
pub struct Login {
    token: String,
    #[serde(default)]
    next: String,
}

/// Gives a browser with the right token a cookie, and leads it to the page that it requested.
pub async fn login(State(app): AppState, request: Request) -> Response {
    let (client, proto) = (app.client(&request), request.headers().get(FORWARDED_PROTO));
    let is_secure = proto.is_some_and(|proto| proto == "https");
    let login = match Form::<Login>::from_request(request, &()).await {
        Ok(Form(login)) => login,
        Err(wrong) => return ErrorReply::new(wrong.status(), wrong.body_text()).into_response(),
    };
    let next = if login::is_page(&login.next) {
        &login.next
    } else {
        "./"
    };
    let Some(key) = app.key() else {
        return Redirect::to(next).into_response();
    };
    match app.refusal(&key, Some(&login.token), client) {
        Some(refusal) => refusal.reply(Some(next)),
        None => {
            let session = app.start_session(key, is_secure);
            (session, Redirect::to(next)).into_response()
        }
    }
}

/// Removes the cookie.
pub async fn logout(State(app): AppState) -> Response {
    let cookie = Cookie::build(app.cookie.clone()).removal();
    (CookieJar::new().add(cookie), Redirect::to("./")).into_response()
}

/// Returns the host that the client addressed, without the port.
fn host(request: &Request) -> Option<String> {
    let stated = request
        .headers()
        .get(HOST)
        .and_then(|host| host.to_str().ok()?.parse().ok());
    let authority: Authority = request.uri().authority().cloned().or(stated)?;
    Some(authority.host().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends() {
        let cookies = SignedCookieJar::new(key("secret")).add(Cookie::new("ours", "100"));
        assert!(is_session(&cookies, "ours", 99));
        assert!(!is_session(&cookies, "ours", 100));
        assert!(!is_session(&cookies, "other", 99));
    }
}
