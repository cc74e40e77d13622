//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use counterfoil::Precision;

/// Brings counters from Redis to MySQL exactly once, shows them, and helps those who run it.
///
/// Exit codes: 0 all is well, 1 something is late, was refused or failed, 2 a server is away or an error was found, 3 the command
/// line or the configuration is wrong.
#[derive(Debug, Parser)]
#[command(name = "counterfoil", version, max_term_width = 100)]
pub struct Arguments {
    /// The configuration file
    #[arg(
        long,
        short,
        global = true,
        default_value = "counterfoil.toml",
        env = "COUNTERFOIL_CONFIG",
        value_name = "FILE"
    )]
    pub config: PathBuf,

    /// The pair of Redis and MySQL, where the file has several
    #[arg(long, short, global = true, value_name = "NAME")]
    pub pair: Option<String>,

    /// Prints JSON
    #[arg(long, global = true)]
    pub json: bool,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the daemon
    Run,
    /// Checks the configuration file, without a look at any server
    CheckConfig,
    /// Prints a commented configuration file with every setting
    ExampleConfig,
    /// Creates counterfoil's own tables, or adds what they lack
    Init {
        /// Prints the SQL instead
        #[arg(long)]
        print: bool,
    },
    /// Looks at both servers, and says what should be changed. Exits with 1 for warnings and 2 for errors
    Check,
    /// A line for each family, for people and monitoring: exits with 1 where something is late or was refused, with 2 where a
    /// server is away
    Status {
        /// What counts as late: hits that wait for longer
        #[arg(long, default_value = "2m", value_parser = time, value_name = "TIME")]
        late: Duration,
    },
    /// The families that the database knows, and those of the configuration
    Families,
    /// Exact values, whatever is on its way: a line for each id, or for each slice of a series
    Get {
        /// NAMESPACE/FAMILY
        family: String,
        /// Ids; SCOPE/DAY of visitors, names of series, pages of activity
        #[arg(required = true)]
        ids: Vec<String>,
        /// Which slices of a series: 60s, day, month
        #[arg(long, default_value = "60s")]
        precision: Precision,
    },
    /// Counts: adds to a counter, exactly once
    Add {
        /// NAMESPACE/FAMILY
        family: String,
        id: String,
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        delta: i64,
        /// Counts once however often it is called with this name within a minute
        #[arg(long, value_name = "NAME")]
        request: Option<String>,
    },
    /// The counters of a family in the order of their ids, each with its exact value; of a series, the names
    List {
        /// NAMESPACE/FAMILY
        family: String,
        /// Only ids that begin with it
        #[arg(long, default_value = "")]
        prefix: String,
        /// Only ids after this one, the last one of the list before
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// How many at most
        #[arg(long, default_value_t = 1000)]
        limit: usize,
    },
    /// What waits in Redis for MySQL
    Pending,
    /// Waits until everything that was counted before is in MySQL
    Drain {
        /// How long it may take
        #[arg(long, default_value = "60s", value_parser = time, value_name = "TIME")]
        timeout: Duration,
        /// Also closes slices that are not over, for a Redis that is given up
        #[arg(long)]
        all: bool,
    },
    /// What rows refused
    Rejects {
        #[command(subcommand)]
        command: Rejects,
    },
    /// Compares counters with the rows that they stand for, as the configuration says, and corrects them. Exits with 1 where
    /// some differ and were not corrected
    Recount {
        /// NAMESPACE/FAMILY
        family: String,
        /// Only notes what differs
        #[arg(long)]
        report: bool,
    },
    /// What recounts found
    Drift {
        /// NAMESPACE/FAMILY
        family: String,
        /// The run, the last one unless it is given
        #[arg(long)]
        run: Option<u64>,
    },
    /// A table of all families that stays up to date
    Top,
    /// The least privileges in Redis, as a rule of an ACL to paste
    Acl {
        #[command(flatten)]
        of: PrivilegesOf,
    },
    /// The least privileges in MySQL, as GRANTs to paste
    Grants {
        #[command(flatten)]
        of: PrivilegesOf,
    },
    /// The Lua scripts, for applications in other languages
    Scripts {
        #[command(subcommand)]
        command: Scripts,
    },
    /// Completions for a shell
    Completions { shell: Shell },
}

#[derive(Debug, Subcommand)]
pub enum Rejects {
    /// Those that were neither applied nor discarded
    List {
        /// Only those of NAMESPACE/FAMILY
        #[arg(long)]
        family: Option<String>,
        #[arg(long, default_value_t = 1000)]
        limit: u64,
    },
    /// Adds them to their rows, each once, after what they were refused for is mended
    Retry {
        #[command(flatten)]
        which: Which,
    },
    /// Gives them up
    Discard {
        #[command(flatten)]
        which: Which,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// By their numbers
    pub numbers: Vec<u64>,
    /// All of NAMESPACE/FAMILY
    #[arg(long)]
    pub family: Option<String>,
    /// All
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct PrivilegesOf {
    /// What the user is to do
    #[arg(value_enum)]
    pub role: RoleName,
    /// The name of the user
    #[arg(long, default_value = "counterfoil")]
    pub user: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RoleName {
    /// Counts by the Lua scripts, in any language
    Writer,
    /// The daemon, and applications on the Rust crate
    Daemon,
    /// Reads by the Lua scripts what others counted
    Reader,
}

#[derive(Debug, Subcommand)]
pub enum Scripts {
    /// Their names and SHA-1s
    List,
    /// Writes them, with their manifest, to a folder
    Export { folder: PathBuf },
    /// Loads them into Redis; in a cluster into every primary, so again after a failover
    Load,
}

/// A time such as 2.5s or 10m.
fn time(text: &str) -> Result<Duration, String> {
    crate::config::time(text)
}
