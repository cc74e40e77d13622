//! The registration of families with the database. One that the database has lost is registered as
//! Redis has it, so that the first process to notice does not decide (docs/protocol.md, section 8).

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::process::family::OpenFamily;
use crate::process::shared::Shared;
use crate::process::tasks::try_each;
use crate::store::Registration;

impl Shared {
    /// Registers the family with the database, or compares it with the registered one.
    pub async fn register(&self, family: &Family) -> Result<Registration> {
        match self.restore(family).await {
            // an unreachable Redis holds up no family
            Err(error) if matches!(error.kind(), ErrorKind::Redis | ErrorKind::AccessDenied) => {}
            restored => restored?,
        }
        self.store.register(family).await
    }

    /// Returns the family as registered in the database, and registers it if that failed when the
    /// family was opened. No data is written, and no row read, before the database has accepted the
    /// configuration.
    pub async fn registered(&self, opened: &OpenFamily) -> Result<Arc<Registration>> {
        if let Some(known) = opened.known() {
            return Ok(known);
        }
        // callers do not wait for each other: one of them may not be polled
        let registered = self.register(&opened.family).await?;
        Ok(opened.first_registered(registered))
    }

    /// Returns the family as the database has it now: an operator may have altered its table, or
    /// changed the bounds of cached counters. While the database is unreachable, it returns what
    /// was known before, or an error if that is nothing.
    pub async fn registered_now(&self, opened: &OpenFamily) -> Result<Arc<Registration>> {
        self.registered(opened).await?;
        match self.store.columns(&opened.family).await {
            Ok(columns) => opened.set_columns(columns),
            Err(error) => {
                let (family, error) = (&opened.family, format_args!("{error:#}"));
                tracing::debug!(%family, %error, "the columns of a table were not read");
            }
        }
        let known = self.registered(opened).await?;
        if !known.family.is_cached() {
            return Ok(known);
        }
        let Ok(Some(now)) = self.store.find(&known.family.to_string()).await else {
            return Ok(known);
        };
        let mut differences = known.family.differences(&now.family);
        let is_moved = differences.any(|(setting, ..)| !known.family.moves_nothing(setting));
        if is_moved || (now.number, &now.database) != (known.number, &known.database) {
            return Ok(known);
        }
        Ok(Arc::new(Registration {
            columns: known.columns.clone(),
            ..now
        }))
    }

    /// Registers the family again, because the database does not have it as this process knows it.
    /// A family that was removed stays so unless this process has opened it. Returns whether it is
    /// registered otherwise than before.
    ///
    /// # Errors
    /// [`Mismatch`](ErrorKind::Mismatch) if the database has another family, or Redis has and the
    /// database has lost it.
    pub async fn renew(&self, opened: &OpenFamily, before: &Arc<Registration>) -> Result<bool> {
        self.renew_if(opened, before, !opened.is_served).await
    }

    /// Registers the family again like [`renew`](Self::renew); one that was removed only if `removed`
    /// is set.
    async fn renew_if(
        &self,
        opened: &OpenFamily,
        before: &Arc<Registration>,
        removed: bool,
    ) -> Result<bool> {
        if opened.known().is_some_and(|known| known != *before) {
            return Ok(true);
        }
        self.restore(&opened.family).await?;
        let renewed = if removed {
            self.store.register(&opened.family).await?
        } else {
            self.store.register_again(before).await?
        };
        let is_other = renewed != **before;
        if is_other {
            opened.registered_otherwise(renewed);
        }
        Ok(is_other)
    }

    /// Returns the database's reply to a read or a recount. If it refuses the family under the number
    /// that this process knows, the family is registered again unless it was removed, and the error is
    /// retryable if it has another number now.
    pub async fn or_renewed<T>(
        &self,
        opened: &OpenFamily,
        before: &Arc<Registration>,
        reply: Result<T>,
    ) -> Result<T> {
        let error = match reply {
            Err(error) if error.kind() == ErrorKind::Mismatch => error,
            reply => return reply,
        };
        match self.renew_if(opened, before, false).await {
            Ok(true) => Err(registered_again(&opened.family, error)),
            // a failure to register is ignored: the error of the reply says more
            _ => Err(error),
        }
    }

    /// Registers a family that the database has lost as Redis has it, if this process knows it
    /// otherwise. Does nothing if Redis has it of another database.
    async fn restore(&self, family: &Family) -> Result<()> {
        // an unreachable database is found by the registration
        if !matches!(self.store.find(&family.to_string()).await, Ok(None)) {
            return Ok(());
        }
        let homes = self.homes(family);
        let known = try_each(&homes, |(_, home)| home.registered(family)).await?;
        let mut known = known.into_iter().flatten();
        let is_other = |known: &Family| family.differences(known).next().is_some();
        let Some((known, database)) = known.find(|(known, _)| is_other(known)) else {
            return Ok(());
        };
        let others = self.store.families().await?;
        let mut others = others.into_iter().filter_map(|(_, other)| other.ok());
        let Some(other) = others.find(|other| other.database == database) else {
            return Ok(());
        };
        let known = Registration {
            family: known,
            ..other
        };
        match self.store.register_again(&known).await {
            Ok(_) => {
                tracing::warn!(%family, "the database had lost the family: registered as Redis has it");
                Ok(())
            }
            // it was removed, or its table is another one now
            Err(error) if error.kind() == ErrorKind::Mismatch => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns the retryable error for a family that had another number.
pub fn registered_again(family: &Family, error: Error) -> Error {
    let again = format!("{family}: registered again");
    Error::new(ErrorKind::Busy, again).with_source(error)
}
