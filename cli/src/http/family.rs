//! The pair and the family that a request names, and exact reads of its counters.

use std::sync::Arc;

use counterfoil::{AnyCounters, Counterfoil, Error, ErrorKind, Family, Series};
use tokio::sync::SemaphorePermit;

use super::App;
use super::problem::Problem;
use crate::daemon::state::PairState;
use crate::families;
use crate::status::FamilyView;

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

    /// Returns the family `name` of a pair. A family that is not served stays closed, because
    /// opening it would start to serve it.
    pub async fn family(
        &self,
        pair: &Option<String>,
        name: &str,
    ) -> Result<ServedFamily<'_>, Problem> {
        let pair = self.pair_of(pair, name)?;
        let counterfoil = connected(pair)?;
        // before the families that are not served, which are published first
        let mut registered = pair.known(name);
        let view = pair.view.borrow().clone();
        if view.not_served.iter().any(|other| other == name) {
            let problem = Problem::not_found(format!("this daemon does not serve family {name}"));
            return Err(problem.advise("use `counterfoil get`, or add it to `serve`"));
        }
        let permit = self.query_permit().await?;
        let is_it = |one: &FamilyView| one.served && one.name() == name;
        // opened after the daemon last read the database's families
        if registered.is_none() && view.families.iter().any(is_it) {
            registered = counterfoil.store().find(name).await?;
        }
        let registered = registered.ok_or_else(|| {
            if !view.mysql.up {
                Problem::unavailable(format!(
                    "MySQL is unavailable, and without it family {name:?} is unknown"
                ))
            } else if !pair.has_read_families() {
                Problem::unavailable("the daemon has not read the families of MySQL yet")
            } else {
                Problem::not_found(format!("no family {name:?}"))
                    .advise("see /api/v1/families for all families")
            }
        })?;
        let counters = match counterfoil.find_open(&registered.family) {
            Some(Ok(opened)) if moves(opened.family(), &registered.family) => {
                let differs = "the daemon has it open with other settings than the database has";
                let differs = format!("{name}: {differs}");
                return Err(Error::new(ErrorKind::Mismatch, differs).into());
            }
            Some(opened) => opened?,
            None => counterfoil.open_registered(registered)?,
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
    pub async fn values(&self, ids: &[String]) -> Result<Vec<i64>, Problem> {
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
