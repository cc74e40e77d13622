//! Passwords and tokens: from the configuration, from a file that it names, from a systemd
//! credential, or from the environment.

use std::fs;
use std::path::{Path, PathBuf};

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

/// A list of URLs that may contain secrets.
#[derive(Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct HiddenList(pub Vec<Hidden>);

impl TryFrom<toml::Value> for HiddenList {
    type Error = &'static str;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        let toml::Value::Array(values) = value else {
            return Err("expected a list of URLs in brackets");
        };
        let texts = values.into_iter().map(Hidden::try_from);
        texts.collect::<Result<_, _>>().map(HiddenList)
    }
}

/// The places to look for secrets.
pub struct Secrets {
    /// The folder to which relative paths of the configuration refer.
    pub(super) folder: PathBuf,
    /// The folder of systemd's LoadCredential=.
    pub(super) credentials: Option<PathBuf>,
    pub(super) environment: fn(&str) -> Option<String>,
}

impl Secrets {
    /// Returns the places of this process, for a configuration at this path.
    pub fn of_process(config: &Path) -> Self {
        Secrets {
            folder: config.parent().unwrap_or(Path::new("")).to_owned(),
            credentials: std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from),
            environment: |name| std::env::var(name).ok(),
        }
    }

    /// Resolves a path of the configuration.
    pub fn path(&self, file: &Path) -> PathBuf {
        self.folder.join(file)
    }

    /// Resolves the path of a file that the setting `name` requires, such as a certificate.
    pub fn existing(&self, name: &str, file: &Path) -> Result<PathBuf, String> {
        let path = self.path(file);
        match fs::metadata(&path) {
            Ok(found) if found.is_file() => Ok(path),
            Ok(_) => Err(format!("{name}: {} is not a file", path.display())),
            Err(error) => Err(format!("{name}: {}: {error:#}", path.display())),
        }
    }

    /// Reads a file that the setting `name` names.
    pub fn read(&self, name: &str, file: &Path) -> Result<Vec<u8>, String> {
        let path = self.path(file);
        fs::read(&path).map_err(|error| format!("{name}: {}: {error:#}", path.display()))
    }

    /// Returns the secret `name`: `MAIN_MYSQL_PASSWORD` is `$COUNTERFOIL_MAIN_MYSQL_PASSWORD`, or
    /// the credential `main_mysql_password`. The configuration takes precedence.
    pub fn find(
        &self,
        name: &str,
        written: Option<Hidden>,
        file: Option<PathBuf>,
    ) -> Result<Option<String>, String> {
        if written.is_some() && file.is_some() {
            let name = name.to_lowercase();
            return Err(format!("{name} and {name}_file are both given"));
        }
        if let Some(Hidden(written)) = written {
            return Ok(Some(written));
        }
        let credential = self.credential(name);
        let file = file.map(|file| self.path(&file)).or(credential);
        if let Some(file) = file {
            return read(&file).map(Some);
        }
        Ok((self.environment)(&format!("COUNTERFOIL_{name}")))
    }

    /// Returns the credential of systemd for the setting `name`.
    pub fn credential(&self, name: &str) -> Option<PathBuf> {
        let folder = self.credentials.as_ref()?;
        let file = folder.join(name.to_lowercase());
        file.exists().then_some(file)
    }
}

/// Reads a file without the final line break.
fn read(file: &Path) -> Result<String, String> {
    let text = fs::read_to_string(file)
        .map_err(|error| format!("the secret {} was not read: {error:#}", file.display()))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
