//! The command line.

use std::ops::Deref;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use counterfoil::Precision;

use crate::config::time;
use crate::output::DEFAULT_CONFIG;

/// Brings counters from Redis to MySQL exactly once, shows them, and offers tools for operators.
///
/// Exit codes: 0 success, 1 something is late, was refused or failed, 2 a server is unavailable or
/// an error was found, 3 the command line or the configuration is invalid.
#[derive(Parser)]
#[command(name = "counterfoil", version, max_term_width = 100)]
pub struct Arguments {
    /// The configuration file
    #[arg(
        long,
        short,
        global = true,
        default_value = DEFAULT_CONFIG,
        env = "COUNTERFOIL_CONFIG",
        value_name = "FILE"
    )]
    pub config: PathBuf,

    /// The pair of Redis and MySQL, if the file has several
    #[arg(long, short, global = true, value_name = "NAME")]
    pub pair: Option<String>,

    /// Prints JSON. Commands that print a text refuse it: run, setup, example-config and sandbox
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Command,
}

/// NAMESPACE/FAMILY.
#[derive(Clone)]
pub struct FamilyName(String);

impl FromStr for FamilyName {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if name.contains('/') {
            Ok(FamilyName(name.to_owned()))
        } else {
            Err("it is not NAMESPACE/FAMILY, such as shop/views")
        }
    }
}

