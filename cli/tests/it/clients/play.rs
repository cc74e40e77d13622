//! Playing a scenario with a client.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use counterfoil::redis;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use testkit::{Fate, Runner};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::language::{Language, Library, STAND_IN};
use super::scenario::{Call, ClientEvent, Deltas, Disturbance, Expected, Need, Scenario, Step};
use super::stage::{Stage, faketime};
use crate::support::eventually;

/// Why a scenario was not passed.
#[derive(Debug)]
pub enum Trouble {
    Skipped(String),
    Failed(String),
}

impl From<String> for Trouble {
    fn from(problem: String) -> Self {
        Trouble::Failed(problem)
    }
}

/// The deltas that a client counted for each id of each family: for certain, and at most.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<(String, String), (i64, i64)>);

/// A scenario that is played.
pub struct Play<'a> {
    pub stage: &'a Stage,
    pub language: &'a Language,
    pub library: &'a Library,
    pub installed: &'a Path,
    pub scenario: &'a Scenario,
    pub namespace: String,
    pub seed: u64,
}

/// Plays a scenario that only makes calls with the package's stand-in in memory.
pub async fn in_memory(
    language: &Language,
    installed: &Path,
    scenario: &Scenario,
) -> Result<(), Trouble> {
    let open = json!({
        "library": STAND_IN.name,
        "namespace": scenario.name,
        // as `families.toml` declares them
        "families": {
            "votes": {"min": 0, "max": 1000},
            "hits": {"windows": ["60s", "day"]},
        },
    });
    let mut runner = Runner::start(language.package, installed, &[], &open).await?;
    for step in &scenario.steps {
        let Step::Call(call) = step else {
            return Err(format!("{step:?} needs servers").into());
        };
        for time in 0..call.times {
            let number = runner.call(line(call, time)?).await?;
            let reply = runner.reply(number).await?;
            if let Some(problem) = call.expected().problem(&reply) {
                return Err(format!("{}: {problem}", call.call).into());
            }
        }
    }
    Ok(runner.end().await?)
}

/// The state of a scenario that is being played.
struct Going {
    runner: Runner,
    /// Calls whose replies were not awaited.
    open: HashMap<String, (u64, Call)>,
    events: Vec<JoinHandle<()>>,
    tally: Tally,
}

