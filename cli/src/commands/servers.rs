//! Commands about the servers themselves.

use std::cmp::Reverse;

use counterfoil::admin::{Finding, Severity, table_name};
use counterfoil::redis::{RedisResult, cmd};
use counterfoil::sqlx::{self, AssertSqlSafe, Error};
use counterfoil::store::Registered;
use counterfoil::{Connection, Counterfoil, Family, MysqlStore};
use futures_util::future::{join, join3};
use serde_json::json;

use super::{CONNECT_ADVICE, Context};
use crate::config::{PairConfig, mysql_transport};
use crate::exit::{Exit, Failure};
use crate::families;
use crate::limits::{CHECK_ADVICE, CHECK_TIMEOUT, in_time, with_timeout};
use crate::output::Output;
use crate::pair;
use crate::search;

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
        let created = pair::store(pair)?.create_tables().await;
        created.map_err(|error| not_created(&pair.name, error))?;
        done.push(&pair.name);
    }
    context.output.print(&json!({ "pairs": done }), |_| {
        done.iter()
            .map(|pair| format!("pair {pair}: counterfoil's tables exist"))
            .collect()
    })
}

/// Returns the failure of `init`, which often runs as the daemon's user.
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
    for pair in &context.config.pairs {
        let name = &pair.name;
        let (findings, mysql) = join(findings(pair), mysql_tls(pair)).await;
        let (findings, redis) = (findings?, pair.redis.transport().to_string());
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
        let mysql_line = mysql
            .iter()
            .map(|mysql| format!("pair {name}: mysql: {mysql}"));
        lines.push(format!("pair {name}: redis: {redis}"));
        lines.extend(mysql_line);
        let tls = json!({"redis": redis, "mysql": mysql});
        json.push(json!({"pair": name, "tls": tls, "findings": findings}));
    }
    context.output.print(&json, |_| lines)?;
    Ok(worst)
}

/// Returns how a new connection to MySQL is protected, `None` if there is none.
async fn mysql_tls(pair: &PairConfig) -> Option<String> {
    let pool = pair::probe(pair);
    let version = sqlx::query_as("SHOW SESSION STATUS LIKE 'Ssl_version'").fetch_one(&pool);
    let (_, version): (String, String) = in_time(version).await.ok()?;
    let transport = mysql_transport(&pair.mysql, !version.is_empty());
    Some(format!("{transport} ({version})").replace(" ()", ""))
}

fn error(subject: impl Into<String>, message: String, advice: &str) -> Finding {
    Finding::new(Severity::Error, subject, message, advice)
}

/// Returns the findings about a pair, the worst first.
pub async fn findings(pair: &PairConfig) -> Result<Vec<Finding>, Failure> {
    let store = pair::store(pair)?;
    let (connected, registered) = join(
        in_time(pair::connect(pair)),
        in_time(families::registered(&store)),
    )
    .await;
    let (registered, unknown) = registered.unwrap_or_default();
    // families that were never opened are checked as configured
    let mut new = Vec::new();
    let unknown = unknown.into_values().map(|why| {
        let advice = "Use the version that registered it, or a newer one";
        Finding::new(Severity::Warning, "mysql families", why, advice)
    });
    let mut findings: Vec<_> = unknown.collect();
    for configured in &pair.families {
        let is_it = |family: &&Family| {
            let applies = pair.family(&family.to_string());
            applies.is_some_and(|applies| std::ptr::eq(applies, configured))
        };
        let families = registered.iter().map(|registered| &registered.family);
        let mut families = families.filter(is_it).peekable();
        if families.peek().is_none() {
            new.push(configured.sample()?);
        }
        for family in families {
            let advice = "Configure what the database has. `counterfoil reconfigure` changes \
                          partitions, durability and bounds; anything else needs a family with \
                          another name";
            for message in families::differences(configured, family)? {
                findings.push(error(format!("family {family}"), message, advice));
            }
        }
    }
    let redis = async {
        match &connected {
            Ok(counterfoil) => check_servers(counterfoil, registered, &new).await,
            Err(why) => {
                let message = format!("unavailable: {why}");
                Ok(vec![error("redis", message, CONNECT_ADVICE)])
            }
        }
    };
    let sources = unreadable_sources(pair);
    let checks = async { Ok::<_, String>(join3(sources, redis, store.check(&new)).await) };
    match with_timeout(CHECK_TIMEOUT, checks).await {
        Ok((of_sources, of_redis, of_new)) => {
            findings.extend(of_sources);
            findings.extend(of_redis?);
            for finding in of_new {
                if !findings.contains(&finding) {
                    findings.push(finding);
                }
            }
        }
        Err(why) => findings.push(error("check", why, CHECK_ADVICE)),
    }
    findings.sort_by_key(|finding| Reverse(finding.severity));
    Ok(findings)
}

async fn check_servers(
    counterfoil: &Counterfoil,
    registered: Vec<Registered>,
    new: &[Family],
) -> Result<Vec<Finding>, Failure> {
    for registered in registered {
        counterfoil.open_registered(registered)?;
    }
    let mut findings = counterfoil.check_with(new).await;
    if let Err(why) = try_scan(counterfoil.redis()).await {
        let message = format!("searching Redis for families failed: {why}");
        let advice = "`counterfoil drain`, and `counterfoil status` while MySQL is unavailable, \
                      need +scan";
        findings.push(Finding::new(
            Severity::Warning,
            "redis acl",
            message,
            advice,
        ));
    }
    Ok(findings)
}

/// Scans one page of one node, to check the permission.
async fn try_scan(redis: &Connection) -> RedisResult<()> {
    let nodes = search::nodes(redis).await?;
    let Some(node) = nodes.first() else {
        return Ok(());
    };
    let mut command = cmd("SCAN");
    command.arg(0).arg("COUNT").arg(1);
    search::ask(redis, node, command).await.map(drop)
}

/// Checks that the configured recounts can read their tables.
async fn unreadable_sources(pair: &PairConfig) -> Vec<Finding> {
    let pool = pair::probe(pair);
    let mut findings = Vec::new();
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
        let read = sqlx::raw_sql(AssertSqlSafe(select)).execute(&pool).await;
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
