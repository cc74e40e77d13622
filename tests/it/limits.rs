//! Time limits while a server or a pool is silent: each call ends by its own, with an error that
//! names the cause.

use sqlx::MySql;
use sqlx::pool::PoolConnection;

use counterfoil::admin::Severity;

use crate::support::*;

/// A generous time for calls with a limit of 300 ms.
const SOON: Duration = secs(3);

/// Takes all connections of the pool.
async fn exhaust(pool: &MySqlPool) -> Vec<PoolConnection<MySql>> {
    let connections = (0..pool.options().get_max_connections()).map(|_| pool.acquire());
    try_join_all(connections).await.unwrap()
}

/// Counts in all ways for counters that are not in Redis, while their rows cannot be read.
async fn expect_unread_rows(votes: &CachedCounters) {
    let epoch = votes.request_epoch("c", "id/c").await.unwrap();
    let changes = async || {
        [
            votes.incr("id/a", 1).await,
            votes.incr_once("b", "id/b", 1).await,
            votes.incr_once_since(&epoch, "c", "id/c", 1).await,
            votes.set("id/d", 1).await,
        ]
    };
    let limited = timeout(secs(20), within(4 * SOON, changes()));
    for change in limited.await.expect("each call has a limit") {
        let error = refused(
            change,
            ErrorKind::Store,
            "was not read within the write timeout",
        );
        assert!(
            error.is_retryable() && error.to_string().contains("not counted"),
            "{error}"
        );
    }
}

/// Returns a store that connects to the database through the proxy.
fn through(proxy: &Proxy, mysql: &MysqlServer, database: &str) -> MysqlStore {
    let [socket, through] = [mysql.socket(), proxy.socket()].map(|path| path.display().to_string());
    MysqlStore::new(mysql.url(database).replace(&socket, &through)).unwrap()
}

/// The server keeps the connections of a worker that is suspended or cut off.
#[tokio::test]
async fn a_worker_that_vanishes_does_not_hold_a_row_for_long() {
    let (redis, mysql) = (new_redis().await, mysql().await);
    let (database, pool) = mysql.database("test").await;
    let proxy = Proxy::to_unix(mysql.socket());
    let store = through(&proxy, mysql, &database);
    store.create_tables().await.unwrap();
    let worker = Counterfoil::new(redis.manager().await, store);
    let views = worker.opened(family("views")).await;
    views.count("page", 1).await;
    worker.drained().await;
    let slow =
        "CREATE TRIGGER slow BEFORE UPDATE ON counterfoil_values FOR EACH ROW SET @slow = SLEEP(1)";
    run_sql(&pool, slow).await;
    views.count("page", 1).await;
    let shop = async {
        sleeping(&pool).await;
        proxy.black_hole();
        let mut shop = pool.acquire().await.unwrap();
        let lock =
            "SET innodb_lock_wait_timeout = 20; SELECT value FROM counterfoil_values FOR UPDATE";
        sqlx::raw_sql(lock).execute(&mut *shop).await.unwrap();
    };
    tokio::select! {
        drained = worker.drain() => panic!("{drained:?}"),
        () = shop => {}
    }
}

/// A server vanishes without closing its connections, and another one takes its place.
#[tokio::test]
async fn a_mysql_that_vanishes_is_replaced() {
    let (redis, mysql) = (new_redis().await, MysqlServer::start().await);
    let (database, pool) = mysql.database("test").await;
    let proxy = Proxy::to_unix(mysql.socket());
    let store = through(&proxy, &mysql, &database).waiting(secs(1));
    store.create_tables().await.unwrap();
    let client = Counterfoil::new(redis.manager().await, store.clone());
    let views = client.opened(family("views")).await;
    views.count("page", 1).await;
    client.drain().await.unwrap();
    views.count("page", 1).await;
    let mut other = pool.begin().await.unwrap();
    let lock = sqlx::query("SELECT value FROM counterfoil_values FOR UPDATE");
    lock.execute(&mut *other).await.unwrap();
    let vanish = async {
        // while a transaction waits for the row
        pause(500).await;
        proxy.black_hole();
        drop(other);
        mysql.kill();
        mysql.start_again().await;
        store.set_connect_options(&pool).unwrap();
    };
    let (drained, ()) = tokio::join!(timeout(secs(30), client.drain()), vanish);
    drained.expect("drained in time").unwrap();
    let stored = "SELECT CAST(value AS SIGNED) FROM counterfoil_values";
    let stored: i64 = sqlx::query_scalar(stored).fetch_one(&pool).await.unwrap();
    assert_eq!(stored, 2);
}

