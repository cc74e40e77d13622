//! The names of families that daemons open by a pattern. Redis has them, so that a daemon that starts
//! serves these families although a backup of the database lacks them.

use crate::client::counterfoil::Counterfoil;
use crate::error::Result;
use crate::family::Family;
use crate::scripts::bundle::{self, Reply};
use crate::scripts::keys::KEPT;

/// The number of names of a call.
const PAGE: usize = 1000;

impl Counterfoil {
    /// Keeps the names of families, as `NAMESPACE/FAMILY`. It is for the daemon.
    #[doc(hidden)]
    pub async fn keep(&self, names: &[&str]) -> Result<()> {
        for names in names.chunks(PAGE) {
            let args = [&["1"], names].concat();
            bundle::expect_ok(&self.shared.redis, "family_keep", &[KEPT], &args).await?;
        }
        Ok(())
    }

    /// Returns the names of all families that were kept. It is for the daemon.
    #[doc(hidden)]
    pub async fn kept(&self) -> Result<Vec<String>> {
        let (redis, limit) = (&self.shared.redis, PAGE.to_string());
        let (mut kept, mut after) = (Vec::new(), Vec::new());
        loop {
            let args = [after.as_slice(), limit.as_bytes()];
            let mut page = bundle::expect_ok(redis, "family_kept", &[KEPT], &args).await?;
            after = page.bytes()?;
            kept.extend(page.read_all(page.left(), Reply::text)?);
            if after.is_empty() {
                return Ok(kept);
            }
        }
    }

    /// Forgets the name of a family that is removed.
    pub(crate) async fn forget(&self, family: &Family) -> Result<()> {
        let args = ["0".to_owned(), family.to_string()];
        let forgotten = bundle::expect_ok(&self.shared.redis, "family_keep", &[KEPT], &args);
        forgotten.await.map(drop)
    }
}
