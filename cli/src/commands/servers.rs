//! Commands about the servers themselves.

use counterfoil::redis::{RedisResult, cmd};
use counterfoil::sqlx::{self, AssertSqlSafe, Error};
use counterfoil::{Connection, Counterfoil, MysqlStore, Registered, Store};
use futures_util::future::join;
use serde::Serialize;
use serde_json::json;

use super::Context;
use super::families::differences;
use super::privileges::quoted;
use crate::config::{FamilyConfig, PairConfig};
use crate::daemon::discovery;
use crate::exit::{Exit, Failure};
use crate::look::in_time;
use crate::output::Output;
use crate::pair;
use crate::view::FindingView;

/// Prints the SQL of counterfoil's own tables.
pub fn print_schema(output: Output) -> Result<Exit, Failure> {
    if output.json {
        output.print(&json!({ "sql": MysqlStore::schema() }), |_| Vec::new())?
    } else {
        output.text(MysqlStore::schema().as_bytes())?
    }
    Ok(Exit::Ok)
}

/// Creates counterfoil's own tables.
pub async fn init(context: &Context) -> Result<Exit, Failure> {
    let mut done = Vec::new();
    for pair in context.pairs() {
        pair::store(pair)?.create_tables().await.map_err(|error| {
            let Failure { exit, message } = Failure::from(error);
            Failure {
                exit,
                message: format!("pair {}: {message}", pair.name),
            }
        })?;
        done.push(&pair.name);
    }
    context.output.print(&json!({ "pairs": done }), |_| {
        done.iter()
            .map(|pair| format!("pair {pair}: counterfoil's tables are there"))
            .collect()
    })?;
    Ok(Exit::Ok)
}

#[derive(Serialize)]
struct Checked {
    pair: String,
    findings: Vec<FindingView>,
}

/// Checks both servers of each pair.
pub async fn check(context: &Context) -> Result<Exit, Failure> {
    let (mut checked, mut worst) = (Vec::new(), Exit::Ok);
    for pair in context.pairs() {
        let findings = findings(context, pair).await?;
        let exit = findings.iter().map(|finding| match finding.severity {
            "error" => Exit::Critical,
            "warning" => Exit::Warning,
            _ => Exit::Ok,
        });
        worst = exit.fold(worst, Exit::max);
        checked.push(Checked {
            pair: pair.name.clone(),
            findings,
        });
    }
    context.output.print(&checked, |checked| {
        let lines = checked.iter().flat_map(|Checked { pair, findings }| {
            let line = |FindingView {
                            severity,
                            subject,
                            message,
                            advice,
                        }: &FindingView| {
                format!("pair {pair}: {severity}: {subject}: {message}. {advice}")
            };
            if findings.is_empty() {
                vec![format!("pair {pair}: all is well")]
            } else {
                findings.iter().map(line).collect()
            }
        });
        lines.collect()
    })?;
    Ok(worst)
}

/// Returns the findings about a pair, the worst first.
async fn findings(context: &Context, pair: &PairConfig) -> Result<Vec<FindingView>, Failure> {
    let store = pair::store(pair)?;
    let (connected, known) = join(in_time(pair::connect(pair)), in_time(store.families())).await;
    let known: Vec<_> = known
        .unwrap_or_default()
        .into_iter()
        .filter_map(Result::ok)
        .collect();
    // families that were never opened are checked as configured
    let mut described = Vec::new();
    let mut findings: Vec<FindingView> = Vec::new();
    for family in context.described(pair) {
        let is_it =
            |known: &&Registered| family.describes(known.family.namespace(), known.family.name());
        let mut same = known.iter().filter(is_it).peekable();
        if same.peek().is_none() {
            described.push(family.sample()?.family().clone());
        }
        for known in same {
            findings.extend(differences(family, &known.family)?.into_iter().map(|message| FindingView {
                severity: "error",
                subject: format!("family {}", known.family),
                message,
                advice: "Say what the database has, or change it there with Counterfoil::reconfigure.".to_owned(),
            }));
        }
    }
    let has_patterns = context.described(pair).any(FamilyConfig::is_pattern);
    findings.extend(of_recounts(context, pair).await?);
    let of_redis = async {
        match &connected {
            Ok(pair) => of_servers(pair, known, has_patterns).await,
            Err(why) => Ok(vec![FindingView {
                severity: "error",
                subject: "redis".to_owned(),
                message: format!("it cannot be asked: {why}"),
                advice: "Is it there, and are its address and password right?".to_owned(),
            }]),
        }
    };
    let (of_redis, of_described) = join(of_redis, store.check(&described)).await;
    findings.extend(of_redis?);
    for finding in of_described.iter().map(FindingView::from) {
        if !findings
            .iter()
            .any(|other| other.subject == finding.subject && other.message == finding.message)
        {
            findings.push(finding);
        }
    }
    findings.sort_by_key(|finding| {
        ["error", "warning", "info"]
            .iter()
            .position(|severity| *severity == finding.severity)
    });
    Ok(findings)
}

async fn of_servers(
    counterfoil: &Counterfoil,
    known: Vec<Registered>,
    has_patterns: bool,
) -> Result<Vec<FindingView>, Failure> {
    for registered in known {
        counterfoil.open_registered(registered)?;
    }
    let mut findings: Vec<_> = counterfoil
        .check()
        .await
        .iter()
        .map(FindingView::from)
        .collect();
    if has_patterns && let Err(error) = try_scan(counterfoil.redis()).await {
        findings.push(FindingView {
            severity: "error",
            subject: "redis acl".to_owned(),
            message: format!("namespaces cannot be looked for: {error}"),
            advice: "Families with a * in their names need +scan".to_owned(),
        });
    }
    Ok(findings)
}

/// Scans one page of one node, to see whether the user may.
async fn try_scan(redis: &Connection) -> RedisResult<()> {
    let nodes = discovery::nodes(redis).await?;
    let Some(node) = nodes.first() else {
        return Ok(());
    };
    let mut command = cmd("SCAN");
    command.arg(0).arg("COUNT").arg(1);
    discovery::ask(redis, node, command).await.map(drop)
}

/// Checks that the configured recounts can read their tables.
async fn of_recounts(context: &Context, pair: &PairConfig) -> Result<Vec<FindingView>, Failure> {
    let pool = pair::probe(pair)?;
    let mut findings = Vec::new();
    for family in context.described(pair) {
        let Some(table) = family
            .recount
            .as_ref()
            .and_then(|recount| recount.table.as_ref())
        else {
            continue;
        };
        let names: Vec<_> = table.split('.').map(quoted).collect();
        let select = format!("SELECT 1 FROM {} LIMIT 0", names.join("."));
        if let Err(Error::Database(error)) =
            sqlx::raw_sql(AssertSqlSafe(select)).execute(&pool).await
        {
            findings.push(FindingView {
                severity: "error",
                subject: format!("recount of {}", family.name()),
                message: format!("its rows in {table} cannot be read: {error}"),
                advice: "`counterfoil grants daemon` prints what the user needs.".to_owned(),
            });
        }
    }
    Ok(findings)
}
