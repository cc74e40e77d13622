//! The state of families, for people and for monitoring.

use std::time::Duration;

use counterfoil::store::Registered;
use counterfoil::{Family, Store};
use futures_util::future::join_all;
use serde::Serialize;

use super::Context;
use crate::config::{FamilyConfig, PairConfig};
use crate::exit::{Exit, Failure};
use crate::output::{short, table};
use crate::pair;
use crate::poll::{PairStatus, TIMEOUT, with_timeout};
use crate::status::{FamilyStatus, LATE, State, unix_now};

/// Prints a line for each family. The worst state decides the exit code.
pub async fn status(context: &Context, late: Duration) -> Result<Exit, Failure> {
    let pairs = poll(context, late).await?;
    context.output.print(&pairs, |pairs| {
        let now = unix_now();
        let row = |pair: &PairStatus, family: &FamilyStatus| {
            let saved = family
                .last_saved
                .map(|saved| format!("{} ago", short(now.saturating_sub(saved) as f64)));
            [
                pair.pair.clone(),
                family.name(),
                family.kind.to_owned(),
                family.pending.to_string(),
                family.oldest_seconds.map(short).unwrap_or_default(),
                saved.unwrap_or_default(),
                family.rejects.to_string(),
                family.state.name().to_owned(),
            ]
        };
        let heads = [
            "PAIR", "FAMILY", "KIND", "PENDING", "OLDEST", "SAVED", "REJECTS", "STATE",
        ];
        let mut lines = lines_of(pairs, &heads, |pair| {
            pair.families
                .iter()
                .map(|family| row(pair, family))
                .collect()
        });
        lines.extend(pairs.iter().flat_map(remarks));
        lines
    })?;
    let server = pairs.iter().map(|pair| {
        if is_up(pair) {
            Exit::Ok
        } else {
            Exit::Critical
        }
    });
    let family = pairs
        .iter()
        .flat_map(|pair| &pair.families)
        .map(|family| match family.state {
            State::Ok => Exit::Ok,
            State::Rejects | State::Late | State::Broken => Exit::Warning,
        });
    Ok(server.chain(family).max().unwrap_or(Exit::Ok))
}

/// Prints what waits in Redis for MySQL.
pub async fn pending(context: &Context) -> Result<Exit, Failure> {
    let mut pairs = poll(context, LATE).await?;
    for pair in &mut pairs {
        pair.families.retain(|family| {
            family.pending > 0 || family.open > 0 || family.state == State::Broken
        });
    }
    context.output.print(&pairs, |pairs| {
        let row = |pair: &PairStatus, family: &FamilyStatus| {
            let oldest = family.oldest_seconds.map(short).unwrap_or_default();
            let (pending, open) = (family.pending.to_string(), family.open.to_string());
            [
                pair.pair.clone(),
                family.name(),
                family.kind.to_owned(),
                pending,
                oldest,
                open,
            ]
        };
        let heads = ["PAIR", "FAMILY", "KIND", "PENDING", "OLDEST", "OPEN SLICES"];
        let mut lines = match pairs.iter().any(|pair| !pair.families.is_empty()) {
            true => lines_of(pairs, &heads, |pair| {
                pair.families
                    .iter()
                    .map(|family| row(pair, family))
                    .collect()
            }),
            false if pairs.iter().all(is_up) => vec!["nothing is pending".to_owned()],
            false => Vec::new(),
        };
        lines.extend(pairs.iter().flat_map(unavailable));
        lines
    })?;
    Ok(if pairs.iter().all(is_up) {
        Exit::Ok
    } else {
        Exit::Critical
    })
}

async fn poll(context: &Context, late: Duration) -> Result<Vec<PairStatus>, Failure> {
    let mut pollers = context.pollers()?;
    let polls = pollers
        .iter_mut()
        .map(|poller| poller.poll(late, Duration::ZERO));
    Ok(join_all(polls).await)
}

/// Formats one table of all pairs, with a column for the pair if there are several.
fn lines_of<T, const N: usize>(
    pairs: &[T],
    heads: &[&str; N],
    rows: impl Fn(&T) -> Vec<[String; N]>,
) -> Vec<String> {
    let rows: Vec<_> = pairs.iter().flat_map(rows).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let first = usize::from(pairs.len() == 1);
    let rows: Vec<_> = rows.iter().map(|row| row[first..].to_vec()).collect();
    table(&heads[first..], &rows)
}

fn is_up(pair: &PairStatus) -> bool {
    pair.redis.up && pair.mysql.up
}

fn unavailable(pair: &PairStatus) -> Vec<String> {
    let servers = [("redis", &pair.redis), ("mysql", &pair.mysql)].map(|(name, server)| {
        let why = server.why.as_ref()?;
        Some(format!("pair {}: {name} is unavailable: {why}", pair.pair))
    });
    servers.into_iter().flatten().collect()
}

