//! `add_many`: each of many hits has its own result, in their order.

use super::views;
use crate::support::*;

fn values(told: Vec<Result<Outcome>>) -> Vec<i64> {
    told.into_iter().map(|own| counted(own.unwrap())).collect()
}

#[tokio::test]
async fn hits_over_many_partitions_return_in_their_order() {
    let (_plain, views) = views(7).await;
    let hits: Vec<_> = (0..2000)
        .map(|number| (format!("page/{}", number * 37 % 2000), number + 1))
        .collect();
    let [once, twice] = [1, 2].map(|times| (1..=2000).map(|n| times * n).collect::<Vec<_>>());
    for expected in [&once, &twice] {
        assert_eq!(values(views.add_many(hits.clone()).await), *expected);
    }
    let ids = hits.iter().map(|(id, _)| id);
    assert_eq!(views.get_many(ids).await.unwrap(), twice);
    assert_eq!(values(views.add_many([("", 0); 0]).await), [0; 0]);
}

#[tokio::test]
async fn equal_ids_are_counted_one_after_the_other() {
    let (_plain, views) = views(3).await;
    let hits = [
        ("a", 1),
        ("b", 5),
        ("a", 10),
        ("c", 0),
        ("a", 100),
        ("b", 1),
        ("a", 0),
    ];
    assert_eq!(
        values(views.add_many(hits).await),
        [1, 5, 11, 0, 111, 6, 111]
    );
    // decreases are summed for themselves, and so are increases
    let hits = [("a", -1), ("a", 9), ("a", -10), ("a", 1)];
    assert_eq!(values(views.add_many(hits).await), [110, 109, 100, 110]);
    assert_eq!(views.get_many(&["a", "b", "c"]).await.unwrap(), [110, 6, 0]);
    // one id so often that it takes several calls
    let hits = vec![("hot", 1); 1000];
    assert!(values(views.add_many(hits).await).into_iter().eq(1..=1000));
}

#[tokio::test]
async fn a_bad_id_is_refused_alone() {
    let (_plain, views) = views(4).await;
    let long = "x".repeat(256);
    let ids = ["page/1", "", "page/2", &long, "page/1"];
    let told = views.add_many(ids.map(|id| (id, 1))).await;
    let expected = [Ok(1), Err("0 bytes"), Ok(1), Err("256 bytes"), Ok(2)];
    assert_eq!(told.len(), expected.len());
    for (told, expected) in told.into_iter().zip(expected) {
        match expected {
            Ok(value) => assert_eq!(counted(told.unwrap()), value),
            Err(text) => drop(refused(told, InvalidInput, text)),
        }
    }
    assert_eq!(views.get_many(["page/1", "page/2"]).await.unwrap(), [2, 1]);
}

/// There are more ids of one partition than one caller sends at a time, and more than a call takes.
#[tokio::test(flavor = "multi_thread")]
async fn more_ids_than_a_call_takes() {
    let (plain, views) = views(5).await;
    views.count("another", 1).await;
    let ids = ids_of(views.family(), 3, 1101);
    for many in [1, 200, 201, 400, 401, 1101] {
        let hits: Vec<_> = ids[..many].iter().map(|id| (id, 1)).collect();
        let before = calls(&plain.redis, "evalsha").await;
        assert_eq!(values(views.add_many(hits.clone()).await).len(), many);
        // 200 ids go together; on a slow machine each 200 may take a separate call
        let made = calls(&plain.redis, "evalsha").await - before;
        assert!(
            (1..=many.div_ceil(200) as u64).contains(&made),
            "{made} calls for {many} ids"
        );
    }
    let pending = views.pending(&ids).await.unwrap();
    let expected = (0..ids.len()).map(|place| {
        [1, 200, 201, 400, 401, 1101]
            .iter()
            .filter(|many| place < **many)
            .count()
    });
    assert!(pending.into_iter().eq(expected.map(|times| times as i64)));
    // many at once, which all wait for room
    let hits: Vec<_> = ids.iter().map(|id| (id, 1)).collect();
    let before = views.pending(&ids).await.unwrap();
    let told: Vec<_> = join_all((0..6).map(|_| views.add_many(hits.clone())))
        .await
        .into_iter()
        .map(values)
        .collect();
    for (place, before) in before.into_iter().enumerate() {
        let mut own: Vec<_> = told.iter().map(|values| values[place]).collect();
        own.sort_unstable();
        assert!(
            own.into_iter().eq(before + 1..=before + 6),
            "{}",
            ids[place]
        );
    }
}

