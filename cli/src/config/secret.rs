//! Passwords and tokens: from the configuration, from a file that it names, from a systemd
//! credential, or from the environment.

use std::fs;
use std::path::{Path, PathBuf};

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

    /// Returns the secret `name`: `MAIN_MYSQL_PASSWORD` is `$COUNTERFOIL_MAIN_MYSQL_PASSWORD`, or
    /// the credential `main_mysql_password`. The configuration takes precedence.
    pub fn find(
        &self,
        name: &str,
        written: Option<String>,
        file: Option<PathBuf>,
    ) -> Result<Option<String>, String> {
        if written.is_some() && file.is_some() {
            let name = name.to_lowercase();
            return Err(format!("{name} and {name}_file are both given"));
        }
        if written.is_some() {
            return Ok(written);
        }
        let credential = self.credentials.as_ref();
        let credential = credential.map(|folder| folder.join(name.to_lowercase()));
        let credential = credential.filter(|credential| credential.exists());
        let file = file.map(|file| self.path(&file)).or(credential);
        if let Some(file) = file {
            return read(&file).map(Some);
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
