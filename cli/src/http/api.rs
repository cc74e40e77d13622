//! The JSON API, as docs/http-api.md describes it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::DefaultBodyLimit;
use axum::extract::rejection::JsonRejection;
use axum::routing::get;
use axum::{Json, Router};
use counterfoil::{AnyCounters, Precision};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ErrorReply;
use super::family::{ServedFamily, connected};
use super::{App, AppState, Params, read_permit};
use crate::VERSION;
use crate::rejects::RejectView;
use crate::status::{FamilyView, unix_seconds};
use crate::view::{DriftView, Look, PairView};

/// The maximum number of ids in a request.
const MAX_IDS: usize = 1000;
/// The maximum size in bytes of a list with so many ids, if JSON escapes each character.
const MAX_IDS_BYTES: usize = 2 << 20;
/// The default number of rows in a reply.
const DEFAULT_LIMIT: u16 = 100;
const MAX_LIMIT: u16 = 1000;

pub fn routes() -> Router<Arc<App>> {
    let list = DefaultBodyLimit::max(MAX_IDS_BYTES);
    let routes = Router::new()
        .route("/state", get(state))
        .route("/families", get(families))
        .route("/values", get(values).post(values_of_list).layer(list))
        .route("/series", get(series))
        .route("/series-names", get(series_names))
        .route("/activity", get(activity))
        .route("/rejects", get(rejects))
        .route("/drift", get(drift));
    Router::new().nest("/api/v1", routes)
}

type Reply = Result<Json<Value>, ErrorReply>;

/// The maximum number of rows in a reply.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "u16")]
struct Limit(u16);

impl TryFrom<u16> for Limit {
    type Error = String;

    fn try_from(limit: u16) -> Result<Self, String> {
        if limit > MAX_LIMIT {
            return Err(format!("{limit} is more than {MAX_LIMIT}"));
        }
        Ok(Limit(limit))
    }
}

impl Default for Limit {
    fn default() -> Self {
        Limit(DEFAULT_LIMIT)
    }
}

impl Limit {
    /// Returns `after` for the next page, or `None` after the last page.
    fn next<T, N>(self, page: &[T], name: impl Fn(&T) -> N) -> Option<N> {
        let last = page.last()?;
        (page.len() == usize::from(self.0)).then(|| name(last))
    }
}

/// The families that a request selects.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FamilySelection {
    pair: Option<String>,
    #[serde(default)]
    family: String,
    #[serde(default)]
    offset: usize,
    #[serde(default)]
    limit: Limit,
}

impl FamilySelection {
    fn page<T>(&self, all: impl IntoIterator<Item = T>) -> Vec<T> {
        all.into_iter()
            .skip(self.offset)
            .take(self.limit.0.into())
            .collect()
    }
}

/// Returns a family, marked if its figures are stale.
fn aged(family: &FamilyView, now: u64) -> Value {
    let mut json = json!(family);
    json["stale"] = family.is_stale(now).into();
    json
}

/// Returns a pair with some of its families.
fn pair_page(pair: &PairView, selection: &FamilySelection, now: u64) -> Value {
    let text = &selection.family;
    let families = || {
        pair.families
            .iter()
            .filter(|family| family.name().contains(text))
    };
    let not_served = || pair.not_served.iter().filter(|name| name.contains(text));
    let refused = pair.refused.iter();
    let recounts = pair.recounts.iter();
    let looks = pair.looks.iter().map(|look| {
        let Look { name, at, why, .. } = look;
        let json = json!({"at": at, "why": why, "stale": look.is_stale(now)});
        ((*name).to_owned(), json)
    });
    json!({
        "name": pair.name,
        "redis": pair.redis,
        "mysql": pair.mysql,
        "reconciler": pair.reconciler,
        "looks": Value::Object(looks.collect()),
        "families_total": families().count(),
        "families": selection.page(families().map(|family| aged(family, now))),
        "refused": selection.page(refused.filter(|one| one.family.contains(text))),
        "not_served_total": not_served().count(),
        "not_served": selection.page(not_served()),
        "findings": pair.findings(),
        "rejects": pair.rejects,
        "set_backs": pair.set_backs,
        "certificates": pair.certificates,
        "drift": pair.drift,
        "recounts": selection.page(recounts.filter(|one| one.family.contains(text))),
    })
}

/// Returns the whole state, with some families of each pair.
async fn state(app: AppState, Params(selection): Params<FamilySelection>) -> Reply {
    let view = app.view_of(&selection.pair)?;
    let problems = view.problems();
    let pairs: Vec<_> = view
        .pairs
        .iter()
        .map(|pair| pair_page(pair, &selection, view.at))
        .collect();
    Ok(Json(json!({
        "at": view.at,
        "version": VERSION,
        "instance": app.instance,
        "started": app.started,
        "state": view.health(&problems),
        "problems": problems,
        "pairs": pairs,
    })))
}

