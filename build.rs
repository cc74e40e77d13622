//! Makes cargo watch the bundle of scripts, and passes the documents' programs to the test that
//! runs them.

use std::path::Path;
use std::{env, fs};

/// The prefix of the files with a document's programs, and the document's path.
const DOCUMENTS: [(&str, &str); 3] = [
    ("readme", "README.md"),
    ("guide", "docs/guide.md"),
    ("operations", "docs/operations.md"),
];

fn main() {
    // `include_dir` does not notice new files
    println!("cargo::rerun-if-changed=lua");
    if env::var_os("CARGO_FEATURE_TEST_HOOKS").is_some() {
        for (name, file) in DOCUMENTS {
            println!("cargo::rerun-if-changed={file}");
            write_programs(name, &fs::read_to_string(file).expect(file));
        }
    }
}

/// Writes the Rust programs of a document to the files that a test includes, `guide_1.rs` and so
/// on. Replaces their addresses by those of the test's servers.
fn write_programs(name: &str, document: &str) {
    let folder = env::var("OUT_DIR").expect("cargo sets it");
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
        fs::write(
            Path::new(&folder).join(format!("{name}_{}.rs", index + 1)),
            program,
        )
        .expect("a file is written");
    }
}
