//! The reference of requests: what a home remembers of them, and the ones that a call names.

use proptest::option;

use super::*;
use crate::support::*;

/// The setting `remember_requests`: between one and two epochs.
pub const REMEMBER_MS: u64 = 90_000;
/// Names of requests. A field in Redis joins a name and an id, and the second name is like the
/// first one joined with an id: their fields must differ nevertheless.
const NAMES: [&str; 2] = ["job", "job:1:a"];

/// The generation that a request names.
#[derive(Clone, Copy, Debug)]
enum Generation {
    Current,
    Before,
    Unknown,
}

/// The request of a pair.
#[derive(Clone, Copy, Debug)]
pub struct Requested {
    name: &'static str,
    generation: Generation,
}

/// The requests of a call, by the numbers of their pairs.
pub type Requests = BTreeMap<usize, Requested>;

/// Draws the requests of a call with up to so many pairs: mostly none.
pub fn requests(pairs: usize) -> impl Strategy<Value = Requests> {
    let generation = prop_oneof![
        8 => Just(Generation::Current),
        3 => Just(Generation::Before),
        1 => Just(Generation::Unknown),
    ];
    let requested = (proptest::sample::select(&NAMES[..]), generation);
    let requested = requested.prop_map(|(name, generation)| Requested { name, generation });
    let some = vec(option::weighted(0.7, requested), pairs).prop_map(|all| {
        let all = (1..).zip(all);
        all.filter_map(|(pair, one)| Some((pair, one?))).collect()
    });
    prop_oneof![2 => Just(Requests::new()), 1 => some]
}

/// The memory of a home for requests: the fields of the current generation, and of the one before.
#[derive(Clone, Debug, Default)]
pub struct Memory([Fields; 2]);

/// A request as sent, with the id of its pair.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct SentRequest {
    name: &'static str,
    field: String,
    generation: String,
}

/// The requests of a call as sent, by the numbers of their pairs.
pub type SentRequests = BTreeMap<usize, SentRequest>;

/// Adds the keys and arguments of requests to those of a call.
pub fn name_requests(sent: &SentRequests, keys: &mut Vec<String>, args: &mut Vec<String>) {
    if !sent.is_empty() {
        keys.extend([HOME[2], HOME[3]].map(str::to_owned));
    }
    for (pair, request) in sent {
        let name = request.name.to_owned();
        args.extend([pair.to_string(), name, request.generation.clone()]);
    }
}

impl Memory {
    /// Returns the requests of a call whose pairs have these ids, as sent.
    pub fn sent(
        &self,
        requests: &Requests,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> SentRequests {
        let sent = |(pair, id): (usize, _)| Some((pair, self.sent_one(requests.get(&pair)?, id)));
        (1..).zip(ids).filter_map(sent).collect()
    }

    fn sent_one(&self, requested: &Requested, id: impl AsRef<str>) -> SentRequest {
        let Requested { name, generation } = *requested;
        let known = match generation {
            Generation::Current => self.0[0].get("=now"),
            Generation::Before => self.0[0].get("=before"),
            Generation::Unknown => None,
        };
        SentRequest {
            name,
            field: format!("{}:{name}:{}", name.len(), id.as_ref()),
            generation: known.cloned().unwrap_or_else(|| "unknown".into()),
        }
    }

    /// Returns the word of a pair that is not executed because of its request.
    pub fn word(&self, request: &SentRequest) -> Option<String> {
        let [current, _] = &self.0;
        let mut known = ["=now", "=before"].into_iter();
        if !known.any(|name| current.get(name) == Some(&request.generation)) {
            return Some("EXPIRED".into());
        }
        let of = |memory: &Fields| {
            let tag = memory.get("=tag").map(|tag| format!(" {tag}"));
            let stored = memory.get(&request.field)?.clone();
            Some((stored, tag.unwrap_or_default()))
        };
        let (stored, tag) = self.0.iter().find_map(of)?;
        let word = stored.strip_suffix(&tag);
        Some(word.map_or("EXPIRED".into(), |word| format!("BEFORE:{word}")))
    }

    /// Stores what a pair got.
    pub fn note(&mut self, request: &SentRequest, word: &str) {
        let [current, _] = &mut self.0;
        let tag = current.get("=tag").map(|tag| format!(" {tag}"));
        let stored = word.to_owned() + &tag.unwrap_or_default();
        current.insert(request.field.clone(), stored);
    }

    pub(super) fn generation(&self) -> Option<&String> {
        self.0[0].get("=now")
    }

    /// Returns whether a new generation begins. If the clock has stepped back to before the current
    /// one began, that one begins at the present time.
    pub(super) fn is_due(&mut self, now: u64) -> bool {
        let Some(began_at) = self.0[0].get_mut("=began_at") else {
            return true;
        };
        let at: u64 = began_at.parse().unwrap();
        *began_at = at.min(now).to_string();
        now.saturating_sub(at) >= REMEMBER_MS
    }

    pub(super) fn begin(&mut self, now: u64, name: &str) {
        let [current, before] = &mut self.0;
        let last = current.get("=now").cloned();
        if let Some(last) = &last {
            current.insert("=before".into(), last.clone());
            *before = std::mem::take(current);
            current.insert("=before".into(), last.clone());
        }
        current.insert("=now".into(), name.into());
        current.insert("=began_at".into(), now.to_string());
    }

    /// Ends the generations, and gives the memories a new tag. Decisions that were stored without
    /// it are unknown from then on.
    pub fn reset(&mut self, tag: &str) {
        for memory in self.0.iter_mut().filter(|memory| !memory.is_empty()) {
            memory.insert("=tag".into(), tag.into());
        }
        for name in ["=now", "=before", "=began_at"] {
            self.0[0].remove(name);
        }
    }

    pub(super) fn keys(&self) -> [Fields; 2] {
        self.0.clone()
    }
}
