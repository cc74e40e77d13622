//! The pair and the family that a request names, and exact reads of its counters.

use std::sync::Arc;

use axum::http::StatusCode;
use counterfoil::store::Registration;
use counterfoil::{AnyCounters, Counterfoil, ErrorKind, Family, Series};
use tokio::sync::SemaphorePermit;

use super::error::ErrorReply;
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

pub fn connected(pair: &PairState) -> Result<Counterfoil, ErrorReply> {
    let connected = pair.connected.borrow().clone();
    connected.ok_or_else(|| {
        ErrorReply::unavailable(format!("pair {}: not connected to Redis yet", pair.name))
            .advise("The status page shows the state of the servers")
    })
}

/// Returns whether the two settings of a family keep its counters in different places, for instance
/// in other partitions or in another table.
fn moves(family: &Family, other: &Family) -> bool {
    family
        .differences(other)
        .any(|(setting, ..)| !family.moves_nothing(setting))
}

/// Returns the family as the database has it.
async fn registered(
    pair: &PairState,
    counterfoil: &Counterfoil,
    name: &str,
) -> Result<Option<Registration>, ErrorReply> {
    if let Some(known) = pair.known(name) {
        return Ok(Some(known));
    }
    if !pair.view.borrow().mysql.up {
        let unknown = format!("MySQL is unavailable, and without it family {name:?} is unknown");
        return Err(ErrorReply::unavailable(unknown));
    }
    Ok(counterfoil.store().find(name).await?)
}

/// Returns the error for a family that neither the database nor the configuration has. If Redis has it,
/// a process that could not reach MySQL has opened it, and will register it.
async fn unknown(counterfoil: &Counterfoil, name: &str) -> ErrorReply {
    let in_redis = match name.split_once('/') {
        Some((namespace, family)) => {
            families::find_in_redis(counterfoil.redis(), namespace, family).await
        }
        None => None,
    };
    if in_redis.is_some() {
        return ErrorReply::unavailable(format!("family {name:?} is not in MySQL yet"));
    }
    ErrorReply::not_found(format!("no family {name:?}"))
        .advise("See /api/v1/families for all families")
}

impl App {
    /// Returns the pair `name`, or the only one.
    pub fn pair(&self, name: &Option<String>) -> Result<&Arc<PairState>, ErrorReply> {
        match (name, &self.pairs[..]) {
            (None, [only]) => Ok(only),
            (None, _) => {
                let several = "required, because there are several pairs";
                Err(ErrorReply::parameter("pair", several))
            }
            (Some(name), pairs) => {
                let found = pairs.iter().find(|pair| pair.name == *name);
                found.ok_or_else(|| ErrorReply::not_found(format!("no pair {name:?}")))
            }
        }
    }

    /// Returns the named pair, the only one whose configuration has the family, or the only one.
    pub fn pair_of(
        &self,
        pair: &Option<String>,
        family: &str,
    ) -> Result<&Arc<PairState>, ErrorReply> {
        let config = self.config.borrow();
        let mut pairs = self.pairs.iter().filter(|one| {
            let configured = config.pair(&one.name);
            configured.is_some_and(|configured| configured.family(family).is_some())
        });
        match (pair, pairs.next(), pairs.next()) {
            (None, Some(only), None) => Ok(only),
            (None, None, _) if self.pairs.len() > 1 => {
                let reply = ErrorReply::not_found(format!("no family {family:?} is configured"));
                Err(reply.advise("Name its pair if another program opens it"))
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
    ) -> Result<ServedFamily<'_>, ErrorReply> {
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
                let differs = format!(
                    "{name}: the daemon has it open with other settings than the database has"
                );
                let reply = ErrorReply::new(StatusCode::CONFLICT, differs);
                let advice = "Configure what the database has, and reload or restart the daemon";
                return Err(reply.advise(advice));
            }
            (_, Some(opened)) => opened,
            (Some(registered), None) if pair.serve.includes(registered.family.namespace()) => {
                counterfoil.open_registered(registered)?
            }
            // a configured pattern may describe a family that the worker has not opened yet,
            // because its namespace is used for the first time
            (registered, None) => match self.declared(pair, name) {
                Some(declared) => families::open(&counterfoil, &declared, name).await?,
                None if registered.is_some() => {
                    let other = format!("this daemon does not serve family {name}");
                    let advice = "Use `counterfoil get`, or add it to `serve`";
                    return Err(ErrorReply::not_found(other).advise(advice));
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

    pub fn wrong_kind(&self, expected: &str) -> ErrorReply {
        let (name, kind) = (&self.name, self.family().kind());
        let wrong = format!("{name} has the kind {kind}, not {expected}");
        ErrorReply::parameter("family", wrong)
    }

    /// Returns exact values in the order of the ids. For visitors, ids are `SCOPE/DAY`.
    pub async fn values(&self, ids: &[String]) -> Result<Vec<Option<i64>>, ErrorReply> {
        match families::read_values(&self.counters, ids).await {
            Ok(Some(values)) => Ok(values),
            Ok(None) => Err(self.wrong_kind("buffered, cached or visitors")),
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                Err(ErrorReply::parameter("id", error))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub fn series(&self) -> Result<&Series, ErrorReply> {
        match &self.counters {
            AnyCounters::Series(series) => Ok(series),
            _ => Err(self.wrong_kind("series")),
        }
    }
}
