//! The URLs of servers, with or without their users and passwords.

use percent_encoding::percent_decode_str;
use url::Url;

use crate::exit::Failure;

/// A URL without its password. Redis's Unix sockets have user and password as parameters.
#[derive(Clone)]
pub struct Login {
    url: Url,
    pub password: Option<String>,
}

impl Login {
    /// Splits a URL. No error shows it, since it may have a password.
    pub fn new(server: &str, text: &str) -> Result<Self, Failure> {
        let mut url = Url::parse(text)
            .map_err(|error| Failure::usage(format!("the URL of {server}: {error}")))?;
        let password = if has_parameters(&url) {
            let password = parameter(&url, "pass");
            set_parameter(&mut url, "pass", None);
            password
        } else {
            let password = url.password().map(decoded);
            // without a host there is none
            let _ = url.set_password(None);
            password
        };
        let password = password.filter(|password| !password.is_empty());
        Ok(Login { url, password })
    }

    /// Returns the URL for another user, whose password is not known.
    pub fn of_user(mut self, server: &str, user: &str) -> Result<Self, Failure> {
        if has_parameters(&self.url) {
            set_parameter(&mut self.url, "user", Some(user));
        } else {
            self.url.set_username(user).map_err(|()| {
                Failure::usage(format!(
                    "the URL of {server} has no host, such as localhost"
                ))
            })?;
        }
        self.password = None;
        Ok(self)
    }

    pub fn url(&self) -> &str {
        self.url.as_str()
    }
}

fn has_parameters(url: &Url) -> bool {
    url.scheme().ends_with("unix")
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn parameter(url: &Url, name: &str) -> Option<String> {
    let mut all = url.query_pairs();
    let (_, value) = all.find(|(found, _)| found == name)?;
    Some(value.into_owned())
}

fn set_parameter(url: &mut Url, name: &str, value: Option<&str>) {
    let mut pairs: Vec<_> = url.query_pairs().into_owned().collect();
    pairs.retain(|(found, _)| found != name);
    pairs.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    if pairs.is_empty() {
        url.set_query(None);
    } else {
        url.query_pairs_mut().clear().extend_pairs(pairs);
    }
}
