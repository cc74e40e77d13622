//! The check of both servers.

use std::cmp::Reverse;
use std::sync::Arc;

use futures_util::future::join;

use crate::admin::{self, Finding, Severity, access};
use crate::client::counterfoil::Counterfoil;
use crate::error::ErrorKind;
use crate::family::Family;
use crate::process::family::OpenFamily;
use crate::process::tasks::each;

impl Counterfoil {
    /// Checks both servers, and returns what should be known or changed, the most severe first. No
    /// findings is a good sign.
    pub async fn check(&self) -> Vec<Finding> {
        self.check_with(&[]).await
    }

    /// Checks both servers like [`check`](Self::check), and Redis also for families that are not
    /// open.
    #[doc(hidden)]
    pub async fn check_with(&self, others: &[Family]) -> Vec<Finding> {
        let families = self.shared.families();
        let redis = async {
            let all = [&families[..], others].concat();
            let mut findings = admin::redis::findings(&self.shared.redis, &all).await;
            findings.extend(access::findings(&self.shared.redis, &all).await);
            findings.extend(self.database_findings().await);
            findings
        };
        let mysql = async {
            match self.shared.store.as_mysql() {
                Some(mysql) => mysql.check(&families).await,
                None => Vec::new(),
            }
        };
        let (mut findings, of_mysql) = join(redis, mysql).await;
        findings.extend(of_mysql);
        findings.sort_by_key(|finding| Reverse(finding.severity));
        findings
    }

    /// Returns a finding for each family that Redis refuses to this process: its hits go to another
    /// database, or it has other partitions.
    async fn database_findings(&self) -> Vec<Finding> {
        let opened = self.shared.opened();
        let look = async |opened: &Arc<OpenFamily>| {
            let home = self.shared.partition(&opened.family, 0);
            let known = opened.known();
            let database = known.as_ref().map_or("", |known| &known.database);
            let asked = home.epoch(&opened.family, database).await;
            let refusal = asked
                .err()
                .filter(|error| error.kind() == ErrorKind::Mismatch)?;
            let advice = "This process counts and stores nothing in it meanwhile: see \"Two databases\" or \"Changing a family\" in the operations manual";
            let subject = format!("family {}", opened.family);
            Some(Finding::new(
                Severity::Error,
                subject,
                refusal.to_string(),
                advice,
            ))
        };
        each(&opened, look).await.into_iter().flatten().collect()
    }
}