/// Returns the families of all pairs without their history, those in trouble first.
async fn families(app: AppState, Params(selection): Params<FamilySelection>) -> Reply {
    let view = app.view_of(&selection.pair)?;
    let families = view.families(&selection.family);
    let total = families.len();
    let mut page = Vec::new();
    for (pair, family) in selection.page(families) {
        let mut json = aged(family, view.at);
        json["pair"] = pair.name.as_str().into();
        json.as_object_mut().map(|fields| fields.remove("history"));
        page.push(json);
    }
    Ok(Json(json!({"total": total, "families": page})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ValuesParams {
    pair: Option<String>,
    family: String,
    #[serde(default)]
    id: Vec<String>,
}

/// The ids of [`ValuesParams`] in a body, since the head of a request has no room for many.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ValuesList {
    pair: Option<String>,
    family: String,
    ids: Vec<String>,
}

async fn values(app: AppState, Params(params): Params<ValuesParams>) -> Reply {
    let ValuesParams { pair, family, id } = params;
    read_values(&app, pair, &family, "id", &id).await
}

async fn values_of_list(app: AppState, list: Result<Json<ValuesList>, JsonRejection>) -> Reply {
    let Json(ValuesList { pair, family, ids }) =
        list.map_err(|error| ErrorReply::new(error.status(), error.body_text()))?;
    read_values(&app, pair, &family, "ids", &ids).await
}

async fn read_values(
    app: &App,
    pair: Option<String>,
    family: &str,
    parameter: &str,
    ids: &[String],
) -> Reply {
    if ids.is_empty() || ids.len() > MAX_IDS {
        let message = format!("expected 1 to {MAX_IDS} ids, not {}", ids.len());
        return Err(ErrorReply::parameter(parameter, message));
    }
    let served = app.family(&pair, family).await?;
    let values = served.values(ids).await?;
    Ok(Json(json!({"family": served.name, "values": values})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesParams {
    pair: Option<String>,
    family: String,
    name: String,
    precision: String,
    from: Option<u32>,
    to: Option<u32>,
}

async fn series(app: AppState, Params(params): Params<SeriesParams>) -> Reply {
    let time = |seconds: u32| UNIX_EPOCH + Duration::from_secs(seconds.into());
    let range = match (params.from, params.to) {
        (None, None) => None,
        (Some(from), to) => Some(time(from)..to.map_or_else(SystemTime::now, time)),
        (None, Some(_)) => return Err(ErrorReply::parameter("from", "required with `to`")),
    };
    let precision = precision(&params.precision)?;
    let family = app.family(&params.pair, &params.family).await?;
    let (series, name) = (family.series()?, &params.name);
    let slices = match range {
        Some(range) => series.get_range(name, precision, range).await?,
        None => series.get(name, precision).await?,
    };
    let counts: Vec<_> = slices
        .iter()
        .map(|slice| json!({"start": unix_seconds(slice.start), "count": slice.count}))
        .collect();
    Ok(Json(json!({
        "family": family.name,
        "name": name,
        "precision": params.precision,
        "slices": counts,
    })))
}

pub fn precision(text: &str) -> Result<Precision, ErrorReply> {
    text.parse()
        .map_err(|error| ErrorReply::parameter("precision", error))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamesParams {
    pair: Option<String>,
    family: String,
    #[serde(default)]
    prefix: String,
    after: Option<String>,
    #[serde(default)]
    limit: Limit,
}

async fn series_names(app: AppState, Params(params): Params<NamesParams>) -> Reply {
    let limit = params.limit;
    let family = app.family(&params.pair, &params.family).await?;
    let (series, after) = (family.series()?, params.after.as_deref());
    let names = series.names(&params.prefix, after, limit.0.into()).await?;
    let next = limit.next(&names, String::clone);
    Ok(Json(json!({"names": names, "next": next})))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ActivityParams {
    pair: Option<String>,
    family: String,
    page: String,
}

async fn activity(app: AppState, Params(params): Params<ActivityParams>) -> Reply {
    let family = app.family(&params.pair, &params.family).await?;
    let AnyCounters::Activity(activity) = &family.counters else {
        return Err(family.wrong_kind("activity"));
    };
    let now = activity.now(&params.page).await?;
    Ok(Json(json!({
        "family": family.name,
        "page": params.page,
        "views": now.views,
        "visitors": now.visitors,
    })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RejectsParams {
    pair: Option<String>,
    family: Option<String>,
    after: Option<String>,
    #[serde(default)]
    limit: Limit,
}

async fn rejects(app: AppState, Params(params): Params<RejectsParams>) -> Reply {
    let limit = params.limit;
    let pair = app.pair(&params.pair)?;
    let counterfoil = connected(pair)?;
    let _permit = read_permit(pair).await?;
    let (family, after) = (params.family.as_deref(), params.after.as_deref());
    let page = counterfoil
        .mysql()?
        .rejects(family, after, limit.0.into())
        .await?;
    let next = limit.next(&page, |reject| reject.cursor.clone());
    Ok(Json(
        json!({"rejects": RejectView::all(page), "next": next}),
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DriftParams {
    pair: Option<String>,
    family: String,
    run: Option<u64>,
    after: Option<String>,
    #[serde(default)]
    limit: Limit,
}

async fn drift(app: AppState, Params(params): Params<DriftParams>) -> Reply {
    let limit = params.limit;
    let family = app.family(&params.pair, &params.family).await?;
    let run = match params.run {
        Some(run) => run,
        None => last_run(&family)?,
    };
    let (store, after) = (family.counterfoil.mysql()?, params.after.as_deref());
    let page = store
        .drift(family.family(), run, after, limit.0.into())
        .await?;
    let next = limit.next(&page, |drift| drift.id.clone());
    Ok(Json(json!({
        "family": family.name,
        "run": run,
        "drift": DriftView::all(&family.name, run, page),
        "next": next,
    })))
}

/// Returns the number of the family's current or last recount.
fn last_run(family: &ServedFamily<'_>) -> Result<u64, ErrorReply> {
    let view = family.pair.view.borrow();
    match view.recount(&family.name) {
        Some(recount) => Ok(recount.run),
        None => Err(ErrorReply::not_found(format!(
            "no recount of family {} is known",
            family.name
        ))),
    }
}
