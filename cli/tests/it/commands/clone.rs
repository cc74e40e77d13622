//! A dump that was restored as another database, beside the Redis of the original.

use crate::client::get;
use crate::support::{Site, eventually};

const FAMILIES: &str = r#"
[[family]]
name = "shop/views"
kind = "buffered"
sync_time = "1h"
sync_hits = 1000000

[[family]]
name = "shop/votes"
kind = "cached"
sync_time = "1h"
"#;

/// Its rows are not combined with the hits of the original, by neither the command nor the daemon.
#[tokio::test]
async fn a_clone_is_refused_the_values_of_the_original() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.printed(&["add", "shop/views", "page", "3"]).await;
    site.printed(&["add", "shop/votes", "item", "2"]).await;
    let original = "SELECT database_id FROM counterfoil_families LIMIT 1";
    let original = counterfoil::sqlx::query_scalar(original);
    let original: String = original.fetch_one(&site.pool).await.unwrap();
    site.sql("UPDATE counterfoil_families SET database_id = 'staging'")
        .await;
    let names_all = |text: &str| {
        [&*original, "staging", "counterfoil adopt shop"]
            .iter()
            .all(|word| text.contains(word))
    };
    for args in [
        ["get", "shop/views", "page"],
        ["get", "shop/votes", "item"],
        ["get", "shop/votes", "other"],
    ] {
        let refused = site.run(&args).await;
        assert!(refused.code != 0 && refused.out.is_empty(), "{refused:?}");
        assert!(names_all(&refused.err), "{refused:?}");
    }
    let daemon = site.daemon().await;
    for counter in ["views&id=page", "votes&id=item", "votes&id=other"] {
        let path = format!("/api/v1/values?family=shop/{counter}");
        let values = async || get(&daemon, &path).await;
        // until the daemon has listed the families
        eventually("a reply", async || values().await.status != 503).await;
        let refused = values().await;
        assert!(
            refused.status == 409 && names_all(&refused.body),
            "{refused:?}"
        );
    }
}
