//! Checks of the database before work begins.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::rejects;
use super::session::{Database, Session, UnitOfWork};
use super::statement::{Statement, quoted, table_name};
use super::target::Target;
use super::{MysqlStore, fault, schema};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::finding::{Finding, Severity, clock, version_numbers};
use crate::store::{Registration, Store};

/// The minimum of `max_allowed_packet`. A statement of the largest batch has about 5 MB.
const PACKET: u64 = 8_388_608;
/// The number of rows of a table that a check reads.
const CHECKED: u64 = 100_000;

/// Checks the database and the families' tables. An unreachable database is a finding as well.
pub async fn findings(mysql: &MysqlStore, families: &[Family]) -> Vec<Finding> {
    let mut findings = match server_findings(&mysql.primary).await {
        Ok(findings) => findings,
        Err(error) => return vec![unreachable(&error)],
    };
    findings.extend(clock_finding(&mysql.primary).await);
    match schema::missing(&mysql.primary).await {
        Ok(missing) if missing.is_empty() => {
            // otherwise every probe would fail for the same reason
            const REFUSING: [&str; 2] = ["mysql read_only", "mysql binlog_format"];
            let accepts_writes = !findings
                .iter()
                .any(|finding| REFUSING.contains(&&*finding.subject));
            match table_findings(mysql, families, accepts_writes).await {
                Ok(of_tables) => findings.extend(of_tables),
                Err(error) => findings.push(unreachable(&error)),
            }
        }
        Ok(missing) => findings.push(Finding::error(
            "mysql tables",
            format!("missing: {}", missing.join(", ")),
            schema::ADVICE,
        )),
        Err(error) => findings.push(unreachable(&error)),
    }
    findings
}

async fn server_findings(database: &Database) -> Result<Vec<Finding>> {
    // SHOW VARIABLES, because reading a variable fails on servers that do not have it
    const SETTINGS: &str = "SHOW VARIABLES WHERE Variable_name IN ('version', 'read_only', \
         'innodb_flush_log_at_trx_commit', 'max_allowed_packet', 'log_bin', 'binlog_format', 'sync_binlog')";
    let unread = "the server's settings were not read";
    let settings: Vec<(String, String)> = database.read(unread, Statement::new(SETTINGS)).await?;
    let has_binlog = settings
        .iter()
        .any(|(name, value)| name == "log_bin" && is_on(value));
    Ok(settings
        .iter()
        .filter(|(name, _)| has_binlog || !name.contains("binlog"))
        .filter_map(|(name, value)| check_setting(&name.to_lowercase(), value))
        .collect())
}

async fn clock_finding(database: &Database) -> Option<Finding> {
    const TIME: &str = "SELECT CAST(UNIX_TIMESTAMP() AS SIGNED)";
    let started = SystemTime::now();
    let replies: Vec<(i64,)> = database
        .read("the time was not read", Statement::new(TIME))
        .await
        .ok()?;
    let asked = started..SystemTime::now();
    let (seconds,) = replies.first()?;
    let time = UNIX_EPOCH + Duration::from_secs(u64::try_from(*seconds).ok()?);
    let effect = "rejects, recounts and drift have its dates";
    clock::finding("mysql", time, &asked, effect)
}

/// Checks the tables that the families write, each once: their definitions and, if the server
/// accepts writes, this user's privileges. Fails if the server refuses all of them.
async fn table_findings(
    mysql: &MysqlStore,
    families: &[Family],
    accepts_writes: bool,
) -> Result<Vec<Finding>> {
    let database = &mysql.primary;
    let mut findings = own_table_findings(database, accepts_writes).await?;
    if let Ok(Some(most)) = rejects::maximum_if_reached(database, &mysql.max_rejects).await {
        findings.push(Finding::error(
            "mysql table counterfoil_rejects".to_owned(),
            format!("it has {most} rejects, as many as max_rejects allows: further ones are lost"),
            "Remove their reasons, discard them (`counterfoil rejects discard`), or raise max_rejects",
        ));
    }
    let registered = if families.iter().any(|family| family.table.is_some()) {
        mysql.families().await.unwrap_or_default()
    } else {
        Vec::new()
    };
    let mut seen = HashSet::new();
    for family in families.iter().filter(|family| seen.insert(&family.table)) {
        match mysql.target_now(family).await {
            Ok(target) => {
                let privileges =
                    first_privileges(accepts_writes, if target.inserts { 3 } else { 2 });
                findings
                    .extend(probe(database, &target.name, &target.columns(), privileges).await?);
                findings.extend(beyond_range(database, &target).await);
                findings.extend(shared_column(family, &registered));
                findings.extend(refused_bounds(families, family, &target));
            }
            Err(error) if error.kind() == ErrorKind::Store => return Err(error),
            Err(error) => {
                let table = family.table.as_ref();
                let name = table.map_or("counterfoil_values", |table| &table.name);
                findings.push(Finding::error(
                    format!("mysql table {name}"),
                    format!("{error:#}"),
                    "Change the table, or the family's description of it",
                ));
            }
        }
    }
    Ok(findings)
}

