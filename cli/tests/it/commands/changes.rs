//! reconfigure, family remove, purge.

use super::FAMILIES;
use crate::support::Site;

const SEVEN: &str = "[[family]]\nname = \"shop/views\"\nkind = \"buffered\"\npartitions = 7\n";

#[tokio::test]
async fn a_family_gets_the_settings_of_its_configuration() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.printed(&["add", "shop/views", "a", "3"]).await;
    site.configure(SEVEN);
    let change = "partitions is 7 here, and 4 in the database";
    let pending = site.ends_with(1, &["reconfigure", "shop/views"]).await;
    assert!(
        pending.err.contains("drain the family first"),
        "{pending:?}"
    );
    site.printed(&["drain"]).await;

    let planned = site
        .printed(&["reconfigure", "shop/views", "--dry-run"])
        .await;
    assert!(
        planned.contains(&format!("would be changed: {change}")),
        "{planned}"
    );
    let done = site.printed(&["reconfigure", "shop/views"]).await;
    assert!(done.contains(&format!("was changed: {change}")), "{done}");
    let again = site.printed(&["reconfigure", "shop/views"]).await;
    assert!(again.contains("is as configured"), "{again}");
    let again = site.printed(&["--json", "reconfigure", "shop/views"]).await;
    assert!(again.contains("\"changed\": false"), "{again}");
    site.printed(&["add", "shop/views", "a"]).await;
    assert_eq!(site.printed(&["get", "shop/views", "a"]).await, "a\t4\n");

    site.configure(&SEVEN.replace("buffered", "cached"));
    for more in [&[][..], &["--dry-run"]] {
        let other_kind = [&["reconfigure", "shop/views"], more].concat();
        let refused = site.ends_with(3, &other_kind).await;
        assert!(
            refused.err.contains("kind cannot be changed"),
            "{refused:?}"
        );
    }

    for (family, why) in [
        ("shop/votes", "the configuration has no family"),
        ("views", "is not NAMESPACE/FAMILY"),
    ] {
        let refused = site.ends_with(3, &["reconfigure", family]).await;
        assert!(refused.err.contains(why), "{refused:?}");
    }
}

#[tokio::test]
async fn a_family_that_a_backup_sets_back_is_changed_again() {
    const BACK_UP: &str =
        "CREATE TABLE backup AS SELECT * FROM counterfoil_families WHERE namespace = 'shop'";
    const RESTORE: &str = "REPLACE INTO counterfoil_families SELECT * FROM backup";
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.printed(&["add", "shop/views", "a", "3"]).await;
    site.printed(&["drain"]).await;
    site.sql(BACK_UP).await;
    site.configure(SEVEN);
    site.printed(&["reconfigure", "shop/views"]).await;
    for id in ["a", "b", "c", "d", "e", "f", "g"] {
        site.printed(&["add", "shop/views", id]).await;
    }
    site.sql(RESTORE).await;
    site.printed(&["drain"]).await;
    let done = site.printed(&["reconfigure", "shop/views"]).await;
    let change = "was changed: partitions is 7 here, and 4 in the database";
    assert!(done.contains(change), "{done}");
    site.printed(&["add", "shop/views", "a"]).await;
    assert_eq!(site.printed(&["get", "shop/views", "a"]).await, "a\t5\n");
    site.printed(&["drain"]).await;
    let all = "SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values";
    assert_eq!(site.number(all).await, 11);
}

