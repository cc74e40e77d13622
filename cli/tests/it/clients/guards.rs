//! Packages without one of their guards, which must fail scenarios.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use testkit::Package;

use super::language::run;

/// A guard of a package, and the change of its source that removes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guard {
    /// `caller`, `epoch`, `pid` or `step`.
    pub guard: String,
    file: PathBuf,
    find: String,
    replace: String,
}

impl Guard {
    /// Returns the guards of a package, as its `guards.json` lists them.
    pub fn all(package: Package) -> Vec<Self> {
        let path = Package::folder().join(package.0).join("guards.json");
        let guards =
            fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&guards).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Installs the package without the guard beside the whole one, and returns where.
    pub fn install_without(&self, package: Package, installed: &Path) -> PathBuf {
        let folder = installed.with_file_name(format!("{}-without-{}", package.0, self.guard));
        let source = self.remove(package, &folder.join("source"));
        let mut install = package.dev("install", &folder);
        let installed = run(install.env("COUNTERFOIL_CLIENT_SOURCE", source));
        installed.unwrap_or_else(|error| panic!("{error}"));
        folder
    }

    /// Copies the package's source without the guard.
    fn remove(&self, package: Package, copy: &Path) -> PathBuf {
        let source = Package::folder().join(package.0);
        let _ = fs::remove_dir_all(copy);
        let copied = copy.join("clients").join(package.0);
        fs::create_dir_all(&copied).expect("a folder");
        // with what the package refers to outside of its folder
        let lua = Package::folder().with_file_name("lua");
        std::os::unix::fs::symlink(lua, copy.join("lua")).expect("a link");
        run(Command::new("cp")
            .arg("-R")
            .arg(source.join("."))
            .arg(&copied))
        .expect("copied");
        fs::write(copied.join(&self.file), self.removed(package)).expect("written");
        copied
    }

    /// Returns the file with the guard removed, whose text must occur in it once.
    pub fn removed(&self, package: Package) -> String {
        let path = Package::folder().join(package.0).join(&self.file);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let times = text.matches(&self.find).count();
        assert_eq!(times, 1, "{:?} in {}", self.find, path.display());
        text.replace(&self.find, &self.replace)
    }
}
