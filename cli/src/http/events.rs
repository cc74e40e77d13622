//! Server-sent events with the changed parts of a page, which keep it up to date.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::App;
use super::connections::stop_of;
use super::page::overview::{Query, parts};
use super::params::Params;
use super::problem::Problem;

const EVERY: Duration = Duration::from_secs(2);

/// A viewer, and the parts that it has received.
struct Watcher {
    app: Arc<App>,
    query: Query,
    ticks: Interval,
    sent: HashMap<&'static str, String>,
    _place: OwnedSemaphorePermit,
}

/// Streams the parts of the page with the same parameters: first all of them, then those that
/// changed.
pub async fn show(State(app): State<Arc<App>>, params: Params) -> Result<Response, Problem> {
    let query = Query::of(&params)?;
    let Ok(place) = app.watchers.clone().try_acquire_owned() else {
        let problem = Problem::unavailable("too many pages are kept up to date already");
        return Ok(([(RETRY_AFTER, "30")], problem).into_response());
    };
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watcher = Watcher {
        app,
        query,
        ticks,
        sent: HashMap::new(),
        _place: place,
    };
    Ok(Sse::new(watcher.events()).into_response())
}

impl Watcher {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        let stopping = self.app.stopping.clone();
        stream::unfold(
            (self, stopping),
            |(mut watcher, mut is_stopping)| async move {
                let goes_on = tokio::select! {
                    () = stop_of(&mut is_stopping) => false,
                    _ = watcher.ticks.tick() => true,
                };
                goes_on.then(|| (Ok(watcher.event()), (watcher, is_stopping)))
            },
        )
    }

    /// Returns the next event, even if nothing changed: it shows that the daemon is alive.
    fn event(&mut self) -> Event {
        #[derive(Serialize)]
        struct Sent<'a> {
            at: u64,
            parts: HashMap<&'static str, &'a str>,
        }
        let view = self.app.live.view();
        let mut changed = Vec::new();
        for (name, part) in parts(&view, &self.query) {
            let part = part.into_string();
            if self.sent.get(name) != Some(&part) {
                self.sent.insert(name, part);
                changed.push(name);
            }
        }
        let parts = changed
            .into_iter()
            .map(|name| (name, self.sent[name].as_str()))
            .collect();
        // plain data, which always serializes
        Event::default()
            .json_data(Sent { at: view.at, parts })
            .unwrap_or_default()
    }
}
