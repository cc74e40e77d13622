//! Commands that need no server.

use clap::CommandFactory;
use clap_complete::Shell;
use serde::Serialize;

use super::Context;
use crate::arguments::Arguments;
use crate::config::{EXAMPLE, FamilyConfig};
use crate::exit::{Exit, Failure};
use crate::output::Output;

#[derive(Serialize)]
struct Described {
    pair: String,
    families: Vec<String>,
}

/// Prints the pairs and their families. Reading the configuration was the check.
pub fn check(context: &Context) -> Result<Exit, Failure> {
    let described = context.pairs().map(|pair| Described {
        pair: pair.name.clone(),
        families: context.families(pair).map(FamilyConfig::name).collect(),
    });
    context
        .output
        .print(&described.collect::<Vec<_>>(), |pairs| {
            let line = |Described { pair, families }: &Described| {
                if families.is_empty() {
                    format!("pair {pair}: no families")
                } else {
                    format!("pair {pair}: {}", families.join(", "))
                }
            };
            pairs
                .iter()
                .map(line)
                .chain(["the configuration is valid".to_owned()])
                .collect()
        })?;
    Ok(Exit::Ok)
}

pub fn example(output: Output) -> Result<Exit, Failure> {
    output.text(EXAMPLE.as_bytes())?;
    Ok(Exit::Ok)
}

pub fn completions(output: Output, shell: Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "counterfoil", &mut script);
    output.text(&script)?;
    Ok(Exit::Ok)
}
