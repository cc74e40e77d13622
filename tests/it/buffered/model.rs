//! The model of buffered counters: random sequences of calls of all buffered and family scripts, on
//! a real Redis and on a plain reference written from the scripts' headers. What was counted must
//! equal what left with the batches plus what is still there.

use proptest::collection::vec;
use proptest::sample::select;

use crate::support::model::*;
use crate::support::*;

/// Buffer, batch and meta of two partitions. One call may carry hits for both.
const PARTITIONS: [[&str; 3]; 2] = [
    ["buffer", "batch", "meta"],
    ["other:buffer", "other:batch", "other:meta"],
];
/// The ids of pairs. The last one is refused.
const IDS: [&str; 5] = ["a", "b", "é/2014-09-20", "nul\0", ""];

#[derive(Clone, Debug)]
enum Own {
    Configure {
        kind: &'static str,
        partitions: u64,
        max_pending: usize,
        /// The number of partitions that the call names.
        metas: usize,
    },
    /// Asks for the epoch. "" stands for any kind or number.
    Ask {
        kind: &'static str,
        partitions: &'static str,
    },
    Add(Called, Vec<Group>, Requests),
    Batch(usize, BatchCall),
    Reset(usize, Which),
    Read(usize, Vec<usize>),
    State,
}

/// The hits of a call in one partition.
#[derive(Clone, Debug)]
struct Group {
    partition: usize,
    /// The number of hits, at least the number of pairs.
    hits: u64,
    pairs: Vec<(usize, i64)>,
}

/// Returns the new pending sum of the id, or the reason why the delta was not counted.
fn count(buffer: &mut Deltas, id: &str, delta: i64, max: usize) -> Result<i64, &'static str> {
    let pending = buffer.get(id).copied();
    if id.is_empty() {
        return Err("BADID");
    }
    if pending.is_none() && buffer.len() >= max {
        return Err("FULL");
    }
    let sum = pending.unwrap_or(0).checked_add(delta).ok_or("RANGE")?;
    buffer.insert(id.into(), sum);
    Ok(sum)
}

fn group() -> impl Strategy<Value = Group> {
    let id = prop_oneof![12 => 0..IDS.len() - 1, 1 => Just(IDS.len() - 1)];
    let delta = prop_oneof![4 => -3..=3_i64, 1 => select(LIMITS.to_vec()), 1 => any::<i64>()];
    // the 64th hit turns a buffer into a hash table
    let more = prop_oneof![5 => 0..5_u64, 1 => 55..65_u64];
    let group = (0..PARTITIONS.len(), more, vec((id, delta), 1..6));
    group.prop_map(|(partition, more, pairs)| Group {
        partition,
        hits: pairs.len() as u64 + more,
        pairs,
    })
}

fn own() -> impl Strategy<Value = Own> {
    let kind = || {
        select(vec![
            "buffered", "buffered", "buffered", "buffered", "series",
        ])
    };
    let configure = (
        kind(),
        select(vec![4_u64, 4, 4, 4, 1]),
        1..6_usize,
        1..=PARTITIONS.len(),
    );
    let configure = configure.prop_map(|(kind, partitions, max_pending, metas)| Own::Configure {
        kind,
        partitions,
        max_pending,
        metas,
    });
    let ask = (
        prop_oneof![5 => kind(), 1 => Just("")],
        select(vec!["4", "4", "4", "4", "1", ""]),
    )
        .prop_map(|(kind, partitions)| Own::Ask { kind, partitions });
    let at = || 0..PARTITIONS.len();
    let ms = || select(vec![0_u64, 100, 1000, 70_000]).boxed();
    let fetch = (Which::any(5), ms());
    let fetch = fetch.prop_map(|(which, settle_ms)| BatchCall::Fetch { which, settle_ms });
    let release = Which::any(5).prop_map(|which| BatchCall::Release { which });
    let batch = prop_oneof![5 => BatchCall::rotations(ms), 4 => fetch, 4 => release];
    prop_oneof![
        2 => configure,
        3 => ask,
        14 => (called((0.0, 0.1)), vec(group(), 1..=2), requests(10))
            .prop_map(|(called, groups, requests)| Own::Add(called, groups, requests)),
        12 => (at(), batch).prop_map(|(at, call)| Own::Batch(at, call)),
        1 => (at(), Which::any(5)).prop_map(|(at, which)| Own::Reset(at, which)),
        3 => (at(), vec(0..IDS.len() - 1, 1..5)).prop_map(|(at, ids)| Own::Read(at, ids)),
        1 => Just(Own::State),
    ]
}

#[derive(Default)]
struct Buffered {
    partitions: [Partition; PARTITIONS.len()],
    /// The hits that were counted, and those that left Redis since.
    counted: BTreeMap<String, i128>,
    gone: BTreeMap<String, i128>,
    /// The requests that were counted, with the generations that they named.
    requested: BTreeSet<SentRequest>,
}