#[tokio::test]
async fn what_is_refused_is_refused_alone() {
    let plain = Plain::new().await;
    let small = plain
        .open(family("small").partitions(1).max_pending(3))
        .await;
    let _ = small.add_many([("a", i64::MAX - 1), ("b", i64::MIN)]).await;
    let hits = [
        ("a", 2),
        ("b", -1),
        ("c", 1),
        ("a", 1),
        ("d", 1),
        ("b", -7),
        ("c", 2),
        ("a", -1),
        ("b", 1),
    ];
    let told: Vec<_> = small
        .add_many(hits)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let counted = |pending| Counted(pending);
    // a: the sum of both increases is refused; when they are sent alone, the decrease has made room
    assert_eq!(
        [told[0], told[3], told[7]],
        [counted(i64::MAX), OutOfRange(None), counted(i64::MAX - 2)]
    );
    // b: the decreases come after the increase, and are sent again alone
    assert_eq!(
        [told[1], told[5], told[8]],
        [counted(i64::MIN), OutOfRange(None), counted(i64::MIN + 1)]
    );
    assert_eq!(
        [told[2], told[6], told[4]],
        [counted(1), counted(3), Outcome::Full]
    );
    assert_eq!(
        small.pending(&["a", "b", "c", "d"]).await.unwrap(),
        [i64::MAX, i64::MIN, 3, 0]
    );
}

/// Partitions fail independently. Each hit of a partition that is refused for now receives the
/// error.
#[tokio::test]
async fn what_cannot_be_sent_is_told_to_each() {
    let (plain, views) = views(2).await;
    let _ = views.add_many([("a", 1), ("b", 1), ("c", 1)]).await;
    // longer than a reply takes on a busy machine, which would leave the outcome open
    let impatient = views.clone().write_timeout(secs(2));
    plain.redis.does("CONFIG SET maxmemory 1").await;
    let hits: Vec<_> = pages(600).into_iter().map(|id| (id, 1)).collect();
    let told = impatient.add_many(hits.clone()).await;
    assert_eq!(told.len(), 600);
    assert!(
        told.iter()
            .all(|own| own.as_ref().is_err_and(Error::is_retryable)),
        "{told:?}"
    );
    plain.redis.does("CONFIG SET maxmemory 0").await;
    pause(150).await;
    assert_eq!(values(views.add_many(hits.clone()).await), [1; 600]);
}

/// Many more hits than fit into the calls in flight wait for room. Those that have no time left are
/// not counted.
#[tokio::test]
async fn twenty_thousand_ids_are_counted_or_refused() {
    let (_plain, views) = views(4).await;
    let hits: Vec<_> = pages(20_000).into_iter().map(|id| (id, 1)).collect();
    let told = views.add_many(hits.clone()).await;
    assert_eq!(values(told), vec![1; hits.len()]);
    let impatient = views.clone().write_timeout(millis(1));
    let (mut counted, mut unknown) = (0, 0);
    for own in impatient.add_many(hits.clone()).await {
        match own {
            Ok(_) => counted += 1,
            Err(error) if error.outcome_unknown() => unknown += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Redis, "{error:#}"),
        }
    }
    // the calls in flight when the time was over
    assert!(unknown <= 1000, "{unknown}");
    let ids = hits.iter().map(|(id, _)| id);
    let pending: i64 = views.pending(ids).await.unwrap().into_iter().sum();
    let pending = pending - 20_000;
    let expected = counted..=counted + unknown;
    assert!(expected.contains(&pending), "{pending} of {expected:?}");
}
