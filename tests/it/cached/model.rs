//! The model of cached counters: random sequences of script calls, on a real Redis and on a plain
//! reference written from the scripts' headers. No ticket may be given out twice.

use proptest::collection::vec;
use proptest::sample::{select, subsequence};
use redis::Value;

use crate::support::model::*;
use crate::support::*;

/// Two partitions. One call may change counters of both. Only the first one is configured.
const PARTITIONS: [[&str; 4]; 2] = [
    ["base", "buffer", "batch", "meta"],
    ["other:base", "other:buffer", "other:batch", "other:meta"],
];
const IDS: [&str; 4] = ["a", "b", "é/2014-09-20", "nul\0"];
const TICKET_MS: u64 = 30_000;
const RETAIN_MS: [u64; 4] = [1, 500, 500, 2000];
/// The age from which a base does not refuse a change, unless something is pending.
const OLD_MS: i64 = 1000;
/// The database of the family, the one that most calls name, and another one.
const DATABASES: [&str; 3] = ["d1", "", "d2"];
/// The size that values, changes and what is pending stay below.
const LIMIT: i128 = 1 << 53;

#[derive(Clone, Debug, Default)]
struct Held {
    /// The bases by id, with the times at which they were written.
    bases: BTreeMap<&'static str, (u64, Base)>,
    rest: Partition,
}

#[derive(Clone, Debug)]
enum Base {
    Ticket(String),
    Row(i64),
}

#[derive(Clone, Debug)]
enum Own {
    Incr(Called, Vec<Group>, Requests),
    /// Changes the settings.
    Configure(Bounds, u64),
    /// A call on one of the partitions.
    Of(usize, Call),
}

type Bounds = (i64, i64);

/// The changes of a call in one partition.
type Group = (usize, Vec<(usize, Update)>);

#[derive(Clone, Debug)]
enum Call {
    Seed {
        database: &'static str,
        seeds: Vec<(usize, Which, i64)>,
    },
    Get {
        database: &'static str,
        makes_tickets: bool,
        ids: Vec<usize>,
    },
    Batch(BatchCall),
    Saved {
        which: Which,
        /// A number, "-" or "beyond".
        rows: Vec<(usize, String)>,
    },
    Delete(Vec<usize>),
}

#[derive(Clone, Copy, Debug)]
enum Update {
    Add(i64),
    Set(i64),
}

/// Returns the id of a pair: one of `IDS`, or one of two that no counter may have.
fn pair_id(number: usize) -> String {
    let refused = || "x".repeat((number - IDS.len()) * 256);
    IDS.get(number).map_or_else(refused, ToString::to_string)
}

impl Update {
    fn argument(self) -> String {
        match self {
            Update::Add(delta) => delta.to_string(),
            Update::Set(goal) => format!("={goal}"),
        }
    }

    /// Returns value and pending delta after the change, if it may be made.
    fn apply(self, settled: i128, waiting: i128, (low, high): Bounds) -> Option<(i128, i128)> {
        let value = settled + waiting;
        let (delta, falls, rises) = match self {
            Update::Add(delta) => (delta.into(), delta < 0, delta > 0),
            Update::Set(goal) => (i128::from(goal) - value, true, true),
        };
        let (after, pending) = (value + delta, waiting + delta);
        let is_out = (falls && after < low.into()) || (rises && after > high.into());
        let are_small = [settled, delta, after, pending].into_iter().all(is_small);
        (!is_out && are_small).then_some((after, pending))
    }
}

fn is_small(number: i128) -> bool {
    number.abs() < LIMIT
}

impl Held {
    /// Returns base and batch of a counter, and the buffer.
    fn parts(&self, base: i64, id: &str) -> (i128, i128) {
        let delta = |deltas: &BTreeMap<String, i64>| deltas.get(id).copied().unwrap_or(0).into();
        let batch: i128 = delta(&self.rest.batch);
        (i128::from(base) + batch, delta(&self.rest.buffer))
    }

