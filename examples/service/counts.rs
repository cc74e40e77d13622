//! What the service counts: one family of each kind.

use counterfoil::{
    Activity, BufferedCounters, CachedCounters, Counterfoil, Family, KeyType, Precision, Result, Series, Table,
    Visitors,
};
use tokio::try_join;

#[derive(Clone)]
pub struct Counts {
    /// How often an article was seen, in `article_views`.
    pub views: BufferedCounters,
    /// Its votes, in `article`.
    pub votes: CachedCounters,
    /// How many saw it on each day, in `article_visitors`.
    pub visitors: Visitors,
    /// How often it was downloaded, over time; the days go to `article_downloads` when they are over.
    pub downloads: Series,
    /// Who reads it now; Redis alone knows.
    pub readers: Activity,
}

impl Counts {
    pub async fn open(counterfoil: &Counterfoil) -> Result<Self> {
        let of_article = |table: Table| table.key("article", KeyType::Unsigned);
        let views = of_article(Table::upsert("article_views")).value("views");
        let votes = Table::update("article").key("id", KeyType::Unsigned).value("votes");
        let visitors = of_article(Table::upsert("article_visitors")).key("day", KeyType::Date).value("visitors");
        let downloads = of_article(Table::upsert("article_downloads").key("day", KeyType::Date)).value("downloads");

        let (views, votes, visitors, downloads, readers) = try_join!(
            counterfoil.open(Family::buffered("site", "views").table(views).build()?),
            counterfoil.open(Family::cached("site", "votes").table(votes).build()?),
            counterfoil.open(Family::visitors("site", "visitors").table(visitors).build()?),
            counterfoil.open(Family::series("site", "downloads").keep([Precision::Day]).table(downloads).build()?),
            counterfoil.open(Family::activity("site", "readers").build()?),
        )?;
        Ok(Counts { views, votes, visitors, downloads, readers })
    }
}
