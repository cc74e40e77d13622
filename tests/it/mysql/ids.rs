//! Ids that can have a row: the check, the regular expression and the table agree.

use counterfoil::FamilySettings;
use counterfoil::store::{Columns, Extent};
use counterfoil::test_hooks::given_ids;
use proptest::prelude::*;
use regex::Regex;
use serde_json::Value;

use super::database::*;
use crate::support::*;

/// The cases, which the packages in other languages run too.
fn cases() -> Vec<Value> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/ids.json");
    let file: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    file["cases"].as_array().unwrap().clone()
}

fn texts(list: &Value) -> Vec<&str> {
    let list = list.as_array().unwrap().iter();
    list.map(|text| text.as_str().unwrap()).collect()
}

fn family_of(case: &Value) -> Family {
    let settings: FamilySettings = serde_json::from_value(case["family"].clone()).unwrap();
    Family::new("shop", case["id"].as_str().unwrap(), &settings).unwrap()
}

/// Creates the table of the case, and registers its family.
async fn registered(db: &Db, case: &Value) -> Arc<Registration> {
    if let Some(columns) = case["create"].as_str() {
        let table = &case["family"]["table"];
        let name = table["name"].as_str().unwrap();
        let keys = table["keys"].as_array().unwrap().iter();
        let keys: Vec<_> = keys.map(|key| key[0].as_str().unwrap()).collect();
        let columns = columns.replace("EXACT", db.exact());
        let key = keys.join(", ");
        db.run(&format!(
            "CREATE TABLE {name} ({columns}, n BIGINT NOT NULL, PRIMARY KEY ({key}))"
        ))
        .await;
    }
    db.registered(&family_of(case)).await
}

#[tokio::test]
async fn the_pattern_follows_from_the_table() {
    let (db, mut wrong) = (Db::new().await, BTreeMap::new());
    for case in cases() {
        let registered = registered(&db, &case).await;
        let family = &registered.family;
        let ids = given_ids(family, registered.columns.as_deref());
        if case["ids"] != ids.pattern() {
            wrong.insert(case["id"].to_string(), ids.pattern());
        }
        assert_eq!(case["separator"], family.separator().to_string());
        for id in texts(&case["accepted"]) {
            assert_eq!(ids.check(id), Ok(()), "{family} {id:?} {}", ids.words());
        }
        for id in texts(&case["refused"]) {
            assert!(ids.check(id).is_err(), "{family} {id:?} {}", ids.words());
        }
        // without the columns it refuses nothing that has a row
        for id in texts(&case["accepted"]) {
            assert_eq!(given_ids(family, None).check(id), Ok(()), "{family} {id:?}");
        }
    }
    assert!(wrong.is_empty(), "patterns of clients/ids.json: {wrong:#?}");
}

#[tokio::test]
async fn an_accepted_id_has_a_row_of_its_own() {
    let db = Db::new().await;
    for case in cases() {
        let registered = registered(&db, &case).await;
        let before = case["before"].as_str().unwrap_or_default();
        let mut ids: Vec<_> = variants(&case)
            .into_iter()
            .filter(|id| {
                given_ids(&registered.family, registered.columns.as_deref())
                    .check(id)
                    .is_ok()
            })
            .map(|id| format!("{before}{id}"))
            .collect();
        ids.sort();
        ids.dedup();
        let all = ids.len() as u64;
        assert!(all > 0, "{case}");
        db.adds(&registered, 1, ids.iter().zip(1..), (all, 0)).await;
        assert_eq!(db.pages(&registered, "", 1000).await, ids, "{case}");
    }
    db.expect_rejects(&[]).await;
}

#[test]
fn the_pattern_accepts_what_the_check_accepts() {
    for case in cases() {
        let family = family_of(&case);
        let ids = given_ids(&family, None);
        let pattern = whole(&ids.pattern());
        for id in variants(&case) {
            let (matches, is_accepted) = (pattern.is_match(&id), ids.check(&id).is_ok());
            // it does not count bytes
            let is_same = matches == is_accepted || (matches && !id.is_ascii());
            assert!(is_same, "{family} {id:?}: {matches}");
        }
    }
}

#[test]
fn the_patterns_of_the_file_match_its_ids() {
    for case in cases() {
        let pattern = whole(case["ids"].as_str().unwrap());
        for id in texts(&case["accepted"]) {
            assert!(pattern.is_match(id), "{} {id:?}", case["id"]);
        }
        for id in texts(&case["refused"]) {
            let is_too_long = id.len() > 255;
            assert!(
                is_too_long || !pattern.is_match(id),
                "{} {id:?}",
                case["id"]
            );
        }
    }
}

proptest! {
    #[test]
    fn numbers_of_a_range_are_matched(most in any::<u64>(), shift in 0..64_u32, number in any::<u64>(), by in 0..64_u32) {
        let (most, number): (u64, u64) = (most >> shift, number >> by);
        let columns = Columns { keys: vec![Extent::Numbers(0..=i128::from(most))], values: i64::MIN..=i64::MAX };
        let table = Table::upsert("t").key("k", Unsigned).value("n");
        let family = Family::buffered("a", "b").table(table).build().unwrap();
        let ids = given_ids(&family, Some(&columns));
        let pattern = whole(&ids.pattern());
        for number in [number, most, most.saturating_add(1), most.saturating_sub(1), most / 10, number % (most / 2 + 1)] {
            let id = number.to_string();
            prop_assert_eq!(pattern.is_match(&id), number <= most);
            prop_assert_eq!(ids.check(&id).is_ok(), number <= most);
        }
    }
}

fn whole(pattern: &str) -> Regex {
    Regex::new(&format!(r"\A(?:{pattern})\z")).unwrap()
}

/// Returns the ids of the case, and many that differ from them in a few characters.
fn variants(case: &Value) -> Vec<String> {
    let given = [texts(&case["accepted"]), texts(&case["refused"])].concat();
    let separator = case["separator"].as_str().unwrap();
    let pieces = [
        "0", "1", "2", "9", "-", "a", "f", "g", "A", " ", "\n", "é", "\u{0}", "/", "|", separator,
    ];
    let mut random = StdRng::seed_from_u64(7);
    let mut all: Vec<String> = given.iter().map(|id| (*id).to_owned()).collect();
    for id in given {
        for _ in 0..100 {
            let mut characters: Vec<_> = id.chars().map(String::from).collect();
            for _ in 0..random.random_range(1..3) {
                let piece = pieces[random.random_range(0..pieces.len())].to_owned();
                let at = random.random_range(0..=characters.len());
                match random.random_range(0..3) {
                    0 => characters.insert(at, piece),
                    1 if at < characters.len() => characters[at] = piece,
                    _ if at < characters.len() => drop(characters.remove(at)),
                    _ => {}
                }
            }
            all.push(characters.concat());
        }
    }
    all
}
