//! A generated access log: the same number of lines and the same seed give the same bytes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::Result;
use crate::zipf::{Random, Zipf};

const PAGES: usize = 5_000;
const VISITORS: u64 = 20_000;
const DAYS: f64 = 6.0;
/// The status codes with their shares in percent.
const STATUS_CODES: [(u16, u64); 6] = [(200, 88), (304, 5), (404, 3), (301, 2), (500, 1), (206, 1)];

/// Writes a log of `lines` lines, ordered by time.
pub fn write(path: &Path, lines: u64, seed: u64) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let pages = Zipf::new(PAGES);
    let mut random = Random(seed);
    for line in 0..lines {
        // the exponent is below 1, so that each day is busier than the one before it
        let seconds = (86_400.0 * DAYS * (line as f64 / lines as f64).powf(0.8)) as u64;
        let (day, hour, minute, second) = (
            seconds / 86_400,
            seconds / 3600 % 24,
            seconds / 60 % 60,
            seconds % 60,
        );
        writeln!(
            file,
            "2001:db8::{:x} - - [{:02}/Sep/2014:{hour:02}:{minute:02}:{second:02} +0000] \"GET /products/{} HTTP/1.1\" {} {} \
             \"-\" \"Mozilla/5.0 (made up)\"",
            random.below(VISITORS),
            day + 15,
            1 + pages.pick(&mut random),
            status(&mut random),
            random.below(50_000),
        )?;
    }
    Ok(file.flush()?)
}

fn status(random: &mut Random) -> u16 {
    let mut percent = random.below(100);
    for (code, share) in STATUS_CODES {
        if percent < share {
            return code;
        }
        percent -= share;
    }
    STATUS_CODES[0].0
}