impl Deref for FamilyName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Runs the daemon
    Run,
    /// Sets up two servers, and continues if it failed before: writes the configuration file,
    /// creates counterfoil's tables, users and privileges, runs `check`, starts the service of
    /// systemd, and prints the lines that count in each language. What it may not do, it prints for
    /// an administrator
    Setup {
        #[command(flatten)]
        setup: Setup,
    },
    /// Checks the configuration file without contacting a server
    CheckConfig,
    /// Prints a commented configuration file with every setting
    ExampleConfig,
    /// Creates counterfoil's own tables, or adds missing parts
    Init {
        /// Prints the SQL instead of running it
        #[arg(long)]
        print: bool,
    },
    /// Checks both servers, and recommends changes. Exits with 1 for warnings, and with 2 for errors
    Check,
    /// Prints a line for each family, for people and monitoring. Exits with 1 if something is late
    /// or was refused, or no daemon replies at `listen`, with 2 if a server is unavailable or `check` finds an error
    Status {
        /// The time beyond a family's sync and settle time from which waiting hits count as late
        #[arg(long, default_value = "1m", value_parser = time, value_name = "TIME")]
        late: Duration,
    },
    /// Prints exact values, including hits that are not in MySQL yet: a line for each id, or for
    /// each slice of a series
    Get {
        /// NAMESPACE/FAMILY
        family: FamilyName,
        /// Ids: SCOPE/DAY of visitors, names of series, pages of activity
        #[arg(required = true)]
        ids: Vec<String>,
        /// The slices of a series: 60s, day, month
        #[arg(long, default_value = "60s")]
        precision: Precision,
    },
    /// Adds to a counter, exactly once
    Add {
        /// NAMESPACE/FAMILY
        family: FamilyName,
        id: String,
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        delta: i64,
        /// A name for the call: repeats with this name do not count again within `remember_requests`, an
        /// hour by default
        #[arg(long, value_name = "NAME")]
        request: Option<String>,
    },
    /// Lists the counters of a family by id, each with its exact value. Of a series, it lists the
    /// names
    List {
        /// NAMESPACE/FAMILY
        family: FamilyName,
        /// Only ids with this prefix
        #[arg(long, default_value = "")]
        prefix: String,
        /// Only ids after this one, such as the last id of the previous list
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// The maximum number of counters
        #[arg(long, default_value_t = 1000)]
        limit: usize,
    },
    /// Lists what waits in Redis for MySQL
    Pending,
    /// Waits until everything counted so far is in MySQL
    Drain {
        /// The time limit
        #[arg(long, default_value = "60s", value_parser = time, value_name = "TIME")]
        timeout: Duration,
    },
    /// Lists, retries and discards rejects: changes that rows refused
    Rejects {
        #[command(subcommand)]
        command: Rejects,
    },
    /// Lists and acknowledges set-backs: a server returned to an older state, and hits are lost
    SetBacks {
        #[command(subcommand)]
        command: SetBacks,
    },
    /// Compares counters with the rows that they count, as configured, and corrects them. Exits
    /// with 1 if some differ and were not corrected
    Recount {
        /// NAMESPACE/FAMILY
        family: FamilyName,
        /// Reports differences without correcting them
        #[arg(long)]
        report: bool,
    },
    /// Lists the differences that recounts found
    Drift {
        /// NAMESPACE/FAMILY
        family: FamilyName,
        /// The run; defaults to the last one
        #[arg(long)]
        run: Option<u64>,
    },
    /// Gives a registered family the partitions, durability and bounds of the configuration. For
    /// other partitions, first stop what counts in it, and drain it
    Reconfigure {
        /// NAMESPACE/FAMILY
        family: FamilyName,
        /// Prints the changes without making them
        #[arg(long)]
        dry_run: bool,
    },
    /// Removes families
    Family {
        #[command(subcommand)]
        command: FamilyCommand,
    },
    /// Deletes old records: all recounts of a family but the last, with the differences that they
    /// found. `keep_history` of the pair sets their age
    Purge {
        /// Asks nothing
        #[arg(long)]
        yes: bool,
        /// Prints how many records there are without deleting them
        #[arg(long)]
        dry_run: bool,
    },
    /// Takes over the families of a namespace whose hits in Redis went to another database, such as
    /// a development database before it was reset, and drops what is pending
    Adopt {
        /// The namespace
        namespace: String,
        /// Asks nothing
        #[arg(long)]
        yes: bool,
        /// Prints what would be dropped
        #[arg(long)]
        dry_run: bool,
    },
    /// Prints the least privileges in Redis as an ACL rule
    Acl {
        #[command(flatten)]
        of: PrivilegesOf,
    },
    /// Prints the least privileges in MySQL as GRANT statements
    Grants {
        #[command(flatten)]
        of: PrivilegesOf,
    },
    /// Lists, exports and loads the Lua scripts, for applications in other languages
    Scripts {
        #[command(subcommand)]
        command: Scripts,
    },
    /// Runs a command, such as the tests of an application, beside a private Redis with the families
    /// of the configuration, without MySQL. The command finds Redis in COUNTERFOIL_REDIS, and exact
    /// values at COUNTERFOIL_DAEMON. Without a command it prints both, and waits for Ctrl-C
    Sandbox {
        /// The program of Redis
        #[arg(
            long,
            env = "COUNTERFOIL_REDIS_SERVER",
            default_value = "redis-server",
            value_name = "PROGRAM"
        )]
        redis_server: String,
        /// The command and its arguments, after `--`
        #[arg(last = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Asks the daemon whether it is alive, and nothing else: for containers, probes and monitoring.
    /// Exits with 0 if it is, and otherwise with 1
    Healthcheck {
        /// Asks whether it is ready: whether hits reach MySQL
        #[arg(long)]
        ready: bool,
    },
    /// Prints completions for a shell
    #[command(hide = true)]
    Completions { shell: Shell },
    /// Prints the man page, or writes those of all commands to a folder
    #[command(hide = true)]
    Man {
        #[arg(value_name = "DIR")]
        folder: Option<PathBuf>,
    },
}

impl Command {
    /// Returns the name of a command that prints a text, and has no JSON.
    pub fn without_json(&self) -> Option<&'static str> {
        Some(match self {
            Command::Run => "run",
            Command::Setup { .. } => "setup",
            Command::ExampleConfig => "example-config",
            Command::Sandbox { .. } => "sandbox",
            Command::Completions { .. } => "completions",
            Command::Man { .. } => "man",
            _ => return None,
        })
    }
}

