//! Numbers and times in readable form.

use maud::{Markup, html};

use crate::output::{escaped, moment, short};

/// Renders text that others wrote, such as an id. Text from right to left does not change the order
/// of what surrounds it.
pub fn foreign(text: &str) -> Markup {
    html! { bdi { (escaped(text)) } }
}

/// The maximum number of characters of an id.
const MAX_ID: usize = 48;

/// Renders an id, cut in the middle if it is long; its title has all of it.
pub fn id(id: &str) -> Markup {
    let length = id.chars().count();
    if length <= MAX_ID {
        return foreign(id);
    }
    let kept = MAX_ID / 2;
    let start: String = id.chars().take(kept).collect();
    let end: String = id.chars().skip(length - kept).collect();
    html! { bdi title=(escaped(id)) { (escaped(&start)) "…" (escaped(&end)) } }
}

/// Renders a sentence, with what is in backticks as code.
pub fn prose(text: &str) -> Markup {
    html! {
        @for (at, part) in text.split('`').enumerate() {
            @if at % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// Formats a share: `12 %`, `0.4 %`.
pub fn share(share: f64) -> String {
    match share * 100.0 {
        percent if percent >= 10.0 => format!("{percent:.0} %"),
        percent if percent >= 0.1 => format!("{percent:.1} %"),
        percent if percent > 0.0 => "< 0.1 %".to_owned(),
        _ => "0 %".to_owned(),
    }
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
    fn long_ids_are_cut_in_the_middle_and_code_is_code() {
        assert_eq!(id("page/1").into_string(), "<bdi>page/1</bdi>");
        let long = format!("first/{}/last<", "é".repeat(60));
        let cut = id(&long).into_string();
        let (start, end) = ("é".repeat(18), "é".repeat(18));
        assert_eq!(
            cut,
            format!(
                "<bdi title=\"first/{}/last&lt;\">first/{start}…{end}/last&lt;</bdi>",
                "é".repeat(60)
            )
        );
        assert_eq!(
            prose("run `a <b>` or `c`").into_string(),
            "run <code>a &lt;b&gt;</code> or <code>c</code>"
        );
        let shares = [0.0, 0.0001, 0.004, 0.126, 1.5].map(share);
        assert_eq!(shares, ["0 %", "< 0.1 %", "0.4 %", "13 %", "150 %"]);
    }

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
