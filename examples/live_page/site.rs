//! The site: its one page, the hits on it, and their live display.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{Query, State};
use axum::http::{StatusCode, header::CONTENT_TYPE};
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse};
use axum::routing::{get, post};
use axum::{BoxError, Router};
use axum_extra::extract::cookie::{Cookie, CookieJar};
use counterfoil::{Activity, Counterfoil, Family, Outcome, Precision, Series};
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

/// The name of the only page in the counters.
const PAGE: &str = "/";

/// The counters of the site: hits over time, and current visitors.
#[derive(Clone)]
pub struct Site {
    hits: Series,
    online: Activity,
}

pub fn router(site: Site) -> Router {
    // Served from here, so that no other host learns of the page's visitors.
    let script = (
        [(CONTENT_TYPE, "text/javascript")],
        include_str!("../../cli/assets/uplot/uPlot.iife.min.js"),
    );
    let style = (
        [(CONTENT_TYPE, "text/css")],
        include_str!("../../cli/assets/uplot/uPlot.min.css"),
    );
    Router::new()
        .route("/", get(page))
        .route("/hit", post(hit))
        .route("/events", get(events))
        .route("/uPlot.iife.min.js", get(script))
        .route("/uPlot.min.css", get(style))
        .with_state(site)
}

async fn page(State(site): State<Site>, cookies: CookieJar) -> impl IntoResponse {
    (site.count(cookies).await, Html(include_str!("page.html")))
}

async fn hit(State(site): State<Site>, cookies: CookieJar) -> impl IntoResponse {
    (site.count(cookies).await, StatusCode::NO_CONTENT)
}

/// The requested precision of the chart.
#[derive(Deserialize)]
struct Chart {
    precision: String,
}

/// Streams updates of the page until the viewer leaves.
async fn events(
    State(site): State<Site>,
    Query(chart): Query<Chart>,
) -> Result<impl IntoResponse, StatusCode> {
    let mut offered = Precision::DEFAULT.into_iter();
    let chosen = offered.find(|precision| precision.to_string() == chart.precision);
    Ok(Sse::new(site.live(chosen.ok_or(StatusCode::BAD_REQUEST)?)))
}

/// The content of an event: the chart's columns in uPlot's format, and the numbers in the line
/// above the chart.
#[derive(Serialize)]
struct Shown {
    chart: (Vec<u64>, Vec<i64>),
    visitors: u64,
    views: u64,
}

impl Site {
    pub async fn open(redis: &str, mysql: &str) -> counterfoil::Result<Self> {
        let pair = Counterfoil::connect(redis, mysql).await?;
        // Creates counterfoil's tables if they are missing. For these families they hold only the
        // configuration.
        pair.mysql()?.create_tables().await?;
        let hits = pair.open(Family::series("example", "hits")).await?;
        let online = pair.open(Family::activity("example", "online")).await?;
        Ok(Site { hits, online })
    }

    /// Counts one view by the visitor in the cookie. A visitor without a cookie gets one.
    async fn count(&self, cookies: CookieJar) -> CookieJar {
        let (visitor, cookies) = visitor(cookies);
        // A page is worth more than its count.
        match self.hits.add(PAGE, 1).await {
            Ok(Outcome::Counted(_)) => {}
            Ok(refused) => eprintln!("hits: {refused:?}"),
            Err(error) => eprintln!("hits: {error}"),
        }
        if let Err(error) = self.online.touch(PAGE, visitor).await {
            eprintln!("online: {error}");
        }
        cookies
    }

    /// Returns a stream of updates: the first at once, then one per second.
    fn live(self, precision: Precision) -> impl Stream<Item = Result<Event, BoxError>> {
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        stream::unfold((self, seconds), move |(site, mut seconds)| async move {
            seconds.tick().await;
            // An error ends the stream, and the browser reconnects.
            let event = site
                .shown(precision)
                .await
                .inspect_err(|error| eprintln!("events: {error}"));
            Some((event, (site, seconds)))
        })
    }

    async fn shown(&self, precision: Precision) -> Result<Event, BoxError> {
        let slices = self.hits.get(PAGE, precision).await?;
        let now = self.online.now(PAGE).await?;
        let chart = slices
            .iter()
            .map(|slice| (unix_seconds(slice.start), slice.count))
            .unzip();
        Ok(Event::default().json_data(Shown {
            chart,
            visitors: now.visitors,
            views: now.views,
        })?)
    }
}

/// Returns the time in Unix seconds, as the page's script expects it.
fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

fn visitor(cookies: CookieJar) -> (String, CookieJar) {
    match cookies.get("visitor") {
        Some(cookie) => (cookie.value().to_owned(), cookies),
        None => {
            let id = format!("{:032x}", rand::random::<u128>());
            (
                id.clone(),
                cookies.add(Cookie::build(("visitor", id)).http_only(true)),
            )
        }
    }
}
