//! The form that asks for the token.

use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use maud::html;

use super::page;

/// Returns the form, with the reason for it, which leads to the page `next`.
pub fn form(status: StatusCode, why: &str, next: &str) -> Response {
    let content = html! {
        header { h1 { "Counterfoil" } }
        main id="main" {
            p role="alert" { (why) "." }
            form method="post" action="login" {
                input type="hidden" name="next" value=(next);
                // password managers store a password only with a name
                input type="hidden" name="username" value="counterfoil" autocomplete="username";
                label { "Token " input type="password" name="token" required autofocus autocomplete="current-password"; }
                " " button { "Log in" }
            }
        }
    };
    (status, page("Log in – Counterfoil", false, &content)).into_response()
}

/// Returns the relative address of the page that was requested, or of the status page.
pub fn next(requested: &Uri) -> String {
    let query = requested
        .query()
        .map_or_else(String::new, |query| format!("?{query}"));
    match requested.path() {
        "/" => format!("./{query}"),
        "/family" => format!("family{query}"),
        _ => "./".to_owned(),
    }
}

/// Returns whether this is the relative address of a page, and no other site's.
pub fn is_page(next: &str) -> bool {
    let (path, _) = next.split_once('?').unwrap_or((next, ""));
    // the address goes into the `Location` header, which takes no other characters
    matches!(path, "./" | "family") && next.bytes().all(|byte| byte.is_ascii_graphic())
}
