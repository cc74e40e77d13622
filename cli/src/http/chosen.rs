//! The pair and the family that a request names.

use std::sync::Arc;

use counterfoil::{Counterfoil, Registered};

use super::App;
use super::params::Params;
use super::problem::Problem;
use crate::daemon::live::LivePair;

/// A family that the daemon serves, with the connection to read it.
pub struct Chosen {
    pub name: String,
    pub pair_name: String,
    pub pair: Counterfoil,
    pub registered: Registered,
}

impl Chosen {
    pub fn kind(&self) -> &'static str {
        self.registered.family.kind()
    }

    pub fn is_no(&self, kinds: &str) -> Problem {
        Problem::parameter(
            "family",
            format!(
                "{} is a family of the kind {}, not {kinds}",
                self.name,
                self.kind()
            ),
        )
    }
}

impl App {
    /// Returns the pair that the parameter `pair` names, or the only one.
    pub fn live_pair(&self, params: &Params) -> Result<&Arc<LivePair>, Problem> {
        let named = params.first("pair");
        self.live.pair(named).ok_or_else(|| match named {
            Some(named) => Problem::not_found(format!("there is no pair {named:?}")),
            None => Problem::parameter("pair", "it is missing, and there are several"),
        })
    }

    pub fn connected(&self, live: &LivePair) -> Result<Counterfoil, Problem> {
        let away =
            || Problem::unavailable(format!("pair {}: Redis was not reached yet", live.name));
        live.pair()
            .ok_or_else(|| away().advise("/readyz says when it is there"))
    }

    /// Returns the family that the parameter `family` names. A family that is not served stays
    /// closed, because opening it would start to serve it.
    pub async fn family(&self, params: &Params) -> Result<Chosen, Problem> {
        let (live, name) = (self.live_pair(params)?, params.required("family")?);
        let pair = self.connected(live)?;
        let view = live.view.borrow().clone();
        if view.not_served.iter().any(|other| other == name) {
            let problem =
                Problem::not_found(format!("the family {name} is not served by this daemon"));
            return Err(problem
                .advise("ask with `counterfoil get`, or let the configuration's `serve` have it"));
        }
        let registered = match live.known(name) {
            Some(registered) => Some(registered),
            // opened after the daemon last read the database's families
            None if view
                .families
                .iter()
                .any(|family| family.status.name() == name) =>
            {
                self.read(&pair, name).await?
            }
            None => None,
        };
        let registered = registered.ok_or_else(|| {
            if view.mysql.up {
                Problem::not_found(format!("there is no family {name:?}"))
                    .advise("/api/v1/families lists them")
            } else {
                Problem::unavailable(format!(
                    "MySQL is away, and the family {name:?} is not known without it"
                ))
            }
        })?;
        Ok(Chosen {
            name: name.to_owned(),
            pair_name: live.name.clone(),
            pair,
            registered,
        })
    }

    /// Reads the family from the database.
    async fn read(&self, pair: &Counterfoil, name: &str) -> Result<Option<Registered>, Problem> {
        let _turn = self.turn().await?;
        let families = pair
            .store()
            .families()
            .await?
            .into_iter()
            .filter_map(Result::ok);
        Ok(families
            .into_iter()
            .find(|registered| registered.family.to_string() == name))
    }
}
