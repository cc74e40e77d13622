//! A family of each kind, opened and used in the same way.

use std::time::Duration;

use counterfoil::{
    Activity, BufferedCounters, CachedCounters, Changed, Counterfoil, Counting, Durability, Error, ErrorKind, Family,
    Precision, Result, Series, SeriesAdded, Store, Visited, Visitors,
};
use redis::aio::ConnectionLike;

use crate::support::{day, times};

/// The kinds, with both ways to count who is here.
pub const KINDS: [&str; 6] = ["buffered", "cached", "series", "activity", "activity_hll", "visitors"];

/// A family of one kind, in one partition, that keeps what its kind can keep.
pub enum OfKind<C, S> {
    Buffered(BufferedCounters<C, S>),
    Cached(CachedCounters<C, S>),
    Series(Series<C, S>),
    Activity(Activity<C, S>),
    Visitors(Visitors<C, S>),
}

impl<C, S> OfKind<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    S: Store,
{
    /// Opens `shop/KIND`.
    pub async fn open(counterfoil: &Counterfoil<C, S>, kind: &str) -> Result<Self> {
        let now = Durability::Immediate;
        let activity = || {
            let family = Family::activity("shop", kind).partitions(1).durability(now).keep_minutes(true);
            family.cache_for(Duration::ZERO)
        };
        Ok(match kind {
            "buffered" => {
                let family = Family::buffered("shop", kind).partitions(1).durability(now).build()?;
                OfKind::Buffered(counterfoil.open(family).await?)
            }
            "cached" => {
                let family = Family::cached("shop", kind).partitions(1).durability(now).build()?;
                OfKind::Cached(counterfoil.open(family).await?)
            }
            "series" => {
                let family =
                    Family::series("shop", kind).partitions(1).durability(now).keep([Precision::Day]).build()?;
                OfKind::Series(counterfoil.open(family).await?)
            }
            "activity" => OfKind::Activity(counterfoil.open(activity().build()?).await?),
            "activity_hll" => {
                let family = activity().visitors(Counting::HyperLogLog).build()?;
                OfKind::Activity(counterfoil.open(family).await?)
            }
            "visitors" => {
                let family = Family::visitors("shop", kind).partitions(1).durability(now).build()?;
                OfKind::Visitors(counterfoil.open(family).await?)
            }
            other => panic!("no kind {other}"),
        })
    }

    /// Counts a hit: on one id, by a visitor who comes every time.
    pub async fn hit(&self) -> Result<()> {
        match self {
            OfKind::Buffered(views) => views.add("page", 1).await.map(drop),
            OfKind::Cached(votes) => votes.incr("item", 1).await.map(|changed| {
                assert!(matches!(changed, Changed::Counted { .. }), "{changed:?}");
            }),
            OfKind::Series(hits) => match hits.add("page", 1).await? {
                SeriesAdded::Counted => Ok(()),
                refused => Err(Error::new(ErrorKind::Range, format!("{refused:?}"))),
            },
            OfKind::Activity(online) => online.touch("page", "visitor").await,
            OfKind::Visitors(visitors) => match visitors.first_visit("page", day("2014-09-20"), "visitor").await? {
                Visited::Counted | Visited::CountedBefore => Ok(()),
                refused => Err(Error::new(ErrorKind::Busy, format!("{refused:?}"))),
            },
        }
    }

    /// Counts, and reads in every way that the kind has.
    pub async fn use_all(&self) -> Result<()> {
        for _ in 0..3 {
            self.hit().await?;
        }
        self.shown().await?;
        match self {
            OfKind::Buffered(views) => {
                // enough for a table in place of a list
                let many: Vec<_> = (0..200).map(|page| (format!("page/{page}"), 1)).collect();
                assert!(views.add_many(many).await.into_iter().all(|added| added.is_ok()));
                views.list("", None, 10).await.map(drop)
            }
            OfKind::Cached(votes) => votes.get_many(&["item", "cold"]).await.map(drop),
            OfKind::Series(hits) => {
                hits.get_range("page", Precision::Day, times(0..7 * 86_400)).await?;
                hits.names("", None, 10).await.map(drop)
            }
            OfKind::Activity(online) => online.minutes("page", times(0..60)).await.map(drop),
            OfKind::Visitors(visitors) => visitors.list("", None, 10).await.map(drop),
        }
    }

    /// How many hits it shows; of visitors 1 at most.
    pub async fn shown(&self) -> Result<i64> {
        Ok(match self {
            OfKind::Buffered(views) => views.get("page").await?,
            OfKind::Cached(votes) => votes.get("item").await?,
            OfKind::Series(hits) => hits.get("page", Precision::HOUR).await?.iter().map(|slice| slice.count).sum(),
            OfKind::Activity(online) => i64::try_from(online.now("page").await?.views).unwrap(),
            OfKind::Visitors(visitors) => visitors.get("page", day("2014-09-20")).await?,
        })
    }
}
