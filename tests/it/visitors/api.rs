//! Visitors of a day on real servers. Each counts once, and the caller learns whether it was the
//! first visit.

use crate::support::*;

fn daily(name: &str) -> FamilyBuilder<Visitors> {
    Family::visitors("test", name).at_once()
}

#[tokio::test]
async fn a_visitor_of_a_day_counts_once() {
    let pair = Pair::new().await;
    let table = pair.visitors_by_day().await;
    let daily = pair.open(daily("daily").table(table)).await;
    let (first, next) = (day("2014-09-20"), day("2014-09-21"));
    let visit = async |day, visitor: u32| {
        daily
            .first_visit("12345", day, visitor.to_be_bytes())
            .await
            .unwrap()
    };
    let visits = join_all((0..1_000).map(|number| visit(first, number % 250))).await;
    assert_eq!(
        visits.iter().filter(|told| **told == Counted(1)).count(),
        250
    );
    assert_eq!(visit(next, 0).await, Counted(1));
    assert_eq!(daily.get("12345", first).await.unwrap(), 250);
    pair.drain().await;
    assert_eq!(visit(first, 0).await, CountedBefore(0));
    let stored = "SELECT n FROM visitors WHERE day = '2014-09-20'";
    assert_eq!(pair.number(stored).await, 250);
    let expected = [("12345/2014-09-20", 250), ("12345/2014-09-21", 1)];
    assert_eq!(
        daily.list("12345/", None, 10).await.unwrap(),
        expected.map(|(id, value)| (id.to_owned(), value))
    );
    refused(
        daily.first_visit("no number", first, "a").await,
        InvalidInput,
        "no number",
    );
    let midnight = UNIX_EPOCH + secs(1_411_171_200);
    assert_eq!(
        daily
            .get("12345", Day::of(midnight).unwrap())
            .await
            .unwrap(),
        250
    );
}

/// One family has a table, whose last column is the day, and the other has none.
#[tokio::test]
async fn a_scope_and_a_day_are_one_counter_and_no_other_pair_is() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE days (scope VARBINARY(99), day VARBINARY(99), n INT NOT NULL, PRIMARY KEY (scope, day))")
        .await;
    let table = keyed(Table::upsert("days"), [("scope", Text), ("day", Text)]);
    let day = day("2014-09-20");
    let own = pair.open(daily("own")).await;
    let tabled = pair.open(daily("tabled").table(table)).await;
    for (visitors, scope) in [(&own, "7/8"), (&own, "7"), (&tabled, "7")] {
        assert_eq!(
            visitors.first_visit(scope, day, "a").await.unwrap(),
            Counted(1)
        );
        assert_eq!(visitors.get_many([(scope, day)]).await.unwrap(), [1]);
    }
    // the table would take 8/2014-09-20 for the day
    refused(
        tabled.first_visit("7/8", day, "a").await,
        InvalidInput,
        "'/'",
    );
    refused(tabled.get("7/8", day).await, InvalidInput, "");
    pair.drain().await;
    let kept = "SELECT n FROM days WHERE scope = '7' AND day = '2014-09-20'";
    assert_eq!(pair.number(kept).await, 1);
}

#[tokio::test]
async fn a_visit_out_of_range_is_refused() {
    let (pair, daily) = Pair::of(daily("daily").partitions(1)).await;
    let full = i64::MAX;
    let full = format!("HSET cf1:{{test/daily/0}}:buffer shop/2014-09-20 {full}");
    pair.command::<()>(&full).await;
    for (date, expected) in [("2014-09-20", OutOfRange(None)), ("2014-09-21", Counted(1))] {
        assert_eq!(
            daily
                .first_visit("shop", day(date), "visitor")
                .await
                .unwrap(),
            expected,
            "{date}"
        );
    }
}
