//! Passwords, tokens and certificates: from the configuration, from a file that it names, from a
//! systemd credential, or from the environment.

use std::path::{Path, PathBuf};
use std::{env, fs};

use serde::Deserialize;

/// A secret as written in the file, or a URL that may contain one. No error shows it.
#[derive(Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct Hidden(pub String);

impl TryFrom<toml::Value> for Hidden {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        match value {
            toml::Value::String(text) => Ok(Hidden(text)),
            _ => Err("expected a string in quotes"),
        }
    }
}

/// The places to look for secrets, with the folder to which relative paths refer.
pub struct Secrets<'a>(pub &'a Path);

impl Secrets<'_> {
    /// Returns the file of the setting `name`: as written, or systemd's credential of this name.
    pub fn file(&self, name: &str, written: Option<PathBuf>) -> Option<PathBuf> {
        let credential = || {
            let folder = env::var_os("CREDENTIALS_DIRECTORY")?;
            let file = Path::new(&folder).join(name.to_lowercase());
            file.exists().then_some(file)
        };
        let written = written.map(|file| self.0.join(file));
        written.or_else(credential)
    }

    /// Returns the text of the file of the setting `name`, without the final line break.
    pub fn read(&self, name: &str, written: Option<PathBuf>) -> Result<Option<String>, String> {
        let Some(file) = self.file(name, written) else {
            return Ok(None);
        };
        let text = fs::read_to_string(&file);
        let text =
            text.map_err(|error| format!("{name}: {} was not read: {error:#}", file.display()))?;
        Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
    }

    /// Returns the secret `name`: `main_mysql_password` is also a credential, and
    /// `$COUNTERFOIL_MAIN_MYSQL_PASSWORD`. The configuration takes precedence.
    pub fn find(
        &self,
        name: &str,
        written: Option<Hidden>,
        file: Option<PathBuf>,
    ) -> Result<Option<String>, String> {
        match (written, file) {
            (Some(_), Some(_)) => Err(format!("{name} and {name}_file are both given")),
            (Some(Hidden(written)), None) => Ok(Some(written)),
            (None, file) => {
                let variable = format!("COUNTERFOIL_{}", name.to_uppercase());
                Ok(self.read(name, file)?.or_else(|| env::var(variable).ok()))
            }
        }
    }
}
