//! The Lua scripts, for applications in other languages.

use std::fs;
use std::path::Path;

use counterfoil::Counterfoil;
use counterfoil::admin::Script;
use counterfoil::redis::cmd;
use serde::Serialize;
use serde_json::json;

use super::{Context, connect};
use crate::exit::{Exit, Failure};
use crate::limits::in_time;
use crate::output::{Output, table};

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    /// The path of the file, relative to the manifest.
    file: String,
    sha1: &'static str,
}

/// Returns the scripts sorted by name.
fn entries() -> Vec<Entry> {
    let mut entries: Vec<_> = Script::all()
        .map(|script| Entry {
            name: script.name,
            file: format!("v1/{}.lua", script.name),
            sha1: &script.sha1,
        })
        .collect();
    entries.sort_unstable_by_key(|entry| entry.name);
    entries
}

fn entry_table(entries: &[Entry]) -> Vec<String> {
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| [entry.name, entry.sha1].map(str::to_owned))
        .collect();
    table(&["SCRIPT", "SHA-1"], &rows)
}

pub fn list(output: Output) -> Result<Exit, Failure> {
    output.print(&entries(), |entries| entry_table(entries))
}

/// Writes each script as `v1/NAME.lua`, and a manifest.
pub fn export(output: Output, folder: &Path) -> Result<Exit, Failure> {
    let scripts = folder.join("v1");
    fs::create_dir_all(&scripts).map_err(|error| {
        Failure::warning(format!("{} was not created: {error:#}", scripts.display()))
    })?;
    for script in Script::all() {
        write(&scripts.join(format!("{}.lua", script.name)), script.source)?;
    }
    write(&folder.join("manifest.json"), Script::manifest())?;
    output.print(&json!({ "folder": folder, "scripts": entries() }), |_| {
        vec![format!(
            "{} scripts and manifest.json are in {}",
            entries().len(),
            folder.display()
        )]
    })
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text)
        .map_err(|error| Failure::warning(format!("{} was not written: {error:#}", path.display())))
}

/// Loads the scripts into the Redis of each pair.
pub async fn load(context: &Context) -> Result<Exit, Failure> {
    let mut loaded = Vec::new();
    for pair in &context.config.pairs {
        let connected = connect(pair).await?;
        in_time(load_into(&connected))
            .await
            .map_err(|why| {
                let advice =
                    "SCRIPT LOAD needs every primary of a cluster, and the ACL rule +script|load";
                Failure::critical(format!("loading failed: {why}. {advice}"))
            })
            .map_err(Failure::of_pair(&pair.name))?;
        loaded.push(&pair.name);
    }
    context
        .output
        .print(&json!({ "pairs": loaded, "scripts": entries() }), |_| {
            let pairs = loaded.iter().map(|pair| format!("pair {pair}: loaded"));
            pairs.chain(entry_table(&entries())).collect()
        })
}

/// Loads the scripts. A cluster connection sends them to all primaries; it has no connections to
/// replicas.
async fn load_into(counterfoil: &Counterfoil) -> Result<(), String> {
    for script in Script::all() {
        let mut redis = counterfoil.redis().clone();
        let sha1 = cmd("SCRIPT")
            .arg("LOAD")
            .arg(script.source)
            .query_async::<String>(&mut redis)
            .await
            .map_err(|error| format!("{}: {error:#}", script.name))?;
        if sha1 != script.sha1 {
            return Err(format!("{}: Redis returned the SHA-1 {sha1}", script.name));
        }
    }
    Ok(())
}
