//! Access control by a token: in a header or, for a browser, in a cookie derived from it.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, LOCATION, SET_COOKIE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::params::Params;
use super::problem::Problem;

const COOKIE_NAME: &str = "counterfoil";

/// The proofs that a client knows the token. Hashes are compared in constant time, so that timing
/// reveals neither content nor length.
pub struct Keys {
    token: [u8; 32],
    /// The cookie's value. It replaces the token, which no reply contains.
    cookie: String,
}

fn hash(what: &[&str]) -> [u8; 32] {
    what.iter()
        .fold(Sha256::new(), |hash, part| hash.chain_update(part))
        .finalize()
        .into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Keys {
    pub fn new(token: &str) -> Self {
        Keys {
            token: hash(&[token]),
            cookie: hex(&hash(&["counterfoil's cookie\n", token])),
        }
    }

    fn is_token(&self, offered: &str) -> bool {
        self.token.ct_eq(&hash(&[offered])).into()
    }

    fn are_in(&self, headers: &HeaderMap) -> bool {
        let bearer = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(bearer);
        let cookies = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok());
        let mut cookies = cookies
            .flat_map(|cookies| cookies.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='));
        bearer.is_some_and(|token| self.is_token(token))
            || cookies.any(|(name, value)| {
                name == COOKIE_NAME && bool::from(self.cookie.as_bytes().ct_eq(value.as_bytes()))
            })
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

/// Requires the token, if there is one. A browser sends it once, as `/?token=...`.
pub async fn require(
    State(keys): State<Option<Arc<Keys>>>,
    request: Request,
    next: Next,
) -> Response {
    let offered = match request.uri().path() {
        "/" => Params::of(request.uri())
            .ok()
            .and_then(|params| params.first("token").map(str::to_owned)),
        _ => None,
    };
    match (keys, offered) {
        (None, None) => next.run(request).await,
        (None, Some(_)) => home(),
        (Some(keys), Some(token)) if keys.is_token(&token) => {
            let cookie = format!(
                "{COOKIE_NAME}={}; HttpOnly; SameSite=Strict; Path=/",
                keys.cookie
            );
            ([(SET_COOKIE, cookie)], home()).into_response()
        }
        (Some(keys), None) if keys.are_in(request.headers()) => next.run(request).await,
        (Some(_), _) => {
            let problem = Problem::new(
                StatusCode::UNAUTHORIZED,
                "the token is missing, or is another one",
            )
            .advise(
                "send the header Authorization: Bearer TOKEN; in a browser open /?token=TOKEN once",
            );
            (
                [(WWW_AUTHENTICATE, "Bearer realm=\"counterfoil\"")],
                problem,
            )
                .into_response()
        }
    }
}

/// Redirects to the page without the token in its address.
fn home() -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, "/")]).into_response()
}
