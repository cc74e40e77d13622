//! Commands that need no server.

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
    for pair in context.pairs() {
        let name = &pair.name;
        let families: Vec<_> = context.families(pair).map(FamilyConfig::name).collect();
        lines.push(if families.is_empty() {
            format!("pair {name}: no families")
        } else {
            format!("pair {name}: {}", families.join(", "))
        });
        json.push(json!({"pair": name, "families": families}));
    }
    let doubt = context.config.http.as_ref();
    let doubt = doubt.and_then(|http| http.check().err());
    lines.push(match &doubt {
        Some(doubt) => format!("the configuration is valid if the daemon has a token: {doubt}"),
        None => "the configuration is valid".to_owned(),
    });
    context.output.print(&json, |_| lines)?;
    Ok(if doubt.is_some() {
        Exit::Warning
    } else {
        Exit::Ok
    })
}

pub fn example(output: Output) -> Result<Exit, Failure> {
    output.text(EXAMPLE.as_bytes())
}

pub fn completions(output: Output, shell: Shell) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "counterfoil", &mut script);
    output.text(&script)
}
