//! `counterfoil setup`: from two servers to a running daemon. Each step keeps what an earlier run has
//! done, so a run that failed is continued by another one.

mod files;
pub(super) mod mysql;
mod private;
mod programs;
mod redis;
mod systemd;
mod urls;

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use counterfoil::MysqlStore;
use counterfoil::sqlx::mysql::MySqlConnectOptions;
use tokio::select;

use self::files::Settings;
use self::mysql::Mysql;
use self::private::{Folder, Servers};
use self::redis::Redis;
use self::urls::Login;
use super::privileges::Families;
use super::{Context, privileges, servers};
use crate::arguments::{RoleName, Setup};
use crate::config::{Config, EXAMPLE, PairConfig};
use crate::daemon;
use crate::exit::{Exit, Failure};
use crate::output::{Output, print_message, show_config, with_commands, without_controls};
use crate::signals;

/// The port of the daemon in a new configuration.
const PORT: u16 = 9292;
/// The sockets of packages and of the servers' own defaults.
const REDIS_SOCKETS: [&str; 3] = [
    "/run/redis/redis-server.sock",
    "/run/redis/redis.sock",
    "/run/valkey/valkey.sock",
];
const MYSQL_SOCKETS: [&str; 3] = [
    "/run/mysqld/mysqld.sock",
    "/var/lib/mysql/mysql.sock",
    "/tmp/mysql.sock",
];
/// The time for a server on this machine to take a connection.
const LOOKING: Duration = Duration::from_millis(300);

const PEOPLE: Output = Output { json: false };

/// Sets up the servers that the options name, or private ones on which it runs the daemon.
pub async fn run(config: &Path, named: Option<String>, setup: &Setup) -> Result<Exit, Failure> {
    if setup.private {
        return run_private(setup).await;
    }
    show_config(config);
    set_up(config, named, setup, setup.given(), &listen_of(config)).await
}

/// Returns the address for a new configuration: that of the file which it replaces, or a free one.
fn listen_of(config: &Path) -> String {
    let replaced = Config::read(config).ok().and_then(|config| config.http);
    replaced.map_or_else(
        || private::free_address(PORT),
        |http| http.listen.to_string(),
    )
}

/// Runs the daemon on private servers until a signal ends it.
async fn run_private(setup: &Setup) -> Result<Exit, Failure> {
    let folder = Folder::new(setup.dir.as_deref())?;
    let mut servers = Servers::default();
    let stopped = signals::stop()?;
    let prepared = select! {
        prepared = prepare(&folder, &mut servers, setup) => prepared,
        () = stopped => Err(Failure::warning("stopped before the daemon ran")),
    };
    let ended = match prepared {
        Ok(config) => daemon::run(config, &folder.config()).await,
        Err(failure) => Err(failure),
    };
    servers.stop().await;
    print_message(&folder.end());
    ended
}

async fn prepare(folder: &Folder, servers: &mut Servers, setup: &Setup) -> Result<Config, Failure> {
    let (path, config) = (folder.path(), folder.config());
    show_config(&config);
    let (namespace, _) = setup.family().split_once('/').unwrap_or_default();
    let redis = servers.start_redis(path, setup.redis_server.as_deref());
    let redis = Some(redis.await?);
    let mysql = servers.start_mysql(path, namespace, setup.mysql_server.as_deref());
    let mysql = Some(mysql.await?);
    let listen = private::free_address(PORT);
    match set_up(&config, None, setup, Given { redis, mysql }, &listen).await? {
        Exit::Ok => Config::read(&config).map_err(Failure::usage),
        _ => Err(Failure::critical("the private servers are not set up")),
    }
}

/// The URLs that were given, with passwords.
struct Given {
    redis: Option<String>,
    mysql: Option<String>,
}

impl Setup {
    /// Returns the family of a new configuration file.
    fn family(&self) -> &str {
        self.family.as_deref().unwrap_or("shop/product_views")
    }

    fn given(&self) -> Given {
        Given {
            redis: self.redis.clone(),
            mysql: self.mysql.clone(),
        }
    }
}