#[tokio::test]
async fn a_family_is_removed_once_nobody_uses_it() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    for family in ["shop/views", "tenant-1/views"] {
        site.printed(&["add", family, "a", "3"]).await;
    }
    site.printed(&["drain"]).await;
    let remove = ["family", "remove", "shop/views"];
    let with = |more| [&remove[..], &[more]].concat();
    let configured = site.ends_with(3, &with("--yes")).await;
    assert!(
        configured.err.contains("in the configuration"),
        "{configured:?}"
    );

    // a misspelt name is not registered, and what only a pattern describes can be removed
    let misspelt = site.ends_with(3, &["get", "tenant-l/views", "a"]).await;
    assert!(
        misspelt.err.contains("tenant-*/views describes it"),
        "{misspelt:?}"
    );
    let misspelt = "SELECT COUNT(*) FROM counterfoil_families WHERE namespace = 'tenant-l'";
    assert_eq!(site.number(misspelt).await, 0);
    let age = async |family: &str| {
        let age = format!("HSET cf1:{{{family}/0}}:calls =began_at 1000");
        let _: i64 = site.redis.run(&age).await.expect("set");
    };
    age("tenant-1/views").await;
    let of_pattern = ["family", "remove", "tenant-1/views", "--dry-run"];
    let planned = site.printed(&of_pattern).await;
    assert!(planned.contains("would be removed"), "{planned}");

    site.configure("");
    let unconfirmed = site.ends_with(3, &remove).await;
    assert!(
        unconfirmed.err.contains("--yes confirms it"),
        "{unconfirmed:?}"
    );
    for way in ["--dry-run", "--yes"] {
        let used = site.ends_with(1, &with(way)).await;
        assert!(used.err.contains("a process used it"), "{used:?}");
    }
    age("shop/views").await;
    let planned = site.printed(&with("--dry-run")).await;
    assert!(planned.contains("would be removed"), "{planned}");
    let removed = site.printed(&with("--yes")).await;
    assert!(removed.contains("was removed"), "{removed}");
    let keys: Vec<String> = site.redis.run("KEYS cf1:{shop/views*").await.expect("keys");
    assert_eq!(keys, [""; 0]);
    let values = "SELECT COUNT(*) FROM counterfoil_values";
    assert_eq!(site.number(values).await, 1);
    let unknown = site.ends_with(3, &with("--yes")).await;
    assert!(
        unknown.err.contains("has no family shop/views"),
        "{unknown:?}"
    );
}

#[tokio::test]
async fn old_records_are_deleted() {
    let site = Site::new().await;
    site.configure_pair("keep_history = \"7d\"", FAMILIES);
    site.printed(&["add", "shop/views", "a"]).await;
    site.printed(&["drain"]).await;
    site.sql(
        "INSERT INTO counterfoil_recounts (family, run, holder, finished_at) VALUES
           (1, 1, 0, NOW() - INTERVAL 9 DAY), (1, 2, 0, NOW()), (1, 3, 0, NOW() - INTERVAL 9 DAY);
         INSERT INTO counterfoil_drift (family, run, id, value_before, row_count, value_after, delta, note) VALUES
           (1, 1, 'a', 0, 1, 0, 1, ''), (1, 1, 'b', 0, 1, 0, 1, ''), (1, 3, 'a', 0, 1, 0, 1, '')",
    )
    .await;
    let purge = ["purge"];
    let found = "1 recount with 2 differences";
    let with = |more| [&purge[..], &[more]].concat();
    let planned = site.printed(&with("--dry-run")).await;
    assert_eq!(planned, format!("would be deleted: pair main: {found}\n"));
    site.ends_with(3, &purge).await;
    let deleted = site.printed(&with("--yes")).await;
    assert_eq!(deleted, format!("deleted: pair main: {found}\n"));
    for (table, left) in [("recounts", 2), ("drift", 1)] {
        let count = format!("SELECT COUNT(*) FROM counterfoil_{table}");
        assert_eq!(site.number(&count).await, left, "{table}");
    }
}

/// Also of partitions that a family does not have.
#[tokio::test]
async fn a_drain_takes_all_partitions() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.printed(&["add", "shop/views", "a", "3"]).await;
    let _: i64 = site
        .redis
        .run("HSET cf1:{shop/views/9}:buffer a 30")
        .await
        .expect("set");
    site.printed(&["drain"]).await;
    assert_eq!(site.printed(&["get", "shop/views", "a"]).await, "a\t33\n");
}
