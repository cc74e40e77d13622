//! The rows for a statement: one JSON text for any number of rows, unfolded by `JSON_TABLE`.
//!
//! The statement's own text is the same for any number of rows, so it stays prepared. Text is sent
//! as hexadecimal digits: the JSON is plain ASCII, so no character set of a connection, a database
//! or a JSON parser can change a byte.

use std::fmt::{Display, Write};

/// The clause of every column of a `JSON_TABLE`: a value that does not fit fails the statement. The
/// default, NULL, would lose the value silently.
pub(super) const OR_ERROR: &str = "ERROR ON EMPTY ERROR ON ERROR";

/// Returns the definition of the column of a `JSON_TABLE` at `index` of its row.
pub(super) fn column(name: &str, kind: &str, index: usize) -> String {
    format!("{name} {kind} PATH '$[{index}]' {OR_ERROR}")
}

/// An array of arrays under construction.
#[derive(Default)]
pub(super) struct JsonRows(String);

impl JsonRows {
    /// Starts the next row.
    pub(super) fn row(&mut self) -> &mut Self {
        self.0
            .push_str(if self.0.is_empty() { "[[" } else { "],[" });
        self
    }

    /// Appends an integer.
    pub(super) fn number(&mut self, number: impl Display) -> &mut Self {
        self.cell();
        // writing to a String does not fail
        let _ = write!(self.0, "{number}");
        self
    }

    /// Appends ASCII without quotes and backslashes unchanged.
    pub(super) fn plain(&mut self, text: &str) -> &mut Self {
        self.cell();
        let _ = write!(self.0, "\"{text}\"");
        self
    }

    /// Appends any bytes as hexadecimal digits. The statement decodes them by `UNHEX`.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        self.cell();
        self.0.push('"');
        for byte in bytes {
            self.0.push(DIGITS[usize::from(byte >> 4)].into());
            self.0.push(DIGITS[usize::from(byte & 15)].into());
        }
        self.0.push('"');
        self
    }

    /// Returns the JSON text.
    pub(super) fn finish(mut self) -> String {
        self.0.push_str(if self.0.is_empty() { "[]" } else { "]]" });
        self.0
    }

    fn cell(&mut self) {
        if !self.0.ends_with('[') {
            self.0.push(',');
        }
    }
}

/// Reads hexadecimal digits, as [`JsonRows::bytes`] and the server's `HEX` write them. Returns
/// `None` for other text.
pub(super) fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: &u8| {
        char::from(*digit)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes = pairs
        .iter()
        .map(|[high, low]| Some(digit(high)? << 4 | digit(low)?))
        .collect();
    if rest.is_empty() { bytes } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_arrays_of_cells() {
        assert_eq!(JsonRows::default().finish(), "[]");
        let mut rows = JsonRows::default();
        rows.row().number(u64::MAX).bytes("a\0é".as_bytes());
        rows.row().number(i64::MIN).plain("2014-09-20").bytes(b"");
        assert_eq!(
            rows.finish(),
            r#"[[18446744073709551615,"6100C3A9"],[-9223372036854775808,"2014-09-20",""]]"#
        );
    }

    #[test]
    fn hexadecimal_digits_are_read_back() {
        assert_eq!(unhex("6100C3a9").as_deref(), Some("a\0é".as_bytes()));
        assert_eq!(unhex("").as_deref(), Some(&b""[..]));
        assert_eq!(["6", "6g", "+1", "-"].map(unhex), [None, None, None, None]);
    }
}
