//! `state` and `families`: the state that the daemon last saw.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use serde::Serialize;

use super::{MOST_ROWS, ROWS};
use crate::http::App;
use crate::http::params::Params;
use crate::http::problem::Problem;
use crate::http::rows;
use crate::status::FamilyStatus;
use crate::view::{
    DriftView, FamilyView, FindingView, PairView, RecountView, Refused, RejectView, ServerView,
};

/// The families that a request selects.
struct Part<'a> {
    text: &'a str,
    offset: usize,
    limit: usize,
}

impl<'a> Part<'a> {
    fn of(params: &'a Params) -> Result<Self, Problem> {
        params.only(&["pair", "family", "offset", "limit"])?;
        Ok(Part {
            text: params.first("family").unwrap_or_default(),
            offset: usize::try_from(params.number("offset", 0, u64::from(u32::MAX))?)
                .unwrap_or(usize::MAX),
            limit: usize::try_from(params.number("limit", ROWS, MOST_ROWS)?).unwrap_or(usize::MAX),
        })
    }

    fn take<T>(&self, all: impl Iterator<Item = T>) -> Vec<T> {
        all.skip(self.offset).take(self.limit).collect()
    }
}

/// A pair with some of its families.
#[derive(Serialize)]
struct PairState<'a> {
    name: &'a str,
    redis: &'a ServerView,
    mysql: &'a ServerView,
    /// The number of families with matching names.
    families_total: usize,
    families: Vec<&'a FamilyView>,
    refused: Vec<&'a Refused>,
    not_served_total: usize,
    not_served: Vec<&'a String>,
    findings: &'a [FindingView],
    rejects: &'a [RejectView],
    drift: &'a [DriftView],
    recounts: Vec<&'a RecountView>,
}

impl<'a> PairState<'a> {
    fn new(pair: &'a PairView, part: &Part<'_>) -> Self {
        let families: Vec<_> = pair
            .families
            .iter()
            .filter(|family| rows::matches(family, part.text))
            .collect();
        let not_served: Vec<_> = pair
            .not_served
            .iter()
            .filter(|name| name.contains(part.text))
            .collect();
        PairState {
            name: &pair.name,
            redis: &pair.redis,
            mysql: &pair.mysql,
            families_total: families.len(),
            families: part.take(families.into_iter()),
            refused: part.take(
                pair.refused
                    .iter()
                    .filter(|refused| refused.family.contains(part.text)),
            ),
            not_served_total: not_served.len(),
            not_served: part.take(not_served.into_iter()),
            findings: &pair.findings,
            rejects: &pair.rejects,
            drift: &pair.drift,
            recounts: part.take(
                pair.recounts
                    .iter()
                    .filter(|recount| recount.family.contains(part.text)),
            ),
        }
    }
}

/// Returns the whole state, with some families of each pair.
pub async fn state(
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    #[derive(Serialize)]
    struct Shown<'a> {
        at: u64,
        version: &'static str,
        pairs: Vec<PairState<'a>>,
    }
    let part = Part::of(&params)?;
    let named = params
        .first("pair")
        .map(|_| app.live_pair(&params))
        .transpose()?
        .map(|pair| pair.name.as_str());
    let view = app.live.view();
    let pairs = view
        .pairs
        .iter()
        .filter(|pair| named.is_none_or(|named| named == pair.name));
    let pairs = pairs.map(|pair| PairState::new(pair, &part)).collect();
    Ok(Json(Shown {
        at: view.at,
        version: view.version,
        pairs,
    })
    .into_response())
}

/// Returns the families of all pairs without their history, those in trouble first.
pub async fn families(
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    #[derive(Serialize)]
    struct Shown<'a> {
        total: usize,
        families: Vec<One<'a>>,
    }
    #[derive(Serialize)]
    struct One<'a> {
        pair: &'a str,
        #[serde(flatten)]
        status: &'a FamilyStatus,
        rate: Option<f64>,
    }
    let part = Part::of(&params)?;
    let named = params
        .first("pair")
        .map(|_| app.live_pair(&params))
        .transpose()?
        .map(|pair| pair.name.as_str());
    let view = app.live.view();
    let mut rows = rows::of(&view, part.text);
    rows.retain(|(pair, _)| named.is_none_or(|named| named == *pair));
    let total = rows.len();
    let families = part.take(rows.into_iter()).into_iter();
    let families = families
        .map(|(pair, family)| One {
            pair,
            status: &family.status,
            rate: family.rate,
        })
        .collect();
    Ok(Json(Shown { total, families }).into_response())
}