    /// Changes a counter. Returns its new value, or the word for why it was not changed.
    fn change(
        &mut self,
        now: u64,
        (id, change): (usize, Update),
        bounds: Bounds,
        ticket: &str,
    ) -> Result<String, String> {
        let id = *IDS.get(id).ok_or("BADID")?;
        let (at, base) = match self.bases.get(id) {
            Some((at, Base::Row(base))) => (*at, *base),
            Some((_, Base::Ticket(stored))) => {
                let stored = stored.clone();
                return Err(self.miss(now, id, &stored));
            }
            None => return Err(self.miss(now, id, ticket)),
        };
        let (settled, waiting) = self.parts(base, id);
        if let Some((after, pending)) = change.apply(settled, waiting, bounds) {
            let pending = i64::try_from(pending).unwrap();
            self.rest.buffer.insert(id.into(), pending);
            return Ok(after.to_string());
        }
        let value = settled + waiting;
        let is_pending = self.rest.buffer.contains_key(id) || self.rest.batch.contains_key(id);
        let age = now.cast_signed() - at.cast_signed();
        Err(if !is_small(settled) || !is_small(value) {
            "BEYOND".into()
        } else if !is_pending && !(0..=OLD_MS).contains(&age) {
            self.miss(now, id, ticket)
        } else {
            format!("RANGE:{value}")
        })
    }

    /// Stores the ticket, or extends the life of the stored one.
    fn miss(&mut self, now: u64, id: &'static str, ticket: &str) -> String {
        self.bases.insert(id, (now, Base::Ticket(ticket.into())));
        format!("MISS:{ticket}")
    }

    fn seed(&mut self, now: u64, id: &'static str, ticket: &str, row: i64) -> &'static str {
        match self.bases.get(id) {
            Some((_, Base::Row(_))) => "HELD",
            Some((_, Base::Ticket(stored))) if stored == ticket => {
                if !is_small(row.into()) {
                    return "BEYOND";
                }
                self.bases.insert(id, (now, Base::Row(row)));
                "SEEDED"
            }
            _ => "MISS",
        }
    }

    fn get(&mut self, now: u64, id: &'static str, ticket: &str) -> Value {
        if !self.rest.meta.contains_key("incarnation") {
            return text("UNCONFIGURED");
        }
        match self.bases.get(id) {
            Some((_, Base::Ticket(ticket))) => text(format!("MISS:{ticket}")),
            None if ticket.is_empty() => text("MISS:"),
            None => text(self.miss(now, id, ticket)),
            Some((_, Base::Row(base))) => {
                let (settled, waiting) = self.parts(*base, id);
                let value = settled + waiting;
                if is_small(settled) && is_small(value) {
                    int(i64::try_from(value).unwrap())
                } else {
                    text("BEYOND")
                }
            }
        }
    }

    fn saved(&mut self, now: u64, named: &[String; 3], rows: &[(usize, String)]) -> Value {
        if !self.rest.has(named) {
            return reply("STALE", []);
        }
        for (id, row) in rows {
            let id = IDS[*id];
            if self.rest.batch.remove(id).is_none() {
                continue;
            }
            let is_ticket = matches!(self.bases.get(id), Some((_, Base::Ticket(_))));
            let is_gone = row == "-" && !self.rest.buffer.contains_key(id);
            let number = row.parse::<i64>().unwrap_or(0);
            if row == "beyond" || !is_small(number.into()) || is_ticket || is_gone {
                self.bases.remove(id);
            } else if let Some((at, Base::Row(base))) = self.bases.get_mut(id) {
                (*at, *base) = (now, number);
            }
        }
        if self.rest.batch.is_empty() {
            self.rest.end_batch();
        }
        reply("OK", [int(self.rest.batch.len())])
    }

    /// Deletes counters, by default those that are due, and returns the words.
    fn delete(&mut self, now: u64, retain_ms: u64, ids: &[usize]) -> Vec<&'static str> {
        let is_due = |(at, base): &(u64, Base)| match base {
            Base::Ticket(_) => at + TICKET_MS <= now,
            Base::Row(_) => at + retain_ms <= now,
        };
        let ids: Vec<_> = if ids.is_empty() {
            self.bases
                .iter()
                .filter(|(_, base)| is_due(base))
                .map(|(&id, _)| id)
                .collect()
        } else {
            ids.iter().map(|&id| IDS[id]).collect()
        };
        let word = |id: &&'static str| match *id {
            id if self.rest.buffer.contains_key(id) => "KEPT:buffer",
            id if self.rest.batch.contains_key(id) => "KEPT:batch",
            id if self.bases.contains_key(id) => "DELETED",
            _ => "GONE",
        };
        let words: Vec<_> = ids.iter().map(word).collect();
        for (id, word) in ids.into_iter().zip(&words) {
            if *word == "DELETED" {
                self.bases.remove(id);
            }
        }
        words
    }
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -3..=3_i64, 1 => select(LIMITS.to_vec()), 1 => select([
        100_000_000_000_000,
        99_999_999_999_999,
        -100_000_000_000_000,
        1_000_000_000,
        999_999_999,
        -1_000_000_000,
    ].to_vec()), 1 => any::<i64>()]
}

