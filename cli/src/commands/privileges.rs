//! The least privileges, as lines to paste.

use std::collections::BTreeSet;

use counterfoil::Family;
use counterfoil::admin::{self, Role, acl_rules, grant};
use counterfoil::store::Registration;
use indexmap::IndexSet;
use serde_json::json;

use super::Context;
use super::setup::mysql::Mysql;
use crate::arguments::{PrivilegesOf, RoleName};
use crate::config::{FamilyConfig, PairConfig};
use crate::exit::{Exit, Failure};
use crate::families;
use crate::limits::in_time;
use crate::output::print_message;
use crate::pair;

/// ACL rules for commands that the daemon needs in addition to the library's. CONFIG GET is not among
/// them: it shows the passwords of the server.
const OF_DAEMON: [&str; 2] = ["+info", "+ping"];

/// The daemon's user, unless the configuration names another one.
const DAEMON: &str = "counterfoil";
/// The users that have all rights after an installation. The daemon may use them, but the lines are
/// for another one.
const ADMINISTRATORS: [&str; 2] = ["default", "root"];

/// Returns the user to whom the privileges are given, where the daemon logs in as `own`. Refuses the
/// daemon's user for another role: the line of an ACL would replace its rules.
fn user(of: &PrivilegesOf, own: &str) -> Result<String, Failure> {
    let daemon = if ADMINISTRATORS.contains(&own) || own.is_empty() {
        DAEMON
    } else {
        own
    };
    let ending = match of.role {
        RoleName::Daemon => return Ok(of.user.clone().unwrap_or_else(|| daemon.to_owned())),
        RoleName::Writer => "writer",
        RoleName::Reader => "reader",
        RoleName::Application => "app",
    };
    let other = format!("{daemon}-{ending}");
    let Some(user) = &of.user else {
        return Ok(other);
    };
    // an account of MySQL with a host may be taken for the daemon's, too
    let name = user.rsplit_once('@').map_or(&**user, |(name, _)| name);
    if [own, daemon].contains(&name) {
        return Err(Failure::usage(format!(
            "{user} is the daemon's user, which needs the privileges of the role `daemon`: name another \
             one, such as --user {other}"
        )));
    }
    Ok(user.clone())
}

/// Prints the rules of an ACL.
pub async fn acl(context: &Context, of: &PrivilegesOf) -> Result<Exit, Failure> {
    let (mut json, mut lines) = (Vec::new(), Vec::new());
    for pair in &context.config.pairs {
        let (name, user) = (&pair.name, user(of, pair.redis.user())?);
        let rules = rules(pair, &Families::read(pair).await?, of.role)?;
        lines.extend(if user == pair.redis.user() && exists(pair).await {
            additions(pair, &rules)
        } else {
            [
                format!(
                    "# pair {name}: replace PASSWORD; run it on every server, also on replicas"
                ),
                format!("ACL SETUSER {user} reset on >PASSWORD {}", rules.join(" ")),
            ]
        });
        json.push(json!({"pair": name, "user": user, "lines": rules}));
    }
    context.output.print(&json, |_| lines)
}

/// Returns whether the user of the configuration can log in to Redis. Other users may exist, too.
async fn exists(pair: &PairConfig) -> bool {
    in_time(pair::connect(pair)).await.is_ok()
}

/// Returns the lines that give rules to the user of the configuration, which exists: `reset` would
/// take its password, and what it may do for others.
pub fn additions(pair: &PairConfig, rules: &[String]) -> [String; 2] {
    let (name, user) = (&pair.name, pair.redis.user());
    [
        format!("# pair {name}: adds to the user; run it on every server, also on replicas"),
        format!("ACL SETUSER {user} {}", rules.join(" ")),
    ]
}