impl Kind for Buffered {
    type Step = Own;
    const NAME: &'static str = "buffered";
    const FAMILY: &'static str = "shop/views";
    const START: u64 = 1_000_000_000;

    fn steps() -> BoxedStrategy<Step<Own>> {
        let clock = prop_oneof![
            12 => 0..500_i64,
            3 => 500..60_000_i64,
            3 => 60_000..100_000_i64,
            2 => -2000..0_i64,
            1 => -200_000..0_i64
        ];
        prop_oneof![
            6 => clock.prop_map(Step::Clock),
            1 => Just(Step::Epoch),
            36 => own().prop_map(Step::Own),
            1 => Just(Step::Forget),
        ]
        .boxed()
    }

    fn begin(frame: &mut Frame) -> Result<Self, TestCaseError> {
        let mut buffered = Buffered::default();
        frame.database = "d1";
        // the second partition gets its incarnation with its first hit
        buffered.configure(frame, "buffered", 4, 5, 1)?;
        // without this, most calls would name no epoch
        frame.epoch("buffered", "4")?;
        Ok(buffered)
    }

    fn step(&mut self, frame: &mut Frame, step: &Own) -> Checked {
        match step {
            Own::Configure {
                kind,
                partitions,
                max_pending,
                metas,
            } => self.configure(frame, kind, *partitions, *max_pending, *metas),
            Own::Ask { kind, partitions } => frame.epoch(kind, partitions),
            Own::Add(called, groups, requests) => self.add(frame, called, groups, requests),
            Own::Batch(at, call) => {
                let released =
                    frame.batch_call(&mut self.partitions[*at], PARTITIONS[*at], call)?;
                self.left(released);
                Ok(())
            }
            Own::Reset(at, which) => self.reset(frame, *at, *which),
            Own::Read(at, ids) => {
                let ids: Vec<_> = ids.iter().map(|&id| IDS[id]).collect();
                let got = frame.call("buffered_read", &PARTITIONS[*at], &ids)?;
                let partition = &self.partitions[*at];
                let Partition { buffer, batch, .. } = partition;
                let delta = |deltas: &Deltas, id| text(deltas.get(id).unwrap_or(&0));
                let deltas = ids
                    .iter()
                    .flat_map(|&id| [delta(batch, id), delta(buffer, id)]);
                let cut = partition.cut().map(text).into_iter();
                let in_flight = int(u8::from(!batch.is_empty()));
                let head = cut.chain([text(partition.database()), in_flight]);
                prop_assert_eq!(got, reply("OK", head.chain(deltas)));
                Ok(())
            }
            Own::State => {
                let got =
                    frame.call("buffered_state", &PARTITIONS.map(|keys| keys[2]), &[""; 0])?;
                let state = |partition: &Partition| {
                    let cut = partition.cut().into_iter();
                    cut.chain([partition.database()]).map(text)
                };
                let states = self.partitions.iter().flat_map(state);
                prop_assert_eq!(got, reply("OK", states));
                Ok(())
            }
        }
    }

    fn keys(&self) -> Keys {
        PARTITIONS
            .iter()
            .zip(&self.partitions)
            .flat_map(|(kinds, partition)| partition.keys(*kinds))
            .collect()
    }

    /// The books follow the replies, not the reference.
    fn check(&self) -> Checked {
        for id in IDS {
            let deltas = self
                .partitions
                .iter()
                .flat_map(|at| [&at.buffer, &at.batch]);
            let there: i128 = deltas
                .filter_map(|deltas| deltas.get(id))
                .map(|&n| i128::from(n))
                .sum();
            let [counted, gone] =
                [&self.counted, &self.gone].map(|books| books.get(id).copied().unwrap_or(0));
            prop_assert_eq!(there + gone, counted, "the books of {:?}", id);
        }
        Ok(())
    }
}

impl Buffered {
    fn configure(
        &mut self,
        frame: &mut Frame,
        kind: &str,
        partitions: u64,
        max_pending: usize,
        metas: usize,
    ) -> Checked {
        let settings = [
            ("max_pending", max_pending.to_string()),
            ("remember_requests", REMEMBER_MS.to_string()),
        ];
        frame.configure_with(
            kind,
            partitions,
            &settings,
            PARTITIONS
                .map(|keys| keys[2])
                .into_iter()
                .zip(&mut self.partitions)
                .take(metas),
        )
    }

    /// Adds deltas that have left Redis to the books.
    fn left(&mut self, deltas: Deltas) {
        for (id, delta) in deltas {
            *self.gone.entry(id).or_default() += i128::from(delta);
        }
    }

