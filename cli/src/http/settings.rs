//! What of a family's settings is needed to read it.

use counterfoil::Family;
use serde_json::Value;

fn settings(family: &Family) -> Value {
    serde_json::from_str(&family.settings()).unwrap_or_default()
}

/// The precisions of a series, as they are spelt.
pub fn precisions(family: &Family) -> Vec<String> {
    let settings = settings(family);
    let windows = settings["of_kind"]["windows"].as_array();
    windows.into_iter().flatten().filter_map(|window| window[0].as_str().map(str::to_owned)).collect()
}

/// What separates the segments of an id.
pub fn separator(family: &Family) -> char {
    settings(family)["table"]["separator"].as_str().and_then(|text| text.chars().next()).unwrap_or('/')
}

#[cfg(test)]
mod tests {
    use counterfoil::{Family, KeyType, Precision, Table};

    use super::*;

    #[test]
    fn settings_are_read() {
        let series = Family::series("n", "f").windows([(Precision::Seconds(60), 5), (Precision::Day, 3)]).build();
        assert_eq!(precisions(series.expect("a family").family()), ["60s", "day"]);
        let table = Table::upsert("t").key("id", KeyType::Unsigned).key("day", KeyType::Date).value("n").separator(':');
        let visitors = Family::visitors("n", "f").table(table).build();
        assert_eq!(separator(visitors.expect("a family").family()), ':');
        let plain = Family::visitors("n", "f").build();
        assert_eq!(separator(plain.expect("a family").family()), '/');
    }
}