impl Play<'_> {
    /// Plays the scenario up to what Redis has at the end. Returns what the client counted.
    pub async fn play(&self) -> Result<Tally, Trouble> {
        if let Some(reason) = self.lacking() {
            return Err(Trouble::Skipped(reason));
        }
        self.stage.configured(&self.namespace).await;
        let runner = self.start().await?;
        let (open, events) = (HashMap::new(), vec![]);
        let mut going = Going {
            runner,
            open,
            events,
            tally: Tally::default(),
        };
        for step in &self.scenario.steps {
            self.step(step, &mut going).await?;
        }
        going.runner.end().await?;
        for event in going.events {
            event.await.map_err(|error| error.to_string())?;
        }
        self.check_redis().await?;
        Ok(going.tally)
    }

    fn lacking(&self) -> Option<String> {
        let lacks = self.library.lacks.iter();
        let mut lacks = lacks.filter(|(need, _)| self.scenario.needs.contains(need));
        if let Some((_, reason)) = lacks.next() {
            return Some((*reason).to_owned());
        }
        let clock = self.scenario.needs.contains(&Need::Clock) && faketime().is_none();
        clock.then(|| "libfaketime is not installed".to_owned())
    }

    async fn start(&self) -> Result<Runner, String> {
        let mut options = self.scenario.options.clone();
        // the machine is busy, and Redis may be down for some seconds
        options.entry("retry_for").or_insert(json!(10));
        options.insert("daemon".to_owned(), self.stage.daemon.url("").into());
        let (kind, address) = self.stage.address();
        let open = json!({
            "library": self.library.name,
            kind: address,
            "namespace": self.namespace,
            "own": self.scenario.own,
            "timeout": self.scenario.timeout,
            // only the crate reads and writes it
            "mysql": self.stage.site.mysql_url,
            "options": options,
        });
        let mut environment = vec![];
        if self.scenario.needs.contains(&Need::Clock) {
            // a restart keeps it
            if !self.clock().exists() {
                self.set_clock(0);
            }
            let library = faketime().ok_or("no libfaketime")?;
            for (name, value) in [
                ("LD_PRELOAD", library.display().to_string()),
                (
                    "FAKETIME_TIMESTAMP_FILE",
                    self.clock().display().to_string(),
                ),
                ("FAKETIME_NO_CACHE", "1".to_owned()),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ] {
                environment.push((name.to_owned(), value));
            }
        }
        Runner::start(self.language.package, self.installed, &environment, &open).await
    }

    fn clock(&self) -> std::path::PathBuf {
        self.stage
            .site
            .folder()
            .join(format!("{}.clock", self.namespace))
    }

    fn set_clock(&self, offset: i64) {
        fs::write(self.clock(), format!("{offset:+}")).expect("written");
    }

    async fn step(&self, step: &Step, going: &mut Going) -> Result<(), Trouble> {
        match step {
            Step::Call(call) => self.calls(std::slice::from_ref(call), going).await?,
            Step::Together { together } => self.calls(together, going).await?,
            Step::Await { wait_for, expected } => {
                let open = going.open.remove(wait_for);
                let (number, call) = open.ok_or(format!("no call {wait_for} is open"))?;
                going.settle(number, &call, expected).await?;
            }
            Step::Network {
                network,
                of,
                bytes,
                after_ms,
                times,
            } => {
                let mut random = StdRng::seed_from_u64(self.seed);
                let after = Duration::from_millis(*after_ms);
                for _ in 0..*times {
                    self.stage
                        .disturb(of, fate(*network, *bytes, after, &mut random));
                }
            }
            Step::Connections { connections } => self.stage.connections(*connections),
            Step::Redis { redis } => going
                .events
                .extend(self.stage.event(*redis, &self.namespace).await),
            Step::Command { command } => {
                let words = command.iter();
                let words = words.map(|word| word.replace("NAMESPACE", &self.namespace));
                let mut command = redis::Cmd::new();
                for word in words {
                    command.arg(word);
                }
                let done: Option<redis::Value> = self.stage.ask(&command).await;
                done.ok_or(format!("{step:?} failed"))?;
            }
            Step::Sql { sql } => {
                let statement = sql.replace("NAMESPACE", &self.namespace);
                self.stage.site.sql(&statement).await;
            }
            Step::Client { client } => self.client(*client, going).await?,
            Step::Clock { clock } => self.set_clock(*clock),
            Step::Pending { pending } => {
                eventually(&format!("{pending:?} in Redis"), async || {
                    self.check_pending(pending).await.is_ok()
                })
                .await;
            }
            Step::Pause { pause_ms } => sleep(Duration::from_millis(*pause_ms)).await,
        }
        Ok(())
    }

    async fn client(&self, event: ClientEvent, going: &mut Going) -> Result<(), Trouble> {
        match event {
            ClientEvent::Suspend => going.runner.signal("STOP"),
            ClientEvent::Resume => going.runner.signal("CONT"),
            ClientEvent::Restart => {
                std::mem::replace(&mut going.runner, self.start().await?)
                    .end()
                    .await?;
            }
            ClientEvent::Kill => {
                going.runner.signal("KILL");
                going.runner = self.start().await?;
            }
        }
        Ok(())
    }

    /// Makes calls at a time, and waits for those whose replies have no name.
    async fn calls(&self, calls: &[Call], going: &mut Going) -> Result<(), Trouble> {
        let (mut made, began) = (vec![], Instant::now());
        for call in calls {
            for time in 0..call.times {
                let number = going.runner.call(line(call, time)?).await?;
                match &call.reply {
                    Some(name) => drop(going.open.insert(name.clone(), (number, call.clone()))),
                    None => made.push((number, call)),
                }
            }
        }
        for (number, call) in made {
            going.settle(number, call, &call.expected()).await?;
            let (took, most) = (began.elapsed(), call.within_ms.map(Duration::from_millis));
            if most.is_some_and(|most| took > most) {
                let times = call.times;
                return Err(format!("{times} {} took {took:?}", call.call).into());
            }
        }
        Ok(())
    }

    async fn check_pending(&self, all: &Deltas) -> Result<(), String> {
        for (family, expected) in all {
            let pending = self.stage.pending(&self.namespace, family).await;
            if pending != *expected {
                return Err(format!(
                    "Redis has {pending:?} in {family} instead of {expected:?}"
                ));
            }
        }
        Ok(())
    }

    async fn check_redis(&self) -> Result<(), String> {
        self.check_pending(&self.scenario.redis).await?;
        if self.scenario.callers_at_most.is_none() && self.scenario.calls_at_most.is_none() {
            return Ok(());
        }
        let (callers, calls) = self.stage.callers(&self.namespace, "views").await;
        let too_many = self
            .scenario
            .callers_at_most
            .is_some_and(|most| callers > most);
        if too_many || self.scenario.calls_at_most.is_some_and(|most| calls > most) {
            return Err(format!("{callers} callers made {calls} calls"));
        }
        Ok(())
    }

    /// Compares MySQL, once everything is saved, with what the scenario expects and what the client
    /// counted.
    pub async fn check_mysql(&self, tally: &Tally) -> Result<(), String> {
        if self.scenario.needs.contains(&Need::Description) {
            return Ok(()); // no database has its families
        }
        for (family, expected) in &self.scenario.mysql {
            let saved = self.stage.saved(&self.namespace, family).await;
            if saved != *expected {
                return Err(format!(
                    "MySQL has {saved:?} in {family} instead of {expected:?}"
                ));
            }
        }
        for ((family, id), (least, most)) in &tally.0 {
            let saved = self.stage.saved(&self.namespace, family).await;
            let saved = saved.get(id).copied().unwrap_or(0);
            if !(least..=most).contains(&&saved) {
                let counted = format!("the client counted {least} to {most}");
                return Err(format!(
                    "MySQL has {saved} for {id} of {family}, and {counted}"
                ));
            }
        }
        Ok(())
    }
}