/// Checks this user's privileges for counterfoil's own tables.
async fn own_table_findings(database: &Database, accepts_writes: bool) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for table in schema::tables() {
        let count = match table.name {
            // probed like any family's table
            "counterfoil_values" => 1,
            "counterfoil_rejects" => 4,
            _ => 3,
        };
        let columns: Vec<_> = table.columns.iter().map(|column| quoted(column)).collect();
        let (name, privileges) = (
            table_name(table.name),
            first_privileges(accepts_writes, count),
        );
        findings.extend(probe(database, &name, &columns, privileges).await?);
    }
    Ok(findings)
}

/// The privileges on a table that counterfoil may need, in the order of the probes.
const PRIVILEGES: [&str; 4] = ["SELECT", "UPDATE", "INSERT", "DELETE"];

/// Returns the first of the [`PRIVILEGES`], or none on a server that would refuse every probe.
fn first_privileges(accepts_writes: bool, count: usize) -> &'static [&'static str] {
    if accepts_writes {
        &PRIVILEGES[..count]
    } else {
        &[]
    }
}

/// Runs a statement for each of these privileges that needs it and concerns no row.
async fn probe(
    database: &Database,
    name: &str,
    columns: &[String],
    privileges: &[&str],
) -> Result<Vec<Finding>> {
    // the last column of a family's table is its value, the only one that counterfoil updates
    let value = columns.last().map_or("", String::as_str);
    let (nulls, columns_of) = (vec!["NULL"; columns.len()].join(", "), columns.join(", "));
    let texts = [
        format!("SELECT {columns_of} FROM {name} WHERE FALSE"),
        format!("UPDATE {name} SET {value} = {value} WHERE FALSE"),
        format!("INSERT INTO {name} ({columns_of}) SELECT {nulls} FROM DUAL WHERE FALSE"),
        format!("DELETE FROM {name} WHERE FALSE"),
    ];
    let mut findings = Vec::new();
    for (privilege, text) in privileges.iter().zip(texts) {
        let Err(error) = database.run(Probe(text)).await else {
            continue;
        };
        if fault::concerns_server(&error) {
            return Err(fault::store(format!("a harmless {privilege} fails"))(error));
        }
        let is_locked = fault::is_locked(&error);
        let mut what = format!("a harmless {privilege} fails");
        let advice = if fault::is_denied(&error) {
            what = format!("this user has no {privilege} privilege");
            "Grant it"
        } else if is_locked {
            "Another session holds a lock: see SHOW PROCESSLIST, information_schema.INNODB_TRX and XA RECOVER. Let a \
             wanted ALTER TABLE finish, since hits wait in Redis meanwhile; otherwise end that session"
        } else if fault::is_lost(&error) {
            "If this happens again, find the cause of lost connections in the log of the server"
        } else {
            "Make the table writable for this user"
        };
        let subject = format!("mysql table {}", name.replace('`', ""));
        let message = format!("{what}: {}", fault::message(&error));
        findings.push(Finding::error(subject, message, advice));
        if is_locked {
            break;
        }
    }
    Ok(findings)
}

/// A statement in a transaction like a flush's, which waits for a lock for a second. It is not
/// repeated.
struct Probe(String);

impl UnitOfWork for Probe {
    type Output = ();

    fn is_repeated(_: &sqlx::Error) -> bool {
        false
    }

    async fn run(&self, transaction: &mut Session) -> Result<(), sqlx::Error> {
        // not prepared: the end of a prepared statement has no reply, and without TCP_NODELAY,
        // which sqlx 0.9.0 does not set, the next statement waits 40 ms
        transaction.packet(self.0.clone(), 1).await.map(drop)
    }
}

/// Searches the first rows of a table for a value that no counter has. A user who may not read them
/// has another finding.
async fn beyond_range(database: &Database, target: &Target) -> Option<Finding> {
    if !target.unsigned {
        return None;
    }
    let select = Statement::new(format!(
        "SELECT CAST(COUNT(*) AS UNSIGNED) FROM (SELECT {} AS n FROM {} LIMIT {CHECKED}) AS v WHERE v.n > {}",
        quoted(&target.value),
        target.name,
        i64::MAX
    ));
    let (rows,): (u64,) = database.read_one("rows were not read", select).await.ok()?;
    (rows > 0).then(|| {
        Finding::error(
            format!("mysql table {}", target.name),
            format!(
                "{rows} row(s) have more than {}: reading them is an error",
                i64::MAX
            ),
            "Correct the values: a counter is a signed 64-bit number",
        )
    })
}