fn retain_ms() -> impl Strategy<Value = u64> {
    select(&RETAIN_MS[..])
}

fn configure() -> impl Strategy<Value = Own> {
    // the header requires this
    let bound = |none| {
        let bound = number().prop_filter("is a bound", |bound| is_small((*bound).into()));
        prop_oneof![7 => Just(none), 3 => bound]
    };
    let most = (1 << 53) - 1;
    (bound(-most), bound(most), retain_ms())
        .prop_map(|(low, high, retain_ms)| Own::Configure((low, high), retain_ms))
}

fn incr() -> impl Strategy<Value = Own> {
    let change =
        prop_oneof![4 => number().prop_map(Update::Add), 1 => number().prop_map(Update::Set)];
    let pairs = vec(
        vec(
            (
                prop_oneof![20 => 0..IDS.len(), 1 => IDS.len()..IDS.len() + 2],
                change,
            ),
            1..5,
        ),
        PARTITIONS.len(),
    );
    let partitions = subsequence(vec![0, 1], 1..=2);
    let incr = (called((0.0, 0.0)), partitions, pairs, requests(8));
    incr.prop_map(|(called, partitions, pairs, requests)| {
        Own::Incr(
            called,
            partitions.into_iter().zip(pairs).collect(),
            requests,
        )
    })
}

fn call() -> impl Strategy<Value = Call> {
    let ids = |least| subsequence((0..IDS.len()).collect::<Vec<_>>(), least..=IDS.len());
    let database = || prop_oneof![8 => select(&DATABASES[..2]), 1 => Just(DATABASES[2])];
    let seeds = vec((0..IDS.len(), Which::any(16), number()), 1..6);
    let seeds = (database(), seeds);
    let get = (database(), any::<bool>(), vec(0..IDS.len(), 1..5));
    let row = prop_oneof![
        8 => number().prop_map(|row| row.to_string()),
        2 => Just("-".to_owned()),
        1 => Just("beyond".to_owned()),
    ];
    let rows = vec(row, IDS.len());
    let fetch = (Which::any(16), select(vec![0_u64, 100, 400]));
    let fetch = fetch.prop_map(|(which, settle_ms)| BatchCall::Fetch { which, settle_ms });
    let release = Which::any(16).prop_map(|which| BatchCall::Release { which });
    let batch = prop_oneof![5 => Just(BatchCall::FORCED), 2 => fetch, 1 => release];
    prop_oneof![
        8 => seeds.prop_map(|(database, seeds)| Call::Seed { database, seeds }),
        4 => get.prop_map(|(database, makes_tickets, ids)| {
            Call::Get { database, makes_tickets, ids }
        }),
        8 => batch.prop_map(Call::Batch),
        6 => (Which::any(16), ids(1), rows).prop_map(|(which, ids, rows)| {
            Call::Saved { which, rows: ids.into_iter().zip(rows).collect() }
        }),
        3 => ids(1).prop_map(Call::Delete),
        3 => Just(Call::Delete(vec![])),
    ]
}

