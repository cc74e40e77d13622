//! HOUSE test 3 for cached counters: random sequences of calls of their scripts, on a real Redis and on a plain reference
//! written from the scripts' headers. Replies and keys must be the same after every call.
//!
//! `COUNTERFOIL_CASES` is the number of sequences, 300 unless said otherwise.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use redis::{Value, pipe};
use crate::support::model::{Checked, Model, Number, Scripts, agrees, notices, numbers};

const KINDS: [&str; 4] = ["values", "rows", "agenda", "producers"];
const IDS: [&str; 4] = ["a", "b", "é/2014-09-20", "nul\0"];
const PRODUCERS: [&str; 2] = ["w1", "w2"];
const START: u64 = 1_000_000_000;
const TICKET_MS: u64 = 300;
const SAVE_AFTER_MS: u64 = 200;

/// What a partition holds and does, as the headers say.
#[derive(Clone, Debug, Default)]
struct Reference {
    counters: BTreeMap<&'static str, Counter>,
    producers: BTreeMap<&'static str, LastCall>,
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
struct LastCall {
    seq: u64,
    at: u64,
    words: Vec<String>,
}

#[derive(Clone, Debug)]
enum Step {
    /// The clock goes on, or back.
    Clock(i64),
    Incr(Incr),
    Get {
        makes_tickets: bool,
        retain_ms: u64,
        seeds: Vec<Seed>,
        ids: Vec<usize>,
    },
    Due {
        count: usize,
        horizon_ms: u64,
    },
    Claim {
        settle_ms: u64,
        lease_ms: u64,
        retain_ms: u64,
        ids: Vec<usize>,
    },
    Saved {
        retain_ms: u64,
        pairs: Vec<(usize, Which)>,
    },
    Rebase {
        retain_ms: u64,
        rows: Vec<(usize, Which, Row)>,
    },
    Delete {
        retain_ms: u64,
        ids: Vec<usize>,
    },
    /// Redis loses its memory.
    Forget,
}

#[derive(Clone, Debug)]
struct Incr {
    producer: Option<usize>,
    number: Number,
    repeat: bool,
    retain_ms: u64,
    low: Option<i64>,
    high: Option<i64>,
    seeds: Vec<Seed>,
    pairs: Vec<(usize, Change)>,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Add(i64),
    Set(i64),
}

#[derive(Clone, Debug)]
struct Seed {
    id: usize,
    /// The stored ticket, or another one.
    is_current: bool,
    row: Row,
}

/// Value and version of a row in the database.
type Row = (Option<i64>, Option<u64>);

/// Which claim is meant.
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

fn word(text_of: &str) -> Value {
    text_of.parse().map_or_else(|_| text(text_of), amount)
}

fn int(number: impl TryInto<i64, Error: std::fmt::Debug>) -> Value {
    Value::Int(number.try_into().unwrap())
}

fn answer(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(items.into_iter().collect())
}

fn ok(words: impl IntoIterator<Item = Value>) -> Value {
    answer([text("OK")].into_iter().chain(words))
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or("-".into(), |value| value.to_string())
}

fn version(version: Option<u64>) -> String {
    or_dash(version.map(|n| format!("00000000000000ff:{n}")))
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

fn changed(value: i64, change: Change, low: Option<i64>, high: Option<i64>) -> Option<i64> {
    let (result, falls, rises) = match change {
        Change::Add(delta) => (value.checked_add(delta)?, delta < 0, delta > 0),
        Change::Set(goal) => (goal, true, true),
    };
    let is_out = (falls && low.is_some_and(|low| result < low)) || (rises && high.is_some_and(|high| result > high));
    (!is_out).then_some(result)
}

impl Reference {
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

    fn seed(&mut self, now: u64, retain_ms: u64, id: &'static str, ticket: &str, row: Row) {
        if self.ticket(id) == Some(ticket) {
            let saved = row.1.map_or(Saved::Never, |_| Saved::As(version(row.1)));
            let (value, lineage) = (row.0.unwrap_or(0), ticket.into());
            let there = There { value, base: row.0, saved, lineage, n: 0, used: now, claim: None };
            self.counters.insert(id, Counter { due: now + retain_ms, state: State::There(there) });
        }
    }

    fn incr(&mut self, now: u64, call: &Incr, seq: u64, ticket: &str, tickets: &[String]) -> Value {
        let producer = call.producer.map(|producer| PRODUCERS[producer]);
        if let Some(producer) = producer {
            match self.producers.get(producer) {
                Some(last) if last.seq == seq => {
                    return answer([text("DUP")].into_iter().chain(last.words.iter().map(|text| word(text))));
                }
                Some(last) if last.seq > seq => return answer([text("UNKNOWN")]),
                None if call.repeat => return answer([text("UNKNOWN")]),
                _ => {}
            }
        }
        for (seed, ticket) in call.seeds.iter().zip(tickets) {
            self.seed(now, call.retain_ms, IDS[seed.id], ticket, seed.row);
        }
        let mut words = vec![];
        for &(id, change) in &call.pairs {
            let Some((due, there)) = self.there(IDS[id]) else {
                words.push(self.miss(now, IDS[id], ticket));
                continue;
            };
            let Some(result) = changed(there.value, change, call.low, call.high) else {
                words.push(format!("RANGE:{}", there.value));
                continue;
            };
            if there.is_clean() {
                *due = (*due).min(now + SAVE_AFTER_MS);
            }
            there.value = result;
            words.push(result.to_string());
        }
        let reply = ok(words.iter().map(|text| word(text)));
        if let Some(producer) = producer {
            self.producers.insert(producer, LastCall { seq, at: now, words });
        }
        reply
    }

    fn get(&mut self, now: u64, ticket: &str, ids: &[usize]) -> Value {
        let words = ids.iter().map(|&id| match self.there(IDS[id]) {
            Some((_, there)) => amount(there.value),
            None => text(self.miss(now, IDS[id], ticket)),
        });
        ok(words.collect::<Vec<_>>())
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
        let Some(counter) = self.counters.get_mut(id) else { return answer([text("GONE")]) };
        let State::There(there) = &mut counter.state else {
            counter.due = counter.due.min(now + retain_ms);
            return answer([text("CLEAN"), int(counter.due.saturating_sub(now))]);
        };
        let fresh = there.claim.is_none();
        if fresh && there.is_clean() {
            if there.used > now || (counter.due <= now && counter.due < there.used + retain_ms) {
                there.used = now;
            }
            let left = (there.used + retain_ms).saturating_sub(now);
            if left > 0 {
                counter.due = now + left;
            }
            return answer([text("CLEAN"), int(left)]);
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
            return answer([text("WAIT"), int(left), int(u8::from(fresh))]);
        }
        counter.due = now + lease_ms;
        let words = ["SAVE".into(), or_dash(there.base), there.saved(), value.to_string(), there.version()];
        answer(words.map(text).into_iter().chain([int(u8::from(fresh))]))
    }

    fn saved(&mut self, now: u64, retain_ms: u64, id: &str, version: &str) -> &'static str {
        match self.there(id) {
            Some((due, there)) if there.claim.is_some() && there.version() == version => {
                let (value, at) = there.claim.take().unwrap();
                (there.base, there.saved) = (Some(value), Saved::Here);
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

    /// The four keys as they are in Redis.
    fn keys(&self) -> [BTreeMap<String, String>; 4] {
        let [mut values, mut rows, mut agenda, mut producers] = <[BTreeMap<_, _>; 4]>::default();
        for (&id, Counter { due, state }) in &self.counters {
            agenda.insert(id.into(), due.to_string());
            let row = match state {
                State::Ticket(ticket) => format!("ticket {ticket}"),
                State::There(there) => {
                    values.insert(id.into(), there.value.to_string());
                    there.row()
                }
            };
            rows.insert(id.into(), row);
        }
        for (&name, LastCall { seq, at, words }) in &self.producers {
            producers.insert(name.into(), format!("{seq} {at} {}", words.join(" ")));
        }
        [values, rows, agenda, producers]
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

fn seeds() -> impl Strategy<Value = Vec<Seed>> {
    let seed = (0..IDS.len(), prop::bool::weighted(0.8), row());
    prop::collection::vec(seed.prop_map(|(id, is_current, row)| Seed { id, is_current, row }), 0..4)
}

fn retain_ms() -> impl Strategy<Value = u64> {
    select(vec![0_u64, 500, 500, 2000])
}

fn incr() -> impl Strategy<Value = Incr> {
    let number_of_call = numbers(8);
    let producer = prop_oneof![1 => Just(None), 2 => (0..PRODUCERS.len()).prop_map(Some)];
    let bound = || prop::option::weighted(0.3, number());
    let change = prop_oneof![4 => number().prop_map(Change::Add), 1 => number().prop_map(Change::Set)];
    let pairs = prop::collection::vec((0..IDS.len(), change), 1..6);
    (producer, number_of_call, retain_ms(), bound(), bound(), seeds(), pairs).prop_map(
        |(producer, (number, repeat), retain_ms, low, high, seeds, pairs)| Incr {
            producer,
            number,
            repeat,
            retain_ms,
            low,
            high,
            seeds,
            pairs,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let clock = prop_oneof![6 => 0..300_i64, 2 => 300..5000_i64, 1 => -300..0_i64, 1 => -5000..0_i64];
    let ids = || subsequence((0..IDS.len()).collect::<Vec<_>>(), 1..=IDS.len());
    let which = || prop_oneof![8 => Just(Which::Present), 1 => Just(Which::Earlier), 1 => Just(Which::OtherStay)];
    let each = |ids: Vec<usize>, which: Vec<Which>| ids.into_iter().zip(which).collect::<Vec<_>>();
    let four = || prop::collection::vec(which(), IDS.len());
    let get = (any::<bool>(), retain_ms(), seeds(), prop::collection::vec(0..IDS.len(), 1..5));
    let claim = (select(vec![0_u64, 0, 100, 400]), select(vec![0_u64, 100]), retain_ms(), ids());
    let rebase = (retain_ms(), ids(), four(), prop::collection::vec(row(), IDS.len()));
    prop_oneof![
        8 => clock.prop_map(Step::Clock),
        12 => incr().prop_map(Step::Incr),
        3 => get.prop_map(|(makes_tickets, retain_ms, seeds, ids)| Step::Get { makes_tickets, retain_ms, seeds, ids }),
        2 => (1..6_usize, select(vec![0_u64, 100, 5000])).prop_map(|(count, horizon_ms)| Step::Due { count, horizon_ms }),
        8 => claim.prop_map(|(settle_ms, lease_ms, retain_ms, ids)| Step::Claim { settle_ms, lease_ms, retain_ms, ids }),
        5 => (retain_ms(), ids(), four())
            .prop_map(move |(retain_ms, ids, which)| Step::Saved { retain_ms, pairs: each(ids, which) }),
        2 => rebase.prop_map(move |(retain_ms, ids, which, rows)| {
            let rows = each(ids, which).into_iter().zip(rows).map(|((id, which), row)| (id, which, row)).collect();
            Step::Rebase { retain_ms, rows }
        }),
        4 => (retain_ms(), ids()).prop_map(|(retain_ms, ids)| Step::Delete { retain_ms, ids }),
        1 => prop::bool::weighted(0.3).prop_map(|forget| if forget { Step::Forget } else { Step::Clock(1) }),
    ]
}

/// One sequence: the reference, and what the callers know.
struct Play {
    scripts: Scripts,
    reference: Reference,
    now: u64,
    last_seq: [u64; PRODUCERS.len()],
    tickets: u64,
}

impl Model for Play {
    type Step = Step;
    const FAMILY: &'static str = "shop/stock";

    fn steps() -> BoxedStrategy<Step> {
        step().boxed()
    }

    fn new(scripts: Scripts) -> Self {
        let (reference, last_seq) = Default::default();
        Play { scripts, reference, now: START, last_seq, tickets: 0 }
    }

    fn step(&mut self, step: &Step) -> Checked {
        let (now, now_ms) = (self.now, self.now.to_string());
        let names = |ids: &[usize]| ids.iter().map(|&id| IDS[id].to_owned()).collect::<Vec<_>>();
        match step {
            Step::Clock(ms) => self.now = self.now.saturating_add_signed(*ms),
            Step::Incr(call) => self.incr(call)?,
            Step::Get { makes_tickets, retain_ms, seeds, ids } => {
                let ticket = if *makes_tickets { self.fresh_ticket() } else { String::new() };
                let (tickets, seed_args) = self.seeds(seeds);
                let fixed = [ticket.clone(), TICKET_MS.to_string(), retain_ms.to_string(), now_ms];
                let args = [fixed.to_vec(), seed_args, names(ids)].concat();
                let got = self.scripts.call("cached_get", &KINDS[..3], &args)?;
                for (seed, ticket) in seeds.iter().zip(&tickets) {
                    self.reference.seed(now, *retain_ms, IDS[seed.id], ticket, seed.row);
                }
                prop_assert_eq!(got, self.reference.get(now, &ticket, ids));
            }
            Step::Due { count, horizon_ms } => {
                let got = self.scripts.call(
                    "cached_due",
                    &["agenda"],
                    &[count.to_string(), horizon_ms.to_string(), now_ms],
                )?;
                prop_assert_eq!(got, self.reference.due(now, *count, *horizon_ms));
            }
            Step::Claim { settle_ms, lease_ms, retain_ms, ids } => {
                let fixed = [settle_ms, lease_ms, retain_ms, &now].map(u64::to_string);
                let got = self.scripts.call("cached_claim", &KINDS[..3], &[fixed.to_vec(), names(ids)].concat())?;
                let claim = |&id: &usize| self.reference.claim(now, *settle_ms, *lease_ms, *retain_ms, IDS[id]);
                prop_assert_eq!(got, ok(ids.iter().map(claim)));
            }
            Step::Saved { retain_ms, pairs } => {
                let versions: Vec<_> = pairs.iter().map(|&(id, which)| self.claimed(id, which)).collect();
                let mut args = vec![SAVE_AFTER_MS.to_string(), retain_ms.to_string(), now_ms];
                args.extend(
                    pairs.iter().zip(&versions).flat_map(|((id, _), version)| [IDS[*id].into(), version.clone()]),
                );
                let got = self.scripts.call("cached_saved", &KINDS[..3], &args)?;
                let mark = |((id, _), version): (&(usize, _), &String)| {
                    text(self.reference.saved(now, *retain_ms, IDS[*id], version))
                };
                prop_assert_eq!(got, ok(pairs.iter().zip(&versions).map(mark)));
            }
            Step::Rebase { retain_ms, rows } => {
                let versions: Vec<_> = rows.iter().map(|&(id, which, _)| self.claimed(id, which)).collect();
                let mut args = vec![retain_ms.to_string(), now_ms];
                for ((id, _, row), claimed) in rows.iter().zip(&versions) {
                    args.extend([IDS[*id].into(), claimed.clone(), or_dash(row.0), version(row.1)]);
                }
                let got = self.scripts.call("cached_rebase", &KINDS[..3], &args)?;
                let rebase = |((id, _, row), claimed): (&(usize, _, Row), &String)| {
                    text(self.reference.rebase(now, *retain_ms, IDS[*id], claimed, *row))
                };
                prop_assert_eq!(got, ok(rows.iter().zip(&versions).map(rebase)));
            }
            Step::Delete { retain_ms, ids } => {
                let args = [vec![retain_ms.to_string(), now_ms], names(ids)].concat();
                let got = self.scripts.call("cached_delete", &KINDS[..3], &args)?;
                let delete = |&id: &usize| text(self.reference.delete(now, *retain_ms, IDS[id]));
                prop_assert_eq!(got, ok(ids.iter().map(delete)));
            }
            Step::Forget => {
                self.scripts.forget();
                self.reference = Reference::default();
            }
        }
        self.check_keys()
    }
}

impl Play {
    fn fresh_ticket(&mut self) -> String {
        self.tickets += 1;
        format!("{:016x}", self.tickets)
    }

    /// The tickets that the seeds come with, and the seeds as arguments, with their number.
    fn seeds(&mut self, seeds: &[Seed]) -> (Vec<String>, Vec<String>) {
        let (mut tickets, mut args) = (vec![], vec![seeds.len().to_string()]);
        for seed in seeds {
            let stored = self.reference.ticket(IDS[seed.id]).filter(|_| seed.is_current).map(str::to_owned);
            let ticket = stored.unwrap_or_else(|| self.fresh_ticket());
            args.extend([IDS[seed.id].into(), ticket.clone(), or_dash(seed.row.0), version(seed.row.1)]);
            tickets.push(ticket);
        }
        (tickets, args)
    }

    fn claimed(&mut self, id: usize, which: Which) -> String {
        let (lineage, n) =
            self.reference.there(IDS[id]).map_or(("0".repeat(16), 1), |(_, there)| (there.lineage.clone(), there.n));
        match which {
            Which::Present => format!("{lineage}:{}", n.max(1)),
            Which::Earlier => format!("{lineage}:{}", n.saturating_sub(1).max(1)),
            Which::OtherStay => format!("ffffffffffffffff:{}", n.max(1)),
        }
    }

    fn incr(&mut self, call: &Incr) -> Checked {
        let seq = call.producer.map_or(0, |producer| {
            let last = &mut self.last_seq[producer];
            call.number.after(last)
        });
        let producer = call.producer.map_or("", |producer| PRODUCERS[producer]);
        let attempt = if call.repeat { "repeat" } else { "first" };
        let ticket = self.fresh_ticket();
        let (tickets, seeds) = self.seeds(&call.seeds);
        let times = [TICKET_MS, SAVE_AFTER_MS, call.retain_ms].map(|ms| ms.to_string());
        let bounds = [call.low, call.high].map(|bound| bound.map_or(String::new(), |bound| bound.to_string()));
        let pairs = call.pairs.iter().flat_map(|&(id, change)| {
            let change = match change {
                Change::Add(delta) => delta.to_string(),
                Change::Set(goal) => format!("={goal}"),
            };
            [IDS[id].to_owned(), change]
        });
        let fixed = [producer.to_owned(), seq.to_string(), attempt.into(), ticket.clone()];
        let fixed = fixed.into_iter().chain(times).chain(bounds).chain([self.now.to_string()]);
        let args: Vec<_> = fixed.chain(seeds).chain(pairs).collect();
        let got = self.scripts.call("cached_incr", &KINDS, &args)?;
        prop_assert_eq!(got, self.reference.incr(self.now, call, seq, &ticket, &tickets));
        Ok(())
    }

    fn check_keys(&mut self) -> Checked {
        let mut read = pipe();
        for kind in KINDS {
            let key = self.scripts.key(kind);
            match kind {
                "agenda" => read.cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES"),
                _ => read.hgetall(key),
            };
        }
        let keys: [BTreeMap<String, String>; 4] = self.scripts.ask::<Vec<_>>(&read).try_into().unwrap();
        for (kind, (got, expected)) in KINDS.iter().zip(keys.iter().zip(&self.reference.keys())) {
            prop_assert_eq!(got, expected, "{}", kind);
        }
        Ok(())
    }
}

#[tokio::test]
async fn scripts_do_what_the_reference_does() {
    agrees::<Play>(file!()).await;
}

/// A script with one thing taken out must not pass.
#[tokio::test]
async fn a_change_to_a_script_is_noticed() {
    notices::<Play>(&[
        ("cached_incr", "if seq == last_seq then", "if false then"),
        ("cached_incr", "(last and seq < last_seq) or", ""),
        ("cached_incr", "attempt == 'repeat' and", "false and"),
        ("cached_incr", "rows[at[id]] == 'ticket ' .. its_ticket", "true"),
        ("cached_incr", "#change < 15 and", ""),
        ("cached_incr", "result > -100000000000000 and", ""),
        ("cached_incr", "(delta < 0 and result < lowest)", "result < lowest"),
        ("cached_incr", "is_less(high, result)", "false"),
        ("cached_incr", "'LT', ", ""),
        ("cached_incr", "values[k] = text", ""),
        ("cached_get", "rows[at[id]] == 'ticket ' .. its_ticket", "true"),
        ("cached_get", "and ticket ~= ''", ""),
        ("cached_due", "count + 1 - #due", "0"),
        ("cached_due", "'(' .. now_ms, beyond", "now_ms, beyond"),
        ("cached_claim", "if left > 0 then", "if false then"),
        ("cached_claim", "if is_ahead then row.at = now_ms end", ""),
        ("cached_claim", "if row.saved == '=' then", "if false then"),
        ("cached_claim", "tonumber(row.used) > now or", ""),
        ("cached_claim", "at <= now and", ""),
        ("cached_claim", "if ends > now + retain_ms then", "if false then"),
        (
            "cached_saved",
            "if value and row and row.claim and version == row.lineage .. ':' .. row.n then",
            "if value and row then row.claim = row.claim or value",
        ),
        ("cached_saved", "math.max(now, at)", "at"),
        ("cached_rebase", "version == row.lineage .. ':' .. row.n", "true"),
        ("cached_rebase", "low - base_low + row_low", "low"),
        ("cached_delete", "row.claim and 'KEPT:claimed' or not is_clean(value, text) and 'KEPT:dirty'", "false"),
        ("cached_delete", "row.used + retain_ms > now", "false"),
    ])
    .await;
}
