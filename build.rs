//! `include_dir` does not notice new files by itself; this makes cargo watch the bundle's folder.
fn main() {
    println!("cargo::rerun-if-changed=lua");
}
