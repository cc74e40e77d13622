//! The epoch that counting calls name (docs/protocol.md, section 3.2).

use std::sync::Arc;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::family::Family;
use crate::family::calendar::Precision;
use crate::scripts::bundle::{self, borrowed, owned};
use crate::scripts::partition::Partition;
use crate::scripts::partition::settings::other_database;

/// The names that calls carry.
#[derive(Clone, Debug)]
pub struct Epoch {
    /// The current epoch.
    pub now: Arc<str>,
    /// The current generation of requests; empty for a kind without requests.
    pub generation: Arc<str>,
    /// The labels of the family's windows, if it is a series.
    pub labels: Arc<[Precision]>,
}

/// The part of a family's description that a process needs. Redis returns it with an epoch.
#[derive(Default, Deserialize)]
struct Description {
    #[serde(default)]
    labels: Vec<Precision>,
}

impl Partition {
    /// Returns the epoch of the calls whose home this partition is. `None` if the family was never
    /// configured in this Redis, or Redis lost its data.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if the family is of another kind, has another number of
    /// partitions, or belongs to another database.
    pub async fn epoch(&self, family: &Family, database: &str) -> Result<Option<Epoch>> {
        let args = [
            borrowed(family.kind()),
            owned(family.partitions()),
            borrowed(database),
            self.time(),
        ];
        let mut reply =
            bundle::repeat_safe(&self.redis, "family_epoch", &self.keys.home(), &args).await?;
        match reply.status() {
            "OK" => {
                let (now, generation) = (reply.text()?.into(), reply.text()?.into());
                let _kind_and_partitions = (reply.text()?, reply.text()?);
                let description = reply.text()?;
                // A description that this version cannot read yields no labels. A call of a series
                // then does not fit the windows in Redis, and is refused.
                let described: Description = serde_json::from_str(&description).unwrap_or_default();
                Ok(Some(Epoch {
                    now,
                    generation,
                    labels: described.labels.into(),
                }))
            }
            "UNCONFIGURED" => Ok(None),
            "MISMATCH" => {
                let (kind, partitions) = (reply.text()?, reply.number::<u32>()?);
                let (own_kind, own_partitions) = (family.kind(), family.partitions());
                if kind == own_kind && partitions == own_partitions {
                    return Err(other_database(family, &reply.text()?, database));
                }
                Err(Error::mismatch(format!(
                    "{family} is {kind} with {partitions} partitions, not {own_kind} with {own_partitions}"
                )))
            }
            _ => Err(reply.unexpected_reply()),
        }
    }
}
