//! Access control by a token: in a header or, for a browser, in a cookie derived from it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use axum_extra::extract::cookie::{Cookie, CookieJar, SameSite};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::assets::hex;
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

impl Keys {
    pub fn new(token: &str) -> Self {
        let cookie = Sha256::digest(format!("counterfoil's cookie\n{token}"));
        Keys {
            token: Sha256::digest(token).into(),
            cookie: hex(&cookie),
        }
    }

    fn is_token(&self, offered: &str) -> bool {
        self.token.ct_eq(&Sha256::digest(offered)).into()
    }

    fn are_in(&self, headers: &HeaderMap) -> bool {
        let is_cookie = |cookie: &Cookie<'_>| -> bool {
            let offered = cookie.value().as_bytes();
            self.cookie.as_bytes().ct_eq(offered).into()
        };
        let cookies = CookieJar::from_headers(headers);
        bearer(headers).is_some_and(|token| self.is_token(token))
            || cookies.get(COOKIE_NAME).is_some_and(is_cookie)
    }
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

/// Requires the token, if there is one. A browser sends it once, as `/?token=...`.
pub async fn require(
    State(keys): State<Option<Arc<Keys>>>,
    params: Result<Params<TokenParams>, Problem>,
    request: Request,
    next: Next,
) -> Response {
    let offered = match params {
        Ok(Params(TokenParams { token })) if request.uri().path() == "/" => token,
        _ => None,
    };
    // redirects to the page without the token in its address
    let home = Redirect::to("/");
    match (keys, offered) {
        (None, None) => next.run(request).await,
        (None, Some(_)) => home.into_response(),
        (Some(keys), Some(token)) if keys.is_token(&token) => {
            let cookie = Cookie::build((COOKIE_NAME, keys.cookie.clone()))
                .http_only(true)
                .same_site(SameSite::Strict)
                .path("/");
            (CookieJar::new().add(cookie), home).into_response()
        }
        (Some(keys), None) if keys.are_in(request.headers()) => next.run(request).await,
        (Some(_), _) => {
            let problem =
                Problem::new(StatusCode::UNAUTHORIZED, "the token is missing or wrong").advise(
                    "send the header Authorization: Bearer TOKEN; in a browser open /?token=TOKEN once",
                );
            let challenge = "Bearer realm=\"counterfoil\"";
            ([(WWW_AUTHENTICATE, challenge)], problem).into_response()
        }
    }
}
