//! A family's settings beside its epoch: written, refused, and removed (docs/protocol.md, section 8).

use std::time::Duration;

use crate::error::{Error, Result};
use crate::family::Family;
use crate::family::row_id::Columns;
use crate::scripts::bundle::{self, Reply, borrowed, owned};
use crate::scripts::keys::{Key, Keys};
use crate::scripts::partition::Partition;
use crate::scripts::random::random_name;
use crate::testing::ablation::{self, Guard};

/// The destination of a family's hits, as far as it is known.
#[derive(Clone, Debug)]
pub struct Destination<'a> {
    /// The id of the database; empty while it is unknown.
    pub database: &'a str,
    /// The columns of the rows, if they are known.
    pub columns: Option<&'a Columns>,
}

impl Destination<'_> {
    /// The destination of a family that no database has registered yet.
    pub const UNKNOWN: Destination<'static> = Destination {
        database: "",
        columns: None,
    };
}

impl Partition {
    /// Writes the family's settings beside the epoch, so that Redis refuses a caller configured
    /// with a different partition count or another database. Gives an incarnation to each partition
    /// whose home this is. The settings depend on the columns of the family's table, if they are
    /// known.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if the family belongs to another database.
    pub async fn configure(
        &self,
        family: &Family,
        to: &Destination<'_>,
        partitions: impl IntoIterator<Item = u32>,
    ) -> Result<()> {
        let reply = self.write_settings(random_name()?, family, to, partitions);
        reply.await?.expect_ok().map(drop)
    }

    /// Writes the family's settings like [`configure`](Self::configure), but only if the family is
    /// configured already. Returns whether it is.
    pub async fn refresh(
        &self,
        family: &Family,
        to: &Destination<'_>,
        partitions: impl IntoIterator<Item = u32>,
    ) -> Result<bool> {
        let no_salt = String::new();
        let reply = self.write_settings(no_salt, family, to, partitions).await?;
        reply.is_ok_or("UNCONFIGURED")
    }

    async fn write_settings(
        &self,
        salt: String,
        family: &Family,
        to: &Destination<'_>,
        partitions: impl IntoIterator<Item = u32>,
    ) -> Result<Reply> {
        // the calendars come first, so that a client that finds the family configured can count
        self.write_calendars(family).await?;
        let metas = partitions
            .into_iter()
            .map(|number| Keys::new(family, number).meta());
        let keys: Vec<_> = std::iter::once(self.keys.calls()).chain(metas).collect();
        let mut args = vec![
            owned(salt),
            self.time(),
            borrowed(family.kind()),
            owned(family.partitions()),
            borrowed(to.database),
            owned(family.description(to.columns)),
        ];
        for (name, value) in family.script_settings(to.columns) {
            args.extend([borrowed(name), owned(value)]);
        }
        if !to.database.is_empty() {
            args.extend([borrowed("registered"), owned(family.settings())]);
        }
        let mut reply = bundle::repeat_safe(&self.redis, "family_configure", &keys, &args).await?;
        match reply.status() {
            "MISMATCH" => Err(other_database(family, &reply.text()?, to.database)),
            _ => Ok(reply),
        }
    }

    /// Returns the family as a database has registered it, and the id of that database, if Redis
    /// knows them.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) if its settings are of a later version.
    pub async fn registered(&self, family: &Family) -> Result<Option<(Family, String)>> {
        let mut read = redis::cmd("HMGET");
        read.arg(self.keys.calls());
        read.arg("=registered").arg("=database");
        let known: (Option<String>, Option<String>) = bundle::query(&self.redis, &read).await?;
        let (Some(settings), Some(database)) = known else {
            return Ok(None);
        };
        let known = Family::from_settings(family.namespace(), family.name(), &settings)?;
        Ok(Some((known, database)))
    }

    /// Stores for clients the reason why the family is not configured. Does nothing if it is
    /// configured.
    pub async fn refuse(&self, reason: &str) -> Result<()> {
        let (keys, args) = ([self.keys.calls()], [borrowed(reason)]);
        let reply = bundle::repeat_safe(&self.redis, "family_refuse", &keys, &args).await?;
        reply.is_ok_or("CONFIGURED").map(drop)
    }

    /// Deletes keys of the family like [`remove`](Self::remove), with what is pending, if its hits
    /// went to another database than this one. Returns whether they did.
    pub async fn adopt(&self, keys: &[Key], database: &str) -> Result<bool> {
        let calls = self.keys.calls();
        let keys: Vec<_> = std::iter::once(&calls).chain(keys).collect();
        let args = [borrowed(database)];
        let reply = bundle::repeat_safe(&self.redis, "family_adopt", &keys, &args).await?;
        reply.is_ok_or("OWN")
    }

    /// Deletes keys of the family, of this home and of the partitions whose calls it remembers, unless
    /// one of the `pending` keys exists or the last epoch is younger than `unused`.
    pub async fn remove(&self, pending: &[Key], keys: &[Key], unused: Duration) -> Result<Removal> {
        let calls = self.keys.calls();
        let keys: Vec<_> = std::iter::once(&calls).chain(pending).chain(keys).collect();
        let args = [owned(pending.len()), owned(unused.as_millis()), self.time()];
        let mut reply = bundle::repeat_safe(&self.redis, "family_remove", &keys, &args).await?;
        match reply.status() {
            "OK" => Ok(Removal::Removed),
            "PENDING" => Ok(Removal::Pending),
            "USED" => Ok(Removal::Used(Duration::from_millis(reply.number()?))),
            _ => Err(reply.unexpected_reply()),
        }
    }
}

/// The outcome of a removal of keys.
#[derive(Debug)]
pub enum Removal {
    /// The keys are removed.
    Removed,
    /// Hits wait. Nothing was done.
    Pending,
    /// The last epoch began so long ago. Nothing was done.
    Used(Duration),
}

/// Checks that what Redis has of the family belongs to the process's own database. Either id is empty
/// while it is unknown.
///
/// # Errors
/// [`Mismatch`](crate::ErrorKind::Mismatch) if it belongs to another one.
pub(crate) fn check_database(family: &Family, known: &str, own: &str) -> Result<()> {
    let is_other = !known.is_empty() && !own.is_empty() && known != own;
    if is_other && !ablation::is_out(Guard::Database) {
        return Err(other_database(family, known, own));
    }
    Ok(())
}

/// Returns the error for a process whose database is not the one that the family's hits go to.
pub(crate) fn other_database(family: &Family, known: &str, own: &str) -> Error {
    Error::mismatch(format!(
        "{family}: its hits in this Redis go to the database {known:?}, and this process has {own:?}. Use another Redis \
         or namespace, or see \"Two databases\" in the operations manual"
    ))
}