/// Returns a finding for each family with the table of this one whose bounds its columns cannot hold.
fn refused_bounds(families: &[Family], family: &Family, target: &Target) -> Vec<Finding> {
    let columns = target.definition.as_deref();
    families
        .iter()
        .filter(|other| other.table == family.table)
        .filter_map(|other| other.check_bounds(columns).err())
        .map(|error| {
            let subject = format!("mysql table {}", target.name);
            let advice = "Change the bound, or the type of the column";
            Finding::error(subject, error.to_string(), advice)
        })
        .collect()
}

/// Returns a finding if other families count in the same column.
fn shared_column(
    family: &Family,
    registered: &[(String, Result<Registration>)],
) -> Option<Finding> {
    let table = family.table.as_ref()?;
    let counts_there = |other: &&Registration| {
        let other_table = other.family.table.as_ref();
        other.family.to_string() != family.to_string()
            && other_table.is_some_and(|one| (&one.name, &one.value) == (&table.name, &table.value))
    };
    let others: Vec<_> = registered
        .iter()
        .filter_map(|(_, one)| one.as_ref().ok())
        .filter(counts_there)
        .take(10)
        .map(|one| one.family.to_string())
        .collect();
    (!others.is_empty()).then(|| {
        Finding::new(
            Severity::Info,
            format!("family {family}"),
            format!(
                "other families count in {}.{} too: {}",
                table.name,
                table.value,
                others.join(", ")
            ),
            "Each row gets the hits of all of them. Give each row to one family, whose reads do not show what the others \
             have pending",
        )
    })
}

fn unreachable(error: &Error) -> Finding {
    let advice = "Make the database reachable for this user";
    Finding::error("mysql", format!("{error:#}"), advice)
}

/// Checks a setting of the server.
fn check_setting(name: &str, value: &str) -> Option<Finding> {
    use Severity::{Error, Warning};
    let is_below = |least| value.parse::<u64>().is_ok_and(|number| number < least);
    let (severity, effect, advice) = match name {
        "version" if is_too_old(value) => (
            Error,
            "it is too old",
            "Use MySQL 8.0.4, MariaDB 10.6, or later",
        ),
        "read_only" if !is_off(value) => (
            Error,
            "the server accepts no writes",
            "Connect to the primary",
        ),
        "innodb_flush_log_at_trx_commit" if matches!(value, "0" | "2") => (
            Warning,
            "a crash of the machine can revert commits whose batches Redis has released",
            "Set it to 1",
        ),
        "sync_binlog" if value != "1" => (
            Warning,
            "a crash of the machine can revert commits whose batches Redis has released, because a restart undoes those \
             that the binary log lacks",
            "Set it to 1; MariaDB's default is 0",
        ),
        "max_allowed_packet" if is_below(PACKET) => (
            Error,
            "too small for a large batch",
            "Set it to at least 8388608",
        ),
        "binlog_format" if value == "STATEMENT" => (
            Error,
            "InnoDB then refuses the READ COMMITTED transactions that write batches",
            "Set it to ROW or MIXED",
        ),
        _ => return None,
    };
    let message = format!("is {value}: {effect}");
    Some(Finding::new(
        severity,
        format!("mysql {name}"),
        message,
        advice,
    ))
}

/// Returns `true` for a server without JSON_TABLE: MySQL before 8.0.4, MariaDB before 10.6.
fn is_too_old(version: &str) -> bool {
    let oldest = if version.contains("MariaDB") {
        [10, 6, 0]
    } else {
        [8, 0, 4]
    };
    version_numbers(version) < oldest
}

fn is_on(value: &str) -> bool {
    matches!(value, "ON" | "1")
}

fn is_off(value: &str) -> bool {
    matches!(value, "OFF" | "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_log_that_a_crash_can_shorten_is_found() {
        for (value, is_found) in [("0", true), ("1", false), ("1000", true)] {
            let found = check_setting("sync_binlog", value);
            assert_eq!(found.is_some(), is_found, "{found:?}");
        }
    }

    #[test]
    fn an_old_version_is_found() {
        for version in [
            "8.0.4",
            "8.0.36-28",
            "9.7.4-2",
            "10.6.0-MariaDB",
            "11.8.9-MariaDB-4 from Debian",
        ] {
            assert!(!is_too_old(version), "{version}");
        }
        for version in ["5.7.44-log", "8.0.3", "10.5.28-MariaDB", "5.5.68-MariaDB"] {
            assert!(is_too_old(version), "{version}");
        }
    }
}
