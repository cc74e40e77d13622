//! What the counting scripts of all kinds share: the pairs of a call, its requests, and its reply.

use std::fmt;

use redis::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::scripts::bundle::{Reply, ScriptCall, text};
use crate::scripts::keys::{Key, Keys};
use crate::scripts::partition::Partition;

/// The outcome of a counting script.
#[derive(Debug, PartialEq, Eq)]
pub enum CallReply {
    /// Executed now, or before.
    Executed {
        /// The outcome of each pair.
        results: Vec<PairResult>,
        /// The partitions in which a sync is due, by their position in the call.
        due: Vec<usize>,
        /// An earlier arrival executed it: pending values may contain later hits, or lack hits
        /// already in a batch.
        repeated: bool,
    },
    /// Redis does not know the epoch. Nothing was done now; the outcome of an earlier arrival is
    /// unknown.
    Expired,
    /// The caller has made a later call. Nothing was done now; the outcome of an earlier arrival is
    /// unknown. Either this is a late repeat, or two processes share the caller's name.
    Passed,
    /// The labels of the family's windows, or the stripes of its pages, are others in Redis. Nothing
    /// was done now; the outcome of an earlier arrival is unknown.
    Outdated,
}

impl CallReply {
    /// Returns the outcome of a counting call that was not executed; `None` if it was, now (OK) or
    /// before (DUP).
    pub(crate) fn not_executed(reply: &Reply) -> Result<Option<Self>> {
        match reply.status() {
            "OK" | "DUP" => Ok(None),
            "EXPIRED" => Ok(Some(CallReply::Expired)),
            "PASSED" => Ok(Some(CallReply::Passed)),
            "MISMATCH" => Ok(Some(CallReply::Outdated)),
            _ => Err(reply.unexpected_reply()),
        }
    }
}

/// The right to seed a counter once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

impl Ticket {
    /// The ticket of a read that asked for none, or found the partition unconfigured. It seeds
    /// nothing.
    pub const NONE: Ticket = Ticket(0);

    fn parse(digits: &str) -> Option<Self> {
        match digits {
            "" => Some(Ticket::NONE),
            digits => u64::from_str_radix(digits, 16).ok().map(Ticket),
        }
    }
}

impl fmt::Display for Ticket {
    /// Writes 16 hexadecimal digits, the form that Redis receives.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The seed of a counter: its row, read after the ticket was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The ticket that Redis issued for the missing counter.
    pub ticket: Ticket,
    /// The row's value, read from the database that takes the writes; 0 without a row.
    pub value: i64,
}

/// The outcome of one pair of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairResult {
    /// Counted: the pending value of a buffered counter, or the value of a cached one.
    Counted(i64),
    /// A request that an earlier call counted, with the value right after that.
    CountedBefore(i64),
    /// A request that Redis may have forgotten. Not counted now; the outcome of an earlier call is
    /// unknown.
    Expired,
    /// Not counted: the result would leave i64 or the bounds. Holds the current value if the kind
    /// knows it.
    OutOfRange(i64),
    /// Not counted: too many ids are pending.
    Full,
    /// Not counted: the counter must be seeded first.
    Missing(Ticket),
    /// Counted: the visitor's first visit.
    First,
    /// A repeated visit: the visitor was counted before.
    Repeated,
    /// Not counted: a key of its partition holds another type.
    WrongType,
    /// Not changed: another client wrote a value that is not an integer.
    NotAnInteger,
    /// Not changed: the size of a cached counter's value is not below 2^53.
    Beyond,
    /// Not counted: the id is empty or longer than 255 bytes.
    BadId,
    /// Not counted: the time of the hit is ahead, or nothing takes it any more.
    BadTime,
    /// Not counted: the list of days or months has ended.
    NoCalendar,
}

impl PairResult {
    /// Parses the result of a pair: the value, or a word.
    pub(crate) fn parse(value: &Value) -> Option<Self> {
        match value {
            Value::Int(value) => Some(PairResult::Counted(*value)),
            value => PairResult::parse_word(text(value)?),
        }
    }

    pub(crate) fn parse_word(word: &str) -> Option<Self> {
        Some(match word.split_once(':') {
            None => match word {
                "RANGE" => PairResult::OutOfRange(0),
                "FULL" => PairResult::Full,
                "WRONGTYPE" => PairResult::WrongType,
                "BADID" => PairResult::BadId,
                "BADTIME" => PairResult::BadTime,
                "NOCALENDAR" => PairResult::NoCalendar,
                "BADSTATE" => PairResult::NotAnInteger,
                "BEYOND" => PairResult::Beyond,
                "EXPIRED" => PairResult::Expired,
                // no hit was counted in the partition: its counters have no base, and nothing is pending
                "UNCONFIGURED" => PairResult::Missing(Ticket::NONE),
                value => PairResult::Counted(value.parse().ok()?),
            },
            Some(("BEFORE", word)) => match PairResult::parse_word(word)? {
                PairResult::Counted(value) => PairResult::CountedBefore(value),
                decided => decided,
            },
            Some(("RANGE", value)) => PairResult::OutOfRange(value.parse().ok()?),
            Some(("MISS", ticket)) => PairResult::Missing(Ticket::parse(ticket)?),
            Some(_) => return None,
        })
    }

