//! A family in use by this process.

use std::collections::HashMap;
use std::sync::Arc;

use ::metrics::SharedString;
use parking_lot::RwLock;

use crate::error::Result;
use crate::family::Family;
use crate::metrics;
use crate::process::work::{FamilySlot, PartitionId};
use crate::scripts::counting::PairResult;
use crate::store::{Columns, Incarnation, Registration};

/// The reason why hits are refused after a shutdown.
pub const SHUT_DOWN: &str = "the pair was shut down";

/// A family in use by this process.
#[derive(Debug)]
pub struct OpenFamily {
    pub slot: FamilySlot,
    pub family: Family,
    /// Set if a reconciler found the family in the database. It is replaced when the process itself
    /// opens the family.
    pub is_served: bool,
    /// The family as registered in the database, once it is.
    registered: RwLock<Option<Arc<Registration>>>,
    /// The family's name as a metrics label, cheap to clone.
    pub label: SharedString,
    /// The incarnations that exact reads guess.
    pub incarnations: Incarnations,
}

impl OpenFamily {
    pub fn new(slot: FamilySlot, family: Family, registered: Option<Arc<Registration>>) -> Self {
        let label = Arc::<str>::from(family.name()).into();
        OpenFamily {
            slot,
            family,
            is_served: false,
            registered: RwLock::new(registered),
            label,
            incarnations: Incarnations::default(),
        }
    }

    /// Returns its partition of this number.
    pub fn partition(&self, number: u32) -> PartitionId {
        PartitionId {
            family: self.slot,
            number,
        }
    }

    /// Opens the family again if it is configured as before, and stores what the database says of
    /// it: its number if that was unknown, and its columns. Returns false if it is another one.
    pub fn try_reopen(&self, family: &Family, registered: Option<&Arc<Registration>>) -> bool {
        if self.is_served || self.family != *family {
            return false;
        }
        let Some(registered) = registered else {
            return true;
        };
        let known = self
            .registered
            .write()
            .get_or_insert_with(|| registered.clone())
            .clone();
        if known != *registered {
            return false;
        }
        self.set_columns(registered.columns.clone());
        true
    }

    /// Returns the family as registered in the database, if that is known. It is `None` until the
    /// database has registered it.
    pub fn known(&self) -> Option<Arc<Registration>> {
        self.registered.read().clone()
    }

    /// Stores the family as registered in the database, unless that is known. Returns what is known.
    pub fn first_registered(&self, registered: Registration) -> Arc<Registration> {
        let mut known = self.registered.write();
        known.get_or_insert_with(|| Arc::new(registered)).clone()
    }

    /// Stores the family as registered in the database now.
    pub fn registered_otherwise(&self, registered: Registration) {
        *self.registered.write() = Some(Arc::new(registered));
    }

    /// Stores the columns of the family's table.
    pub fn set_columns(&self, columns: Option<Arc<Columns>>) {
        if let Some(registered) = &mut *self.registered.write()
            && registered.columns != columns
        {
            Arc::make_mut(registered).columns = columns;
        }
    }

    /// Refuses an id that can have no row, or a name or page whose kept ids can have none.
    pub fn check_given(&self, id: &str) -> Result<()> {
        if self.family.table.is_none() {
            return self.family.check_given(id, None);
        }
        let registered = self.registered.read();
        let columns = registered
            .as_ref()
            .and_then(|known| known.columns.as_deref());
        self.family.check_given(id, columns)
    }

    /// Records the outcomes of hits in the metrics; `None` for an unknown outcome.
    pub fn measure(&self, hits: impl IntoIterator<Item = (u64, Option<PairResult>)>) {
        let (mut counted, mut range, mut full, mut unknown) = (0, 0, 0, 0);
        for (hits, result) in hits {
            match result {
                Some(PairResult::Counted(_) | PairResult::First | PairResult::Repeated) => {
                    counted += hits;
                }
                Some(PairResult::OutOfRange(_) | PairResult::Beyond) => range += hits,
                Some(PairResult::Full) => full += hits,
                None => unknown += hits,
                // a missing counter is retried with a seed, a request was counted by an earlier call;
                // other results are not a hit's own fault
                Some(_) => {}
            }
        }
        let add = |name, hits| {
            if hits > 0 {
                metrics::count(name, &self.label, hits);
            }
        };
        add(metrics::HITS, counted);
        add(metrics::UNKNOWN, unknown);
        for (reason, hits) in [("range", range), ("full", full)] {
            if hits > 0 {
                let family = self.label.clone();
                ::metrics::counter!(metrics::REFUSED, "family" => family, "reason" => reason)
                    .increment(hits);
            }
        }
    }
}

/// The last known incarnation of each partition. An exact read guesses that it is still current, so
/// that it can query the database and Redis at the same time. After a wrong guess the database's
/// reply is discarded.
#[derive(Debug, Default)]
pub struct Incarnations(RwLock<HashMap<u32, Incarnation>>);

impl Incarnations {
    pub fn guess(&self, partition: u32) -> Option<Incarnation> {
        self.0.read().get(&partition).copied()
    }

    pub fn seen(&self, partition: u32, incarnation: Incarnation) {
        if self.guess(partition) != Some(incarnation) {
            self.0.write().insert(partition, incarnation);
        }
    }
}
