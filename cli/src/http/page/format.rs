//! Numbers and times in readable form.

use maud::{Markup, html};

use crate::output::{escaped, moment, short};

/// Renders text of others, such as an id. Its direction has no effect on what surrounds it.
pub fn foreign(text: &str) -> Markup {
    html! { bdi { (escaped(text)) } }
}

/// Renders 1,234,567, with the plain number as an attribute for programs.
pub fn number(number: impl Into<i128>) -> Markup {
    let number = number.into();
    html! { data value=(number) { (grouped(number)) } }
}

pub fn grouped(number: i128) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::from(if number < 0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats 0.4, 12.3, 1,234.
pub fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 100.0 => grouped(rate.round() as i128),
        rate if rate > 0.0 && rate < 0.1 => "< 0.1".to_owned(),
        rate if rate > 0.0 => format!("{rate:.1}"),
        _ => "0".to_owned(),
    }
}

/// Renders a time in UTC.
pub fn time(unix_seconds: u64) -> Markup {
    let time = moment(unix_seconds);
    html! { time datetime=(time) { (readable(&time)) } }
}

/// Renders `3m ago`, with the absolute time as its title.
pub fn ago(unix_seconds: u64, now: u64) -> Markup {
    html! { (elapsed(unix_seconds, now)) " ago" }
}

/// Renders the time from `unix_seconds` until `now`, with the absolute time as its title.
pub fn elapsed(unix_seconds: u64, now: u64) -> Markup {
    let time = moment(unix_seconds);
    let title = format!("{} UTC", readable(&time));
    html! { time datetime=(time) title=(title) { (short(now.saturating_sub(unix_seconds) as f64)) } }
}

fn readable(time: &str) -> String {
    time.trim_end_matches('Z').replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_short() {
        let numbers = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (-1_234_567, "-1,234,567"),
        ];
        for (number, text) in numbers {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(grouped(i128::from(i64::MIN)), "-9,223,372,036,854,775,808");
        for (number, text) in [
            (0.0, "0"),
            (0.01, "< 0.1"),
            (12.34, "12.3"),
            (1234.5, "1,235"),
        ] {
            assert_eq!(rate(number), text);
        }
        assert_eq!(
            ago(0, 7200).into_string(),
            "<time datetime=\"1970-01-01T00:00:00Z\" title=\"1970-01-01 00:00:00 UTC\">2h</time> ago"
        );
        assert_eq!(
            time(0).into_string(),
            "<time datetime=\"1970-01-01T00:00:00Z\">1970-01-01 00:00:00</time>"
        );
    }
}
