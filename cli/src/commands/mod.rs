//! The commands, with a file for each group.

mod changes;
mod configuration;
mod counters;
mod daemon_state;
mod draining;
mod privileges;
mod purge;
mod recounts;
mod rejects;
mod sandbox;
mod scripts;
mod servers;
mod set_backs;
mod setup;
mod status;

use std::path::Path;

use counterfoil::store::Registration;
use counterfoil::{AnyCounters, Counterfoil, Store};

use crate::arguments::{Arguments, Command, FamilyCommand, Scripts};
use crate::config::{Config, PairConfig};
use crate::exit::{Exit, Failure};
use crate::families;
use crate::limits::{TIMEOUT, with_timeout};
use crate::output::{Output, show_config};
use crate::pair;
use crate::reason::Reason;

/// The advice for a Redis that cannot be reached.
const CONNECT_ADVICE: &str = "Check that Redis is running, and its address and password";

/// The context of most commands.
pub struct Context {
    /// The configuration with the pair that `--pair` names, or all.
    pub config: Config,
    pub output: Output,
}

impl Context {
    fn read(path: &Path, named: Option<String>, output: Output) -> Result<Self, Failure> {
        let mut config = Config::read(path).map_err(Failure::usage)?;
        if let Some(named) = named {
            config.pairs.retain(|pair| pair.name == named);
            if config.pairs.is_empty() {
                return Err(Failure::usage(format!(
                    "the configuration has no [pair.{named}]"
                )));
            }
        }
        Ok(Context { config, output })
    }

    /// Returns the one pair that the command is about.
    pub fn pair(&self) -> Result<&PairConfig, Failure> {
        match &self.config.pairs[..] {
            [only] => Ok(only),
            _ => Err(Failure::usage(
                "the configuration has several pairs: name one with --pair",
            )),
        }
    }

    /// Returns the pair of NAMESPACE/FAMILY: the named one, the one whose configuration has the
    /// family, or the only one.
    pub fn pair_of(&self, family: &str) -> Result<&PairConfig, Failure> {
        let mut found = self
            .config
            .pairs
            .iter()
            .filter(|pair| pair.family(family).is_some());
        match (found.next(), found.next()) {
            (Some(pair), None) => Ok(pair),
            (Some(_), Some(_)) => Err(Failure::usage(format!(
                "several pairs have family {family}: name one with --pair"
            ))),
            (None, _) => self.pair(),
        }
    }
}

/// Opens a family to count in it, as configured or else as in the database.
pub async fn open(
    pair: &PairConfig,
    counterfoil: &Counterfoil,
    family: &str,
) -> Result<AnyCounters, Failure> {
    if let Some(configured) = pair.family(family) {
        return Ok(families::open(counterfoil, configured, family).await?);
    }
    match counterfoil.store().find(family).await? {
        Some(registered) => Ok(counterfoil.open_registered(registered)?),
        None => Err(Failure::usage(format!(
            "family {family} is neither in the configuration nor in the database"
        ))),
    }
}

/// Returns the family NAMESPACE/FAMILY as it is registered.
pub async fn find_registered(store: &dyn Store, name: &str) -> Result<Registration, Failure> {
    let found = store.find(name).await?;
    found.ok_or_else(|| Failure::usage(format!("the database has no family {name}")))
}

/// Connects to a pair. The error names the pair.
pub async fn connect(pair: &PairConfig) -> Result<Counterfoil, Failure> {
    try_connect(pair)
        .await
        .map_err(Failure::of_pair(&pair.name))
}

/// Returns the advice about a Redis that was not connected to.
fn connect_advice(why: &Reason) -> &str {
    let advice = why.advice.as_ref();
    advice.map_or(CONNECT_ADVICE, |advice| &advice.what_to_do)
}

async fn try_connect(pair: &PairConfig) -> Result<Counterfoil, Failure> {
    with_timeout(TIMEOUT, pair::connect(pair))
        .await
        .map_err(|why| Failure::critical(format!("{why}. {}", connect_advice(&why))))
}

/// Runs the command.
pub async fn execute(arguments: Arguments) -> Result<Exit, Failure> {
    let Arguments {
        config,
        pair,
        json,
        command,
    } = arguments;
    if let Some(name) = command.without_json().filter(|_| json) {
        return Err(Failure::usage(format!(
            "{name} prints no JSON: leave out --json"
        )));
    }
    let output = Output { json };
    let named = pair.clone();
    // setup with private servers has another one
    if !matches!(command, Command::Setup { .. }) {
        show_config(&config);
    }
    let context = || Context::read(&config, pair, output);
    match command {
        Command::Run => crate::daemon::run(context()?.config, &config).await,
        Command::CheckConfig => configuration::check(&context()?),
        Command::ExampleConfig => configuration::example(output),
        Command::Init { print: true } => servers::print_schema(output),
        Command::Init { print: false } => servers::init(&context()?).await,
        Command::Check => servers::check(&context()?).await,
        Command::Status { late } => status::status(&context()?, late).await,
        Command::Get {
            family,
            ids,
            precision,
        } => counters::get(&context()?, &family, &ids, precision).await,
        Command::Add {
            family,
            id,
            delta,
            request,
        } => counters::add(&context()?, &family, &id, delta, request.as_deref()).await,
        Command::List {
            family,
            prefix,
            after,
            limit,
        } => counters::list(&context()?, &family, &prefix, after, limit).await,
        Command::Pending => status::pending(&context()?).await,
        Command::Drain { timeout } => draining::drain(&context()?, timeout).await,
        Command::Rejects { command } => rejects::execute(&context()?, command).await,
        Command::SetBacks { command } => set_backs::execute(&context()?, command).await,
        Command::Recount { family, report } => {
            recounts::recount(&context()?, &family, report).await
        }
        Command::Drift { family, run } => recounts::drift(&context()?, &family, run).await,
        Command::Reconfigure { family, dry_run } => {
            changes::reconfigure(&context()?, &family, dry_run).await
        }
        Command::Family {
            command:
                FamilyCommand::Remove {
                    family,
                    yes,
                    dry_run,
                },
        } => changes::remove(&context()?, &family, yes, dry_run).await,
        Command::Adopt {
            namespace,
            yes,
            dry_run,
        } => changes::adopt(&context()?, &namespace, yes, dry_run).await,
        Command::Purge { yes, dry_run } => purge::purge(&context()?, yes, dry_run).await,
        Command::Acl { of } => privileges::acl(&context()?, &of).await,
        Command::Grants { of } => privileges::grants(&context()?, &of).await,
        Command::Scripts {
            command: Scripts::List,
        } => scripts::list(output),
        Command::Scripts {
            command: Scripts::Export { folder },
        } => scripts::export(output, &folder),
        Command::Scripts {
            command: Scripts::Load,
        } => scripts::load(&context()?).await,
        Command::Sandbox {
            redis_server,
            command,
        } => sandbox::run(&context()?, &redis_server, &command).await,
        Command::Healthcheck { ready } => daemon_state::health(context(), ready).await,
        Command::Setup { setup } => setup::run(&config, named, &setup).await,
        Command::Completions { shell } => configuration::completions(output, shell),
        Command::Man { folder } => configuration::man(output, folder.as_deref()),
    }
}
