//! `values`, `series`, `series-names` and `activity`: exact reads through the library.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use counterfoil::{Precision, VisitorCount};
use serde::Serialize;

use super::{MOST_ROWS, ROWS};
use crate::http::App;
use crate::http::counters;
use crate::http::params::Params;
use crate::http::problem::Problem;
use crate::status::unix_seconds;

/// The maximum number of ids in a request.
const IDS: usize = 100;

pub async fn values(
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    #[derive(Serialize)]
    struct Shown<'a> {
        family: &'a str,
        values: Vec<Value<'a>>,
    }
    #[derive(Serialize)]
    struct Value<'a> {
        id: &'a str,
        value: i64,
    }
    params.only(&["pair", "family", "id"])?;
    let ids: Vec<_> = params.all("id").collect();
    match ids.len() {
        0 => return Err(Problem::parameter("id", "it is missing")),
        given if given > IDS => {
            return Err(Problem::parameter(
                "id",
                format!("{given} are more than {IDS}"),
            ));
        }
        _ => {}
    }
    let chosen = app.family(&params).await?;
    let _turn = app.turn().await?;
    let values = counters::values(&chosen, &ids).await?;
    let values = ids
        .iter()
        .zip(values)
        .map(|(id, value)| Value { id, value })
        .collect();
    Ok(Json(Shown {
        family: &chosen.name,
        values,
    })
    .into_response())
}

pub async fn series(
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    #[derive(Serialize)]
    struct Shown<'a> {
        family: &'a str,
        name: &'a str,
        precision: String,
        slices: Vec<Counted>,
    }
    #[derive(Serialize)]
    struct Counted {
        start: u64,
        count: i64,
    }
    params.only(&["pair", "family", "name", "precision", "from", "to"])?;
    let (chosen, name) = (app.family(&params).await?, params.required("name")?);
    let precision = precision(&params)?;
    let range = match (time(&params, "from")?, time(&params, "to")?) {
        (None, None) => None,
        (Some(from), to) => Some(from..to.unwrap_or_else(SystemTime::now)),
        (None, Some(_)) => return Err(Problem::parameter("from", "it is missing beside to")),
    };
    let _turn = app.turn().await?;
    let slices = counters::slices(&chosen, name, precision, range).await?;
    let slices = slices
        .iter()
        .map(|slice| Counted {
            start: unix_seconds(slice.start),
            count: slice.count,
        })
        .collect();
    Ok(Json(Shown {
        family: &chosen.name,
        name,
        precision: precision.to_string(),
        slices,
    })
    .into_response())
}

pub fn precision(params: &Params) -> Result<Precision, Problem> {
    params.required("precision")?;
    let precision = params.parsed("precision", "a precision such as 60s, day or month")?;
    precision.ok_or_else(|| Problem::parameter("precision", "it is missing"))
}

/// Parses a time in whole Unix seconds.
fn time(params: &Params, name: &str) -> Result<Option<SystemTime>, Problem> {
    let seconds: Option<u32> = params.parsed(name, "a time in Unix seconds")?;
    Ok(seconds.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds.into())))
}

pub async fn series_names(
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    #[derive(Serialize)]
    struct Shown {
        names: Vec<String>,
        /// The value of `after` for the next page.
        next: Option<String>,
    }
    params.only(&["pair", "family", "prefix", "after", "limit"])?;
    let chosen = app.family(&params).await?;
    let limit = usize::try_from(params.number("limit", ROWS, MOST_ROWS)?).unwrap_or(usize::MAX);
    let _turn = app.turn().await?;
    let prefix = params.first("prefix").unwrap_or_default();
    let names = counters::names(&chosen, prefix, params.first("after"), limit).await?;
    let next = names.last().filter(|_| names.len() == limit).cloned();
    Ok(Json(Shown { names, next }).into_response())
}

pub async fn activity(
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<impl IntoResponse, Problem> {
    #[derive(Serialize)]
    struct Shown<'a> {
        family: &'a str,
        page: &'a str,
        views: u64,
        visitors: u64,
        /// The relative standard error, if the number is an estimate.
        standard_error: Option<f64>,
    }
    params.only(&["pair", "family", "page"])?;
    let (chosen, page) = (app.family(&params).await?, params.required("page")?);
    let _turn = app.turn().await?;
    let now = counters::activity(&chosen, page).await?;
    let standard_error = match now.visitors {
        VisitorCount::Estimated { standard_error, .. } => Some(standard_error),
        _ => None,
    };
    let visitors = now.visitors.count();
    Ok(Json(Shown {
        family: &chosen.name,
        page,
        views: now.views,
        visitors,
        standard_error,
    })
    .into_response())
}
