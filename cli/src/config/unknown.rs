//! Errors about unknown settings, which name those that may be meant.

use counterfoil::Family;
use serde_json::{Map, Value, json};

const KINDS: [&str; 5] = ["buffered", "cached", "series", "activity", "visitors"];

/// The error of a struct that denies unknown fields.
struct UnknownSetting<'m> {
    name: &'m str,
    expected: Vec<&'m str>,
}

impl<'m> UnknownSetting<'m> {
    /// Parses serde's message: ``unknown field `a`, expected one of `b`, `c` ``.
    fn parse(message: &'m str) -> Option<Self> {
        let (name, rest) = message.strip_prefix("unknown field `")?.split_once('`')?;
        let expected = rest.split('`').skip(1).step_by(2).collect();
        Some(UnknownSetting { name, expected })
    }

    /// Returns the settings with the most similar names, or none if all are different.
    fn nearest(&self) -> Vec<&'m str> {
        for distance in 1..=self.name.len() / 3 {
            let near = self.expected.iter().copied();
            let near: Vec<_> = near
                .filter(|other| edits(self.name, other) == distance)
                .collect();
            if !near.is_empty() {
                return near;
            }
        }
        let contains = |one: &str, other: &str| one.len() > 2 && other.contains(one);
        let parts = self.expected.iter().copied();
        parts
            .filter(|other| contains(self.name, other) || contains(other, self.name))
            .collect()
    }
}

/// Returns the message about an unknown setting with the nearest ones in place of all. Other messages
/// stay as they are.
pub fn with_nearest(message: &str) -> String {
    let nearest = UnknownSetting::parse(message).and_then(|unknown| {
        let nearest = unknown.nearest();
        (!nearest.is_empty()).then(|| {
            format!(
                "unknown field `{}`: is {} meant?",
                unknown.name,
                listed(&nearest)
            )
        })
    });
    nearest.unwrap_or_else(|| message.to_owned())
}

/// Returns the message about an unknown setting of a family of this kind. Without a near one, it
/// lists the settings that such a family has.
pub fn in_family(message: &str, kind: Option<&str>) -> String {
    let near = with_nearest(message);
    let of_kind = UnknownSetting::parse(&near).and_then(|mut unknown| {
        let kind =
            kind.filter(|kind| KINDS.contains(kind) && unknown.expected.contains(&"kind"))?;
        unknown.expected.retain(|name| is_of_kind(kind, name));
        Some(format!(
            "unknown field `{}`, expected for the kind {kind} one of {}",
            unknown.name,
            listed(&unknown.expected)
        ))
    });
    of_kind.unwrap_or(near)
}

fn listed(names: &[&str]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => quoted.concat(),
    }
}

/// Returns the number of characters to insert, delete or replace, or of neighbours to exchange, that
/// turn one name into the other.
fn edits(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (at, byte) in one.iter().enumerate() {
        let mut row = vec![at + 1];
        for (column, other_byte) in other.iter().enumerate() {
            let replaced = rows[at][column] + usize::from(byte != other_byte);
            let mut least = replaced.min(rows[at][column + 1] + 1).min(row[column] + 1);
            let is_exchange =
                at > 0 && column > 0 && (one[at - 1], byte) == (*other_byte, &other[column - 1]);
            if is_exchange {
                least = least.min(rows[at - 1][column - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

/// Returns whether families of this kind have the setting: the library refuses that of another kind.
fn is_of_kind(kind: &str, name: &str) -> bool {
    let mut settings = Map::from_iter([("kind".to_owned(), kind.into())]);
    settings.extend(sample(name).map(|value| (name.to_owned(), value)));
    match family(&Value::Object(settings)) {
        Ok(_) => true,
        Err(wrong) => !wrong.contains("is not a setting of"),
    }
}

/// Returns a value of the setting: the default of a kind that has one.
fn sample(name: &str) -> Option<Value> {
    match name {
        "kind" => None,
        "table" => {
            let keys = [["id", "text"]];
            Some(json!({"name": "t", "write": "upsert", "keys": keys, "value": "n"}))
        }
        "min" | "max" => Some(json!(0)),
        _ => KINDS.iter().find_map(|kind| {
            let family = family(&json!({ "kind": kind })).ok()?;
            let settings: Value = serde_json::from_str(&family.settings()).ok()?;
            settings.get(name).cloned()
        }),
    }
}

fn family(settings: &Value) -> Result<Family, String> {
    let family = Family::from_settings("namespace", "family", &settings.to_string());
    family.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use counterfoil::FamilySettings;

    use super::*;

    fn all_settings() -> Vec<String> {
        let all = serde_json::to_value(FamilySettings::default()).unwrap();
        all.as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn each_setting_is_of_some_kinds() {
        for name in all_settings() {
            let kinds = KINDS.map(|kind| is_of_kind(kind, &name));
            let number = kinds.iter().filter(|is_one| **is_one).count();
            let is_common = ["kind", "partitions", "durability", "table", "sync_time"];
            let expected = if is_common.contains(&name.as_str()) {
                5..6
            } else {
                1..5
            };
            assert!(expected.contains(&number), "{name}: {kinds:?}");
        }
    }

    #[test]
    fn the_nearest_settings_are_named() {
        let told = |name: &str, kind| {
            let read = serde_json::from_value::<FamilySettings>(json!({ name: 1 }));
            in_family(&read.unwrap_err().to_string(), kind)
        };
        for (name, nearest) in [
            ("sync_tiem", "`sync_time`"),
            ("partition", "`partitions`"),
            ("synctime", "`sync_time`"),
            ("timezone", "`time_zone`"),
            ("sync", "`sync_time` or `sync_hits`"),
            ("maxpending", "`max_pending`"),
        ] {
            let expected = format!("unknown field `{name}`: is {nearest} meant?");
            assert_eq!(told(name, Some("buffered")), expected);
        }
        assert_eq!(
            told("colour", Some("visitors")),
            "unknown field `colour`, expected for the kind visitors one of `kind`, `partitions`, \
             `durability`, `table`, `sync_time`, `sync_hits` or `remember`"
        );
        assert!(told("colour", None).contains("`stripes`"));
        assert_eq!(with_nearest("another error"), "another error");
    }
}
