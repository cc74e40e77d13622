//! Passwords and tokens: from the configuration, from a file that it names, from a systemd
//! credential, or from the environment.

use std::fs;
use std::path::{Path, PathBuf};

/// The places to look for secrets.
pub struct Secrets {
    /// The folder to which relative paths of the configuration refer.
    folder: PathBuf,
    /// The folder of systemd's LoadCredential=.
    credentials: Option<PathBuf>,
    environment: fn(&str) -> Option<String>,
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

    #[cfg(test)]
    pub fn with(
        folder: &Path,
        credentials: Option<PathBuf>,
        environment: fn(&str) -> Option<String>,
    ) -> Self {
        Secrets {
            folder: folder.to_owned(),
            credentials,
            environment,
        }
    }

    /// Resolves a path of the configuration.
    pub fn path(&self, file: &Path) -> PathBuf {
        self.folder.join(file)
    }

    /// Returns the secret `name`: `MAIN_MYSQL_PASSWORD` is `$COUNTERFOIL_MAIN_MYSQL_PASSWORD`, or
    /// the credential `main_mysql_password`. The configuration takes precedence.
    pub fn find(
        &self,
        name: &str,
        written: Option<String>,
        file: Option<PathBuf>,
    ) -> Result<Option<String>, String> {
        if written.is_some() && file.is_some() {
            return Err(format!(
                "{} and {0}_file are both given",
                name.to_lowercase()
            ));
        }
        if written.is_some() {
            return Ok(written);
        }
        if let Some(file) = file {
            return read(&self.path(&file)).map(Some);
        }
        let credential = self
            .credentials
            .as_ref()
            .map(|folder| folder.join(name.to_lowercase()));
        if let Some(credential) = credential.filter(|credential| credential.exists()) {
            return read(&credential).map(Some);
        }
        Ok((self.environment)(&format!("COUNTERFOIL_{name}")))
    }
}

/// Reads a file without the final line break.
fn read(file: &Path) -> Result<String, String> {
    let text = fs::read_to_string(file)
        .map_err(|error| format!("the secret {} was not read: {error:#}", file.display()))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
