//! The client packages, as they are installed from their artifacts.

use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::Package;

use super::scenario::Need;

/// A client package.
#[derive(Debug)]
pub struct Language {
    pub package: Package,
    pub libraries: &'static [Library],
}

/// A library that the package is built on.
#[derive(Debug)]
pub struct Library {
    pub name: &'static str,
    /// What scenarios may need that it lacks, with the reason.
    pub lacks: &'static [(Need, &'static str)],
}

pub const RUST: Language = Language {
    package: Package("rust"),
    libraries: &[Library {
        name: "counterfoil",
        lacks: &[],
    }],
};

/// Returns the folder of the scripts in an installed package.
pub fn scripts(package: Package, installed: &Path) -> PathBuf {
    let printed = run(&mut package.dev("scripts", installed));
    PathBuf::from(printed.unwrap_or_else(|error| panic!("{error}")).trim_end())
}

/// Runs a command, and returns what it printed.
pub fn run(command: &mut Command) -> Result<String, String> {
    let ended = command.output();
    let ended = ended.map_err(|error| format!("{command:?}: {error}"))?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if ended.status.success() {
        return Ok(text(&ended.stdout));
    }
    Err(format!(
        "{command:?}: {}\n{}{}",
        ended.status,
        text(&ended.stdout),
        text(&ended.stderr)
    ))
}
