//! The model of cached counters: random sequences of calls of their scripts, on a real Redis and on a plain reference
//! written from the scripts' headers. Replies and keys must be the same after every call, no call may be counted twice,
//! and no ticket may be given out twice.
//!
//! `COUNTERFOIL_CASES` is the number of sequences, 100 unless said otherwise.

use std::collections::BTreeMap;

use crate::support::model::{Checked, Model, Number, Scripts, agrees, notices, numbers};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::TestCaseError;
use redis::{Value, from_redis_value, pipe};

const FENCE: [&str; 2] = ["calls", "calls_before"];
/// Values, rows and schedule of two partitions, which one call may change counters of.
const PARTITIONS: [[&str; 3]; 2] = [["values", "rows", "schedule"], ["other:values", "other:rows", "other:schedule"]];
const IDS: [&str; 4] = ["a", "b", "é/2014-09-20", "nul\0"];
const CALLERS: [&str; 3] = ["w1", "w2", "careless"];
/// The one that names any epoch with any number; the others do what the header asks of them.
const CARELESS: usize = 2;
const START: u64 = 1_000_000_000;
const EPOCH_MS: u64 = 60_000;
const TICKET_MS: u64 = 300;
const SAVE_AFTER_MS: u64 = 200;

#[derive(Clone, Debug, Default)]
struct Reference {
    /// What the scripts of a family left in the key beside the callers: the others only read it.
    fields: BTreeMap<String, String>,
    calls: BTreeMap<&'static str, LastCall>,
    /// The same of the epoch before.
    left: BTreeMap<String, String>,
    calls_before: BTreeMap<&'static str, LastCall>,
    partitions: [Partition; PARTITIONS.len()],
}

#[derive(Clone, Debug)]
struct LastCall {
    n: u64,
    words: Vec<String>,
}

/// What a partition holds and does, as the headers say.
#[derive(Clone, Debug, Default)]
struct Partition {
    counters: BTreeMap<&'static str, Counter>,
}

/// What is known of an id, and when something is next to be done about it.
#[derive(Clone, Debug)]
struct Counter {
    due: u64,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Ticket(String),
    There(There),
}

#[derive(Clone, Debug)]
struct There {
    value: i64,
    /// Whether it was changed since there was last found nothing to save.
    changed: bool,
    base: Option<i64>,
    saved: Saved,
    lineage: String,
    n: u64,
    used: u64,
    /// A value, and when it was claimed.
    claim: Option<(i64, u64)>,
}

#[derive(Clone, Debug)]
enum Saved {
    Never,
    /// By the last claim of this stay.
    Here,
    As(String),
}

#[derive(Clone, Debug)]
enum Step {
    /// The clock goes on, or back.
    Clock(i64),
    Configure {
        save_after_ms: u64,
    },
    /// A new epoch begins.
    Epoch,
    Incr(Incr),
    /// A call about one of the partitions.
    Of(usize, Call),
    /// Redis loses its memory.
    Forget,
}

#[derive(Clone, Debug)]
struct Incr {
    caller: Option<usize>,
    number: Number,
    epoch: Epoch,
    low: Option<i64>,
    high: Option<i64>,
    groups: Vec<Group>,
}

/// Which epoch a call names.
#[derive(Clone, Copy, Debug)]
enum Epoch {
    Current,
    Before,
    Unknown,
}

/// What a call changes in one partition.
#[derive(Clone, Debug)]
struct Group {
    partition: usize,
    pairs: Vec<(usize, Change)>,
}

#[derive(Clone, Debug)]
enum Call {
    Seed { retain_ms: u64, seeds: Vec<(usize, Which, Row)> },
    Get { ticket_ms: &'static str, ids: Vec<usize> },
    Due { count: usize, horizon_ms: u64 },
    Claim { settle_ms: u64, lease_ms: u64, retain_ms: u64, ids: Vec<usize> },
    Saved { retain_ms: u64, pairs: Vec<(usize, Which)> },
    Rebase { retain_ms: u64, rows: Vec<(usize, Which, Row)> },
    Delete { retain_ms: u64, ids: Vec<usize> },
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Add(i64),
    Set(i64),
}

impl Change {
    fn argument(self) -> String {
        match self {
            Change::Add(delta) => delta.to_string(),
            Change::Set(goal) => format!("={goal}"),
        }
    }
}

/// Value and version of a row in the database.
type Row = (Option<i64>, Option<u64>);

/// Which claim or ticket is meant.
#[derive(Clone, Copy, Debug)]
enum Which {
    Present,
    Earlier,
    OtherStay,
}

fn text(text: impl ToString) -> Value {
    Value::BulkString(text.to_string().into())
}

/// An integer where every client has it exactly, else its digits.
fn amount(sum: i64) -> Value {
    if sum.unsigned_abs() < 1 << 53 { Value::Int(sum) } else { text(sum) }
}

/// A word of a reply as text.
fn word(word: &Value) -> String {
    from_redis_value(word.clone()).unwrap()
}

fn int(number: impl TryInto<i64, Error: std::fmt::Debug>) -> Value {
    Value::Int(number.try_into().unwrap())
}

fn reply(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(items.into_iter().collect())
}

fn ok(words: impl IntoIterator<Item = Value>) -> Value {
    reply([text("OK")].into_iter().chain(words))
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or("-".into(), |value| value.to_string())
}

fn version(version: Option<u64>) -> String {
    or_dash(version.map(|n| format!("00000000000000ff:{n}")))
}

/// Of a pair: those ids, and two that are none.
fn pair_id(number: usize) -> String {
    IDS.get(number).map_or_else(|| "x".repeat((number - IDS.len()) * 256), ToString::to_string)
}

impl There {
    fn is_clean(&self) -> bool {
        self.value == self.base.unwrap_or(0)
    }

