//! The reference of the fence: epochs, and the callers that a family remembers.

use redis::Value;

use super::requests::Memory;
use super::*;
use crate::support::*;

const CALLERS: [&str; 3] = ["w1", "w2", "careless"];
/// The caller that names any epoch with any number. The others follow the rules in the headers of
/// the scripts.
const CARELESS: usize = 2;

/// The number of a call, relative to the caller's last one.
#[derive(Clone, Copy, Debug)]
enum Number {
    Next,
    Skipping,
    Same,
    Earlier,
}

/// The epoch that a call names.
#[derive(Clone, Copy, Debug)]
enum Epoch {
    Current,
    Before,
    Unknown,
}

/// The fence of a call, and its disturbances.
#[derive(Clone, Debug)]
pub struct Called {
    caller: Option<usize>,
    number: Number,
    epoch: Epoch,
    /// Chooses a key that has another type during the call.
    spoilt: Option<usize>,
    /// True if Redis has no memory left for the call.
    full: bool,
}

/// Draws calls. `trouble` is the share of calls with a spoilt key, and of those with a full Redis.
pub fn called(trouble: (f64, f64)) -> impl Strategy<Value = Called> {
    let caller = prop_oneof![2 => Just(None), 8 => (0..CALLERS.len()).prop_map(Some)];
    let number = prop_oneof![
        7 => Just(Number::Next),
        1 => Just(Number::Skipping),
        3 => Just(Number::Same),
        1 => Just(Number::Earlier),
    ];
    let epoch =
        prop_oneof![8 => Just(Epoch::Current), 3 => Just(Epoch::Before), 1 => Just(Epoch::Unknown)];
    let share = 0.0..1.0_f64;
    (caller, number, epoch, (share.clone(), 0..20_usize), share).prop_map(
        move |(caller, number, epoch, (spoils, nth), fills)| Called {
            caller,
            number,
            epoch,
            spoilt: (spoils < trouble.0).then_some(nth),
            full: spoils >= trouble.0 && fills < trouble.1,
        },
    )
}

/// A call as sent to Redis.
#[derive(Clone, Debug)]
pub struct Sent {
    caller: Option<usize>,
    n: u64,
    epoch: String,
    /// The key that has another type, by its kind.
    pub spoilt: Option<String>,
    pub full: bool,
}

impl Sent {
    pub fn has_caller(&self) -> bool {
        self.caller.is_some()
    }

    fn caller(&self) -> &'static str {
        self.caller.map_or("", |caller| CALLERS[caller])
    }

    /// Fails if the key has another type.
    pub fn look_at(&self, key: &str) -> Result<(), &'static str> {
        if self.spoilt.as_deref() == Some(key) {
            Err("WRONGTYPE")
        } else {
            Ok(())
        }
    }

    /// Returns the arguments that the fence checks, and the time.
    pub fn fence(&self, now: u64) -> [String; 4] {
        [
            self.caller().into(),
            self.n.to_string(),
            self.epoch.clone(),
            now.to_string(),
        ]
    }
}

/// Why a call is not executed.
pub enum Refusal {
    OtherKind,
    Expired,
    Passed,
    /// The record of the call.
    Dup(String),
}

/// The number and record of each caller's last call.
type Calls = BTreeMap<&'static str, (u64, String)>;

/// The state of a home partition: the settings and epochs of its family, and the last calls of
/// callers.
#[derive(Clone, Debug, Default)]
pub struct Family {
    /// The settings and epochs, whose names begin with "=".
    fields: Fields,
    calls: Calls,
    fields_before: Fields,
    calls_before: Calls,
    pub requests: Memory,
}

/// Returns the reply to a caller that names a database where this one is known.
pub(super) fn refusal_of(known: Option<&String>, database: &str) -> Option<Value> {
    let known = known.filter(|known| !known.is_empty() && !database.is_empty())?;
    (known != database).then(|| reply("MISMATCH", [text(known)]))
}

/// The names that become new when a client asks for the epoch, each with true if it does.
pub(super) struct Begins {
    pub epoch: bool,
    pub generation: bool,
}

