//! The unit of systemd that packages install.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use super::files;
use crate::config::PairConfig;
use crate::exit::Failure;

/// The configuration that the unit reads.
const CONFIG: &str = "/etc/counterfoil/counterfoil.toml";
/// Passes the secrets to the unit, which cannot read root's files.
const DROP_IN: &str = "/etc/systemd/system/counterfoil.service.d/secrets.conf";

/// Enables and starts the unit if this is its configuration. Otherwise returns the command that runs
/// the daemon.
pub fn start(config: &Path, pair: &PairConfig) -> Result<Option<&'static str>, Failure> {
    // present while systemd is the init process
    let is_booted = Path::new("/run/systemd/system").exists();
    let is_of_unit = std::path::absolute(config).is_ok_and(|path| path == Path::new(CONFIG));
    if !is_booted || !is_of_unit || systemctl(&["cat", "counterfoil"]).is_err() {
        return Ok(Some("`counterfoil run`"));
    }
    if !geteuid().is_root() {
        return Ok(Some(
            "`sudo counterfoil --config /etc/counterfoil/counterfoil.toml setup`",
        ));
    }
    let mut drop_in = "[Service]\n".to_owned();
    for server in ["redis", "mysql"] {
        let file = files::secret_file(files::folder(Path::new(CONFIG)), &pair.name, server);
        if file.exists() {
            let name = file.file_name().unwrap_or_default().display();
            drop_in += &format!("LoadCredential={name}:{}\n", file.display());
        }
    }
    files::write_config(Path::new(DROP_IN), &drop_in)?;
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", "counterfoil"])?;
    systemctl(&["restart", "counterfoil"])?;
    Ok(None)
}

fn systemctl(words: &[&str]) -> Result<(), Failure> {
    let ended = Command::new("systemctl")
        .args(words)
        .stdout(Stdio::null())
        .stdin(Stdio::null())
        .output();
    let shown = format!("systemctl {}", words.join(" "));
    match ended {
        Ok(ended) if ended.status.success() => Ok(()),
        Ok(ended) => Err(Failure::critical(format!(
            "{shown}: {}",
            String::from_utf8_lossy(&ended.stderr).trim()
        ))),
        Err(error) => Err(Failure::critical(format!("{shown}: {error}"))),
    }
}
