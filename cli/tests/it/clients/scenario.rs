//! The scenarios of `clients/scenarios`, as clients/README.md describes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use counterfoil::admin::Script;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use testkit::Package;

/// The variable with a part of the names of the scenarios to play.
const SELECTED: &str = "COUNTERFOIL_SCENARIO";

/// The families without a table of the application whose settings a stand-in knows.
const OWN_TABLES: [&str; 5] = ["views", "votes", "hits", "readers", "daily"];

/// The calls of each client, what disturbs them, and their expected results.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name of the file, and the namespace of its families.
    #[serde(skip)]
    pub name: String,
    /// The promise that it shows.
    #[allow(dead_code, reason = "for readers of the files")]
    pub why: String,
    #[serde(default)]
    pub needs: BTreeSet<Need>,
    /// The guards without which it fails.
    #[serde(default)]
    pub guards: BTreeSet<String>,
    /// Set if the package makes the connection.
    #[serde(default)]
    pub own: bool,
    /// Seconds to wait for a reply of Redis.
    #[serde(default = "Scenario::timeout")]
    pub timeout: f64,
    #[serde(default)]
    pub options: Map<String, Value>,
    pub steps: Vec<Step>,
    /// The pending deltas in Redis at the end, in the families named.
    #[serde(default)]
    pub redis: Deltas,
    /// The values in MySQL once everything is saved, in the families named.
    #[serde(default)]
    pub mysql: Deltas,
    /// The maximum number of names of callers that Redis remembers.
    pub callers_at_most: Option<usize>,
    /// The maximum number of calls that Redis executed, of which their numbers show about half.
    pub calls_at_most: Option<u64>,
}

/// Sums by id, by family.
pub type Deltas = BTreeMap<String, BTreeMap<String, i64>>;

/// A requirement that not every client or machine meets.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    Cluster,
    GroupCommit,
    /// It asks for families that Redis does not know.
    Announces,
    /// A clock that the scenario sets.
    Clock,
    /// A family that the client knows by its description in Redis only.
    Description,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Step {
    Call(Call),
    Together {
        together: Vec<Call>,
    },
    /// Waits for the reply of a call with this `reply`.
    Await {
        wait_for: String,
        #[serde(flatten)]
        expected: Expected,
    },
    Network {
        network: Disturbance,
        /// The script whose calls are disturbed.
        of: String,
        #[serde(default)]
        bytes: usize,
        #[serde(default)]
        after_ms: u64,
        #[serde(default = "Call::once")]
        times: usize,
    },
    Connections {
        connections: Connections,
    },
    Redis {
        redis: Event,
    },
    /// Sends a command to Redis, with NAMESPACE for the namespace.
    Command {
        command: Vec<String>,
    },
    /// Sends a statement to MySQL, likewise.
    Sql {
        sql: String,
    },
    Client {
        client: ClientEvent,
    },
    /// Sets the clock of the client off by so many seconds.
    Clock {
        clock: i64,
    },
    /// Waits until the families have these deltas pending.
    Pending {
        pending: Deltas,
    },
    Pause {
        pause_ms: u64,
    },
}

/// A disturbance of a request.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disturbance {
    /// It is lost after `bytes` bytes.
    LoseRequest,
    /// Its reply is lost after `bytes` bytes.
    LoseReply,
    /// It arrives a second time, `after_ms` later.
    Duplicate,
    /// The connection ends, and it arrives `after_ms` later.
    Late,
    /// Any of these, at random.
    Any,
}

/// A disturbance of all connections.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connections {
    /// No byte arrives, and no error.
    Hold,
    /// The held ones are closed, and no further request is disturbed.
    Free,
}

/// An event of Redis.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    Kill,
    /// Starts it again, empty, and waits until the daemon has configured it.
    Start,
    /// Empties it, and waits until the daemon has configured it.
    Empty,
    /// Empties it, and the next call follows at once.
    Emptied,
    Suspend,
    Resume,
    /// Begins two epochs, so that it has forgotten all calls.
    Forget,
    /// Another machine, resumed from the same snapshot, makes a next call of each caller.
    Copied,
    /// Moves the slots of the family `views` to another node while calls go on.
    MoveSlots,
}

/// An event of the client's process.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientEvent {
    Suspend,
    Resume,
    /// Ends it as at the end of a program, and starts another one.
    Restart,
    /// Kills it, and starts another one.
    Kill,
}

/// A call of the client.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// `FAMILY.METHOD`.
    pub call: String,
    #[serde(default)]
    pub args: Vec<Value>,
    /// The thread, task or forked process that makes it; `*` stands for the number of the repetition.
    #[serde(default = "Call::main")]
    pub r#as: String,
    #[serde(default = "Call::once")]
    pub times: usize,
    /// The name by which its reply is awaited later.
    pub reply: Option<String>,
    #[serde(default, deserialize_with = "present")]
    pub returns: Option<Value>,
    pub fails: Option<Failure>,
    /// The outcome may be unknown.
    #[serde(default)]
    pub may_be_unknown: bool,
    /// The longest time of all repetitions together.
    pub within_ms: Option<u64>,
}