impl Family {
    pub fn get(&self, field: &str) -> Option<&String> {
        self.fields.get(field)
    }

    pub fn set<const N: usize>(&mut self, fields: [(&str, &str); N]) {
        let fields = fields.map(|(field, value)| (field.to_owned(), value.to_owned()));
        self.fields.extend(fields);
    }

    /// Returns the reply to a caller that names this database, if the family belongs to another one.
    pub fn refuses(&self, database: &str) -> Option<Value> {
        refusal_of(self.get("=database"), database)
    }

    pub fn max_pending(&self) -> usize {
        self.fields["=max_pending"].parse().unwrap()
    }

    pub(super) fn refusal(&self, sent: &Sent, kind: &str) -> Result<Option<Refusal>, &'static str> {
        sent.look_at("calls")?;
        if self.get("=kind").is_some_and(|known| known != kind) {
            return Ok(Some(Refusal::OtherKind));
        }
        let names = |field| self.get(field) == Some(&sent.epoch);
        let is_current = names("=now");
        if sent.has_caller() && !is_current && !names("=before") {
            return Ok(Some(Refusal::Expired));
        }
        let mut last = self.calls.get(sent.caller());
        if last.is_none() && !is_current {
            sent.look_at("calls_before")?;
            last = self.calls_before.get(sent.caller());
        }
        Ok(last
            .filter(|(n, _)| sent.n <= *n)
            .map(|(n, record)| match sent.n == *n {
                true => Refusal::Dup(record.clone()),
                false => Refusal::Passed,
            }))
    }

    pub(super) fn note(&mut self, sent: &Sent, record: String) {
        if sent.has_caller() {
            self.calls.insert(sent.caller(), (sent.n, record));
        }
    }

    pub(super) fn configure(
        &mut self,
        kind: &str,
        partitions: &str,
        database: &str,
        settings: &[(&str, String)],
        description: &str,
    ) {
        let is = |field, value| self.get(field).is_none_or(|known| known == value);
        if !is("=kind", kind) || !is("=partitions", partitions) {
            self.end_epochs();
        }
        let former = self.fields.remove("=settings").unwrap_or_default();
        for name in former.split_whitespace() {
            self.fields.remove(&format!("={name}"));
        }
        self.set([("=kind", kind), ("=partitions", partitions)]);
        let names: Vec<_> = settings.iter().map(|(name, _)| *name).collect();
        self.set([
            ("=description", description),
            ("=settings", &names.join(" ")),
            ("=database", database),
        ]);
        for (name, value) in settings {
            self.set([(&format!("={name}"), value)]);
        }
    }

    pub fn end_epochs(&mut self) {
        for field in ["=now", "=before", "=began_at"] {
            self.fields.remove(field);
        }
    }

    /// Returns the part of a reply that follows the epochs.
    pub(super) fn known(&self) -> Option<[String; 3]> {
        let known = ["=kind", "=partitions", "=description"].map(|field| self.get(field).cloned());
        let [Some(kind), Some(partitions), Some(settings)] = known else {
            return None;
        };
        Some([kind, partitions, settings])
    }

    /// Returns which names become new at a question for the epoch, or the reply if it is refused.
    pub(super) fn due(&mut self, now: u64, kind: &str, partitions: &str) -> Result<Begins, Value> {
        let Some([known_kind, right, _]) = self.known() else {
            return Err(reply("UNCONFIGURED", [text("")]));
        };
        let fits = |wanted: &str, known: &str| wanted.is_empty() || wanted == known;
        if !fits(kind, &known_kind) || !fits(partitions, &right) {
            let database = self.get("=database").cloned().unwrap_or_default();
            let words = [known_kind, right, database];
            return Err(reply("MISMATCH", words.map(text)));
        }
        let began_at = self.get("=began_at").map(|at| at.parse::<u64>().unwrap());
        let is_current = |at| at <= now && now - at < EPOCH_MS;
        let remembers = self.get("=remember_requests").is_some();
        Ok(Begins {
            epoch: !began_at.is_some_and(is_current),
            generation: remembers && self.requests.is_due(now),
        })
    }

    pub(super) fn begin(&mut self, now: u64, name: &str) {
        let last = self.get("=now").cloned();
        if let Some(last) = &last {
            self.set([("=before", last)]);
            self.fields_before = self.fields.clone();
            self.calls_before = std::mem::take(&mut self.calls);
        }
        let before = last.unwrap_or_else(|| name.to_owned());
        self.set([("=now", name), ("=before", &before)]);
        self.set([("=began_at", &now.to_string())]);
    }

    /// Returns the fields of the keys of a home.
    pub(super) fn keys(&self) -> [Fields; 4] {
        let with = |fields: &Fields, calls: &Calls| {
            fields
                .clone()
                .into_iter()
                .chain(calls.iter().map(|(caller, (n, record))| {
                    let record = format!("{n} {record}").trim_end().to_owned();
                    ((*caller).to_owned(), record)
                }))
                .collect()
        };
        let [requests, requests_before] = self.requests.keys();
        [
            with(&self.fields, &self.calls),
            with(&self.fields_before, &self.calls_before),
            requests,
            requests_before,
        ]
    }
}

