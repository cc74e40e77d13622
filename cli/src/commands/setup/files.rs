//! The configuration file that `setup` writes, and the files of its secrets.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::urls::Login;
use crate::exit::Failure;

/// The name of the pair in a new file.
pub const PAIR: &str = "main";
/// The folder of the secrets, beside the configuration.
const SECRETS: &str = "secrets";

/// The settings of a new file.
pub struct Settings<'a> {
    pub listen: &'a str,
    pub redis: &'a Login,
    pub mysql: &'a Login,
    /// True if servers on other machines need no TLS.
    pub no_tls: bool,
    /// NAMESPACE/FAMILY.
    pub family: &'a str,
}

impl Settings<'_> {
    /// Returns the text of the file. `has_secret` tells for Redis and MySQL if there is a password.
    pub fn text(&self, has_secret: [bool; 2]) -> String {
        let mut text = format!(
            "# Written by `counterfoil setup`. `counterfoil example-config` prints every setting with a comment.\n\
             listen = {}\n\n[pair.{PAIR}]\n",
            quoted(self.listen)
        );
        let servers = [("redis", self.redis), ("mysql", self.mysql)];
        for ((server, login), has_secret) in servers.into_iter().zip(has_secret) {
            text += &format!("{server} = {}\n", quoted(login.url()));
            if has_secret {
                let file = secret_file(Path::new(""), PAIR, server);
                text += &format!("{server}_password_file = \"{}\"\n", file.display());
            }
        }
        if self.no_tls {
            text += "tls = \"off\"\n";
        }
        text += &format!(
            "\n[[family]]\nname = {}\nkind = \"buffered\"    # without `table` its values are in counterfoil_values\n",
            quoted(self.family)
        );
        text
    }
}

/// Returns a string of TOML.
pub fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// Returns the folder of the configuration file.
pub fn folder(config: &Path) -> &Path {
    match config.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Returns the file with the password of a server of the pair. It has the name of the credential of
/// systemd.
pub fn secret_file(folder: &Path, pair: &str, server: &str) -> PathBuf {
    let pair = pair.replace('-', "_").to_lowercase();
    folder
        .join(SECRETS)
        .join(format!("{pair}_{server}_password"))
}

/// Creates a folder that no other user can enter.
pub fn create_private_folder(folder: &Path) -> Result<(), Failure> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    created.map_err(|error| not_written(folder, error))
}

/// Writes the password of a server, or makes one up if none is given. Keeps one that an earlier run
/// wrote.
pub fn write_secret(
    config: &Path,
    server: &str,
    password: Option<&str>,
    overwrites: bool,
) -> Result<(), Failure> {
    let file = secret_file(folder(config), PAIR, server);
    let written = match fs::read_to_string(&file) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::warning(format!("{}: {error}", file.display()))),
    };
    let written = written.as_deref().map(str::trim_end);
    let password = match (written.filter(|text| !text.is_empty()), password) {
        (Some(written), given) if given.is_none_or(|given| given == written) => return Ok(()),
        (Some(_), Some(_)) if !overwrites => {
            return Err(Failure::usage(format!(
                "{} has another password than the URL of {server}: --overwrite replaces it",
                file.display()
            )));
        }
        (_, Some(given)) => given.to_owned(),
        (_, None) => new_password()?,
    };
    create_private_folder(folder(&file))?;
    replace(&file, &format!("{password}\n"), 0o600)
}

/// Returns a password that also satisfies rules about kinds of characters, and needs no quoting in a
/// URL.
fn new_password() -> Result<String, Failure> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::critical(format!("no random numbers: {error}")))?;
    Ok(format!("Cf-{:032x}", u128::from_ne_bytes(random)))
}

/// Writes the configuration, which other users may read: it has no secrets.
pub fn write_config(config: &Path, text: &str) -> Result<(), Failure> {
    fs::create_dir_all(folder(config)).map_err(|error| not_written(config, error))?;
    replace(config, text, 0o644)
}

/// Writes a file completely or not at all.
pub fn replace(file: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let write = || {
        let mut new = NamedTempFile::new_in(folder(file))?;
        new.write_all(text.as_bytes())?;
        new.as_file()
            .set_permissions(Permissions::from_mode(mode))?;
        new.as_file().sync_all()?;
        new.persist(file)?;
        Ok(())
    };
    write().map_err(|error| not_written(file, error))
}

fn not_written(file: &Path, error: std::io::Error) -> Failure {
    Failure::warning(format!("{} was not written: {error}", file.display()))
}
