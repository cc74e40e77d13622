mod api;
mod faults;
mod interleavings;
mod model;

use crate::support::*;

/// Returns a family that is durable and due at once.
fn family(name: &str) -> FamilyBuilder<CachedCounters> {
    Family::cached("test", name)
        .partitions(4)
        .at_once()
        .sync_time(millis(20))
}

/// Creates the application's table with items 1 to 3, and opens the family on it.
async fn items(pair: &Pair, family: FamilyBuilder<CachedCounters>) -> CachedCounters {
    items_in(pair, family, Table::update("item")).await
}

async fn items_in(
    pair: &Pair,
    family: FamilyBuilder<CachedCounters>,
    table: Table,
) -> CachedCounters {
    pair.sql(
        "CREATE TABLE item (id BIGINT UNSIGNED PRIMARY KEY, vote_count INT NOT NULL DEFAULT 0); \
         INSERT INTO item (id) VALUES (1), (2), (3)",
    )
    .await;
    pair.open(family.table(columns(table))).await
}

/// Adds the columns of the application's table.
fn columns(table: Table) -> Table {
    table.key("id", Unsigned).value("vote_count")
}

/// Returns the value in the row, or 0.
async fn row(pair: &Pair, id: u32) -> i64 {
    let row = format!("SELECT vote_count FROM item WHERE id = {id}");
    pair.number(&row).await
}
