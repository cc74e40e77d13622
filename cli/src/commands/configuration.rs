//! Commands that need no server.

use std::cmp::Reverse;
use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use serde_json::json;

use super::Context;
use crate::arguments::Arguments;
use crate::config::{Config, EXAMPLE, FamilyConfig, PairConfig};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Prints the pairs and their families, and what is left of the example. Reading the configuration
/// was the check.
pub fn check(context: &Context) -> Result<Exit, Failure> {
    let (mut json, mut lines) = (Vec::new(), Vec::new());
    let mut has_warnings = false;
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
        let warnings = left_of_example(pair);
        has_warnings |= !warnings.is_empty();
        lines.extend(
            warnings
                .iter()
                .map(|left| format!("pair {name}: warning: {left}")),
        );
        json.push(json!({
            "pair": name, "families": families, "overlaps": overlaps, "warnings": warnings,
        }));
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
    Ok(Exit::warning_if(doubt.is_some() || has_warnings))
}

/// Returns what a pair still has of the example: the addresses, and families whose tables are the
/// example's.
fn left_of_example(pair: &PairConfig) -> Vec<String> {
    let mut left = Vec::new();
    // the example is valid, as a test shows
    let Some(example) = Config::example() else {
        return left;
    };
    for of_example in &example.pairs {
        // a server may happen to have one of them
        let addresses = |pair: &PairConfig| {
            let redis = pair.redis.servers.first().map(|info| info.addr().clone());
            (redis, pair.mysql.get_host().to_owned())
        };
        if addresses(pair) == addresses(of_example) {
            left.push("redis and mysql have the addresses of the example".to_owned());
        }
        let is_left = |family: &&FamilyConfig| {
            let mut others = of_example.families.iter();
            others.any(|other| family.has_table_of(other))
        };
        let families: Vec<_> = pair.families.iter().filter(is_left).collect();
        if !families.is_empty() {
            let names: Vec<_> = families.iter().map(|family| family.name()).collect();
            left.push(format!(
                "of the example, with its tables: {}. Replace them by your own families",
                names.join(", ")
            ));
        }
    }
    left
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
    clap_complete::generate(shell, &mut visible(), "counterfoil", &mut script);
    output.print_text(&script)
}

/// Returns the command line without the hidden commands, which completions would offer.
fn visible() -> clap::Command {
    let all = Arguments::command();
    let shown = all
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    clap::Command::new("counterfoil")
        .version(crate::VERSION)
        .args(all.get_arguments())
        .subcommands(shown)
}

/// Prints the man page of the program, or writes those of all commands to a folder.
pub fn man(output: Output, folder: Option<&Path>) -> Result<Exit, Failure> {
    let program = Arguments::command();
    let Some(folder) = folder else {
        let mut page = Vec::new();
        Man::new(program).render(&mut page)?;
        return output.print_text(&page);
    };
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(program, folder))
        .map_err(|error| Failure::warning(format!("{}: {error}", folder.display())))?;
    Ok(Exit::Ok)
}
