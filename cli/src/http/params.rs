//! The query parameters of a request.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum_extra::extract::Query;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// An extractor of query parameters, with a [`Problem`] for errors.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        // `Query` replaces invalid UTF-8, which would be another id
        let mut params = parts.uri.query().unwrap_or_default().split('&');
        if let Some(param) = params.find(|param| percent_decode_str(param).decode_utf8().is_err()) {
            let name = param.split('=').next().unwrap_or_default();
            return Err(Problem::parameter(name, "the value is not UTF-8"));
        }
        match Query::from_request_parts(parts, state).await {
            Ok(Query(params)) => Ok(Params(params)),
            Err(rejection) => Err(Problem::new(rejection.status(), rejection.body_text())),
        }
    }
}
