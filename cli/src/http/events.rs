//! Server-sent events with the changed parts of a page, which keep it up to date.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::RETRY_AFTER;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Interval;

use super::page::Parts;
use super::problem::Problem;
use super::{App, AppState};
use crate::daemon::state::is_set;
use crate::poll::ticks;
use crate::view::View;

const INTERVAL: Duration = Duration::from_secs(2);

/// A page in a browser, and the parts that it has received.
struct Subscriber {
    app: Arc<App>,
    render: Box<dyn Fn(&View) -> Parts + Send>,
    ticks: Interval,
    sent: HashMap<&'static str, String>,
    _permit: OwnedSemaphorePermit,
}

/// Streams the parts of a page, as `render` returns them: first all of them, then those that
/// changed.
pub fn stream(app: AppState, render: impl Fn(&View) -> Parts + Send + 'static) -> Response {
    let Ok(permit) = app.streams.clone().try_acquire_owned() else {
        let problem = Problem::unavailable("too many event streams");
        return ([(RETRY_AFTER, "30")], problem).into_response();
    };
    let subscriber = Subscriber {
        app: app.0,
        render: Box::new(render),
        ticks: ticks(INTERVAL),
        sent: HashMap::new(),
        _permit: permit,
    };
    Sse::new(subscriber.events()).into_response()
}

impl Subscriber {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> {
        let (stopping, mut access) = (self.app.stopping.clone(), self.app.access.clone());
        access.mark_unchanged();
        stream::unfold(
            (self, stopping, access),
            |(mut subscriber, mut stopping, mut access)| async move {
                tokio::select! {
                    () = is_set(&mut stopping) => None,
                    // a page with the new token, or with a session of it, connects again
                    _ = access.changed() => None,
                    _ = subscriber.ticks.tick() => {
                        Some((Ok(subscriber.event()), (subscriber, stopping, access)))
                    }
                }
            },
        )
    }

    /// Returns the next event, even if nothing changed: it shows that the daemon is alive.
    fn event(&mut self) -> Event {
        let view = self.app.daemon.view();
        let mut changed = HashMap::new();
        for (name, part) in (self.render)(&view) {
            let part = part.into_string();
            if self.sent.get(name) != Some(&part) {
                changed.insert(name, part.clone());
                self.sent.insert(name, part);
            }
        }
        let state = view.health(&view.problems());
        // plain data, which always serializes
        Event::default()
            .json_data(json!({"at": view.at, "state": state, "parts": changed}))
            .unwrap_or_default()
    }
}