struct Cached {
    partitions: [Held; PARTITIONS.len()],
    bounds: Bounds,
    retain_ms: u64,
    /// All tickets so far.
    tickets: Vec<String>,
}

impl Kind for Cached {
    type Step = Own;
    const NAME: &'static str = "cached";
    const FAMILY: &'static str = "shop/stock";
    const START: u64 = 1_000_000_000;

    fn steps() -> BoxedStrategy<Step<Own>> {
        // often to the moment at which a counter or a ticket is due
        let lives = [&RETAIN_MS[..], &[TICKET_MS]].concat();
        let due = select(lives).prop_map(u64::cast_signed);
        let clock = prop_oneof![6 => 0..300_i64, 4 => due, 2 => 300..5000_i64, 2 => Just(OLD_MS), 2 => Just(OLD_MS + 1), 1 => -300..0_i64, 1 => -5000..0_i64];
        // mostly the first one, so that later calls meet the results of earlier ones
        prop_oneof![
            16 => clock.prop_map(Step::Clock),
            3 => Just(Step::Epoch),
            24 => incr().prop_map(Step::Own),
            4 => configure().prop_map(Step::Own),
            56 => (prop_oneof![3 => Just(0), 1 => Just(1_usize)], call())
            .prop_map(|(at, call)| Own::Of(at, call)).prop_map(Step::Own),
            1 => Just(Step::Forget),
        ]
        .boxed()
    }

    fn begin(frame: &mut Frame) -> Checked<Self> {
        let mut cached = Cached {
            partitions: Default::default(),
            bounds: (0, 0),
            retain_ms: 0,
            tickets: vec![],
        };
        frame.database = DATABASES[0];
        let most = (1 << 53) - 1;
        cached.configure(frame, (-most, most), RETAIN_MS[1])?;
        frame.epoch("cached", "1")?;
        Ok(cached)
    }

    /// The clock of epochs moves alone, so that a new epoch does not age stored data. No number is
    /// used again: tickets derive from it.
    fn epoch_ends(&mut self, frame: &mut Frame) -> Checked {
        frame.ahead += EPOCH_MS;
        frame.callers.careless += 10;
        Ok(())
    }

    fn step(&mut self, frame: &mut Frame, step: &Own) -> Checked {
        match step {
            Own::Incr(called, groups, requests) => self.incr(frame, called, groups, requests),
            Own::Configure(bounds, retain_ms) => self.configure(frame, *bounds, *retain_ms),
            Own::Of(at, call) => self.call(frame, *at, call),
        }
    }

    fn keys(&self) -> Keys {
        let of_partition = |(kinds, held): (&[&str; 4], &Held)| {
            let [base, buffer, batch, meta] = *kinds;
            let text = |(at, base): &(u64, Base)| match base {
                Base::Ticket(ticket) => format!("{at:013} ticket {ticket}"),
                Base::Row(row) => format!("{at:013} {row}"),
            };
            let bases = held
                .bases
                .iter()
                .map(|(id, base)| (id, text(base)))
                .collect();
            let mut keys = held.rest.keys([buffer, batch, meta]);
            keys.insert(base.into(), (Content::hash::<_, String>(&bases), None));
            keys
        };
        PARTITIONS
            .iter()
            .zip(&self.partitions)
            .flat_map(of_partition)
            .collect()
    }
}

/// Returns the first ticket of the reply that is none of these, `""` for none.
fn new_ticket(reply: Option<&Value>, known: &[String]) -> String {
    let words = reply.map(words).unwrap_or_default();
    let tickets = words.iter().filter_map(|word| word.strip_prefix("MISS:"));
    let is_new = |ticket: &&str| !ticket.is_empty() && known.iter().all(|old| old != ticket);
    let is_executed = words.first().is_some_and(|status| status == "OK");
    tickets
        .into_iter()
        .find(is_new)
        .filter(|_| is_executed)
        .unwrap_or_default()
        .to_owned()
}