    fn add(
        &mut self,
        frame: &mut Frame,
        called: &Called,
        groups: &[Group],
        requests: &Requests,
    ) -> Checked {
        let pairs = groups.iter().flat_map(|group| &group.pairs);
        let ids = pairs.map(|(id, _)| IDS[*id]);
        let requested = frame.family.requests.sent(requests, ids);
        let mut keys = FENCE.map(str::to_owned).to_vec();
        let mut args = vec![requested.len().to_string()];
        for group in groups {
            let [buffer, _, meta] = PARTITIONS[group.partition];
            keys.extend([buffer, meta].map(str::to_owned));
            args.extend([group.hits.to_string(), group.pairs.len().to_string()]);
            args.extend(
                group
                    .pairs
                    .iter()
                    .flat_map(|&(id, delta)| [IDS[id].to_owned(), delta.to_string()]),
            );
        }
        name_requests(&requested, &mut keys, &mut args);
        let (sent, now) = (frame.sent(called, &keys), frame.now);
        let counting = CountingCall {
            script: "buffered_add",
            kind: "buffered",
            keys: &keys,
            args,
            dup: record,
        };
        let executed = frame.count(
            counting,
            &sent,
            &mut self.partitions,
            |partitions, family, _| {
                let (mut results, mut uncounted, mut pair) = (vec![], vec![], 0);
                for group in groups {
                    let partition = &mut partitions[group.partition];
                    results.push(int(partition.note(now, group.hits)));
                    let (before, mut refused) = (uncounted.len(), 0);
                    for &(id, delta) in &group.pairs {
                        pair += 1;
                        let request = requested.get(&pair);
                        if let Some(word) = request.and_then(|one| family.requests.word(one)) {
                            uncounted.push(format!("{pair}:{word}"));
                            results.push(text(word));
                            continue;
                        }
                        let sum =
                            count(&mut partition.buffer, IDS[id], delta, family.max_pending());
                        if let Some(request) = request
                            && !matches!(sum, Err("FULL" | "BADID"))
                        {
                            let word = sum.map_or_else(str::to_owned, |sum| sum.to_string());
                            family.requests.note(request, &word);
                        }
                        refused += usize::from(sum.is_err());
                        uncounted.extend(sum.err().map(|word| format!("{pair}:{word}")));
                        results.push(sum.map_or_else(text, amount));
                    }
                    let uncounted = uncounted.len() - before;
                    partition.refuse(group.hits, [uncounted, refused], group.pairs.len());
                }
                Ok((reply("OK", results), Some(uncounted.join(" "))))
            },
        )?;
        let Some(executed) = executed else {
            return Ok(());
        };
        let (mut results, mut pair) = (executed.iter(), 0);
        for group in groups {
            let [_, _, meta] = PARTITIONS[group.partition];
            frame.learn(meta, &mut self.partitions[group.partition])?;
            results.next();
            for (&(id, delta), result) in group.pairs.iter().zip(results.by_ref()) {
                pair += 1;
                if result.parse::<i64>().is_err() {
                    continue;
                }
                *self.counted.entry(IDS[id].into()).or_default() += i128::from(delta);
                if let Some(request) = requested.get(&pair) {
                    let is_first = self.requested.insert(request.clone());
                    prop_assert!(is_first, "{request:?} was counted twice");
                }
            }
        }
        Ok(())
    }

    fn reset(&mut self, frame: &mut Frame, at: usize, which: Which) -> Checked {
        let partition = &mut self.partitions[at];
        let named = partition.named(which);
        let [buffer, batch, meta] = PARTITIONS[at];
        let args = [&named[..], &[frame.salt(), frame.now.to_string()]].concat();
        let got = frame.call(
            "buffered_reset",
            &[meta, HOME[0], HOME[2], HOME[3], buffer, batch],
            &args,
        )?;
        if !partition.meta.contains_key("incarnation") || partition.cut() != named {
            prop_assert_eq!(got, reply("STALE", []));
            return Ok(());
        }
        let number = |field| partition.number(field).unwrap_or(0);
        let (waiting, before) = (number("hits"), number("hits_before"));
        let (hits, ids) = (
            waiting + number("batch_hits"),
            partition.batch.len() + partition.buffer.len(),
        );
        let incarnation = words(&got).pop().unwrap_or_default();
        frame.made(meta, &incarnation)?;
        prop_assert_eq!(got, reply("OK", [int(hits), int(ids), text(&incarnation)]));
        let left = std::mem::take(partition);
        partition.set([("incarnation", incarnation), ("hits", "0".into())]);
        partition.set([("hits_before", (before + waiting).to_string())]);
        if let Some(refused) = left.number("refused") {
            partition.set([("refused", refused.to_string())]);
        }
        if let Some(database) = left.meta.get("database") {
            partition.set([("database", database.clone())]);
        }
        self.left(left.buffer);
        self.left(left.batch);
        frame.family.end_epochs();
        frame.family.requests.reset(&self.partitions[at].cut()[0]);
        Ok(())
    }
}

#[tokio::test]
async fn scripts_do_what_the_reference_does() {
    agrees::<Buffered>().await;
}

#[tokio::test]
async fn a_change_to_a_script_is_noticed() {
    notices::<Buffered>("buffered").await;
}