/// A MySQL fails over behind a name: the former primary still replies, and refuses writes.
#[tokio::test]
async fn a_mysql_that_refuses_writes_is_left() {
    leaves_a_former_primary("").await;
}

/// To a user with further privileges it refuses nothing, and the new primary never has what is
/// written there.
#[tokio::test]
async fn a_mysql_that_is_read_only_is_left_by_a_user_that_may_write_there() {
    leaves_a_former_primary("; GRANT ALL ON *.* TO app@localhost").await;
}

async fn leaves_a_former_primary(more: &str) {
    let (redis, old, new) = (
        new_redis().await,
        MysqlServer::start().await,
        MysqlServer::start().await,
    );
    let (database, old_pool) = old.database("test").await;
    let (_, new_pool) = new.database("test").await;
    let app =
        format!("CREATE USER app@localhost; GRANT ALL ON {database}.* TO app@localhost{more}");
    for pool in [&old_pool, &new_pool] {
        MysqlStore::new(pool)
            .unwrap()
            .create_tables()
            .await
            .unwrap();
        run_sql(pool, &app).await;
    }
    let name = old.socket().with_extension("name");
    std::os::unix::fs::symlink(old.socket(), &name).unwrap();
    let url = old.url(&database).replace("root@", "app@");
    let url = url.replace(
        &old.socket().display().to_string(),
        &name.display().to_string(),
    );
    let connect = async || {
        let store = MysqlStore::new(&url).unwrap();
        drop(exhaust(store.pool()).await);
        let client = patient(Counterfoil::new(redis.manager().await, store));
        let (views, votes) = (family("views"), votes());
        (
            client.opened(views).await,
            client.opened(votes).await,
            client,
        )
    };
    let (views, _votes, worker) = connect().await;
    let (_views, votes, _web) = connect().await;
    let (shown, _votes, _page) = connect().await;
    // the new primary has replicated the families
    let replica = Counterfoil::new(
        new_redis().await.manager().await,
        MysqlStore::new(&new_pool).unwrap(),
    );
    replica.opened(family("views")).await;
    replica.opened(crate::support::votes()).await;
    let id = sqlx::query_scalar("SELECT database_id FROM counterfoil_families LIMIT 1");
    let id: String = id.fetch_one(&old_pool).await.unwrap();
    run_sql(
        &new_pool,
        &format!("UPDATE counterfoil_families SET database_id = '{id}'"),
    )
    .await;
    run_sql(&old_pool, "SET GLOBAL read_only = 1").await;
    fs::remove_file(&name).unwrap();
    std::os::unix::fs::symlink(new.socket(), &name).unwrap();
    // a process that reads a row, and one that writes
    assert_eq!(votes.count("item", 1).await, 1);
    views.count("page", 1).await;
    let reconciler = worker.reconcile().await;
    let stored = "SELECT SUM(value) FROM counterfoil_values";
    let arrived = async || number(&new_pool, stored).await == Some(2);
    within(secs(5), eventually("both hits", arrived)).await;
    // one that reads rows and ledger, which the former primary lacks
    assert_eq!(shown.value("page").await, 1);
    reconciler.stop().await;
}

/// The server refuses statements because too many are in use: it is unavailable, and will recover.
#[tokio::test]
async fn a_mysql_that_is_overloaded_is_unavailable() {
    let (mysql, pair) = Pair::on_own_mysql().await;
    let limit = async |limit: &str| {
        pair.sql(&format!("SET GLOBAL max_prepared_stmt_count = {limit}"))
            .await;
    };
    limit("0").await;
    let views = pair.open(family("views")).await;
    views.count("page", 1).await;
    limit("DEFAULT").await;
    pair.drain().await;
    assert_eq!(pair.stored().await, 1);
    pair.sql("CREATE USER few@localhost WITH MAX_USER_CONNECTIONS 1")
        .await;
    pair.sql("GRANT ALL ON *.* TO few@localhost").await;
    let (_, pool) = mysql.database("few").await;
    let options = (*pool.connect_options()).clone().username("few");
    let store = MysqlStore::new(options).unwrap();
    let _only = store.pool().acquire().await.unwrap();
    let refused_one = store.ledger(&[FamilyNumber(1)]).await;
    refused(refused_one, ErrorKind::Store, "max_user_connections");
    for user in [
        "locked@localhost ACCOUNT LOCK",
        "busy@localhost WITH MAX_UPDATES_PER_HOUR 1",
    ] {
        pair.sql(&format!("CREATE USER {user}")).await;
    }
    pair.sql("GRANT ALL ON *.* TO busy@localhost").await;
    let store = |user| {
        let options = (*pair.pool.connect_options()).clone().username(user);
        MysqlStore::new(options).unwrap()
    };
    let locked = store("locked").ledger(&[FamilyNumber(1)]).await;
    refused(locked, ErrorKind::Store, "locked");
    // not one for each table
    let mut found = store("busy").check(&[]).await;
    found.retain(|one| one.severity == Severity::Error);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].message.contains("max_updates"), "{found:?}");
}