impl Given {
    /// Returns the URLs, with those of servers on this machine in place of missing ones. Asks on a
    /// terminal.
    fn complete(self, setup: &Setup) -> Result<[String; 2], Failure> {
        let (namespace, _) = setup.family().split_once('/').unwrap_or_default();
        Ok([
            take(self.redis, "Redis", "--redis", find_redis(), setup.yes)?,
            take(
                self.mysql,
                "MySQL",
                "--mysql",
                find_mysql(namespace),
                setup.yes,
            )?,
        ])
    }

    /// Returns the pair as it is for the users of these URLs.
    fn administered(&self, pair: &PairConfig, setup: &Setup) -> Result<PairConfig, Failure> {
        let mut own = pair.clone();
        if self.redis.is_none() && self.mysql.is_none() {
            return Ok(own);
        }
        // what is not given is parsed, too, and not used
        let redis = self.redis.as_deref().unwrap_or("redis://localhost");
        let mysql = self.mysql.as_deref().unwrap_or("mysql://localhost/any");
        let given = parse(redis, mysql, setup)?;
        let differs = |server: &str| {
            Failure::usage(format!(
                "the configuration names another {server} than --{}: --overwrite replaces the file",
                server.to_lowercase()
            ))
        };
        if self.redis.is_some() {
            // Sentinel and clusters have several servers, which are set up one after the other
            let is_single = own.redis.sentinels.is_empty() && !own.redis.is_cluster;
            if is_single && own.redis.servers[0].addr() != given.redis.servers[0].addr() {
                return Err(differs("Redis"));
            }
            own.redis = given.redis;
        }
        if self.mysql.is_some() {
            let place = |mysql: &MySqlConnectOptions| {
                let database = mysql.get_database().map(str::to_owned);
                (mysql::place(mysql), database)
            };
            if place(&own.mysql) != place(&given.mysql) {
                return Err(differs("MySQL"));
            }
            own.mysql = given.mysql;
        }
        Ok(own)
    }
}

/// Returns the pair of two URLs, which may have passwords.
fn parse(redis: &str, mysql: &str, setup: &Setup) -> Result<PairConfig, Failure> {
    let tls = if setup.no_tls { "tls = \"off\"" } else { "" };
    let (redis, mysql) = (files::quoted(redis), files::quoted(mysql));
    // not the pair's name, by which secrets of the daemon would be found
    let text = format!("[pair.setup]\nredis = {redis}\nmysql = {mysql}\n{tls}\n");
    let parsed = Config::of_text(&text, Path::new(""));
    let config = parsed.map_err(|why| {
        let advice = why.replace("tls = \"off\"", "--no-tls");
        Failure::usage(advice.replace("pair \"setup\": ", ""))
    })?;
    let mut pairs = config.pairs.into_iter();
    pairs.next().ok_or_else(|| Failure::usage("no pair"))
}

/// Returns the given URL, or the one that a person enters, or with `yes` the one that was found.
fn take(
    given: Option<String>,
    server: &str,
    option: &str,
    found: Option<String>,
    yes: bool,
) -> Result<String, Failure> {
    let missing = || Failure::usage(format!("the URL of {server} is missing: {option} names it"));
    match (given, found) {
        (Some(given), _) => Ok(given),
        (None, Some(found)) if yes => {
            say(&format!("{server}: found {found}"));
            Ok(found)
        }
        (None, found) if io::stdin().is_terminal() => {
            let usual = found.as_ref().map(|url| format!(" [{url}]"));
            write!(
                io::stderr(),
                "URL of {server}{}: ",
                usual.unwrap_or_default()
            )?;
            let mut line = String::new();
            io::stdin().lock().read_line(&mut line)?;
            match line.trim() {
                "" => found.ok_or_else(missing),
                url => Ok(url.to_owned()),
            }
        }
        (None, Some(found)) => Err(Failure::usage(format!(
            "{}. {found} takes connections, and --yes uses it",
            missing().message
        ))),
        (None, None) => Err(missing()),
    }
}

fn find_redis() -> Option<String> {
    if listens(6379) {
        return Some("redis://127.0.0.1".to_owned());
    }
    let socket = existing(&REDIS_SOCKETS)?;
    Some(format!("redis+unix://{socket}"))
}