    fn version(&self) -> String {
        format!("{}:{}", self.lineage, self.n)
    }

    fn saved(&self) -> String {
        match &self.saved {
            Saved::Never => "-".into(),
            Saved::Here => "=".into(),
            Saved::As(version) => version.clone(),
        }
    }

    fn row(&self) -> String {
        let claim = self.claim.map_or(String::new(), |(value, at)| format!(" {value} {at}"));
        format!("{} {} {} {} {}{claim}", or_dash(self.base), self.saved(), self.lineage, self.n, self.used)
    }

    /// When it is looked at next, once nothing of it is claimed.
    fn next(&self, now: u64, retain_ms: u64, dirty: u64) -> u64 {
        now.max(if self.is_clean() { self.used + retain_ms } else { dirty })
    }
}

fn changed(value: i64, change: Change, (low, high): (Option<i64>, Option<i64>)) -> Option<i64> {
    let (result, falls, rises) = match change {
        Change::Add(delta) => (value.checked_add(delta)?, delta < 0, delta > 0),
        Change::Set(goal) => (goal, true, true),
    };
    let is_out = (falls && low.is_some_and(|low| result < low)) || (rises && high.is_some_and(|high| result > high));
    (!is_out).then_some(result)
}

impl Reference {
    /// The reply to a call that is not executed.
    fn refusal(&self, caller: &str, n: u64, epoch: &str) -> Option<Value> {
        let is = |name: &str| self.fields.get(name).is_some_and(|known| known == epoch);
        if !is("=now") && !is("=before") {
            return Some(reply([text("EXPIRED")]));
        }
        let earlier = self.calls_before.get(caller).filter(|_| !is("=now"));
        let last = self.calls.get(caller).or(earlier).filter(|last| n <= last.n)?;
        let words = last.words.iter().filter(|_| n == last.n).map(text);
        Some(reply([text("DUP")].into_iter().chain(words)))
    }

    fn incr(&mut self, now: u64, call: &Incr, n: u64, epoch: &str, ticket: &str) -> Value {
        let caller = call.caller.map(|caller| CALLERS[caller]);
        if let Some(refusal) = caller.and_then(|caller| self.refusal(caller, n, epoch)) {
            return refusal;
        }
        let save_after_ms = self.fields.get("=save_after_ms").map_or(2000, |ms| ms.parse().unwrap());
        let mut words = vec![];
        for group in &call.groups {
            let partition = &mut self.partitions[group.partition];
            words.extend(group.pairs.iter().map(|&(id, change)| match IDS.get(id) {
                Some(id) => partition.change(now, id, change, (call.low, call.high), save_after_ms, ticket),
                None => "BADID".into(),
            }));
        }
        let reply = ok(words.iter().map(|word| word.parse().map_or_else(|_| text(word), amount)));
        if let Some(caller) = caller {
            self.calls.insert(caller, LastCall { n, words });
        }
        reply
    }

    /// The keys as they are in Redis, by kind.
    fn keys(&self) -> BTreeMap<&'static str, BTreeMap<String, String>> {
        let record = |LastCall { n, words }: &LastCall| format!("{n} {}", words.join(" "));
        let with = |fields: &BTreeMap<String, String>, calls: &BTreeMap<&str, LastCall>| {
            let calls = calls.iter().map(|(&caller, last)| (caller.to_owned(), record(last)));
            fields.clone().into_iter().chain(calls).collect::<BTreeMap<_, _>>()
        };
        let memories = [with(&self.fields, &self.calls), with(&self.left, &self.calls_before)];
        let fence = FENCE.into_iter().zip(memories);
        let data = PARTITIONS.iter().zip(&self.partitions);
        fence.chain(data.flat_map(|(kinds, partition)| kinds.iter().copied().zip(partition.keys()))).collect()
    }
}

impl Partition {
    fn there(&mut self, id: &str) -> Option<(&mut u64, &mut There)> {
        match self.counters.get_mut(id)? {
            Counter { due, state: State::There(there) } => Some((due, there)),
            _ => None,
        }
    }