impl Cached {
    fn note_ticket(&mut self, frame: &mut Frame, ticket: String) -> Checked {
        if !ticket.is_empty() {
            frame.made("ticket", &ticket)?;
            self.tickets.push(ticket);
        }
        Ok(())
    }

    fn configure(&mut self, frame: &mut Frame, bounds: Bounds, retain_ms: u64) -> Checked {
        (self.bounds, self.retain_ms) = (bounds, retain_ms);
        let settings = [
            ("min", bounds.0.to_string()),
            ("max", bounds.1.to_string()),
            ("retain", retain_ms.to_string()),
            ("remember_requests", REMEMBER_MS.to_string()),
        ];
        let first = ("meta", &mut self.partitions[0].rest);
        frame.configure_with("cached", 1, &settings, [first])
    }

    fn incr(
        &mut self,
        frame: &mut Frame,
        called: &Called,
        groups: &[Group],
        requests: &Requests,
    ) -> Checked {
        let pairs = groups.iter().flat_map(|(_, pairs)| pairs);
        let ids = pairs.map(|(id, _)| pair_id(*id));
        let requested = frame.family.requests.sent(requests, ids);
        let mut keys = FENCE.map(str::to_owned).to_vec();
        let mut args = vec![requested.len().to_string()];
        for (partition, pairs) in groups {
            keys.extend(PARTITIONS[*partition].map(str::to_owned));
            args.push(pairs.len().to_string());
            args.extend(
                pairs
                    .iter()
                    .flat_map(|&(id, change)| [pair_id(id), change.argument()]),
            );
        }
        name_requests(&requested, &mut keys, &mut args);
        let (sent, now) = (frame.sent(called, &keys), frame.now);
        let counting = CountingCall {
            script: "cached_incr",
            kind: "cached",
            keys: &keys,
            args,
            dup: record,
        };
        let (tickets, mut ticket, bounds) = (&self.tickets, String::new(), self.bounds);
        frame.count(
            counting,
            &sent,
            &mut self.partitions,
            |partitions, family, got| {
                ticket = new_ticket(got, tickets);
                let (mut words, mut pair) = (vec![], 0);
                for (at, pairs) in groups {
                    let mut counted = 0;
                    for &change in pairs {
                        pair += 1;
                        let request = requested.get(&pair);
                        if let Some(word) = request.and_then(|one| family.requests.word(one)) {
                            words.push(word);
                            continue;
                        }
                        let changed = partitions[*at].change(now, change, bounds, &ticket);
                        counted += u64::from(changed.is_ok());
                        let is_decided = changed.is_ok()
                            || changed
                                .as_ref()
                                .is_err_and(|word| word.starts_with("RANGE"));
                        let (Ok(word) | Err(word)) = changed;
                        if let Some(request) = request
                            && is_decided
                        {
                            family.requests.note(request, &word);
                        }
                        words.push(word);
                    }
                    if counted > 0 {
                        partitions[*at].rest.note(now, counted);
                    }
                }
                let amounts = words
                    .iter()
                    .map(|word| word.parse().map_or_else(|_| text(word), amount));
                Ok((reply("OK", amounts), Some(words.join(" "))))
            },
        )?;
        self.note_ticket(frame, ticket)?;
        for ([.., meta], held) in PARTITIONS.iter().zip(&mut self.partitions) {
            frame.learn(meta, &mut held.rest)?;
        }
        Ok(())
    }