fn find_mysql(database: &str) -> Option<String> {
    match existing(&MYSQL_SOCKETS) {
        Some(socket) => Some(format!("mysql://root@localhost/{database}?socket={socket}")),
        None => listens(3306).then(|| format!("mysql://root@127.0.0.1/{database}")),
    }
}

fn listens(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, LOOKING).is_ok()
}

fn existing(paths: &[&'static str]) -> Option<&'static str> {
    paths.iter().copied().find(|path| Path::new(path).exists())
}

/// Prints a line about a step, with commands to copy.
fn say(line: &str) {
    let line = without_controls(&with_commands(line));
    // setting up continues if standard output is closed
    let _ = writeln!(io::stdout(), "{line}");
}

/// Sets up the servers of the pair `named`, or of the only one. Writes the configuration if there is
/// none.
async fn set_up(
    path: &Path,
    named: Option<String>,
    setup: &Setup,
    given: Given,
    listen: &str,
) -> Result<Exit, Failure> {
    let given = if setup.overwrite || !path.exists() {
        let [redis, mysql] = given.complete(setup)?;
        write_configuration(path, setup, [&redis, &mysql], listen).await?;
        Given {
            redis: Some(redis),
            mysql: Some(mysql),
        }
    } else {
        if fs::read_to_string(path).is_ok_and(|text| text == EXAMPLE) {
            return Err(Failure::usage(format!(
                "{} is the untouched example: --overwrite replaces it",
                path.display()
            )));
        }
        say(&format!("continues with {}", path.display()));
        given
    };
    let context = Context::read(path, named, PEOPLE)?;
    let pair = context.pair()?;
    let (namespace, name) = setup.family().split_once('/').unwrap_or_default();
    let mut known = pair.families.iter();
    if setup.family.is_some() && !known.any(|known| known.describes(namespace, name)) {
        return Err(Failure::usage(format!(
            "{} has no family {namespace}/{name}: declare it there",
            path.display()
        )));
    }
    let own = given.administered(pair, setup)?;
    let may_grant = set_up_mysql(pair, &own).await?;
    set_up_redis(pair, &own).await?;
    if servers::check(&context).await? == Exit::Critical {
        let user = own.redis.user();
        let of_redis = user == pair.redis.user() && user != "default";
        let mut correct = "correct this, and run `counterfoil setup` again";
        if of_redis || !may_grant {
            print_for_administrators(pair, !may_grant, of_redis).await?;
            correct = "correct this, or name an administrator's URL with --mysql and --redis, and run \
                       `counterfoil setup` again";
        }
        say(correct);
        return Ok(Exit::Critical);
    }
    if !setup.private {
        say(&match systemd::start(path, pair)? {
            Some(command) => format!("start the daemon: {command}"),
            None => "the service counterfoil is enabled, and runs".to_owned(),
        });
    }
    for line in programs::all(path, &context.config, pair) {
        say(&line);
    }
    Ok(Exit::Ok)
}

/// Writes the configuration for a user that setup will create in each server, or for that of the URL
/// if it may create none. Before that, nothing was changed.
async fn write_configuration(
    path: &Path,
    setup: &Setup,
    [redis, mysql]: [&str; 2],
    listen: &str,
) -> Result<(), Failure> {
    let given = parse(redis, mysql, setup)?;
    let user = &setup.user;
    let mut logins = [Login::new("Redis", redis)?, Login::new("MySQL", mysql)?];
    let mut is_new = [false; 2];
    let refusal = Redis::connect(&given).await?.refuses_users().await;
    if given.redis.user() != user {
        match refusal {
            None => is_new[0] = true,
            Some(_) if setup.private => {}
            Some(why) => say(&format!(
                "Redis: uses the user {:?}, and creates no other: {why}",
                given.redis.user()
            )),
        }
    }
    let mut server = Mysql::connect(&given.mysql).await?;
    is_new[1] = given.mysql.get_username() != user && server.may_create_users().await?;
    let mut has_secret = is_new;
    for (at, (server, name)) in [("Redis", "redis"), ("MySQL", "mysql")]
        .into_iter()
        .enumerate()
    {
        if is_new[at] {
            logins[at] = logins[at].clone().of_user(server, user)?;
        }
        let password = logins[at].password.as_deref();
        has_secret[at] |= password.is_some();
        if has_secret[at] {
            files::write_secret(path, name, password, setup.overwrite)?;
        }
    }
    let settings = Settings {
        listen,
        redis: &logins[0],
        mysql: &logins[1],
        no_tls: setup.no_tls,
        family: setup.family(),
    };
    let text = settings.text(has_secret);
    // a wrong name of the family would otherwise be found in the file
    Config::of_text(&text, files::folder(path)).map_err(Failure::usage)?;
    files::write_config(path, &text)?;
    say(&format!("wrote {}", path.display()));
    if !listen.ends_with(&format!(":{PORT}")) && !setup.private {
        say(&format!("the daemon will listen at {listen}"));
    }
    Ok(())
}

/// Creates the user of the configuration in Redis, if `own` is another one.
async fn set_up_redis(pair: &PairConfig, own: &PairConfig) -> Result<(), Failure> {
    let user = pair.redis.user();
    if own.redis.user() == user {
        return Ok(());
    }
    let mut redis = Redis::connect(own).await?;
    // the user of the configuration may not read yet which families only the database knows
    let families = PairConfig {
        mysql: own.mysql.clone(),
        ..pair.clone()
    };
    let needed = Families::read(&families).await?;
    let rules = privileges::rules(&families, &needed, RoleName::Daemon)?;
    let created = redis.create_user(pair, &rules).await?;
    let done = if created { "has the new" } else { "has the" };
    say(&format!(
        "Redis {done} user {user:?}, for the daemon and applications"
    ));
    if redis.has_replicas().await {
        say("Redis has replicas, which need the user, too: `counterfoil acl daemon`");
    }
    Ok(())
}

/// Creates the database, counterfoil's tables, and the user of the configuration with its
/// privileges, if `own` is another one. Returns whether `own` may do such things.
async fn set_up_mysql(pair: &PairConfig, own: &PairConfig) -> Result<bool, Failure> {
    let database = pair.mysql.get_database().unwrap_or_default();
    let user = pair.mysql.get_username();
    let is_other = user != own.mysql.get_username();
    let mut server = Mysql::connect(&own.mysql).await?;
    let mut create = async || {
        if server.create_database(database).await? {
            say(&format!("MySQL has the new database {database}"));
        }
        servers::create_tables(own).await
    };
    match create().await {
        Ok(()) => say(&format!("MySQL has counterfoil's tables in {database}")),
        Err(failure) if is_other => return Err(failure),
        // `check` reports what is missing
        Err(failure) => print_message(&failure.message),
    }
    if !is_other {
        return server.may_create_users().await;
    }
    let (account, created) = server.create_user(&pair.mysql).await?;
    let needed = Families::read(own).await?;
    let statements = privileges::statements(own, &needed, RoleName::Daemon, &account)?;
    for statement in &statements {
        if statement.starts_with("--") {
            say(statement);
        } else {
            server.execute(statement).await?;
        }
    }
    let done = if created { "has the new" } else { "has the" };
    say(&format!("MySQL {done} user {user:?}, with its privileges"));
    Ok(true)
}

/// Prints what administrators of MySQL and of Redis run for the users of the configuration.
async fn print_for_administrators(
    pair: &PairConfig,
    of_mysql: bool,
    of_redis: bool,
) -> Result<(), Failure> {
    let needed = Families::read(pair).await?;
    if of_mysql {
        let account = Mysql::connect(&pair.mysql).await?.account();
        let database = pair.mysql.get_database().unwrap_or_default();
        say("-- for an administrator of MySQL");
        say(&format!("{};", mysql::create_database(database)));
        say(&format!("USE {};", mysql::quoted(database)));
        say(MysqlStore::schema().trim_end());
        for statement in privileges::statements(pair, &needed, RoleName::Daemon, &account)? {
            say(&statement);
        }
    }
    if of_redis {
        let rules = privileges::rules(pair, &needed, RoleName::Daemon)?;
        for line in privileges::additions(pair, &rules) {
            say(&line);
        }
    }
    Ok(())
}
