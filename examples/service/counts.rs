//! The counters of the service: one family of each kind.

use counterfoil::{
    Activity, BufferedCounters, CachedCounters, Counterfoil, Family, KeyType, Precision, Result,
    Series, Table, Visitors,
};
use tokio::try_join;

#[derive(Clone)]
pub struct Counts {
    /// The views of an article, in `article_views`.
    pub views: BufferedCounters,
    /// The votes for an article, in `article`.
    pub votes: CachedCounters,
    /// The unique visitors of an article per day, in `article_visitors`.
    pub visitors: Visitors,
    /// The downloads of an article over time. Each day goes to `article_downloads` when it is over.
    pub downloads: Series,
    /// The current readers of an article, kept in Redis only.
    pub readers: Activity,
}

impl Counts {
    pub async fn open(counterfoil: &Counterfoil) -> Result<Self> {
        let of_article = |table: Table| table.key("article", KeyType::Unsigned);
        let views = of_article(Table::upsert("article_views")).value("views");
        let votes = Table::update("article")
            .key("id", KeyType::Unsigned)
            .value("votes");
        let visitors = of_article(Table::upsert("article_visitors"))
            .key("day", KeyType::Date)
            .value("visitors");
        let downloads = of_article(Table::upsert("article_downloads").key("day", KeyType::Date))
            .value("downloads");

        let (views, votes, visitors, downloads, readers) = try_join!(
            counterfoil.open(Family::buffered("site", "views").table(views)),
            counterfoil.open(Family::cached("site", "votes").table(votes)),
            counterfoil.open(Family::visitors("site", "visitors").table(visitors)),
            counterfoil.open(
                Family::series("site", "downloads")
                    .keep([Precision::Day])
                    .table(downloads)
            ),
            counterfoil.open(Family::activity("site", "readers")),
        )?;
        Ok(Counts {
            views,
            votes,
            visitors,
            downloads,
            readers,
        })
    }
}
