//! The contents of both crates, as `cargo package` puts them together, and the version of all packages.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::docs::files;

/// Returns the files of a package.
fn files_of(package: &str) -> String {
    let output = Command::new(env!("CARGO"))
        .args([
            "package",
            "--list",
            "--allow-dirty",
            "--offline",
            "-p",
            package,
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{package}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn check(package: &str, expected: &[&str]) {
    let files = files_of(package);
    for file in expected {
        assert!(
            files.lines().any(|line| line == *file),
            "the package {package} lacks {file}:\n{files}"
        );
    }
}

#[test]
fn the_package_contains_scripts_and_documents() {
    let scripts = files("lua/v1", ".lua");
    assert!(scripts.len() > 20, "{scripts:?}");
    check(
        "counterfoil",
        &scripts
            .iter()
            .map(|path| path.to_str().unwrap())
            .collect::<Vec<_>>(),
    );
    check(
        "counterfoil",
        &[
            "lua/manifest.json",
            "lua/README.md",
            "docs/guide.md",
            "build.rs",
            "README.md",
        ],
    );
}

#[test]
fn the_package_of_the_command_contains_page_and_example() {
    check(
        "counterfoil-cli",
        &[
            "src/main.rs",
            "counterfoil.toml",
            "assets/page.js",
            "assets/page.css",
        ],
    );
}

/// `packaging/versions` is what `./dev release --version` writes and `--check` compares.
#[test]
fn all_packages_have_the_version_of_the_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("packaging/versions")).unwrap();
    let lines: Vec<_> = list
        .lines()
        .filter_map(|line| line.split_once(": "))
        .collect();
    for (file, text) in &lines {
        let text = text.replace("{}", env!("CARGO_PKG_VERSION"));
        let content = fs::read_to_string(root.join(file)).unwrap();
        assert!(content.contains(&text), "{file} has no {text}");
    }
    for client in ["go", "node", "php", "python", "ruby"] {
        let folder = format!("clients/{client}/");
        let is_listed = lines.iter().any(|(file, _)| file.starts_with(&folder));
        assert!(is_listed, "packaging/versions has no file of {folder}");
    }
}
