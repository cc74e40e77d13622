//! Commands that need no server: check-config, example-config, completions, scripts.

use std::fs;

use counterfoil::admin::Script;
use serde_json::json;

use super::FAMILIES;
use crate::support::Site;

#[tokio::test]
async fn the_configuration_is_checked_without_servers() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    let right = site.printed(&["check-config"]).await;
    assert!(
        right.starts_with("pair main: shop/views, ")
            && right.ends_with("the configuration is valid\n"),
        "{right}"
    );
    let families = json!([
        "shop/views",
        "shop/votes",
        "shop/daily",
        "shop/downloads",
        "shop/readers",
        "tenant-*/views"
    ]);
    assert_eq!(
        site.json(0, &["check-config"]).await,
        json!([{ "pair": "main", "families": families, "overlaps": [], "warnings": [] }])
    );
    let special = "[[family]]\nname = \"tenant-1/views\"\nkind = \"buffered\"\n";
    for families in [
        format!("{FAMILIES}{special}"),
        format!("{special}{FAMILIES}"),
    ] {
        site.configure(&families);
        let checked = site.printed(&["check-config"]).await;
        let overlap = "pair main: tenant-1/views takes precedence over tenant-*/views\n";
        assert!(checked.contains(overlap), "{checked}");
    }
    site.write("listen = 1\n");
    let wrong = site.ends_with(3, &["check-config"]).await;
    assert!(wrong.err.contains("counterfoil.toml:1: "), "{wrong:?}");
    let missing = site
        .ends_with(3, &["status", "--config", "nowhere.toml"])
        .await;
    assert!(
        missing.err.contains("nowhere.toml: not read"),
        "{missing:?}"
    );
    site.ends_with(3, &["frobnicate"]).await;
    site.ends_with(3, &[]).await;
}

#[tokio::test]
async fn the_example_can_be_taken_as_it_is_printed() {
    let site = Site::new().await;
    let example = site.printed(&["example-config"]).await;
    site.write(&example);
    let untouched = site.ends_with(1, &["check-config"]).await;
    let tables = "with its tables: forum/votes, shop-*/views, shop-*/visitors, forum/downloads";
    for left in ["redis and mysql have the addresses of the example", tables] {
        assert!(untouched.out.contains(left), "{untouched:?}");
    }
    assert!(untouched.out.ends_with("is valid\n"), "{untouched:?}");
    let own = [("10.0.0.5\"", "10.0.0.9\""), ("\"item\"", "\"items\"")];
    let adapted = own
        .iter()
        .fold(example, |text, (from, to)| text.replace(from, to));
    site.write(&adapted);
    let adapted = site.ends_with(1, &["check-config"]).await;
    assert!(
        !adapted.out.contains("addresses") && adapted.out.contains("tables: shop-*/views, "),
        "{adapted:?}"
    );
    assert!(
        site.printed(&["completions", "bash"])
            .await
            .contains("complete -F")
    );
    assert!(site.printed(&["--help"]).await.contains("Exit codes: 0"));
}

#[tokio::test]
async fn completions_offer_what_the_help_shows() {
    let site = Site::without_tables().await;
    for shell in ["bash", "zsh", "fish"] {
        let script = site.printed(&["completions", shell]).await;
        let words: Vec<_> = script
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
            .collect();
        for shown in ["healthcheck", "setup", "example-config", "--config"] {
            let shown = if shell == "fish" {
                shown.trim_start_matches('-')
            } else {
                shown
            };
            assert!(words.contains(&shown), "{shell}: {shown}");
        }
        for hidden in ["completions", "man"] {
            assert!(!words.contains(&hidden), "{shell}: {hidden}");
        }
    }
}

#[tokio::test]
async fn a_command_that_prints_a_text_refuses_json() {
    let site = Site::without_tables().await;
    site.configure("");
    for command in [
        &["setup"][..],
        &["setup", "--private"],
        &["run"],
        &["example-config"],
        &["sandbox"],
        &["completions", "bash"],
        &["man"],
    ] {
        let refused = site.ends_with(3, &[command, &["--json"]].concat()).await;
        let why = format!("{} prints no JSON: leave out --json", command[0]);
        assert!(
            refused.err.contains(&why) && refused.out.is_empty(),
            "{refused:?}"
        );
    }
    site.json(0, &["init", "--print"]).await;
    site.json(0, &["scripts", "export", "scripts"]).await;
}

#[tokio::test]
async fn each_command_has_a_man_page() {
    let site = Site::without_tables().await;
    let help = site.printed(&["--help"]).await;
    assert!(!help.contains("completions"), "packages use it: {help}");
    let page = site.printed(&["man"]).await;
    assert!(page.contains(".TH counterfoil 1"), "{page}");
    site.printed(&["man", "pages/man1"]).await;
    let read = |name: &str| fs::read_to_string(site.folder().join("pages/man1").join(name));
    for command in help
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
    {
        if command.starts_with(char::is_lowercase) && command != "help" {
            let page = read(&format!("counterfoil-{command}.1"));
            page.unwrap_or_else(|error| panic!("{command}: {error}"));
        }
    }
    let nested = read("counterfoil-rejects-retry.1").expect("written");
    assert!(nested.contains("Adds rejects to their rows"), "{nested}");
    assert!(read("counterfoil-man.1").is_err());
}

#[tokio::test]
async fn scripts_are_listed_exported_and_loaded() {
    let site = Site::new().await;
    site.configure("");
    let listed = site.json(0, &["scripts", "list"]).await;
    let mut all: Vec<_> = Script::all().collect();
    all.sort_by_key(|script| script.name);
    let expected: Vec<_> = all
        .iter()
        .map(|script| json!({ "name": script.name, "file": format!("v1/{}.lua", script.name), "sha1": script.sha1 }))
        .collect();
    assert_eq!(listed, json!(expected));
    assert_eq!(
        site.printed(&["scripts", "list"]).await.lines().count(),
        all.len() + 1
    );

    site.printed(&["scripts", "export", "out/lua"]).await;
    let out = site.folder().join("out/lua");
    for script in &all {
        assert_eq!(
            fs::read_to_string(out.join(format!("v1/{}.lua", script.name))).expect("written"),
            script.source
        );
    }
    let manifest = fs::read_to_string(out.join("manifest.json")).expect("written");
    let manifest: serde_json::Value = serde_json::from_str(&manifest).expect("JSON");
    for script in manifest["scripts"].as_array().expect("scripts") {
        let name = script["name"].as_str().expect("a name");
        assert_eq!(
            script["sha1"],
            Script::named(name).expect("in the bundle").sha1
        );
    }
    fs::write(site.folder().join("file"), "").expect("written");
    let refused = site.ends_with(1, &["scripts", "export", "file"]).await;
    assert!(
        refused.err.contains("file/v1 was not created"),
        "{refused:?}"
    );

    let loaded = site.printed(&["scripts", "load"]).await;
    assert!(
        loaded.starts_with("pair main: loaded\n") && loaded.contains(&all[0].sha1),
        "{loaded}"
    );
    for script in &all {
        let there: Vec<bool> = site
            .redis
            .run(&format!("SCRIPT EXISTS {}", script.sha1))
            .await
            .expect("asked");
        assert_eq!(there, [true], "{}", script.name);
    }
    assert_eq!(
        site.json(0, &["scripts", "load"]).await["pairs"],
        json!(["main"])
    );
}