/// A limit may be beyond the range of an `Instant`.
#[tokio::test]
async fn a_time_limit_may_be_as_long_as_can_be() {
    let (_pair, views) = Pair::of(family("views")).await;
    let patient = views.clone().write_timeout(Duration::MAX);
    let patient = patient.read_timeout(Duration::MAX);
    // beside a call in flight, hits gather
    let both = tokio::join!(views.add("page", 1), patient.add("page", 1));
    assert!(matches!(both, (Ok(_), Ok(_))), "{both:?}");
    assert_eq!(patient.get("page").await.unwrap(), 2);
}

/// The first read of a family that MySQL does not know yet is not polled any further.
#[tokio::test]
async fn a_registration_that_stands_still_holds_up_no_other() {
    let (mysql, pair) = Pair::on_own_mysql().await;
    mysql.pause();
    let views = pair.open(family("views")).await;
    views.count("page", 1).await;
    let mut read = std::pin::pin!(views.get("page"));
    timeout(millis(50), &mut read).await.unwrap_err();
    mysql.resume();
    within(SOON, pair.drain()).await;
    assert_eq!(views.stored(["page"]).await.unwrap(), [Some(1)]);
    assert_eq!(read.await.unwrap(), 1);
}

#[tokio::test]
async fn the_write_timeout_covers_the_row_of_a_missing_counter() {
    let (mysql, pair) = Pair::on_own_mysql().await;
    let votes = pair.open(votes()).await;
    let impatient = votes.clone().write_timeout(millis(300));
    assert_eq!(votes.count("here", 1).await, 1);
    let held = exhaust(pair.mysql().pool()).await;
    expect_unread_rows(&impatient).await;
    drop(held);
    mysql.pause();
    expect_unread_rows(&impatient).await;
    assert_eq!(impatient.count("here", 1).await, 2);
    mysql.resume();
    // nothing was counted
    for id in ["id/a", "id/b", "id/c", "id/d"] {
        assert_eq!(votes.count(id, 7).await, 7, "{id}");
    }
}

#[tokio::test]
async fn a_page_is_told_at_once_that_no_values_came() {
    let (mysql, pair) = Pair::on_own_mysql().await;
    let (views, votes) = (pair.open(family("views")).await, pair.open(votes()).await);
    views.count("page", 3).await;
    votes.count("page", 3).await;
    let expect = async || {
        let limit = millis(200);
        let shown = async || views.get_or_stored(["page"], limit).await;
        let shown = timeout(secs(10), within(SOON, shown())).await;
        refused(shown.expect("a limit"), ErrorKind::Store, "within 200ms");
        let missing = async || votes.get_or_stored(["page", "missing"], limit).await;
        let missing = timeout(secs(10), within(SOON, missing())).await;
        refused(missing.expect("a limit"), ErrorKind::Store, "within 200ms");
        // Redis has the counter
        let shown = votes.get_or_stored(["page"], secs(5)).await.unwrap();
        assert!(shown.exact && shown.values == [3], "{shown:?}");
    };
    let held = exhaust(pair.mysql().pool()).await;
    expect().await;
    drop(held);
    mysql.pause();
    expect().await;
    pair.redis.pause();
    let shown = within(SOON, votes.get_or_stored(["page"], millis(200)));
    refused(shown.await, ErrorKind::Store, "within 200ms");
    let hasty = votes.clone().read_timeout(millis(200));
    let epoch = within(SOON, hasty.request_epoch("a", "page"));
    refused(epoch.await, ErrorKind::Redis, "within 200ms");
    pair.redis.resume();
    mysql.resume();
    assert_eq!(views.value("page").await, 3);
}
