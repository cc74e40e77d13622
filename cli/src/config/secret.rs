//! Passwords, tokens and certificates: from the configuration, from a file that it names, from a
//! systemd credential, or from the environment.

use std::path::{Path, PathBuf};
use std::{env, fs};

#[cfg(target_os = "linux")]
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::Deserialize;

/// Forbids core dumps, which would contain secrets. On Linux other processes of the same user cannot
/// read this one's memory either.
pub fn forbid_core_dumps() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let limited = setrlimit(Resource::Core, none);
    #[cfg(target_os = "linux")]
    let limited = limited.and(set_dumpable_behavior(DumpableBehavior::NotDumpable));
    if let Err(error) = limited {
        tracing::warn!(error = %format_args!("{error:#}"), "core dumps may contain secrets");
    }
}

/// A secret as written in the file, or a URL that may contain one. No error shows it.
#[derive(Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct SecretText(pub String);

impl TryFrom<toml::Value> for SecretText {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        match value {
            toml::Value::String(text) => Ok(SecretText(text)),
            _ => Err("expected a string in quotes"),
        }
    }
}

/// The places to look for secrets, with the folder to which relative paths refer.
pub struct Secrets<'a>(pub &'a Path);

impl Secrets<'_> {
    /// Returns the file of the setting `name`: systemd's credential of this name, which stands for a
    /// file that the service cannot read, or as written.
    pub fn file(&self, name: &str, written: Option<PathBuf>) -> Option<PathBuf> {
        let folder = env::var_os("CREDENTIALS_DIRECTORY");
        folder
            .map(|folder| Path::new(&folder).join(name.to_lowercase()))
            .filter(|credential| credential.exists())
            .or_else(|| Some(self.0.join(written?)))
    }

    /// Returns the text of the file of the setting `name`, without a byte order mark and the final
    /// line break. An empty file is an error: it is a secret that was not written yet.
    pub fn read(&self, name: &str, written: Option<PathBuf>) -> Result<Option<String>, String> {
        let Some(path) = self.file(name, written) else {
            return Ok(None);
        };
        let file = path.display();
        let text = fs::read_to_string(&path)
            .map_err(|error| format!("{name}: {file} was not read: {error:#}"))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(format!("{name}: the file {file} is empty")),
            text => Ok(Some(text.to_owned())),
        }
    }

    /// Returns the secret `name`, such as `main_mysql_password`. The first of these that exists has
    /// it: the value written in the configuration, the systemd credential of this name, the file
    /// that the configuration names, the variable `COUNTERFOIL_MAIN_MYSQL_PASSWORD`. An empty one
    /// is an error, because the server would refuse it with a less clear one.
    pub fn find(
        &self,
        name: &str,
        written: Option<SecretText>,
        file: Option<PathBuf>,
    ) -> Result<Option<String>, String> {
        match (written, file) {
            (Some(_), Some(_)) => Err(format!("{name} and {name}_file are both given")),
            (Some(SecretText(written)), None) if written.is_empty() => {
                Err(format!("{name} is empty: remove it if there is none"))
            }
            (Some(SecretText(written)), None) => Ok(Some(written)),
            (None, file) => match self.read(name, file)? {
                Some(text) => Ok(Some(text)),
                None => variable(&format!("COUNTERFOIL_{}", name.to_uppercase())),
            },
        }
    }
}

/// Returns the secret in an environment variable, if that is set.
fn variable(name: &str) -> Result<Option<String>, String> {
    let Some(value) = env::var_os(name) else {
        return Ok(None);
    };
    match value.into_string() {
        Ok(text) if text.is_empty() => Err(format!(
            "the environment variable {name} is empty: unset it if there is none"
        )),
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(format!("the environment variable {name} is not UTF-8")),
    }
}