    fn ticket(&self, id: &str) -> Option<&str> {
        match self.counters.get(id).map(|counter| &counter.state) {
            Some(State::Ticket(ticket)) => Some(ticket),
            _ => None,
        }
    }

    /// The ticket that is stored, or this one from now on; `""` stores none.
    fn miss(&mut self, now: u64, id: &'static str, ticket: &str) -> String {
        if let Some(stored) = self.ticket(id) {
            return format!("MISS:{stored}");
        }
        if !ticket.is_empty() {
            self.counters.insert(id, Counter { due: now + TICKET_MS, state: State::Ticket(ticket.into()) });
        }
        format!("MISS:{ticket}")
    }

    fn seed(&mut self, now: u64, retain_ms: u64, id: &'static str, ticket: &str, row: Row) -> Value {
        if self.ticket(id) == Some(ticket) {
            let saved = row.1.map_or(Saved::Never, |_| Saved::As(version(row.1)));
            let (value, lineage) = (row.0.unwrap_or(0), ticket.into());
            let there = There { value, changed: false, base: row.0, saved, lineage, n: 0, used: now, claim: None };
            self.counters.insert(id, Counter { due: now + retain_ms, state: State::There(there) });
        }
        self.get(now, id, "")
    }

    fn change(
        &mut self,
        now: u64,
        id: &'static str,
        change: Change,
        bounds: (Option<i64>, Option<i64>),
        save_after_ms: u64,
        ticket: &str,
    ) -> String {
        let Some((due, there)) = self.there(id) else { return self.miss(now, id, ticket) };
        let Some(result) = changed(there.value, change, bounds) else { return format!("RANGE:{}", there.value) };
        if !there.changed {
            *due = (*due).min(now + save_after_ms);
        }
        (there.value, there.changed) = (result, true);
        result.to_string()
    }

    fn get(&mut self, now: u64, id: &'static str, ticket: &str) -> Value {
        match self.there(id) {
            Some((_, there)) => amount(there.value),
            None => text(self.miss(now, id, ticket)),
        }
    }

    fn due(&self, now: u64, count: usize, horizon_ms: u64) -> Value {
        let mut plans: Vec<_> = self.counters.iter().map(|(id, counter)| (counter.due, *id)).collect();
        plans.sort_unstable();
        let is_due = |&(due, _): &(u64, &str)| due <= now || due > now + horizon_ms;
        let far = plans.iter().filter(|(due, _)| *due > now && *due > now + horizon_ms);
        let all: Vec<_> = plans.iter().filter(|(due, _)| *due <= now).chain(far).collect();
        let next = plans.iter().find(|plan| !is_due(plan)).map(|(due, _)| int(due - now));
        let next = if all.len() > count { int(0) } else { next.unwrap_or_else(|| text("")) };
        ok([next].into_iter().chain(all.iter().take(count).map(|(_, id)| text(id))))
    }

    fn claim(&mut self, now: u64, settle_ms: u64, lease_ms: u64, retain_ms: u64, id: &str) -> Value {
        let Some(counter) = self.counters.get_mut(id) else { return reply([text("GONE")]) };
        let State::There(there) = &mut counter.state else {
            counter.due = counter.due.min(now + retain_ms);
            return reply([text("CLEAN"), int(counter.due.saturating_sub(now))]);
        };
        let fresh = there.claim.is_none();
        if fresh && there.is_clean() {
            // changed and changed back is used as well; a use in the future is from before the clock stepped back
            if there.used > now || there.changed {
                (there.used, there.changed) = (now, false);
            }
            let left = (there.used + retain_ms).saturating_sub(now);
            if left > 0 {
                counter.due = now + left;
            }
            return reply([text("CLEAN"), int(left)]);
        }
        if fresh {
            if let Saved::Here = there.saved {
                there.saved = Saved::As(there.version());
            }
            there.n += 1;
            there.used = now;
        }
        let (value, at) = there.claim.unwrap_or((there.value, now));
        let at = at.min(now);
        there.claim = Some((value, at));
        let left = (at + settle_ms).saturating_sub(now);
        if left > 0 {
            counter.due = now + left;
            return reply([text("WAIT"), int(left), int(u8::from(fresh))]);
        }
        counter.due = now + lease_ms;
        let words = ["SAVE".into(), or_dash(there.base), there.saved(), value.to_string(), there.version()];
        reply(words.map(text).into_iter().chain([int(u8::from(fresh))]))
    }