#[derive(Args)]
pub struct Setup {
    /// The URL of Redis, with an administrator's user and password or the daemon's own. Asked for on
    /// a terminal
    #[arg(
        long,
        value_name = "URL",
        env = "COUNTERFOIL_SETUP_REDIS",
        hide_env_values = true
    )]
    pub redis: Option<String>,
    /// The URL of MySQL with the database, and with a user and password likewise
    #[arg(
        long,
        value_name = "URL",
        env = "COUNTERFOIL_SETUP_MYSQL",
        hide_env_values = true
    )]
    pub mysql: Option<String>,
    /// The user that an administrator's URL creates, in both servers
    #[arg(long, value_name = "NAME", default_value = "counterfoil")]
    pub user: String,
    /// The family of a new configuration file, `shop/product_views` by default
    #[arg(long, value_name = "NAMESPACE/FAMILY")]
    pub family: Option<FamilyName>,
    /// Allows servers on other machines without TLS, in a network that you trust
    #[arg(long)]
    pub no_tls: bool,
    /// Uses the servers that it finds on this machine without asking
    #[arg(long)]
    pub yes: bool,
    /// Replaces the configuration file, and its passwords if the URLs have others
    #[arg(long)]
    pub overwrite: bool,
    /// Starts a Redis and a MySQL or MariaDB of its own from the installed ones, and runs the daemon
    /// on them until Ctrl-C
    #[arg(long, conflicts_with_all = ["redis", "mysql", "overwrite"])]
    pub private: bool,
    /// The folder of the private servers, which is kept. By default a temporary one is removed
    #[arg(long, requires = "private", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The program of the private Redis
    #[arg(long, env = "COUNTERFOIL_REDIS_SERVER", value_name = "PROGRAM")]
    pub redis_server: Option<PathBuf>,
    /// The program of the private MySQL or MariaDB
    #[arg(long, env = "COUNTERFOIL_MYSQLD", value_name = "PROGRAM")]
    pub mysql_server: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum FamilyCommand {
    /// Removes a family that is no longer used and has nothing pending: its keys in Redis,
    /// and its rows in counterfoil's own tables
    Remove {
        /// NAMESPACE/FAMILY
        family: FamilyName,
        /// Asks nothing
        #[arg(long)]
        yes: bool,
        /// Prints what would be removed, or why nothing would be
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum SetBacks {
    /// Lists the set-backs of the last day that were not acknowledged. Exits with 1 if there are any
    List,
    /// Lists them, and acknowledges them: they are no problems any more
    Acknowledge,
}

#[derive(Subcommand)]
pub enum Rejects {
    /// Lists rejects, by family and id
    List {
        /// Only rejects of NAMESPACE/FAMILY
        #[arg(long)]
        family: Option<FamilyName>,
        #[arg(long, default_value_t = 1000)]
        limit: u64,
    },
    /// Adds rejects to their rows, each once. Fix the cause of the refusal first
    Retry {
        #[command(flatten)]
        which: Which,
    },
    /// Discards rejects: they are never applied. Asks before it discards all of a family
    Discard {
        #[command(flatten)]
        which: Which,
        /// Does not ask
        #[arg(long)]
        yes: bool,
        /// Lists what it would discard
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Args)]
#[group(required = true, multiple = true)]
pub struct Which {
    /// The rejects of NAMESPACE/FAMILY: all, or those of the ids
    #[arg(long)]
    pub family: Option<FamilyName>,
    /// Ids of the family
    #[arg(requires = "family")]
    pub ids: Vec<String>,
    /// All rejects of all families
    #[arg(long, conflicts_with_all = ["family", "ids"])]
    pub all: bool,
}

#[derive(Args)]
pub struct PrivilegesOf {
    /// The role of the user
    #[arg(value_enum)]
    pub role: RoleName,
    /// The name of the user. Defaults to the daemon's for the role `daemon`, and for others to that
    /// with the ending -app, -reader or -writer
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum RoleName {
    /// Counts by the Lua scripts, in any language
    Writer,
    /// Runs the daemon, or applications with the Rust crate
    Daemon,
    /// Reads counters by the Lua scripts
    Reader,
    /// Counts and reads by the Lua scripts, as an application with a client package does
    Application,
}

#[derive(Subcommand)]
pub enum Scripts {
    /// Lists the names and SHA-1s of the scripts
    List,
    /// Writes the scripts and their manifest to a folder
    Export { folder: PathBuf },
    /// Loads the scripts into Redis. In a cluster this loads every primary, so repeat it after a
    /// failover
    Load,
}
