//! A listing as a stream, built on the call for one page.

use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};

use crate::error::{Error, Result};

/// The number of entries that are read at a time.
pub const PAGE: usize = 1000;

/// Returns all entries, one page at a time: `page` reads the entries after a name, and `name`
/// returns the name of an entry.
pub fn all<T, F>(
    page: impl Fn(Option<String>) -> F + Send + 'static,
    name: fn(&T) -> &str,
) -> BoxStream<'static, Result<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<Vec<T>>> + Send + 'static,
{
    let pages = stream::try_unfold(None, move |after| {
        let asked = page(after);
        async move {
            let page = asked.await?;
            let last = page.last().map(|last| name(last).to_owned());
            Ok::<_, Error>(last.map(|last| (page, Some(last))))
        }
    });
    pages
        .map_ok(|page| stream::iter(page.into_iter().map(Ok::<T, Error>)))
        .try_flatten()
        .boxed()
}