    fn saved(&mut self, now: u64, retain_ms: u64, id: &str, version: &str) -> &'static str {
        match self.there(id) {
            Some((due, there)) if there.claim.is_some() && there.version() == version => {
                let (value, at) = there.claim.take().unwrap();
                (there.base, there.saved) = (Some(value), Saved::Here);
                there.changed = !there.is_clean();
                *due = there.next(now, retain_ms, at + SAVE_AFTER_MS);
                if there.is_clean() { "CLEAN" } else { "DIRTY" }
            }
            _ => "STALE",
        }
    }

    fn rebase(&mut self, now: u64, retain_ms: u64, id: &str, claimed: &str, row: Row) -> &'static str {
        match self.there(id) {
            Some((due, there)) if there.claim.is_some() && there.version() == claimed => {
                let unsaved = i128::from(there.value) - i128::from(there.base.unwrap_or(0));
                let Ok(value) = i64::try_from(unsaved + i128::from(row.0.unwrap_or(0))) else { return "RANGE" };
                let saved = row.1.map_or(Saved::Never, |_| Saved::As(version(row.1)));
                (there.value, there.base, there.saved, there.claim) = (value, row.0, saved, None);
                there.changed = !there.is_clean();
                *due = there.next(now, retain_ms, now);
                "OK"
            }
            _ => "STALE",
        }
    }

    fn delete(&mut self, now: u64, retain_ms: u64, id: &str) -> &'static str {
        let kept = match self.counters.get(id) {
            None => return "GONE",
            Some(Counter { due, state: State::Ticket(_) }) => (*due > now).then_some("KEPT:early"),
            Some(Counter { state: State::There(there), .. }) => match there {
                There { claim: Some(_), .. } => Some("KEPT:claimed"),
                there if !there.is_clean() => Some("KEPT:dirty"),
                there => (there.used + retain_ms > now).then_some("KEPT:early"),
            },
        };
        kept.unwrap_or_else(|| {
            self.counters.remove(id);
            "DELETED"
        })
    }

    /// The claim that is meant.
    fn claimed(&mut self, id: usize, which: Which) -> String {
        let (lineage, n) =
            self.there(IDS[id]).map_or(("0".repeat(16), 1), |(_, there)| (there.lineage.clone(), there.n));
        match which {
            Which::Present => format!("{lineage}:{}", n.max(1)),
            Which::Earlier => format!("{lineage}:{}", n.saturating_sub(1).max(1)),
            Which::OtherStay => format!("ffffffffffffffff:{}", n.max(1)),
        }
    }

    /// The three keys as they are in Redis.
    fn keys(&self) -> [BTreeMap<String, String>; 3] {
        let [mut values, mut rows, mut schedule] = <[BTreeMap<_, _>; 3]>::default();
        for (&id, Counter { due, state }) in &self.counters {
            schedule.insert(id.into(), due.to_string());
            let row = match state {
                State::Ticket(ticket) => format!("ticket {ticket}"),
                State::There(there) => {
                    let mark = if there.changed { "" } else { "=" };
                    values.insert(id.into(), format!("{mark}{}", there.value));
                    there.row()
                }
            };
            rows.insert(id.into(), row);
        }
        [values, rows, schedule]
    }
}

fn number() -> impl Strategy<Value = i64> {
    let ends = [i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1, 1 << 53, (1 << 53) + 1, -(1 << 53) - 1, 1 << 62];
    let tens =
        [100_000_000_000_000, 99_999_999_999_999, -100_000_000_000_000, 1_000_000_000, 999_999_999, -1_000_000_000];
    prop_oneof![8 => -3..=3_i64, 1 => select(ends.to_vec()), 1 => select(tens.to_vec()), 1 => any::<i64>()]
}

fn row() -> impl Strategy<Value = Row> {
    (prop::option::weighted(0.8, number()), prop::option::of(1..5_u64))
}

fn retain_ms() -> impl Strategy<Value = u64> {
    select(vec![0_u64, 500, 500, 2000])
}

fn group() -> impl Strategy<Value = Group> {
    let change = prop_oneof![4 => number().prop_map(Change::Add), 1 => number().prop_map(Change::Set)];
    let id = prop_oneof![20 => 0..IDS.len(), 1 => IDS.len()..IDS.len() + 2];
    let pairs = prop::collection::vec((id, change), 1..5);
    (0..PARTITIONS.len(), pairs).prop_map(|(partition, pairs)| Group { partition, pairs })
}

fn incr() -> impl Strategy<Value = Incr> {
    let caller = prop_oneof![1 => Just(None), 6 => (0..CALLERS.len()).prop_map(Some)];
    let epoch = prop_oneof![8 => Just(Epoch::Current), 3 => Just(Epoch::Before), 1 => Just(Epoch::Unknown)];
    // as the header asks
    let bound = || number().prop_filter("is a bound", |bound| bound.unsigned_abs() < 1 << 53);
    let bounds = (prop::option::weighted(0.3, bound()), prop::option::weighted(0.3, bound()));
    let groups = prop::collection::vec(group(), 1..=3);
    (caller, numbers(8), epoch, bounds, groups).prop_map(|(caller, number, epoch, (low, high), groups)| Incr {
        caller,
        number,
        epoch,
        low,
        high,
        groups,
    })
}

