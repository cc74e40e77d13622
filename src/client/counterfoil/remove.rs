//! The removal of a family that is no longer used.

use std::ops::Range;
use std::time::Duration;

use crate::admin::Backlog;
use crate::client::counterfoil::Counterfoil;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::process::tasks::try_each;
use crate::reconciler::upkeep;
use crate::scripts::keys::Key;
use crate::scripts::partition::Partition;
use crate::scripts::partition::settings::Removal;
use crate::store::Registration;

/// The age at which the last epoch of a family shows that no process uses it. A process that uses
/// it begins a new epoch about every minute.
const UNUSED: Duration = Duration::from_mins(3);

/// The effect of a call in Redis: it deletes keys, or only checks that it may.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Calls<'d> {
    Check,
    Delete,
    /// Deletes them if the family's hits went to another database than this one.
    Adopt(&'d str),
}

/// The number of partitions, and of keys to delete, of a call.
const PARTITIONS: usize = 100;
const KEYS: usize = 1000;

impl Counterfoil {
    /// Removes a registered family that is no longer used: its keys in Redis, and its rows in
    /// counterfoil's own tables, with the values if it has no table of the application's. Such a
    /// table stays as it is. What expires by itself stays until then: windows of activity, and
    /// known visitors.
    ///
    /// First stop the processes that have the family open or serve it, and drain it. Nothing is
    /// removed while an epoch is younger than three minutes or hits wait; both are checked in the
    /// step that deletes. Nor is anything removed while [rejects](crate::MysqlStore::rejects) of the
    /// family exist: they are hits too. Apply or discard them first.
    ///
    /// A call that fails or is interrupted may be repeated.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) if no such family is registered;
    /// [`Busy`](ErrorKind::Busy) if the family is used, hits wait or it has rejects: nothing more
    /// was removed.
    pub async fn remove(&self, family: &Family) -> Result<()> {
        let Registration { family, number, .. } = self.call_homes(family, Calls::Delete).await?;
        self.forget(&family).await?;
        self.shared.mysql()?.remove(&family, number).await?;
        tracing::info!(%family, "the family was removed");
        Ok(())
    }

    /// Checks whether [`remove`](Self::remove) would remove the family now, and removes nothing.
    ///
    /// # Errors
    /// See [`remove`](Self::remove).
    pub async fn check_removal(&self, family: &Family) -> Result<()> {
        self.call_homes(family, Calls::Check).await.map(drop)
    }

    /// Registers the family in this database and, if its hits in Redis go to another one, deletes it
    /// there with what is pending, so that it counts for this database from now on. Windows of
    /// activity and known visitors stay until they expire.
    ///
    /// It is for a development database that was made anew. See "Two databases" in the operations
    /// manual for how to keep what is pending.
    ///
    /// Returns what was dropped; `None` if the family belongs to this database or is not in Redis.
    ///
    /// # Errors
    /// Those of opening a family.
    pub async fn adopt(&self, family: &Family) -> Result<Option<Backlog>> {
        let registered = self.shared.store.register(family).await?;
        let dropped = self.pending_of_others(family, &registered.database).await?;
        if dropped.is_some() {
            let calls = Calls::Adopt(&registered.database);
            self.call_each_home(family, calls).await?;
            tracing::warn!(%family, ?dropped, "taken over from another database");
        }
        Ok(dropped)
    }

    /// Returns what [`adopt`](Self::adopt) would drop now, and changes nothing.
    ///
    /// # Errors
    /// [`Redis`](ErrorKind::Redis) or [`Store`](ErrorKind::Store) if that server is unreachable.
    pub async fn check_adoption(&self, family: &Family) -> Result<Option<Backlog>> {
        let known = self.shared.store.find(&family.to_string()).await?;
        let database = known.map(|known| known.database);
        // no database has this id
        let database = database.as_deref().unwrap_or("unregistered");
        self.pending_of_others(family, database).await
    }

