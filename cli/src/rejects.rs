//! Rejects as the page and the API show them: single ones, and their number by reason.

use std::cmp::Reverse;

use counterfoil::admin::Reject;
use serde::{Serialize, Serializer};

use crate::status::unix_seconds;

/// The maximum number of rejects, the newest, whose reasons are counted.
pub const MAX_COUNTED: u64 = 1000;
/// The maximum number of ids of a reason.
const MAX_IDS: usize = 3;

#[derive(Clone, Serialize)]
pub struct RejectView {
    /// `NAMESPACE/FAMILY`.
    pub family: String,
    pub id: String,
    /// The sum of the refused deltas.
    #[serde(serialize_with = "number_or_text")]
    pub delta: i128,
    pub reason: String,
    /// The time of the first refusal in Unix seconds.
    pub at: u64,
    /// The number of refused retries.
    pub retries: u64,
    /// The time of the next retry in Unix seconds; `None` if no row can ever have the id.
    pub retry_at: Option<u64>,
}

/// Serializes a number, as text if it is outside the signed 64-bit range.
fn number_or_text<S: Serializer>(number: &i128, serializer: S) -> Result<S::Ok, S::Error> {
    match i64::try_from(*number) {
        Ok(number) => serializer.serialize_i64(number),
        Err(_) => serializer.collect_str(number),
    }
}

impl RejectView {
    pub fn all(rejects: Vec<Reject>) -> Vec<Self> {
        rejects
            .into_iter()
            .map(|reject| RejectView {
                family: format!("{}/{}", reject.namespace, reject.family),
                id: reject.id,
                delta: reject.delta,
                reason: reject.reason,
                at: unix_seconds(reject.first_at),
                retries: reject.retries,
                retry_at: reject.retry_at.map(unix_seconds),
            })
            .collect()
    }
}

/// The rejects of a family with one reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReasonView {
    /// `NAMESPACE/FAMILY`.
    pub family: String,
    pub reason: String,
    pub number: u64,
    /// The ids of the newest rejects with this reason.
    pub ids: Vec<String>,
    /// The time at which the first of them was refused, in Unix seconds.
    pub since: u64,
    /// Retries may succeed: a row can have these ids.
    pub is_retried: bool,
}

impl ReasonView {
    /// Returns the reasons of rejects that are given the newest first, the most frequent first.
    pub fn all(rejects: &[RejectView]) -> Vec<Self> {
        let mut reasons: Vec<ReasonView> = Vec::new();
        for reject in rejects {
            let is_retried = reject.retry_at.is_some();
            let known = reasons.iter_mut().find(|known| {
                (known.is_retried, &known.reason, &known.family)
                    == (is_retried, &reject.reason, &reject.family)
            });
            match known {
                Some(known) => {
                    known.number += 1;
                    known.since = known.since.min(reject.at);
                    if known.ids.len() < MAX_IDS {
                        known.ids.push(reject.id.clone());
                    }
                }
                None => reasons.push(ReasonView {
                    family: reject.family.clone(),
                    reason: reject.reason.clone(),
                    number: 1,
                    ids: vec![reject.id.clone()],
                    since: reject.at,
                    is_retried,
                }),
            }
        }
        reasons.sort_by_key(|reason| Reverse(reason.number));
        reasons
    }

    /// Returns the action after which the rows take these rejects, in a sentence without a period.
    pub fn advice(&self) -> &'static str {
        let has = |text: &str| self.reason.to_lowercase().contains(text);
        if !self.is_retried {
            "No row can have these ids. Correct the ids that the application counts, and discard these \
             by `counterfoil rejects discard`"
        } else if has("foreign key") {
            "Insert the rows to which the new rows refer"
        } else if has("no such row") {
            "Insert the missing rows"
        } else if has("out of range") || has("too long") {
            "Widen the column"
        } else {
            "Remove the reason"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reject(family: &str, id: &str, reason: &str, at: u64) -> RejectView {
        RejectView {
            family: family.to_owned(),
            id: id.to_owned(),
            delta: 1,
            reason: reason.to_owned(),
            at,
            retries: 0,
            retry_at: Some(at + 5),
        }
    }

    #[test]
    fn the_most_frequent_reason_is_the_first() {
        let out_of_range = "Out of range value for column 'n' at row 1";
        let mut rejects = vec![reject("shop/stock", "7", "no such row", 9)];
        rejects
            .extend((0..5).map(|id| reject("shop/votes", &id.to_string(), out_of_range, 8 - id)));
        rejects.push(RejectView {
            retry_at: None,
            ..reject("shop/stock", "x", "no such row", 1)
        });
        let reasons = ReasonView::all(&rejects);
        let shown: Vec<_> = reasons
            .iter()
            .map(|one| (one.number, one.ids.join(" "), one.since, one.advice()))
            .collect();
        let never = "No row can have these ids. Correct the ids that the application counts, and discard these \
                     by `counterfoil rejects discard`";
        let expected = [
            (5, "0 1 2".to_owned(), 4, "Widen the column"),
            (1, "7".to_owned(), 9, "Insert the missing rows"),
            (1, "x".to_owned(), 1, never),
        ];
        assert_eq!(shown, expected);
    }
}
