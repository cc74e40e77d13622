//! An application's futures go around ours. To see that they are `Send`, rustc looks 128 types deep and no further, so this
//! is a test also in that it compiles: nothing here is generic, or boxed, or has a type of its own in between.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Pair, day};
use counterfoil::{
    Activity, Added, BufferedCounters, CachedCounters, Changed, Durability, Family, MysqlStore, Precision, Result,
    Series, SeriesAdded, Visited, Visitors,
};
use futures_util::future::try_join_all;
use redis::aio::ConnectionManager;

const REQUESTS: i64 = 20;

/// What an application holds: a family of each kind.
struct Service {
    views: BufferedCounters<ConnectionManager, MysqlStore>,
    votes: CachedCounters<ConnectionManager, MysqlStore>,
    hits: Series<ConnectionManager, MysqlStore>,
    online: Activity<ConnectionManager, MysqlStore>,
    daily: Visitors<ConnectionManager, MysqlStore>,
}

/// Of each kind what it shows of the page, in that order.
type Shown = [i64; 5];

impl Service {
    async fn open(pair: &Pair) -> Result<Service> {
        let (now, open) = (Durability::Immediate, &pair.counterfoil);
        Ok(Service {
            views: open.open(Family::buffered("shop", "views").durability(now).build()?).await?,
            votes: open.open(Family::cached("shop", "votes").durability(now).build()?).await?,
            hits: open.open(Family::series("shop", "hits").durability(now).build()?).await?,
            online: {
                let family = Family::activity("shop", "online").durability(now).cache_for(Duration::ZERO);
                open.open(family.build()?).await?
            },
            daily: open.open(Family::visitors("shop", "daily").durability(now).build()?).await?,
        })
    }

    async fn request(&self, visitor: &str) -> Result<Shown> {
        self.authorized(visitor).await
    }

    async fn authorized(&self, visitor: &str) -> Result<Shown> {
        self.page("page", visitor).await
    }

    async fn page(&self, page: &str, visitor: &str) -> Result<Shown> {
        self.count(page, visitor).await?;
        self.show(page).await
    }

    async fn count(&self, page: &str, visitor: &str) -> Result<()> {
        assert!(matches!(self.views.add(page, 1).await?, Added::Counted { .. }));
        assert!(matches!(self.votes.incr(page, 1).await?, Changed::Counted { .. }));
        assert_eq!(self.hits.add(page, 1).await?, SeriesAdded::Counted);
        self.online.touch(page, visitor).await?;
        assert_eq!(self.daily.first_visit(page, day("2014-09-20"), visitor).await?, Visited::Counted);
        Ok(())
    }

    async fn show(&self, page: &str) -> Result<Shown> {
        let hits = self.hits.get(page, Precision::HOUR).await?;
        Ok([
            self.views.get(page).await?,
            self.votes.get(page).await?,
            hits.iter().map(|slice| slice.count).sum(),
            self.online.now(page).await?.views.cast_signed(),
            self.daily.get(page, day("2014-09-20")).await?,
        ])
    }
}

#[tokio::test]
async fn an_application_that_awaits_four_deep_in_a_task_counts_with_every_kind() {
    let pair = Pair::new().await;
    let service = Arc::new(Service::open(&pair).await.unwrap());
    let tasks = (0..REQUESTS).map(|number| {
        let service = service.clone();
        tokio::spawn(async move { service.request(&format!("visitor/{number}")).await })
    });
    let shown = try_join_all(tasks).await.unwrap();
    for shown in shown.into_iter().map(Result::unwrap) {
        assert!(shown.iter().all(|count| (1..=REQUESTS).contains(count)), "{shown:?}");
    }
    assert_eq!(service.show("page").await.unwrap(), [REQUESTS; 5]);
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(service.show("page").await.unwrap(), [REQUESTS; 5]);
    // views, votes and daily visitors
    let saved = "SELECT COUNT(*) FROM counterfoil_values WHERE value = 20";
    assert_eq!(pair.number(saved).await, 3);
}