/// The expected result of a call. A call without one must succeed, whatever it returns.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Expected {
    #[serde(default, deserialize_with = "present")]
    pub returns: Option<Value>,
    pub fails: Option<Failure>,
    #[serde(default)]
    pub may_be_unknown: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// `not_counted`, `outcome_unknown` or `misconfigured`.
    pub error: String,
    /// A part of the reason.
    #[serde(default)]
    pub reason: String,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Scenario {
    /// Returns whether the environment selects scenarios.
    pub fn are_selected() -> bool {
        std::env::var_os(SELECTED).is_some()
    }

    /// Returns all scenarios, by name, or the selected ones.
    pub fn all() -> Vec<Self> {
        let wanted = std::env::var(SELECTED).unwrap_or_default();
        let mut files: Vec<_> = fs::read_dir(folder()).expect("the scenarios").collect();
        files.sort_by_key(|file| file.as_ref().map(fs::DirEntry::file_name).ok());
        let paths = files.into_iter().map(|file| file.expect("a file").path());
        let paths = paths.filter(|path| path.extension().is_some_and(|end| end == "json"));
        paths
            .map(|path| {
                let text = fs::read_to_string(&path).expect("UTF-8");
                let scenario: Result<Scenario, _> = serde_json::from_str(&text);
                let name = path.file_stem().expect("a name").to_string_lossy();
                Scenario {
                    name: name.into_owned(),
                    ..scenario.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
                }
            })
            .chain([Self::of_ids()])
            .filter(|scenario: &Scenario| scenario.name.contains(&wanted))
            .collect()
    }

    /// Returns the scenario of `clients/ids.json`: a family for each table, and its ids.
    fn of_ids() -> Self {
        let file = fs::read_to_string(Package::folder().join("ids.json")).expect("ids");
        let file: Value = serde_json::from_str(&file).expect("JSON");
        let configure = Script::all().find(|script| script.name == "family_configure");
        let configure = configure.expect("a script").source;
        let mut steps = vec![];
        for case in file["cases"].as_array().expect("cases") {
            let name = case["id"].as_str().expect("a name");
            let description = json!({
                "wide": false,
                "separator": case["separator"],
                "ids": case["ids"],
                "ids_in_words": case["id"],
            });
            let description = description.to_string();
            let [calls, meta] =
                ["calls", "meta"].map(|key| format!("cf1:{{NAMESPACE/{name}/0}}:{key}"));
            let words = [
                "EVAL",
                configure,
                "2",
                &calls,
                &meta,
                "salt",
                "",
                "buffered",
                "1",
                "",
                &description,
            ];
            steps.push(json!({ "command": words }));
            for id in case["accepted"].as_array().expect("ids") {
                steps.push(json!({"call": format!("{name}.add"), "args": [id, 1]}));
            }
            for id in case["refused"].as_array().expect("ids") {
                let refused = json!({"error": "not_counted", "reason": "BADID"});
                steps.push(
                    json!({"call": format!("{name}.add"), "args": [id, 1], "fails": refused}),
                );
            }
            // no database has the family
            let pending = format!("cf1:{{NAMESPACE/{name}/0}}:buffer");
            steps.push(json!({"command": ["DEL", &calls, &meta, &pending]}));
        }
        let scenario = json!({"why": file["why"], "needs": ["description"], "steps": steps});
        Scenario {
            name: "ids-of-tables".to_owned(),
            ..serde_json::from_value(scenario).expect("a scenario")
        }
    }

    /// Returns whether a stand-in in memory can play it: it only makes calls, in families without a
    /// table of the application.
    pub fn is_of_calls(&self) -> bool {
        let only_calls = |step: &Step| matches!(step, Step::Call(_));
        let families = self.families();
        self.needs.is_empty()
            && self.steps.iter().all(only_calls)
            && families
                .iter()
                .all(|family| OWN_TABLES.contains(&&**family))
    }

    /// Returns the families that the steps count in.
    pub fn families(&self) -> BTreeSet<String> {
        let calls = self.steps.iter().flat_map(|step| match step {
            Step::Call(call) => std::slice::from_ref(call),
            Step::Together { together } => together,
            _ => &[],
        });
        let families = calls.filter_map(|call| call.call.split_once('.'));
        families.map(|(family, _)| family.to_owned()).collect()
    }

    fn timeout() -> f64 {
        0.5
    }
}

impl Call {
    fn main() -> String {
        "main".to_owned()
    }

    fn once() -> usize {
        1
    }

    pub fn expected(&self) -> Expected {
        Expected {
            returns: self.returns.clone(),
            fails: self.fails.clone(),
            may_be_unknown: self.may_be_unknown,
        }
    }
}

impl Expected {
    /// Returns what is wrong with a reply.
    pub fn problem(&self, reply: &Value) -> Option<String> {
        let (error, reason) = (&reply["error"], &reply["reason"]);
        let fits = match (&self.fails, &self.returns) {
            _ if self.may_be_unknown && error == "outcome_unknown" => true,
            (Some(fails), _) => {
                let reason = reason.as_str().unwrap_or_default();
                error == fails.error.as_str() && reason.contains(&fails.reason)
            }
            (None, Some(returns)) => error.is_null() && fits(&reply["returns"], returns),
            (None, None) => error.is_null(),
        };
        (!fits).then(|| format!("{reply} instead of {self:?}"))
    }
}

/// Returns whether a result is what is expected. A number may be written as a string, a failure has
/// any reason, and `{"or_lost": VALUE}` is the value, or null.
fn fits(result: &Value, expected: &Value) -> bool {
    match (result, expected) {
        (Value::Array(results), Value::Array(all)) => {
            results.len() == all.len()
                && results.iter().zip(all).all(|(one, other)| fits(one, other))
        }
        (_, Value::Object(object)) => match object.get("or_lost") {
            Some(value) => result.is_null() || fits(result, value),
            None => result["error"] == expected["error"],
        },
        (Value::Number(number), Value::String(text))
        | (Value::String(text), Value::Number(number)) => number.to_string() == *text,
        _ => result == expected,
    }
}

/// Returns the folder of the scenarios.
pub fn folder() -> PathBuf {
    Package::folder().join("scenarios")
}
