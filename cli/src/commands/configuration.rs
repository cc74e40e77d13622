//! Commands that need no server.

use std::io;

use clap::CommandFactory;
use clap_complete::Shell;
use serde_json::json;

use super::Context;
use crate::arguments::Arguments;
use crate::config::{EXAMPLE, FamilyConfig};
use crate::exit::{Exit, Failure};

/// The configuration was read already, which is the check.
pub fn check(context: &Context) -> Result<Exit, Failure> {
    let names = |pair: &str| {
        let families = context.config.families.iter().filter(|family| family.pair == pair);
        families.map(FamilyConfig::name).collect::<Vec<_>>()
    };
    let pairs: Vec<_> = context.pairs().map(|pair| (&pair.name, names(&pair.name))).collect();
    let value = json!({ "ok": true, "pairs": pairs.iter().map(|(pair, families)| json!({ "pair": pair, "families": families })).collect::<Vec<_>>() });
    context.output.print(&value, |_| {
        let line = |(pair, families): &(&String, Vec<String>)| format!("pair {pair}: {}", families.join(", "));
        pairs.iter().map(line).chain(["the configuration is right".to_owned()]).collect()
    })?;
    Ok(Exit::Ok)
}

pub fn example() -> Result<Exit, Failure> {
    print!("{EXAMPLE}");
    Ok(Exit::Ok)
}

pub fn completions(shell: Shell) -> Result<Exit, Failure> {
    clap_complete::generate(shell, &mut Arguments::command(), "counterfoil", &mut io::stdout());
    Ok(Exit::Ok)
}