fn call() -> impl Strategy<Value = Call> {
    let ids = || subsequence((0..IDS.len()).collect::<Vec<_>>(), 1..=IDS.len());
    let which = || prop_oneof![8 => Just(Which::Present), 1 => Just(Which::Earlier), 1 => Just(Which::OtherStay)];
    let each = |ids: Vec<usize>, which: Vec<Which>| ids.into_iter().zip(which).collect::<Vec<_>>();
    let four = || prop::collection::vec(which(), IDS.len());
    let seeds = (retain_ms(), prop::collection::vec((0..IDS.len(), which(), row()), 1..6));
    let get = (select(vec!["", "0", "300", "300"]), prop::collection::vec(0..IDS.len(), 1..5));
    let claim = (select(vec![0_u64, 0, 100, 400]), select(vec![0_u64, 100]), retain_ms(), ids());
    let rebase = (retain_ms(), ids(), four(), prop::collection::vec(row(), IDS.len()));
    prop_oneof![
        8 => seeds.prop_map(|(retain_ms, seeds)| Call::Seed { retain_ms, seeds }),
        3 => get.prop_map(|(ticket_ms, ids)| Call::Get { ticket_ms, ids }),
        2 => (1..6_usize, select(vec![0_u64, 100, 5000])).prop_map(|(count, horizon_ms)| Call::Due { count, horizon_ms }),
        8 => claim.prop_map(|(settle_ms, lease_ms, retain_ms, ids)| Call::Claim { settle_ms, lease_ms, retain_ms, ids }),
        5 => (retain_ms(), ids(), four())
            .prop_map(move |(retain_ms, ids, which)| Call::Saved { retain_ms, pairs: each(ids, which) }),
        5 => rebase.prop_map(move |(retain_ms, ids, which, rows)| {
            let rows = each(ids, which).into_iter().zip(rows).map(|((id, which), row)| (id, which, row)).collect();
            Call::Rebase { retain_ms, rows }
        }),
        4 => (retain_ms(), ids()).prop_map(|(retain_ms, ids)| Call::Delete { retain_ms, ids }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let clock = prop_oneof![6 => 0..300_i64, 2 => 300..5000_i64, 1 => -300..0_i64, 1 => -5000..0_i64];
    // mostly the first one, so that what a call brings somewhere is there for the next one
    let partition = prop_oneof![3 => Just(0), 1 => Just(1_usize)];
    prop_oneof![
        16 => clock.prop_map(Step::Clock),
        1 => select(vec![0_u64, 200, 700]).prop_map(|save_after_ms| Step::Configure { save_after_ms }),
        3 => Just(Step::Epoch),
        24 => incr().prop_map(Step::Incr),
        56 => (partition, call()).prop_map(|(partition, call)| Step::Of(partition, call)),
        1 => Just(Step::Forget),
    ]
}

/// One sequence: the reference, and what the callers know.
struct Play {
    scripts: Scripts,
    reference: Reference,
    now: u64,
    /// Epochs have a clock of their own, so that what is stored does not grow old with each.
    epochs_now: u64,
    /// What each careful caller called, with number and epoch.
    sent: [Vec<(u64, String)>; CARELESS],
    /// What they were told, by caller, number and epoch.
    executed: BTreeMap<(usize, u64, String), Vec<String>>,
    /// Number of the careless caller's last call.
    careless: u64,
    /// How many calls there were that no caller numbers.
    unnumbered: u64,
    /// All that were ever given out.
    tickets: Vec<String>,
}

impl Model for Play {
    type Step = Step;
    const FAMILY: &'static str = "shop/stock";
    const FENCED: &'static [&'static str] = &["cached_incr"];

    fn steps() -> BoxedStrategy<Step> {
        step().boxed()
    }

    fn new(scripts: Scripts) -> Self {
        let mut play = Play {
            scripts,
            reference: Reference::default(),
            now: START,
            epochs_now: START,
            sent: Default::default(),
            executed: BTreeMap::new(),
            careless: 0,
            unnumbered: 0,
            tickets: vec![],
        };
        play.begin_epoch().unwrap();
        play
    }

    fn step(&mut self, step: &Step) -> Checked {
        match step {
            Step::Clock(ms) => self.now = self.now.saturating_add_signed(*ms),
            Step::Configure { save_after_ms } => {
                let args = ["cached".into(), "1".into(), "save_after_ms".into(), save_after_ms.to_string()];
                prop_assert_eq!(self.scripts.call("family_configure", &FENCE[..1], &args)?, ok([]));
                self.reference.fields = self.read_fields("calls");
            }
            Step::Epoch => self.begin_epoch()?,
            Step::Incr(call) => self.incr(call)?,
            Step::Of(partition, call) => self.call(*partition, call)?,
            Step::Forget => {
                self.scripts.forget();
                (self.reference, self.sent) = Default::default();
                (self.executed, self.careless) = Default::default();
            }
        }
        self.check_keys()
    }
}

impl Play {
    fn read_fields(&self, kind: &str) -> BTreeMap<String, String> {
        let [mut fields]: [BTreeMap<String, String>; 1] = self.scripts.ask(pipe().hgetall(self.scripts.key(kind)));
        fields.retain(|field, _| field.starts_with('='));
        fields
    }

    fn begin_epoch(&mut self) -> Checked {
        self.epochs_now += EPOCH_MS;
        let args = ["cached".into(), "1".into(), self.epochs_now.to_string()];
        let got = self.scripts.call("family_epoch", &FENCE, &args)?;
        if self.reference.fields.contains_key("=now") {
            self.reference.left = self.read_fields("calls_before");
            self.reference.calls_before = std::mem::take(&mut self.reference.calls);
        }
        self.reference.fields = self.read_fields("calls");
        prop_assert_eq!(got, ok(["=now", "=before"].map(|which| text(&self.reference.fields[which]))));
        Ok(())
    }

    /// Number and epoch of a call. A careful caller's numbers grow, and a repeat names the epoch of the first time.
    fn numbered(&mut self, call: &Incr) -> (u64, String) {
        let epoch = match call.epoch {
            Epoch::Current => self.reference.fields.get("=now").cloned(),
            Epoch::Before => self.reference.fields.get("=before").cloned(),
            Epoch::Unknown => None,
        };
        let epoch = epoch.unwrap_or_else(|| "unknown".into());
        let Some(caller) = call.caller else {
            self.unnumbered += 1;
            return (self.unnumbered, epoch);
        };
        if caller == CARELESS {
            return (call.number.after(&mut self.careless), epoch);
        }
        let sent = &mut self.sent[caller];
        let repeated = match call.number {
            Number::Same => sent.last(),
            Number::Earlier => sent.iter().nth_back(1),
            _ => None,
        };
        repeated.cloned().unwrap_or_else(|| {
            let last = sent.last().map_or(0, |(n, _)| *n);
            sent.push((last + if let Number::Skipping = call.number { 9 } else { 1 }, epoch));
            sent.last().unwrap().clone()
        })
    }

    /// The ticket that a call gave out first in this reply, `""` for none.
    fn new_ticket(&mut self, got: &Value) -> Result<String, TestCaseError> {
        let words = got.as_sequence().unwrap().iter().map(word);
        let mut tickets = words.filter_map(|word| word.strip_prefix("MISS:").map(str::to_owned));
        let is_new = |ticket: &String| !ticket.is_empty() && !self.tickets.contains(ticket);
        let Some(ticket) = tickets.find(is_new) else { return Ok(String::new()) };
        prop_assert!(ticket.len() == 16 && u64::from_str_radix(&ticket, 16).is_ok(), "{} is no ticket", ticket);
        self.tickets.push(ticket.clone());
        Ok(ticket)
    }

    fn incr(&mut self, call: &Incr) -> Checked {
        let (n, epoch) = self.numbered(call);
        let caller = call.caller.map_or("", |caller| CALLERS[caller]);
        let mut keys = FENCE.to_vec();
        let mut args = vec![caller.to_owned(), n.to_string(), epoch.clone(), self.now.to_string()];
        args.push(TICKET_MS.to_string());
        args.extend([call.low, call.high].map(|bound| bound.map_or(String::new(), |bound| bound.to_string())));
        for Group { partition, pairs } in &call.groups {
            keys.extend(PARTITIONS[*partition]);
            args.push(pairs.len().to_string());
            args.extend(pairs.iter().flat_map(|&(id, change)| [pair_id(id), change.argument()]));
        }
        let got = self.scripts.call("cached_incr", &keys, &args)?;
        let ticket = self.new_ticket(&got)?;
        prop_assert_eq!(&got, &self.reference.incr(self.now, call, n, &epoch, &ticket));

        // what the callers know goes by what they were told, not by the reference
        let mut words: Vec<_> = got.as_sequence().unwrap().iter().map(word).collect();
        let status = words.remove(0);
        let Some(caller) = call.caller.filter(|&caller| caller != CARELESS) else { return Ok(()) };
        let earlier = self.executed.get(&(caller, n, epoch.clone()));
        match &*status {
            "OK" => prop_assert!(earlier.is_none(), "call {} of {} was executed twice", n, CALLERS[caller]),
            "DUP" if words.is_empty() => prop_assert!(earlier.is_some() && self.sent[caller].last().unwrap().0 > n),
            "DUP" => prop_assert_eq!(earlier, Some(&words)),
            _ => {}
        }
        if status == "OK" {
            self.executed.insert((caller, n, epoch), words);
        }
        Ok(())
    }

    fn call(&mut self, number: usize, call: &Call) -> Checked {
        let (keys, now) = (&PARTITIONS[number], self.now);
        let now_ms = now.to_string();
        let names = |ids: &[usize]| ids.iter().map(|&id| IDS[id].to_owned()).collect::<Vec<_>>();
        let partition = &mut self.reference.partitions[number];
        match call {
            Call::Seed { retain_ms, seeds } => self.seed(number, *retain_ms, seeds)?,
            Call::Get { ticket_ms, ids } => {
                self.unnumbered += 1;
                let fixed = vec![(*ticket_ms).to_owned(), now_ms, self.unnumbered.to_string()];
                let got = self.scripts.call("cached_get", keys, &[fixed, names(ids)].concat())?;
                let makes_tickets = *ticket_ms == TICKET_MS.to_string();
                let ticket = if makes_tickets { self.new_ticket(&got)? } else { String::new() };
                let partition = &mut self.reference.partitions[number];
                prop_assert_eq!(got, ok(ids.iter().map(|&id| partition.get(now, IDS[id], &ticket))));
            }
            Call::Due { count, horizon_ms } => {
                let args = [count.to_string(), horizon_ms.to_string(), now_ms];
                let got = self.scripts.call("cached_due", &keys[2..], &args)?;
                prop_assert_eq!(got, partition.due(now, *count, *horizon_ms));
            }
            Call::Claim { settle_ms, lease_ms, retain_ms, ids } => {
                let fixed = [settle_ms, lease_ms, retain_ms, &now].map(u64::to_string);
                let got = self.scripts.call("cached_claim", keys, &[fixed.to_vec(), names(ids)].concat())?;
                let claim = |&id: &usize| partition.claim(now, *settle_ms, *lease_ms, *retain_ms, IDS[id]);
                prop_assert_eq!(got, ok(ids.iter().map(claim)));
            }
            Call::Saved { retain_ms, pairs } => {
                let mut args = vec![SAVE_AFTER_MS.to_string(), retain_ms.to_string(), now_ms];
                let versions: Vec<_> = pairs.iter().map(|&(id, which)| partition.claimed(id, which)).collect();
                let with_version = || pairs.iter().map(|&(id, _)| IDS[id]).zip(&versions);
                args.extend(with_version().flat_map(|(id, version)| [id.into(), version.clone()]));
                let got = self.scripts.call("cached_saved", keys, &args)?;
                let saved = |(id, version): (&str, &String)| text(partition.saved(now, *retain_ms, id, version));
                prop_assert_eq!(got, ok(with_version().map(saved)));
            }
            Call::Rebase { retain_ms, rows } => {
                let mut args = vec![retain_ms.to_string(), now_ms];
                let versions: Vec<_> = rows.iter().map(|&(id, which, _)| partition.claimed(id, which)).collect();
                for ((id, _, row), claimed) in rows.iter().zip(&versions) {
                    args.extend([IDS[*id].into(), claimed.clone(), or_dash(row.0), version(row.1)]);
                }
                let got = self.scripts.call("cached_rebase", keys, &args)?;
                let rebase = |((id, _, row), claimed): (&(usize, _, Row), &String)| {
                    text(partition.rebase(now, *retain_ms, IDS[*id], claimed, *row))
                };
                prop_assert_eq!(got, ok(rows.iter().zip(&versions).map(rebase)));
            }
            Call::Delete { retain_ms, ids } => {
                let args = [vec![retain_ms.to_string(), now_ms], names(ids)].concat();
                let got = self.scripts.call("cached_delete", keys, &args)?;
                let delete = |&id: &usize| text(partition.delete(now, *retain_ms, IDS[id]));
                prop_assert_eq!(got, ok(ids.iter().map(delete)));
            }
        }
        Ok(())
    }

    fn seed(&mut self, number: usize, retain_ms: u64, seeds: &[(usize, Which, Row)]) -> Checked {
        let partition = &mut self.reference.partitions[number];
        let (mut tickets, mut args) = (vec![], vec![retain_ms.to_string(), self.now.to_string()]);
        for &(id, which, row) in seeds {
            let stored = match partition.counters.get(IDS[id]).map(|counter| &counter.state) {
                Some(State::Ticket(ticket)) => Some(ticket),
                Some(State::There(there)) => Some(&there.lineage),
                None => None,
            };
            let ticket = match which {
                Which::Present => stored,
                Which::Earlier => self.tickets.iter().rfind(|&ticket| Some(ticket) != stored),
                Which::OtherStay => None,
            };
            let ticket = ticket.cloned().unwrap_or_else(|| "f".repeat(16));
            args.extend([IDS[id].into(), ticket.clone(), or_dash(row.0), version(row.1)]);
            tickets.push(ticket);
        }
        let got = self.scripts.call("cached_seed", &PARTITIONS[number], &args)?;
        let seeds = seeds.iter().zip(&tickets);
        let expected = seeds.map(|(&(id, _, row), ticket)| partition.seed(self.now, retain_ms, IDS[id], ticket, row));
        prop_assert_eq!(got, ok(expected));
        Ok(())
    }

    fn check_keys(&self) -> Checked {
        let expected = self.reference.keys();
        let mut read = pipe();
        for kind in expected.keys() {
            let key = self.scripts.key(kind);
            if kind.ends_with("schedule") {
                read.cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES");
            } else {
                read.hgetall(key);
            }
        }
        let keys: Vec<BTreeMap<String, String>> = self.scripts.ask(&read);
        for ((kind, expected), got) in expected.iter().zip(&keys) {
            prop_assert_eq!(got, expected, "{}", kind);
        }
        Ok(())
    }
}

#[tokio::test]
async fn scripts_do_what_the_reference_does() {
    agrees::<Play>(file!()).await;
}

#[tokio::test]
async fn a_change_to_a_script_is_noticed() {
    notices::<Play>(&[
        ("cached_incr", "if last_n and n - last_n <= 0 then", "if last_n and n - last_n < 0 then"),
        ("cached_incr", "n - last_n == 0 and ' (%S+)' or '^$'", "' (%S+)'"),
        ("cached_incr", "sum > -1e14 and sum < 1e14 and ", ""),
        ("cached_incr", "x > -1e14 and x < 1e14 and ", ""),
        ("cached_incr", "(delta or -1) < 0 and sum < low", "sum < low"),
        ("cached_incr", "(delta or 1) > 0 and sum > high", "false"),
        ("cached_incr", "'LT', ", ""),
        ("cached_incr", "latest[id] or values[i]", "values[i]"),
        ("cached_incr", "writes[KEYS[k]] or {}", "{}"),
        ("cached_incr", "unchanged and (save_after or 2000)", "false"),
        ("cached_incr", "(save_after or 2000)", "2000"),
        ("cached_incr", "delta and was or '0'", "was"),
        ("cached_incr", "{ caller, n, epoch, time[1], time[2] }", "{ caller, epoch, time[1], time[2] }"),
        ("cached_incr", "last = last or epoch", "last = epoch"),
        ("cached_incr", "sum > -2^53 and sum < 2^53 and sum", "sum"),
        ("cached_incr", "id ~= '' and", ""),
        ("cached_incr", "and #id < 256 then", "then"),
        ("cached_seed", "row == 'ticket ' .. ticket", "true"),
        ("cached_seed", "seeded[id] or values[i]", "values[i]"),
        ("cached_seed", "value = '=' .. (base", "value = '' .. (base"),
        ("cached_seed", "number > -2^53 and number < 2^53 and number or text", "number or text"),
        ("cached_get", "number > -2^53 and number < 2^53 and number or text", "number or text"),
        ("cached_get", "value:match('^=?(.*)')", "value"),
        ("cached_get", "and ticket_ms > 0 then", "then"),
        ("cached_get", "KEYS[1], ARGV[3], time[1]", "KEYS[1], time[1]"),
        ("cached_due", "count + 1 - #due", "0"),
        ("cached_due", "'(' .. now_ms, beyond", "now_ms, beyond"),
        ("cached_due", "'(' .. beyond, '+inf'", "'+inf', '+inf'"),
        ("cached_claim", "left > 0 and { 'WAIT', left, fresh } or save", "save"),
        ("cached_claim", "if fresh == 1 or tonumber(at) > now then", "if fresh == 1 then"),
        ("cached_claim", "saved == '=' and lineage .. ':' .. n or saved", "saved"),
        ("cached_claim", "value == number or tonumber(used) > now", "value == number"),
        ("cached_claim", "if value == number or", "if"),
        ("cached_claim", "left > 0 and now + left or now + lease_ms", "now + lease_ms"),
        ("cached_claim", "if ends > now + retain_ms then", "if false then"),
        ("cached_saved", " and version == lineage .. ':' .. n then", " then"),
        ("cached_saved", "due[#due + 2] = math.max(now, ", "due[#due + 2] = math.max(0, "),
        ("cached_saved", "is_clean and used + retain_ms or at", "at"),
        ("cached_saved", "if is_clean then unchanged", "if false then unchanged"),
        ("cached_rebase", "version == lineage .. ':' .. n", "true"),
        ("cached_rebase", "low - base_low + row_low", "low"),
        ("cached_rebase", "if high < 0 then high, low", "if false then high, low"),
        ("cached_rebase", "is_clean and '=' .. sum or sum", "sum"),
        ("cached_delete", "ends and ends > now and", "ends and"),
        ("cached_delete", "elseif claim ~= '' then", "elseif false then"),
        ("cached_delete", "number ~= (base == '-' and '0' or base)", "false"),
        ("cached_delete", "used + retain_ms > now", "false"),
    ])
    .await;
}
