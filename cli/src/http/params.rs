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

#[cfg(test)]
mod tests {
    use axum::extract::Request;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Known {
        #[serde(default)]
        id: Vec<String>,
        name: String,
        limit: Option<u64>,
    }

    async fn params(query: &str) -> Result<Known, Problem> {
        let request = Request::get(format!("/?{query}")).body(()).expect("a URI");
        let mut parts = request.into_parts().0;
        let Params(params) = Params::from_request_parts(&mut parts, &()).await?;
        Ok(params)
    }

    #[tokio::test]
    async fn parameters_are_decoded_in_their_order() {
        let found = params("id=a%2Fb&id=%C3%A4+x&&limit=7&name=")
            .await
            .expect("parameters");
        assert_eq!(found.id, ["a/b", "ä x"]);
        assert_eq!((found.limit, found.name.as_str()), (Some(7), ""));
        assert_eq!(params("name&limit=").await.expect("empty").limit, None);
    }

    #[tokio::test]
    async fn errors_name_the_parameter() {
        for (query, words) in [
            ("name=x&id=%FF", "parameter id: the value is not UTF-8"),
            ("name=x&limit=-1", "limit: invalid digit"),
            ("id=x", "missing field `name`"),
            ("name=x&famly=x", "unknown field `famly`"),
        ] {
            let problem = params(query).await.expect_err(query);
            assert_eq!(problem.status, axum::http::StatusCode::BAD_REQUEST);
            assert!(problem.error.contains(words), "{query}: {}", problem.error);
        }
    }
}
