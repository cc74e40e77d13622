//! A family of each kind, opened and used in the same way.

use crate::support::*;

pub const KINDS: [&str; 5] = ["buffered", "cached", "series", "activity", "visitors"];

/// Returns the family `shop/KIND` in one partition.
macro_rules! of_kind {
    ($new:ident, $kind:expr) => {
        Family::$new("shop", $kind).partitions(1).at_once()
    };
}

fn activity() -> FamilyBuilder<Activity> {
    of_kind!(activity, "activity").keep_minutes(true)
}

fn series() -> FamilyBuilder<Series> {
    of_kind!(series, "series").keep([Precision::Day])
}

/// Returns the family `shop/KIND` with the settings that [`OfKind::open`] uses.
pub fn family(kind: &str) -> Family {
    let family = match kind {
        "buffered" => of_kind!(buffered, kind).build(),
        "cached" => of_kind!(cached, kind).build(),
        "series" => series().build(),
        "visitors" => of_kind!(visitors, kind).build(),
        _ => activity().build(),
    };
    family.unwrap()
}

/// A family of one kind, in one partition, that keeps everything its kind can keep.
pub enum OfKind {
    Buffered(BufferedCounters),
    Cached(CachedCounters),
    Series(Series),
    Activity(Activity),
    Visitors(Visitors),
}

impl OfKind {
    /// Opens `shop/KIND`.
    pub async fn open(counterfoil: &Counterfoil, kind: &str) -> Result<Self> {
        Ok(match kind {
            "buffered" => OfKind::Buffered(counterfoil.open(of_kind!(buffered, kind)).await?),
            "cached" => OfKind::Cached(counterfoil.open(of_kind!(cached, kind)).await?),
            "series" => OfKind::Series(counterfoil.open(series()).await?),
            "visitors" => OfKind::Visitors(counterfoil.open(of_kind!(visitors, kind)).await?),
            _ => OfKind::Activity(
                counterfoil
                    .open(activity())
                    .await?
                    .cache_for(Duration::ZERO),
            ),
        })
    }

    /// Counts a hit on one id, by a visitor who returns every time.
    pub async fn hit(&self) -> Result<()> {
        match self {
            OfKind::Buffered(views) => views.add("page", 1).await.map(drop),
            OfKind::Cached(votes) => votes.incr("item", 1).await.map(|changed| {
                assert!(matches!(changed, Counted(_)), "{changed:?}");
            }),
            OfKind::Series(hits) => match hits.add("page", 1).await? {
                Counted(_) => Ok(()),
                refused => Err(Error::new(ErrorKind::Range, format!("{refused:?}"))),
            },
            OfKind::Activity(online) => online.touch("page", "visitor").await,
            OfKind::Visitors(visitors) => match visitors
                .first_visit("page", day("2014-09-20"), "visitor")
                .await?
            {
                Counted(1) | CountedBefore(0) => Ok(()),
                refused => Err(Error::new(Busy, format!("{refused:?}"))),
            },
        }
    }

    /// Counts enough to change Redis's small encodings into large ones.
    pub async fn hit_often(&self) -> Result<()> {
        for _ in 0..3 {
            self.hit().await?;
        }
        if let OfKind::Buffered(views) = self {
            let many: Vec<_> = (0..200).map(|page| (format!("page/{page}"), 1)).collect();
            views
                .add_many(many)
                .await
                .into_iter()
                .try_for_each(|added| added.map(drop))?;
        }
        Ok(())
    }

    /// Reads the counts in every way of the kind, except by a scan of everything pending.
    pub async fn read(&self) -> Result<()> {
        self.shown().await?;
        match self {
            OfKind::Buffered(views) => views.get_many(&["page", "page/1"]).await.map(drop),
            OfKind::Cached(votes) => votes.get_many(&["item"]).await.map(drop),
            OfKind::Series(hits) => {
                hits.get_range("page", Precision::Day, times(0..7 * 86_400))
                    .await?;
                hits.get("page", Precision::Day).await?;
                hits.names("", None, 10).await.map(drop)
            }
            OfKind::Activity(online) => online.minutes("page", times(0..60)).await.map(drop),
            OfKind::Visitors(visitors) => visitors.get("page", day("2014-09-21")).await.map(drop),
        }
    }

    /// Counts, and makes every other call of the kind.
    pub async fn use_all(&self) -> Result<()> {
        self.hit_often().await?;
        self.read().await?;
        self.backlog().await?;
        match self {
            OfKind::Buffered(views) => views.list("", None, 10).await.map(drop),
            OfKind::Cached(votes) => votes.get_many(&["item", "cold"]).await.map(drop),
            OfKind::Series(_) | OfKind::Activity(_) => Ok(()),
            OfKind::Visitors(visitors) => visitors.list("", None, 10).await.map(drop),
        }
    }

    async fn backlog(&self) -> Result<()> {
        match self {
            OfKind::Buffered(views) => views.backlog().await,
            OfKind::Cached(votes) => votes.backlog().await,
            OfKind::Series(hits) => hits.backlog().await,
            OfKind::Activity(online) => online.backlog().await,
            OfKind::Visitors(visitors) => visitors.backlog().await,
        }
        .map(drop)
    }

    /// Returns the number of hits that it shows; 1 at most for visitors.
    pub async fn shown(&self) -> Result<i64> {
        Ok(match self {
            OfKind::Buffered(views) => views.get("page").await?,
            OfKind::Cached(votes) => votes.get("item").await?,
            OfKind::Series(hits) => hits
                .get("page", Precision::HOUR)
                .await?
                .iter()
                .map(|slice| slice.count)
                .sum(),
            OfKind::Activity(online) => i64::try_from(online.now("page").await?.views).unwrap(),
            OfKind::Visitors(visitors) => visitors.get("page", day("2014-09-20")).await?,
        })
    }
}
