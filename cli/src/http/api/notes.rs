//! `rejects` and `drift`: notes in the database.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use serde::Serialize;

use super::{MOST_ROWS, ROWS};
use crate::http::App;
use crate::http::params::Params;
use crate::http::problem::Problem;
use crate::view::{DriftView, RejectView};

pub async fn rejects(
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    #[derive(Serialize)]
    struct Shown {
        rejects: Vec<RejectView>,
        /// The value of `after` for the next page.
        next: Option<u64>,
    }
    params.only(&["pair", "after", "limit"])?;
    let (after, limit) = (
        params.number("after", 0, u64::MAX)?,
        params.number("limit", ROWS, MOST_ROWS)?,
    );
    let pair = app.connected(app.live_pair(&params)?)?;
    let _turn = app.turn().await?;
    let rejects = pair.mysql()?.rejects(after, limit).await?;
    let next = rejects
        .last()
        .filter(|_| rejects.len() as u64 == limit)
        .map(|reject| reject.number);
    Ok(Json(Shown {
        rejects: rejects.iter().map(RejectView::from).collect(),
        next,
    }))
}

pub async fn drift(
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    #[derive(Serialize)]
    struct Shown<'a> {
        family: &'a str,
        run: u64,
        drift: Vec<DriftView>,
        /// The value of `after` for the next page.
        next: Option<String>,
    }
    params.only(&["pair", "family", "run", "after", "limit"])?;
    let (chosen, limit) = (
        app.family(&params).await?,
        params.number("limit", ROWS, MOST_ROWS)?,
    );
    let run: Option<u64> = params.parsed("run", "the number of a run")?;
    let view = app.live_pair(&params)?.view.borrow().clone();
    let last = || {
        view.recounts
            .iter()
            .find(|recount| recount.family == chosen.name)
            .map(|recount| recount.run)
    };
    let none = || Problem::not_found(format!("no recount of {} is known", chosen.name));
    let run = run.or_else(last).ok_or_else(none)?;
    let _turn = app.turn().await?;
    let drift = chosen
        .pair
        .mysql()?
        .drift(&chosen.registered.family, run, params.first("after"), limit)
        .await?;
    let next = drift
        .last()
        .filter(|_| drift.len() as u64 == limit)
        .map(|drift| drift.id.clone());
    let drift = drift
        .iter()
        .map(|drift| DriftView::new(&chosen.name, run, drift));
    Ok(Json(Shown {
        family: &chosen.name,
        run,
        drift: drift.collect(),
        next,
    })
    .into_response())
}
