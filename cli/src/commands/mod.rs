//! What the command line asks for: a file for each group of commands.

mod configuration;
mod servers;

use crate::arguments::{Arguments, Command};
use crate::config::{Config, PairConfig};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::pair::Pair;

/// What most commands need.
pub struct Context {
    pub config: Config,
    /// The pair that was named, where one is needed.
    named: Option<String>,
    pub output: Output,
}

impl Context {
    /// The pairs that the command is about: the one that was named, or all.
    pub fn pairs(&self) -> impl Iterator<Item = &PairConfig> {
        self.config.pairs.iter().filter(|pair| self.named.as_ref().is_none_or(|named| *named == pair.name))
    }

    /// The one pair that the command is about, connected.
    pub async fn pair(&self) -> Result<(&PairConfig, Pair), Failure> {
        let mut pairs = self.pairs();
        match (pairs.next(), pairs.next()) {
            (Some(pair), None) => Ok((pair, Pair::connect(pair).await?)),
            _ => Err(Failure::usage("the configuration has several pairs: name one with --pair")),
        }
    }
}

/// Does what the command line asks for.
pub async fn execute(arguments: Arguments) -> Result<Exit, Failure> {
    let Arguments { config, pair, json, command } = arguments;
    let output = Output { json };
    let command = match command {
        Command::ExampleConfig => return configuration::example(),
        Command::Completions { shell } => return configuration::completions(shell),
        command => command,
    };
    let path = config;
    let config = Config::read(&path)?;
    if let Some(named) = pair.as_ref().filter(|named| config.pairs.iter().all(|pair| pair.name != **named)) {
        return Err(Failure::usage(format!("there is no [pair.{named}] in the configuration")));
    }
    let context = Context { config, named: pair, output };
    match command {
        Command::Run => crate::daemon::run(context.config, &path).await,
        Command::CheckConfig => configuration::check(&context),
        Command::Init { print } => servers::init(&context, print).await,
        _ => Err(Failure::usage("not there yet")),
    }
}