/// The state of the callers.
#[derive(Default)]
pub struct Callers {
    /// The number and epoch of each careful caller's calls.
    sent: [Vec<(u64, String)>; CARELESS],
    executed: BTreeSet<(usize, u64, String)>,
    /// The number of the careless caller's last call.
    pub careless: u64,
    /// The number of calls without a caller.
    unnumbered: u64,
}

impl Callers {
    /// Returns number and epoch of a call. A careful caller's numbers grow, and a repeat names its
    /// original epoch.
    fn numbered(&mut self, called: &Called, epoch: String) -> (u64, String) {
        let Some(caller) = called.caller else {
            self.unnumbered += 1;
            return (self.unnumbered, epoch);
        };
        if caller == CARELESS {
            let n = match called.number {
                Number::Next => self.careless + 1,
                Number::Skipping => self.careless + 9,
                Number::Same => self.careless,
                Number::Earlier => self.careless.saturating_sub(1),
            };
            self.careless = n.max(self.careless).max(1);
            return (n.max(1), epoch);
        }
        let sent = &mut self.sent[caller];
        let repeated = match called.number {
            Number::Same => sent.last(),
            Number::Earlier => sent.iter().nth_back(1),
            _ => None,
        };
        if let Some(call) = repeated {
            return call.clone();
        }
        let skipped = if matches!(called.number, Number::Skipping) {
            9
        } else {
            1
        };
        let last = sent.last().map_or(0, |(n, _)| *n);
        sent.push((last + skipped, epoch));
        sent[sent.len() - 1].clone()
    }

    /// Checks the reply to a careful caller without the reference, which may share a mistake with
    /// the scripts: no call is executed twice, and only an executed one is a duplicate.
    pub(super) fn check(&mut self, sent: &Sent, got: &Value) -> Checked {
        let Some(caller) = sent.caller.filter(|&caller| caller != CARELESS) else {
            return Ok(());
        };
        let call = (caller, sent.n, sent.epoch.clone());
        match words(got).first().map(String::as_str) {
            Some("OK") => prop_assert!(self.executed.insert(call), "executed twice"),
            Some("DUP") => prop_assert!(self.executed.contains(&call), "never executed"),
            Some("PASSED") => prop_assert!(self.sent[caller].last().unwrap().0 > sent.n),
            _ => {}
        }
        Ok(())
    }
}

impl Frame {
    /// Returns the call as sent, with these keys.
    pub fn sent(&mut self, called: &Called, keys: &[String]) -> Sent {
        let epoch = match called.epoch {
            Epoch::Current => self.family.get("=now"),
            Epoch::Before => self.family.get("=before"),
            Epoch::Unknown => None,
        };
        let epoch = epoch.cloned().unwrap_or_else(|| "unknown".into());
        let (n, epoch) = self.callers.numbered(called, epoch);
        Sent {
            caller: called.caller,
            n,
            epoch,
            spoilt: called.spoilt.map(|nth| keys[nth % keys.len()].clone()),
            full: called.full,
        }
    }
}
