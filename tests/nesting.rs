//! A test that also consists in compiling: an application's futures wrap ours, and rustc follows
//! them only 128 levels deep. It is a separate program, since rustc does not count again what it
//! found elsewhere in a program.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use counterfoil::{
    Activity, BufferedCounters, CachedCounters, Counterfoil, Day, Durability, Family, MysqlStore,
    Outcome, Precision, Result, Series, Visitors,
};
use futures_util::future::try_join_all;
use testkit::{MysqlServer, RedisOptions, RedisServer};

const REQUESTS: i64 = 20;

/// The state of an application: a family of each kind.
struct Service {
    views: BufferedCounters,
    votes: CachedCounters,
    hits: Series,
    online: Activity,
    daily: Visitors,
}

fn day() -> Day {
    "2014-09-20".parse().unwrap()
}

/// The page's count in each kind, in that order.
type Shown = [i64; 5];

impl Service {
    async fn open(pair: &Counterfoil) -> Result<Service> {
        let now = Durability::Immediate;
        Ok(Service {
            views: pair
                .open(Family::buffered("shop", "views").durability(now))
                .await?,
            votes: pair
                .open(Family::cached("shop", "votes").durability(now))
                .await?,
            hits: pair
                .open(Family::series("shop", "hits").durability(now))
                .await?,
            online: {
                let online = pair.open(Family::activity("shop", "online").durability(now));
                online.await?.cache_for(Duration::ZERO)
            },
            daily: pair
                .open(Family::visitors("shop", "daily").durability(now))
                .await?,
        })
    }

    async fn show(&self, page: &str) -> Result<Shown> {
        // our deepest futures, which once exceeded rustc's limit
        let listed = [
            self.views.list("", None, 10).await?,
            self.daily.list("", None, 10).await?,
        ];
        assert_eq!(listed.map(|counters| counters.len()), [1, 1]);
        assert_eq!(self.hits.names("", None, 10).await?, [page]);
        let hits = self.hits.get(page, Precision::HOUR).await?;
        Ok([
            self.views.get(page).await?,
            self.votes.get(page).await?,
            hits.iter().map(|slice| slice.count).sum(),
            self.online.now(page).await?.views.cast_signed(),
            self.daily.get(page, day()).await?,
        ])
    }

    async fn count(&self, page: &str, visitor: &str) -> Result<()> {
        assert!(matches!(
            self.views.add(page, 1).await?,
            Outcome::Counted(_)
        ));
        assert!(matches!(
            self.votes.incr(page, 1).await?,
            Outcome::Counted(_)
        ));
        assert_eq!(self.hits.add(page, 1).await?, Outcome::Counted(1));
        self.online.touch(page, visitor).await?;
        assert_eq!(
            self.daily.first_visit(page, day(), visitor).await?,
            Outcome::Counted(1)
        );
        Ok(())
    }
}

/// The layers of an application around it, each a separate async function.
macro_rules! layers {
    ($outer:ident $inner:ident $($further:ident)*) => {
        async fn $outer(service: &Service, visitor: &str) -> Result<Shown> {
            $inner(service, visitor).await
        }
        layers!($inner $($further)*);
    };
    ($innermost:ident) => {};
}

layers!(connection request metrics limits session account locale preferences route shop section page);

async fn page(service: &Service, visitor: &str) -> Result<Shown> {
    service.count("page", visitor).await?;
    service.show("page").await
}

#[tokio::test]
async fn an_application_that_awaits_twelve_deep_in_tasks_counts_with_every_kind() {
    let (redis, mysql) = (
        RedisServer::start(RedisOptions::volatile()).await,
        MysqlServer::start().await,
    );
    let (_, pool) = mysql.database("shop").await;
    let pair = Counterfoil::new(redis.manager().await, MysqlStore::new(&pool).unwrap());
    pair.mysql().unwrap().create_tables().await.unwrap();
    let service = Arc::new(Service::open(&pair).await.unwrap());
    let tasks = (0..REQUESTS).map(|number| {
        let service = service.clone();
        tokio::spawn(async move { connection(&service, &format!("visitor/{number}")).await })
    });
    let shown = try_join_all(tasks).await.unwrap();
    for shown in shown.into_iter().map(Result::unwrap) {
        assert!(
            shown.iter().all(|count| (1..=REQUESTS).contains(count)),
            "{shown:?}"
        );
    }
    assert_eq!(service.show("page").await.unwrap(), [REQUESTS; 5]);
    pair.drain().await.unwrap();
    assert_eq!(service.show("page").await.unwrap(), [REQUESTS; 5]);
    // views, votes and daily visitors
    const SAVED: &str = "SELECT COUNT(*) FROM counterfoil_values WHERE value = ?";
    assert_eq!(
        sqlx::query_scalar::<_, i64>(SAVED)
            .bind(REQUESTS)
            .fetch_one(&pool)
            .await
            .unwrap(),
        3
    );
}
