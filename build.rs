//! Makes cargo watch the bundle of scripts, writes the documents that are modules of the crate's
//! documentation, and passes the programs of documents to the test that runs them.

use std::path::PathBuf;
use std::{env, fs};

/// The prefix of the files with a document's programs, and the document's path.
const DOCUMENTS: [(&str, &str); 3] = [
    ("readme", "README.md"),
    ("guide", "docs/guide.md"),
    ("operations", "docs/operations.md"),
];

/// The documents in `docs` that are modules of the crate's documentation.
const MODULES: [&str; 3] = ["guide", "operations", "protocol"];

/// The address at which docs.rs shows the files of the package.
const FILES: &str = "https://docs.rs/crate/counterfoil/latest/source";

fn main() {
    // `include_dir` does not notice new files
    println!("cargo::rerun-if-changed=lua");
    for module in MODULES {
        let file = format!("docs/{module}.md");
        println!("cargo::rerun-if-changed={file}");
        write_module(module, &fs::read_to_string(&file).expect(&file));
    }
    if env::var_os("CARGO_FEATURE_TEST_HOOKS").is_some() {
        for (name, file) in DOCUMENTS {
            println!("cargo::rerun-if-changed={file}");
            write_programs(name, &fs::read_to_string(file).expect(file));
        }
    }
}

/// Writes a document for rustdoc, with links to modules and packaged files in place of relative
/// links.
fn write_module(module: &str, document: &str) {
    let mut parts = document.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (link, rest) = part.split_once(')').expect("a link ends");
        text += &format!("]({}){rest}", rustdoc_link(link));
    }
    fs::write(out_dir().join(format!("{module}.md")), text).expect("a file is written");
}

/// Returns the link that leads from the documentation of a module to the same place as `link` does
/// from a file in `docs`.
fn rustdoc_link(link: &str) -> String {
    if link.starts_with('#') || link.starts_with("https://") {
        return link.to_owned();
    }
    let (file, anchor) = link.find('#').map_or((link, ""), |at| link.split_at(at));
    let module = file
        .strip_suffix(".md")
        .filter(|name| MODULES.contains(name));
    match (module, file.strip_prefix("../")) {
        (Some(module), _) => format!("crate::{module}{anchor}"),
        (None, Some("README.md")) => format!("crate{anchor}"),
        (None, Some(file)) => format!("{FILES}/{file}"),
        (None, None) => format!("{FILES}/docs/{file}"),
    }
}

fn out_dir() -> PathBuf {
    env::var_os("OUT_DIR").expect("cargo sets it").into()
}

/// Writes the Rust programs of a document to the files that a test includes, `guide_1.rs` and so
/// on. Replaces their addresses by those of the test's servers.
fn write_programs(name: &str, document: &str) {
    let blocks = document
        .split("\n```rust")
        .skip(1)
        .filter_map(|block| block.split_once('\n')?.1.split("\n```").next());
    for (index, program) in blocks.enumerate() {
        let program = program
            .replace(r#""redis://localhost""#, "crate::readme::redis_url()")
            .replace(
                r#""mysql://root@localhost/shop""#,
                "crate::readme::mysql_url()",
            )
            .replace(
                r#""rediss://redis.internal""#,
                "crate::readme::tls().redis_url()",
            )
            .replace(
                ".mysql(mysql)",
                ".mysql(crate::readme::tls().mysql_url(mysql))",
            )
            .replace("use std::fs;", "use crate::readme::files as fs;");
        let file = out_dir().join(format!("{name}_{}.rs", index + 1));
        fs::write(file, program).expect("a file is written");
    }
}