impl Going {
    async fn settle(
        &mut self,
        number: u64,
        call: &Call,
        expected: &Expected,
    ) -> Result<(), Trouble> {
        let reply = self.runner.reply(number).await?;
        if let Some(reason) = reply["skipped"].as_str() {
            return Err(Trouble::Skipped(reason.to_owned()));
        }
        if let Some(problem) = expected.problem(&reply) {
            return Err(format!("{}: {problem}", call.call).into());
        }
        self.tally.add(call, &reply);
        Ok(())
    }
}

impl Tally {
    fn add(&mut self, call: &Call, reply: &Value) {
        let (family, method) = call.call.split_once('.').expect("FAMILY.METHOD");
        let mut count = |pair: &Value, error: &Value| {
            let id = pair[0].as_str().unwrap_or_default().to_owned();
            let delta = pair[1].as_i64().unwrap_or(1);
            let (least, most) = self.0.entry((family.to_owned(), id)).or_default();
            if error.is_null() {
                *least += delta;
                *most += delta;
            } else if error == "outcome_unknown" {
                *least += delta.min(0);
                *most += delta.max(0);
            }
        };
        match method {
            _ if family == "hits" => {}
            "add" | "incr" => count(&json!(call.args), &reply["error"]),
            "add_once" if reply["returns"] != false => {
                count(&json!([call.args[1], call.args.get(2)]), &reply["error"]);
            }
            // it returns the same value when it counted before
            "incr_once" => count(
                &json!([call.args[1], call.args.get(2)]),
                &json!("outcome_unknown"),
            ),
            // a flush settles it
            "later" => count(&json!(call.args), &json!("outcome_unknown")),
            "add_many" => {
                let pairs = call.args[0].as_array().into_iter().flatten();
                for (pair, reply) in pairs.zip(reply["returns"].as_array().into_iter().flatten()) {
                    count(pair, &reply["error"]);
                }
            }
            _ => {}
        }
    }
}

/// Returns the line of a call for a runner.
fn line(call: &Call, time: usize) -> Result<Value, String> {
    let split = call.call.split_once('.');
    let (family, method) = split.ok_or(format!("{} has no method", call.call))?;
    let kind = match family {
        "votes" | "files" | "stock" => "cached",
        "hits" => "series",
        "readers" => "activity",
        "daily" | "visits" | "visits_by_text" => "visitors",
        _ => "buffered",
    };
    Ok(json!({
        "kind": kind,
        "family": family,
        "call": method,
        "args": call.args,
        "as": call.r#as.replace('*', &time.to_string()),
    }))
}

/// Returns what happens to a request, drawn at random if it may be anything.
fn fate(disturbance: Disturbance, bytes: usize, after: Duration, random: &mut StdRng) -> Fate {
    match disturbance {
        Disturbance::LoseRequest => Fate::RequestLost { passed: bytes },
        Disturbance::LoseReply => Fate::ReplyLost { passed: bytes },
        Disturbance::Duplicate => Fate::Twice { after },
        Disturbance::Late => Fate::Late { after },
        Disturbance::Any => {
            let passed = random.random_range(0..40);
            let after = Duration::from_millis(random.random_range(0..300));
            match random.random_range(0..4) {
                0 => Fate::RequestLost { passed },
                1 => Fate::ReplyLost { passed },
                2 => Fate::Twice { after },
                _ => Fate::Late { after },
            }
        }
    }
}
