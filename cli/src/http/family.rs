//! The pair and the family that a request names, and exact reads of its counters.

use std::sync::Arc;

use counterfoil::store::Registered;
use counterfoil::{AnyCounters, Counterfoil, Error, ErrorKind, Family, Series};
use tokio::sync::SemaphorePermit;

use super::problem::Problem;
use super::{App, read_permit};
use crate::config::FamilyConfig;
use crate::families;
use crate::state::PairState;

/// A family that the daemon serves, with the connections to read it.
///
/// It holds a permit to query the servers.
pub struct ServedFamily<'a> {
    pub name: String,
    pub pair: Arc<PairState>,
    pub counterfoil: Counterfoil,
    pub counters: AnyCounters,
    _permit: SemaphorePermit<'a>,
}

pub fn connected(pair: &PairState) -> Result<Counterfoil, Problem> {
    let connected = pair.connected.borrow().clone();
    connected.ok_or_else(|| {
        Problem::unavailable(format!("pair {}: not connected to Redis yet", pair.name))
            .advise("the status page shows the state of the servers")
    })
}

/// Returns whether counters of the family are elsewhere with the other's settings.
fn moves(family: &Family, other: &Family) -> bool {
    let mut differences = family.differences(other);
    differences.any(|(setting, ..)| !family.moves_nothing(setting))
}

/// Returns the family as the database has it.
async fn registered(
    pair: &PairState,
    counterfoil: &Counterfoil,
    name: &str,
) -> Result<Option<Registered>, Problem> {
    if let Some(known) = pair.known(name) {
        return Ok(Some(known));
    }
    if !pair.view.borrow().mysql.up {
        let unknown = format!("MySQL is unavailable, and without it family {name:?} is unknown");
        return Err(Problem::unavailable(unknown));
    }
    Ok(counterfoil.store().find(name).await?)
}

/// Returns the error for a family that neither the database nor the configuration has. If Redis has it,
/// a process that could not reach MySQL has opened it, and will register it.
async fn unknown(counterfoil: &Counterfoil, name: &str) -> Problem {
    let in_redis = match name.split_once('/') {
        Some((namespace, family)) => {
            families::settings_in_redis(counterfoil.redis(), namespace, family).await
        }
        None => None,
    };
    if in_redis.is_some() {
        return Problem::unavailable(format!("family {name:?} is not in MySQL yet"));
    }
    Problem::not_found(format!("no family {name:?}"))
        .advise("see /api/v1/families for all families")
}

impl App {
    /// Returns the pair `name`, or the only one.
    pub fn pair(&self, name: &Option<String>) -> Result<&Arc<PairState>, Problem> {
        match (name, &self.pairs[..]) {
            (None, [only]) => Ok(only),
            (None, _) => {
                let several = "required, because there are several pairs";
                Err(Problem::parameter("pair", several))
            }
            (Some(name), pairs) => {
                let found = pairs.iter().find(|pair| pair.name == *name);
                found.ok_or_else(|| Problem::not_found(format!("no pair {name:?}")))
            }
        }
    }

    /// Returns the named pair, the only one whose configuration has the family, or the only one.
    pub fn pair_of(&self, pair: &Option<String>, family: &str) -> Result<&Arc<PairState>, Problem> {
        let config = self.config.borrow();
        let has_it = |one: &&Arc<PairState>| {
            let pair = config.pair(&one.name);
            pair.is_some_and(|pair| pair.family(family).is_some())
        };
        let mut pairs = self.pairs.iter().filter(has_it);
        match (pair, pairs.next(), pairs.next()) {
            (None, Some(only), None) => Ok(only),
            (None, None, _) if self.pairs.len() > 1 => {
                let problem = Problem::not_found(format!("no family {family:?} is configured"));
                Err(problem.advise("name its pair if another program opens it"))
            }
            _ => self.pair(pair),
        }
    }

    /// Returns the current configuration of a pair's family.
    fn declared(&self, pair: &PairState, family: &str) -> Option<FamilyConfig> {
        let config = self.config.borrow();
        config.pair(&pair.name)?.family(family).cloned()
    }

    /// Returns the family `name` of a pair. It need not be known yet: any process may have registered
    /// it a moment ago. A family that is not served stays closed, because opening it would start to
    /// serve it.
    pub async fn family(
        &self,
        pair: &Option<String>,
        name: &str,
    ) -> Result<ServedFamily<'_>, Problem> {
        let pair = self.pair_of(pair, name)?;
        let counterfoil = connected(pair)?;
        let permit = read_permit(pair).await?;
        let registered = registered(pair, &counterfoil, name).await?;
        let opened = match &registered {
            Some(registered) => counterfoil.find_open(&registered.family).transpose()?,
            None => None,
        };
        let counters = match (registered, opened) {
            (Some(registered), Some(opened)) if moves(opened.family(), &registered.family) => {
                let differs = "the daemon has it open with other settings than the database has";
                let differs = format!("{name}: {differs}");
                return Err(Error::new(ErrorKind::Mismatch, differs).into());
            }
            (_, Some(opened)) => opened,
            (Some(registered), None) if pair.serve.includes(registered.family.namespace()) => {
                counterfoil.open_registered(registered)?
            }
            // a declared family that the worker has not opened yet, such as the first use of a namespace
            (registered, None) => match self.declared(pair, name) {
                Some(declared) => families::open(&counterfoil, &declared, name).await?,
                None if registered.is_some() => {
                    let other = format!("this daemon does not serve family {name}");
                    let advice = "use `counterfoil get`, or add it to `serve`";
                    return Err(Problem::not_found(other).advise(advice));
                }
                None => return Err(unknown(&counterfoil, name).await),
            },
        };
        Ok(ServedFamily {
            name: name.to_owned(),
            pair: pair.clone(),
            counterfoil,
            counters,
            _permit: permit,
        })
    }
}

impl ServedFamily<'_> {
    pub fn family(&self) -> &Family {
        self.counters.family()
    }

    pub fn wrong_kind(&self, expected: &str) -> Problem {
        let (name, kind) = (&self.name, self.family().kind());
        let wrong = format!("{name} has the kind {kind}, not {expected}");
        Problem::parameter("family", wrong)
    }

    /// Returns exact values in the order of the ids. For visitors, ids are `SCOPE/DAY`.
    pub async fn values(&self, ids: &[String]) -> Result<Vec<Option<i64>>, Problem> {
        match families::values(&self.counters, ids).await {
            Ok(Some(values)) => Ok(values),
            Ok(None) => Err(self.wrong_kind("buffered, cached or visitors")),
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                Err(Problem::parameter("id", error))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub fn series(&self) -> Result<&Series, Problem> {
        match &self.counters {
            AnyCounters::Series(series) => Ok(series),
            _ => Err(self.wrong_kind("series")),
        }
    }
}
