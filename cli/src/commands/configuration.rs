//! Commands that need no server.

use std::cmp::Reverse;

use clap::CommandFactory;
use clap_complete::Shell;
use serde_json::json;

use super::Context;
use crate::arguments::Arguments;
use crate::config::{EXAMPLE, FamilyConfig};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Prints the pairs and their families. Reading the configuration was the check.
pub fn check(context: &Context) -> Result<Exit, Failure> {
    let (mut json, mut lines) = (Vec::new(), Vec::new());
    for pair in &context.config.pairs {
        let name = &pair.name;
        let families: Vec<_> = pair.families.iter().map(FamilyConfig::name).collect();
        lines.push(if families.is_empty() {
            format!("pair {name}: no families")
        } else {
            format!("pair {name}: {}", families.join(", "))
        });
        let overlaps = overlaps(&pair.families);
        lines.extend(overlaps.iter().map(|[specific, other]| {
            format!("pair {name}: {specific} takes precedence over {other}")
        }));
        json.push(json!({"pair": name, "families": families, "overlaps": overlaps}));
    }
    let doubt = context
        .config
        .http
        .as_ref()
        .and_then(|http| http.check(http.listen).err());
    lines.push(match &doubt {
        Some(doubt) => format!("the configuration is valid if the daemon has a token: {doubt}"),
        None => "the configuration is valid".to_owned(),
    });
    context.output.print(&json, |_| lines)?;
    Ok(Exit::warning_if(doubt.is_some()))
}

/// Returns each two descriptions that apply to the same family, the one with precedence first.
fn overlaps(families: &[FamilyConfig]) -> Vec<[String; 2]> {
    let mut overlaps = Vec::new();
    for (at, one) in families.iter().enumerate() {
        let others = families[..at].iter().filter(|other| one.overlaps(other));
        overlaps.extend(others.map(|other| {
            let mut both = [one, other];
            both.sort_by_key(|family| Reverse(family.precedence()));
            both.map(FamilyConfig::name)
        }));
    }
    overlaps
}

pub fn example(output: Output) -> Result<Exit, Failure> {
    output.print_text(EXAMPLE.as_bytes())
}

pub fn completions(output: Output, shell: Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "counterfoil", &mut script);
    output.print_text(&script)
}