/// Returns the rules of an ACL, key patterns first.
pub fn rules(
    pair: &PairConfig,
    Families { single, patterns }: &Families<'_>,
    role: RoleName,
) -> Result<Vec<String>, Failure> {
    let mut rules = BTreeSet::new();
    for role in role.roles() {
        rules.extend(acl_rules(single, *role));
        for pattern in patterns {
            // the key pattern of the sample is replaced by one for all families of the pattern
            let mut of_sample = acl_rules(&[pattern.sample()?], *role);
            of_sample.retain(|rule| !rule.starts_with("~cf1:{"));
            rules.extend(of_sample);
            rules.insert(format!("~cf1:{{{}/*", pattern.name()));
        }
    }
    if let RoleName::Daemon = role {
        rules.extend(OF_DAEMON.map(str::to_owned));
    }
    if pair.redis.is_cluster {
        rules.insert("+cluster|slots".to_owned());
    }
    if pair.redis.database() != 0 {
        rules.insert("+select".to_owned());
    }
    // key patterns first
    let (keys, commands): (Vec<_>, Vec<_>) =
        rules.into_iter().partition(|rule| rule.starts_with('~'));
    Ok([keys, commands].concat())
}

/// Prints the GRANTs.
pub async fn grants(context: &Context, of: &PrivilegesOf) -> Result<Exit, Failure> {
    let (mut json, mut lines) = (Vec::new(), Vec::new());
    for pair in &context.config.pairs {
        let (name, mut user) = (&pair.name, user(of, pair.mysql.get_username())?);
        if of.user.is_none() && user == pair.mysql.get_username() {
            // it may exist for one host, and the statements are for that account
            if let Ok(server) = Mysql::connect(&pair.mysql).await {
                user = server.account();
            }
        }
        let statements = statements(pair, &Families::read(pair).await?, of.role, &user)?;
        lines.push(if statements.is_empty() {
            format!("-- pair {name}: needs no privileges in MySQL")
        } else {
            format!("-- pair {name}: run as a user with GRANT OPTION")
        });
        json.push(json!({"pair": name, "user": user, "lines": statements}));
        lines.extend(statements);
    }
    context.output.print(&json, |_| lines)
}

/// Returns the statements for a user, each once: two roles, or two recounts, may need the same one.
pub fn statements(
    pair: &PairConfig,
    Families { single, patterns }: &Families<'_>,
    role: RoleName,
    user: &str,
) -> Result<IndexSet<String>, Failure> {
    let schema = pair.mysql.get_database().unwrap_or_default();
    let mut all = single.clone();
    for pattern in patterns {
        all.push(pattern.sample()?);
    }
    let mut lines = IndexSet::new();
    for role in role.roles() {
        lines.extend(admin::grants(&all, *role, schema, user));
    }
    if let RoleName::Daemon = role {
        for family in &pair.families {
            let recount = family.recount.as_ref();
            lines.extend(recount.map(|recount| match &recount.settings.table {
                Some(table) => grant("SELECT", table, schema, user),
                None => format!(
                    "-- {} is recounted by its own SQL: grant SELECT on its tables",
                    family.name()
                ),
            }));
        }
        if pair.create_tables {
            lines.insert(grant("CREATE", "*", schema, user));
        }
    }
    Ok(lines)
}

/// The families of a pair for which privileges are needed.
pub struct Families<'p> {
    /// Those of the file, and of the database if it is reachable.
    single: Vec<Family>,
    /// The patterns of the file.
    patterns: Vec<&'p FamilyConfig>,
}

impl<'p> Families<'p> {
    pub async fn read(pair: &'p PairConfig) -> Result<Self, Failure> {
        let (patterns, configured): (Vec<_>, Vec<_>) =
            pair.families.iter().partition(|family| family.is_pattern());
        let mut single = Vec::new();
        for family in configured {
            single.push(family.sample()?);
        }
        match in_time(families::read_registered(&pair::store(pair)?)).await {
            Ok((registered, _)) => {
                for Registration { family, .. } in registered {
                    if pair.family(&family.to_string()).is_none() {
                        single.push(family);
                    }
                }
            }
            Err(why) => {
                let name = &pair.name;
                print_message(&format!(
                    "pair {name}: without the families that only the database knows: {why}"
                ));
            }
        }
        if single.is_empty() && patterns.is_empty() {
            return Err(Failure::usage(format!(
                "pair {}: no families, so no privileges are needed",
                pair.name
            )));
        }
        Ok(Families { single, patterns })
    }
}

impl RoleName {
    fn roles(self) -> &'static [Role] {
        match self {
            RoleName::Writer => &[Role::Writer],
            RoleName::Daemon => &[Role::Reconciler],
            RoleName::Reader => &[Role::Reader],
            RoleName::Application => &[Role::Writer, Role::Reader],
        }
    }
}
