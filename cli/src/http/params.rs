//! The parameters of a request.

use std::str::FromStr;

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;

use super::problem::Problem;

/// The parameters in their order, decoded.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Params(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Params::of(&parts.uri)
    }
}

impl Params {
    pub fn of(uri: &Uri) -> Result<Self, Problem> {
        let pairs = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty());
        pairs.map(decoded).collect::<Result<_, _>>().map(Params)
    }

    /// Returns the first value of `name` that is not empty: forms also send empty fields.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.all(name).find(|value| !value.is_empty())
    }

    pub fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(given, _)| given == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn required(&self, name: &str) -> Result<&str, Problem> {
        self.first(name)
            .ok_or_else(|| Problem::parameter(name, "it is missing"))
    }

    pub fn parsed<T: FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, Problem> {
        let wrong = |value| Problem::parameter(name, format!("{value:?} is not {expected}"));
        self.first(name)
            .map(|value| value.parse().map_err(|_| wrong(value)))
            .transpose()
    }

    /// Parses a number up to `most`; defaults to `otherwise`.
    pub fn number(&self, name: &str, otherwise: u64, most: u64) -> Result<u64, Problem> {
        let number = self
            .parsed(name, &format!("a number from 0 to {most}"))?
            .unwrap_or(otherwise);
        if number > most {
            Err(Problem::parameter(
                name,
                format!("{number} is more than {most}"),
            ))
        } else {
            Ok(number)
        }
    }

    /// Refuses unknown parameters: a misspelt one would go unnoticed.
    pub fn only(&self, names: &[&str]) -> Result<(), Problem> {
        match self
            .0
            .iter()
            .find(|(given, _)| !names.contains(&given.as_str()))
        {
            Some((given, _)) => Err(Problem::parameter(
                given,
                format!("there is none of this name here, only {}", names.join(", ")),
            )),
            None => Ok(()),
        }
    }
}

fn decoded(pair: &str) -> Result<(String, String), Problem> {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    let plain = |text: &str| {
        let text = text.replace('+', " ");
        percent_decode_str(&text)
            .decode_utf8()
            .map(|text| text.into_owned())
    };
    match (plain(name), plain(value)) {
        (Ok(name), Ok(value)) => Ok((name, value)),
        _ => Err(Problem::parameter(name, "it is not UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(query: &str) -> Result<Params, Problem> {
        Params::of(&format!("/?{query}").parse().expect("a URI"))
    }

    #[test]
    fn parameters_are_decoded_in_their_order() {
        let params = params("id=a%2Fb&id=%C3%A4+x&&limit=7&empty=&flag").expect("parameters");
        assert_eq!(params.all("id").collect::<Vec<_>>(), ["a/b", "ä x"]);
        assert_eq!(params.number("limit", 1, 7).expect("a number"), 7);
        assert_eq!(params.number("offset", 3, 7).expect("the default"), 3);
        assert_eq!((params.first("empty"), params.first("flag")), (None, None));
    }

    #[test]
    fn what_is_wrong_names_the_parameter() {
        let wrong = |problem: Problem| {
            assert_eq!(problem.status, axum::http::StatusCode::BAD_REQUEST);
            problem.error
        };
        assert!(wrong(params("id=%FF").expect_err("no UTF-8")).contains("parameter id"));
        let params = params("limit=8&offset=-1&famly=x").expect("parameters");
        assert!(
            wrong(params.number("limit", 1, 7).expect_err("too many"))
                .contains("parameter limit: 8 is more than 7")
        );
        assert!(
            wrong(params.number("offset", 1, 7).expect_err("negative"))
                .contains("parameter offset: \"-1\"")
        );
        assert!(wrong(params.required("id").expect_err("missing")).contains("parameter id"));
        assert!(
            wrong(params.only(&["limit", "offset"]).expect_err("misspelt"))
                .contains("parameter famly")
        );
    }
}
