//! Commands about the servers themselves.

use std::cmp::Reverse;

use counterfoil::admin::{Finding, Severity, table_name};
use counterfoil::sqlx::{self, AssertSqlSafe, ConnectOptions, Error};
use counterfoil::store::Registration;
use counterfoil::{Counterfoil, Family, MysqlStore};
use futures_util::future::{join, join3};
use serde_json::json;

use super::{Context, connect_advice, daemon_state};
use crate::config::{FamilyConfig, PairConfig, mysql_transport};
use crate::exit::{Exit, Failure};
use crate::families;
use crate::limits::{CHECK_ADVICE, CHECK_TIMEOUT, TIMEOUT, in_time, with_timeout};
use crate::output::Output;
use crate::pair;
use crate::reason::Reason;
use crate::view::advised;

/// Prints the SQL of counterfoil's own tables.
pub fn print_schema(output: Output) -> Result<Exit, Failure> {
    output.print(&json!({ "sql": MysqlStore::schema() }), |_| {
        vec![MysqlStore::schema().trim_end().to_owned()]
    })
}

/// Creates counterfoil's own tables.
pub async fn init(context: &Context) -> Result<Exit, Failure> {
    let mut done = Vec::new();
    for pair in &context.config.pairs {
        create_tables(pair).await?;
        done.push(&pair.name);
    }
    context.output.print(&json!({ "pairs": done }), |_| {
        done.iter()
            .map(|pair| format!("pair {pair}: counterfoil's tables exist"))
            .collect()
    })
}

/// Creates counterfoil's own tables of a pair.
pub async fn create_tables(pair: &PairConfig) -> Result<(), Failure> {
    let created = pair::store(pair)?.create_tables().await;
    created.map_err(|error| not_created(&pair.name, error))
}

/// Returns the failure of `init`, with advice if the user lacks the privilege to create tables:
/// `init` is often run as the daemon's user.
fn not_created(pair: &str, error: counterfoil::Error) -> Failure {
    let text = format!("pair {pair}: {error:#}");
    let denials = ["command denied", "' to database '"];
    if denials.iter().any(|denial| text.contains(denial)) {
        let advice = "The daemon's user needs no such privilege: let an administrator run the output of \
             `counterfoil init --print`, and then that of `counterfoil grants daemon`";
        return Failure::critical(format!("{text}. {advice}"));
    }
    Failure::of_pair(pair)(error)
}

/// Checks both servers of each pair.
pub async fn check(context: &Context) -> Result<Exit, Failure> {
    let (mut json, mut lines) = (Vec::new(), Vec::new());
    let mut worst = Exit::Ok;
    let mut of_listen = daemon_state::other_listener(context.config.http.as_ref()).await;
    for pair in &context.config.pairs {
        let name = &pair.name;
        let (checked, redis, mysql) =
            join3(check_pair(pair), redis_tls(pair), mysql_tls(pair)).await;
        // the address is no pair's own: the first one shows it
        let all = checked?.into_iter().chain(of_listen.take());
        let findings: Vec<_> = all.map(advised).collect();
        if findings.is_empty() {
            lines.push(format!("pair {name}: no findings"));
        }
        for finding in &findings {
            worst = worst.max(match finding.severity {
                Severity::Error => Exit::Critical,
                Severity::Warning => Exit::Warning,
                Severity::Info => Exit::Ok,
            });
            lines.push(format!("pair {name}: {finding}"));
        }
        for (server, transport) in [("redis", &redis), ("mysql", &mysql)] {
            if let Some(tls) = transport {
                lines.push(format!("pair {name}: {server}: {tls}"));
            }
        }
        let tls = json!({"redis": redis, "mysql": mysql});
        json.push(json!({"pair": name, "tls": tls, "findings": findings}));
    }
    context.output.print(&json, |_| lines)?;
    Ok(worst)
}

/// Returns how a new connection to Redis is protected, `None` if there is none.
async fn redis_tls(pair: &PairConfig) -> Option<String> {
    in_time(pair::connect(pair)).await.ok()?;
    Some(pair.redis.transport().to_string())
}

/// Returns how a new connection to MySQL is protected, `None` if there is none.
async fn mysql_tls(pair: &PairConfig) -> Option<String> {
    let mut connection = in_time(pair.mysql.connect()).await.ok()?;
    let status = sqlx::query_as("SHOW SESSION STATUS LIKE 'Ssl_version'");
    let (_, version): (String, String) = in_time(status.fetch_one(&mut connection)).await.ok()?;
    let transport = mysql_transport(&pair.mysql, !version.is_empty());
    Some(format!("{transport} ({version})").replace(" ()", ""))
}

fn error(subject: impl Into<String>, message: String, advice: &str) -> Finding {
    Finding::new(Severity::Error, subject, message, advice)
}