/// Returns the remarks below the table.
fn remarks(pair: &PairStatus) -> Vec<String> {
    let problem = |family: &FamilyStatus| {
        let problem = family.problem.as_ref()?;
        Some(format!("pair {}: {}: {problem}", pair.pair, family.name()))
    };
    let never = pair.never_opened.iter().map(|family| {
        format!(
            "pair {}: {family} is configured, but was never opened",
            pair.pair
        )
    });
    let mut remarks = unavailable(pair);
    remarks.extend(pair.families.iter().filter_map(problem).chain(never));
    if remarks.is_empty() && pair.families.is_empty() {
        remarks.push(format!("pair {}: no family was opened yet", pair.pair));
    }
    remarks
}

#[derive(Serialize)]
struct PairFamilies {
    pair: String,
    families: Vec<Entry>,
    /// Families of the database that this version does not understand.
    unknown: Vec<String>,
}

/// A family of the database or of the configuration.
#[derive(Serialize)]
struct Entry {
    family: String,
    kind: Option<String>,
    partitions: u32,
    durability: Option<String>,
    table: Option<String>,
    /// True if the database knows the family: it was opened at least once.
    opened: bool,
    /// The name of the configuration's entry that describes the family.
    described: Option<String>,
    /// The differences between configuration and database.
    differs: Vec<String>,
}

/// Lists the families in the database and in the configuration.
pub async fn list(context: &Context) -> Result<Exit, Failure> {
    let mut pairs = Vec::new();
    for pair in context.pairs() {
        pairs.push(families_of(context, pair).await?);
    }
    let differ = pairs
        .iter()
        .flat_map(|pair| &pair.families)
        .filter(|family| !family.differs.is_empty())
        .count();
    context.output.print(&pairs, |pairs| {
        let heads = [
            "PAIR",
            "FAMILY",
            "KIND",
            "PARTITIONS",
            "DURABILITY",
            "TABLE",
            "IN DATABASE",
            "IN FILE",
        ];
        let mut lines = lines_of(pairs, &heads, |pair| {
            let row = |family: &Entry| {
                [
                    pair.pair.clone(),
                    family.family.clone(),
                    family.kind.clone().unwrap_or_default(),
                    family.partitions.to_string(),
                    family.durability.clone().unwrap_or_default(),
                    family.table.clone().unwrap_or_default(),
                    if family.opened { "yes" } else { "never opened" }.to_owned(),
                    family.described.clone().unwrap_or_else(|| "no".to_owned()),
                ]
            };
            pair.families.iter().map(row).collect()
        });
        if lines.is_empty() {
            lines.push("no families".to_owned());
        }
        for pair in pairs {
            let differs = pair.families.iter().flat_map(|family| {
                family
                    .differs
                    .iter()
                    .map(|differs| format!("pair {}: {}: {differs}", pair.pair, family.family))
            });
            lines.extend(
                differs.chain(
                    pair.unknown
                        .iter()
                        .map(|unknown| format!("pair {}: {unknown}", pair.pair)),
                ),
            );
        }
        lines
    })?;
    Ok(if differ > 0 { Exit::Warning } else { Exit::Ok })
}

async fn families_of(context: &Context, pair: &PairConfig) -> Result<PairFamilies, Failure> {
    let store = pair::store(pair)?;
    let found = with_timeout(TIMEOUT, store.families())
        .await
        .map_err(|why| {
            Failure::critical(format!("pair {}: mysql is unavailable: {why}", pair.name))
        })?;
    let (mut registered, mut unknown) = (Vec::new(), Vec::new());
    for family in found {
        match family {
            Ok(Registered { family, .. }) => registered.push(family),
            Err(error) => unknown.push(format!("{error:#}")),
        }
    }
    let mut families = Vec::new();
    for family in &registered {
        let name = family.to_string();
        let configured = context.configured(pair, &name);
        families.push(Entry {
            opened: true,
            described: configured.map(FamilyConfig::name),
            differs: configured.map_or(Ok(Vec::new()), |it| differences(it, family))?,
            ..Entry::new(name, family)
        });
    }
    for configured in context.families(pair) {
        let is_it = |family: &Family| configured.describes(family.namespace(), family.name());
        if !registered.iter().any(is_it) {
            families.push(Entry {
                described: Some(configured.name()),
                ..Entry::new(configured.name(), configured.sample()?.family())
            });
        }
    }
    Ok(PairFamilies {
        pair: pair.name.clone(),
        families,
        unknown,
    })
}

impl Entry {
    fn new(name: String, family: &Family) -> Self {
        let of = |what: &str| {
            family
                .identity()
                .into_iter()
                .find(|(name, _)| *name == what)
                .map(|(_, value)| value)
        };
        Entry {
            family: name,
            kind: of("kind"),
            partitions: family.partitions(),
            durability: of("durability"),
            table: of("table"),
            opened: false,
            described: None,
            differs: Vec::new(),
        }
    }
}

/// Returns the settings in which the database differs from the configuration.
pub fn differences(
    configured: &FamilyConfig,
    registered: &Family,
) -> counterfoil::Result<Vec<String>> {
    let configured = configured.in_namespace(registered.namespace())?;
    let settings = configured.family().identity().into_iter();
    let differs = settings
        .zip(registered.identity())
        .filter(|(here, there)| here != there);
    Ok(differs
        .map(|((name, here), (_, there))| {
            format!("{name} is {here} here, and {there} in the database")
        })
        .collect())
}