    fn call(&mut self, frame: &mut Frame, at: usize, call: &Call) -> Checked {
        let (keys, now) = (&PARTITIONS[at], frame.now);
        let [base, buffer, batch, meta] = *keys;
        let now_ms = now.to_string();
        let names = |ids: &[usize]| ids.iter().map(|&id| IDS[id].to_owned()).collect::<Vec<_>>();
        match call {
            Call::Seed { database, seeds } => self.seed(frame, at, database, seeds)?,
            Call::Get {
                database,
                makes_tickets,
                ids,
            } => {
                let tickets = u8::from(*makes_tickets).to_string();
                let mut args = vec![tickets, now_ms, frame.salt(), (*database).to_owned()];
                args.extend(names(ids));
                let got = frame.call("cached_get", keys, &args)?;
                let ticket = new_ticket(Some(&got).filter(|_| *makes_tickets), &self.tickets);
                let held = &mut self.partitions[at];
                if let Some(refusal) = held.rest.refuses(database) {
                    prop_assert_eq!(got, refusal);
                    return Ok(());
                }
                let values: Vec<_> = ids
                    .iter()
                    .map(|&id| held.get(now, IDS[id], &ticket))
                    .collect();
                prop_assert_eq!(got, reply("OK", values));
                self.note_ticket(frame, ticket)?;
            }
            Call::Batch(call) => {
                frame.batch_call(&mut self.partitions[at].rest, [buffer, batch, meta], call)?;
            }
            Call::Saved { which, rows } => {
                let held = &mut self.partitions[at];
                let pairs = rows
                    .iter()
                    .flat_map(|(id, row)| [IDS[*id].to_owned(), row.clone()]);
                let named = held.rest.named(*which);
                let mut args = [&named[..], &[now_ms]].concat();
                args.extend(pairs);
                prop_assert_eq!(
                    frame.call("cached_saved", keys, &args)?,
                    held.saved(now, &named, rows)
                );
            }
            Call::Delete(ids) => {
                let args = [vec!["0".into(), "1".into(), now_ms], names(ids)].concat();
                let keys = [FENCE[0], base, buffer, batch];
                let got = frame.call("cached_delete", &keys, &args)?;
                let mut got = words(&got);
                let mut expected = self.partitions[at].delete(now, self.retain_ms, ids);
                if ids.is_empty() {
                    got[2..].sort_unstable();
                    expected.sort_unstable();
                }
                // Redis scans a small hash as a whole
                prop_assert_eq!(got, [&["OK", "0"], &expected[..]].concat());
            }
        }
        Ok(())
    }

    fn seed(
        &mut self,
        frame: &mut Frame,
        at: usize,
        database: &str,
        seeds: &[(usize, Which, i64)],
    ) -> Checked {
        let held = &mut self.partitions[at];
        let mut args = vec![frame.now.to_string(), database.to_owned()];
        let mut tickets = vec![];
        for &(id, which, row) in seeds {
            let stored = match held.bases.get(IDS[id]) {
                Some((_, Base::Ticket(ticket))) => Some(ticket),
                _ => None,
            };
            let ticket = match which {
                Which::Present => stored,
                Which::Earlier => self.tickets.iter().rfind(|&ticket| Some(ticket) != stored),
                _ => None,
            };
            let ticket = ticket.cloned().unwrap_or_else(|| "f".repeat(16));
            args.extend([IDS[id].into(), ticket.clone(), row.to_string()]);
            tickets.push(ticket);
        }
        let keys = [FENCE[0], PARTITIONS[at][0]];
        let got = frame.call("cached_seed", &keys, &args)?;
        if let Some(refusal) = frame.family.refuses(database) {
            prop_assert_eq!(got, refusal);
            return Ok(());
        }
        let seeded = seeds
            .iter()
            .zip(&tickets)
            .map(|(&(id, _, row), ticket)| held.seed(frame.now, IDS[id], ticket, row));
        prop_assert_eq!(got, reply("OK", seeded.map(text)));
        Ok(())
    }
}

#[tokio::test]
async fn scripts_do_what_the_reference_does() {
    agrees::<Cached>().await;
}

#[tokio::test]
async fn a_change_to_a_script_is_noticed() {
    notices::<Cached>("cached").await;
}
