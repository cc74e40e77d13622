//! Each command, for people and as JSON, with its exit codes.

mod adopt;
mod changes;
mod clone;
mod cluster;
mod counters;
mod families;
mod healthcheck;
mod offline;
mod privileges;
mod recounts;
mod rejects;
mod setup;
mod terminal;
mod unavailable;

use serde_json::Value;

use crate::support::{Output, Site};

/// A family of each kind.
const FAMILIES: &str = r#"
[[family]]
name = "shop/views"
kind = "buffered"
sync_time = "1h"
sync_hits = 1000000

[[family]]
name = "shop/votes"
kind = "cached"
min = 0
sync_time = "1h"
retain = "2h"

[[family]]
name = "shop/daily"
kind = "visitors"

[[family]]
name = "shop/downloads"
kind = "series"

[[family]]
name = "shop/readers"
kind = "activity"

[[family]]
name = "tenant-*/views"
kind = "buffered"
"#;

impl Site {
    /// Gives Redis an append-only file: a crash without it forgets known visitors, which is an error.
    async fn keeps_visitors(&self) {
        let set = "CONFIG SET appendonly yes";
        self.redis.run::<()>(set).await.expect("set");
    }

    /// Runs a command that succeeds, and returns its output.
    pub async fn printed(&self, args: &[&str]) -> String {
        self.ends_with(0, args).await.out
    }

    /// Runs a command that ends with `code`, without a panic.
    pub async fn ends_with(&self, code: i32, args: &[&str]) -> Output {
        let outcome = self.run(args).await;
        assert_eq!(outcome.code, code, "{args:?}: {outcome:#?}");
        assert!(!outcome.err.contains("panicked"), "{args:?}: {outcome:#?}");
        outcome
    }

    /// Returns the JSON document that a command prints.
    pub async fn json(&self, code: i32, args: &[&str]) -> Value {
        let outcome = self.ends_with(code, &[args, &["--json"]].concat()).await;
        serde_json::from_str(&outcome.out)
            .unwrap_or_else(|error| panic!("{args:?}: {error}: {}", outcome.out))
    }
}