    /// Returns what is pending in Redis if it is for another database than this one.
    async fn pending_of_others(&self, family: &Family, database: &str) -> Result<Option<Backlog>> {
        let homes = self.shared.homes(family);
        let is_other = async |(_, home): &(Range<u32>, Partition)| {
            let none = [home.keys.probe()];
            home.adopt(&none, database).await
        };
        if try_each(&homes, is_other).await?.contains(&true) {
            self.shared.backlog(family).await.map(Some)
        } else {
            Ok(None)
        }
    }

    async fn call_homes(&self, family: &Family, calls: Calls<'_>) -> Result<Registration> {
        let known = self.known(family).await?;
        let mysql = self.shared.mysql()?;
        // an earlier call has deleted its keys: hits that wait now are of a new family with this
        // name
        if mysql.is_removing(&known.family, known.number).await? {
            return Ok(known);
        }
        self.call_each_home(&known.family, calls).await?;
        Ok(known)
    }

    async fn call_each_home(&self, family: &Family, calls: Calls<'_>) -> Result<()> {
        let topology = &self.shared.topology;
        // This includes partitions from before their number was reduced. Their homes still have
        // settings, by which Redis refuses the old number.
        let all = family.partitions().max(upkeep::LAST);
        for number in topology.homes(all) {
            let home = self.shared.partition(family, number);
            let numbers = topology.partitions_of(number, all);
            let partitions = numbers.map(|number| self.shared.partition(family, number));
            let partitions: Vec<_> = partitions.collect();
            let mut pending = Vec::new();
            for some in partitions.chunks(PARTITIONS) {
                pending = some.iter().flat_map(|one| one.keys.pending()).collect();
                if calls == Calls::Check {
                    let none = [home.keys.probe()];
                    refuse(family, home.remove(&pending, &none, UNUSED).await?)?;
                    continue;
                }
                let mut keys = Vec::new();
                for partition in some {
                    keys.extend(windows(family, partition).await?);
                }
                // the names of series come after the windows: a repeated call finds the windows by
                // them
                keys.extend(some.iter().flat_map(|one| one.keys.lasting()));
                let others = some
                    .iter()
                    .filter(|one| one.keys.calls() != home.keys.calls());
                keys.extend(others.flat_map(|one| one.keys.home()));
                if let Calls::Adopt(_) = calls {
                    keys.extend(pending.iter().cloned());
                }
                for keys in keys.chunks(KEYS) {
                    calls.delete(family, &home, &pending, keys).await?;
                }
            }
            if calls != Calls::Check {
                // last, because it shows whether the family is used, and by which database
                let last = home.keys.home();
                calls.delete(family, &home, &pending, &last).await?;
            }
        }
        Ok(())
    }
}

impl Calls<'_> {
    async fn delete(
        self,
        family: &Family,
        home: &Partition,
        pending: &[Key],
        keys: &[Key],
    ) -> Result<()> {
        match self {
            Calls::Adopt(database) => home.adopt(keys, database).await.map(drop),
            _ => refuse(family, home.remove(pending, keys, UNUSED).await?),
        }
    }
}

/// Returns the keys of the windows of series.
async fn windows(family: &Family, partition: &Partition) -> Result<Vec<Key>> {
    let (mut keys, mut after) = (Vec::new(), Some(Vec::new()));
    while let Some(last) = after.filter(|_| family.kind() == "series") {
        let (names, next) = partition.names("", &last, KEYS).await?;
        for name in names {
            let precisions = family.precisions().into_iter();
            keys.extend(precisions.map(|one| partition.keys.window(one, name.as_bytes())));
        }
        after = next;
    }
    Ok(keys)
}

/// Returns the error for a family that cannot be removed yet.
fn refuse(family: &Family, removal: Removal) -> Result<()> {
    let why = match removal {
        Removal::Removed => return Ok(()),
        Removal::Pending => "hits are pending; drain the family first".to_owned(),
        Removal::Used(age) => {
            let (ago, left) = (age.as_secs(), UNUSED.saturating_sub(age).as_secs() + 1);
            format!(
                "a process used it {ago} s ago; stop those that have it open, and call again in {left} s"
            )
        }
    };
    Err(Error::new(ErrorKind::Busy, format!("{family}: {why}")))
}