    /// Reads the words of a call's first execution, "INDEX:WORD ..." with indexes from 1. Returns
    /// `None` for each pair that it counted.
    pub(crate) fn read_words(reply: &mut Reply, pairs: usize) -> Result<Vec<Option<Self>>> {
        reply.read(|value| {
            let mut results = vec![None; pairs];
            for refusal in text(value)?.split_ascii_whitespace() {
                let (index, word) = refusal.split_once(':')?;
                let index = index.parse::<usize>().ok()?.checked_sub(1)?;
                *results.get_mut(index)? = Some(PairResult::parse_word(word)?);
            }
            Some(results)
        })
    }

    /// Reads the results of a series or activity call, which returns no sums, and whether a sync is
    /// due.
    pub(crate) fn read_kept(
        reply: &mut Reply,
        family: &Family,
        pairs: usize,
    ) -> Result<(Vec<Self>, bool)> {
        if reply.status() == "DUP" {
            let refusals = PairResult::read_words(reply, pairs)?.into_iter();
            let result = |refusal: Option<_>| refusal.unwrap_or(PairResult::Counted(0));
            return Ok((refusals.map(result).collect(), false));
        }
        let total: i64 = reply.number()?;
        let results = reply.read_all(pairs, |reply| reply.read(PairResult::parse))?;
        let counted = results
            .iter()
            .filter(|result| matches!(result, PairResult::Counted(_)))
            .count();
        let is_due = total > 0 && family.is_due(counted as u64, total);
        Ok((results, is_due))
    }

    /// Returns the error for a result that this kind only yields if another client wrote its keys.
    pub(crate) fn corrupt(self, family: &Family, id: &str) -> Error {
        let tag = format!("cf1:{{{family}/{}}}", family.partition_of(id));
        Error::corrupt(match self {
            PairResult::WrongType => {
                format!("{id:?} was not counted: {tag}:buffer or {tag}:meta holds another type")
            }
            PairResult::BadId => format!(
                "{id:?} was not counted: it has {} bytes, allowed are 1 to 255",
                id.len()
            ),
            PairResult::NotAnInteger => format!(
                "{id:?} was not changed: {tag}:base, buffer or batch holds a value for it that is not an integer"
            ),
            PairResult::NoCalendar => return no_calendar(),
            other => format!("{family}: {other:?} came for {id:?}"),
        })
    }
}

/// An update of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// A delta to add.
    Add(i64),
    /// A value to set; cached counters only.
    Set(i64),
}

impl Update {
    /// Returns the delta or the value.
    pub(crate) fn amount(self) -> i64 {
        match self {
            Update::Add(amount) | Update::Set(amount) => amount,
        }
    }

    /// Writes the script's argument: the delta, or "=" and the value.
    pub(crate) fn write(self, call: &mut ScriptCall) {
        match self {
            Update::Add(delta) => call.arg(delta),
            Update::Set(value) => call.arg(format!("={value}")),
        };
    }
}

/// The part of a call that goes to one partition.
#[derive(Clone, Debug)]
pub struct PartitionCall<'a, P> {
    /// The partition that counts the pairs.
    pub partition: &'a Partition,
    /// The number of hits that the pairs stand for.
    pub hits: u64,
    /// The ids, each with its update.
    pub pairs: P,
    /// The seeds of missing counters, applied before the updates; cached counters only.
    pub seeds: Vec<(&'a [u8], Seed)>,
}

/// A request: the name that the application gave to a pair of a call.
#[derive(Clone, Copy, Debug)]
pub struct PairRequest<'a> {
    /// The number of the pair, from 1 through all partitions of the call.
    pub pair: usize,
    pub name: &'a [u8],
    /// The generation that Redis returned before the first send.
    pub generation: &'a str,
}

/// Returns the keys of the memories that a call with requests needs.
pub(crate) fn request_keys(home: &Keys, requests: &[PairRequest<'_>]) -> Vec<Key> {
    let keys = home.requests();
    keys.into_iter().filter(|_| !requests.is_empty()).collect()
}

/// Writes the requests of a call, behind its pairs.
pub(crate) fn write_requests(call: &mut ScriptCall, requests: &[PairRequest<'_>]) {
    for request in requests {
        call.arg(request.pair);
        call.arg(request.name).arg(request.generation);
    }
}

/// The ids of a call, each with its update.
pub trait Pairs<'a>: ExactSizeIterator<Item = (&'a [u8], Update)> + Clone {}

impl<'a, P: ExactSizeIterator<Item = (&'a [u8], Update)> + Clone> Pairs<'a> for P {}

impl<'a, P: Pairs<'a>> PartitionCall<'_, P> {
    /// Writes the number of pairs, and the pairs.
    pub(crate) fn write_pairs(&self, call: &mut ScriptCall) {
        call.arg(self.pairs.len());
        for (id, update) in self.pairs.clone() {
            update.write(call.arg(id));
        }
    }
}

/// Returns the number of arguments that these calls and requests write, at most.
pub(crate) fn words<'a>(
    calls: &[PartitionCall<'_, impl Pairs<'a>>],
    requests: &[PairRequest<'_>],
) -> usize {
    let pairs = calls.iter().map(|call| 2 + 2 * call.pairs.len());
    pairs.sum::<usize>() + 3 * requests.len()
}

/// Returns the error of a series whose list of days or months has ended.
pub(crate) fn no_calendar() -> Error {
    Error::new(
        ErrorKind::Redis,
        "the calendar in Redis has ended, because no reconciler of this family runs",
    )
}