/// Checks both servers of a pair. Returns the findings, the worst first.
pub async fn check_pair(pair: &PairConfig) -> Result<Vec<Finding>, Failure> {
    let store = pair::store(pair)?;
    let (connected, read) = join(
        with_timeout(TIMEOUT, pair::connect(pair)),
        in_time(families::read_registered(&store)),
    )
    .await;
    let (registered, unknown) = read.unwrap_or_default();
    let mut findings = Vec::new();
    for why in unknown.into_values() {
        let advice = "Use the version that registered it, or a newer one";
        findings.push(Finding::new(
            Severity::Warning,
            "mysql families",
            why,
            advice,
        ));
    }
    // families that were never opened are checked as they are configured
    let mut new = Vec::new();
    for configured in &pair.families {
        let described = described_by(configured, pair, &registered);
        if described.is_empty() {
            new.push(configured.sample()?);
        }
        for family in described {
            let advice = "Configure what the database has. `counterfoil reconfigure` changes \
                          partitions, durability and bounds; anything else needs a family with \
                          another name";
            for message in families::differences(configured, family)? {
                findings.push(error(format!("family {family}"), message, advice));
            }
        }
    }
    let checks = join3(
        unreadable_sources(pair),
        check_servers(&connected, registered, &new),
        store.check(&new),
    );
    match with_timeout(CHECK_TIMEOUT, async {
        Ok::<_, counterfoil::Error>(checks.await)
    })
    .await
    {
        Ok((of_sources, of_redis, of_new)) => {
            findings.extend(of_sources);
            findings.extend(of_redis?);
            for finding in of_new {
                if !findings.contains(&finding) {
                    findings.push(finding);
                }
            }
        }
        Err(why) => findings.push(error("check", why.text, CHECK_ADVICE)),
    }
    findings.sort_by_key(|finding| Reverse(finding.severity));
    Ok(findings)
}

/// Returns the registered families to which this configuration applies, and no other of the pair.
fn described_by<'r>(
    configured: &FamilyConfig,
    pair: &PairConfig,
    registered: &'r [Registration],
) -> Vec<&'r Family> {
    registered
        .iter()
        .map(|registered| &registered.family)
        .filter(|family| {
            let applies = pair.family(&family.to_string());
            applies.is_some_and(|applies| std::ptr::eq(applies, configured))
        })
        .collect()
}

/// Checks both servers over a connection to Redis, or reports that there is none.
async fn check_servers(
    connected: &Result<Counterfoil, Reason>,
    registered: Vec<Registration>,
    new: &[Family],
) -> Result<Vec<Finding>, Failure> {
    let counterfoil = match connected {
        Ok(counterfoil) => counterfoil,
        Err(why) => {
            let message = format!("unavailable: {why}");
            return Ok(vec![error("redis", message, connect_advice(why))]);
        }
    };
    for registered in registered {
        counterfoil.open_registered(registered)?;
    }
    let mut findings = counterfoil.check_with(new).await;
    for family in new {
        // an unreachable server, or a missing right or table, is another finding
        if let Ok(Some(_)) = counterfoil.check_adoption(family).await {
            let what = "its hits in this Redis go to the database of another installation";
            // the text of the error with which the daemon would refuse it begins like this
            let message = format!("{family}: {what}");
            findings.push(error(
                format!("family {family}"),
                message,
                "Use another Redis",
            ));
        }
    }
    Ok(findings)
}

/// Checks that the configured recounts can read their tables.
async fn unreadable_sources(pair: &PairConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    // an unreachable MySQL is another finding
    let Ok(mut connection) = pair.mysql.connect().await else {
        return findings;
    };
    for family in &pair.families {
        let Some(recount) = family.recount.as_ref().map(|recount| &recount.settings) else {
            continue;
        };
        let (Some(table), Some(keys)) = (&recount.table, &recount.keys) else {
            continue;
        };
        let columns: Vec<_> = keys
            .iter()
            .chain(&recount.sum)
            .map(|name| table_name(name))
            .collect();
        let filter = recount.filter.as_deref().unwrap_or("TRUE");
        let (columns, name) = (columns.join(", "), table_name(table));
        let select = format!("SELECT {columns} FROM {name} WHERE ({filter}) LIMIT 0");
        let read = sqlx::raw_sql(AssertSqlSafe(select))
            .execute(&mut connection)
            .await;
        match read {
            Ok(_) => {}
            Err(Error::Database(why)) => findings.push(error(
                format!("recount of {}", family.name()),
                format!("reading the rows of {table} failed: {why}"),
                "Correct the recount in the configuration, or grant what `counterfoil grants \
                 daemon` prints",
            )),
            // an unreachable MySQL is another finding
            Err(_) => break,
        }
    }
    findings
}
