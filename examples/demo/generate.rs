//! A made-up access log: the same number of lines and the same seed give the same bytes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::Result;

const PAGES: usize = 5_000;
const DAYS: f64 = 6.0;
/// Each with its share in percent.
const STATUS_CODES: [(u16, u64); 6] = [(200, 88), (304, 5), (404, 3), (301, 2), (500, 1), (206, 1)];

/// Writes a log of so many lines, in the order of their times.
pub fn write(path: &Path, lines: u64, seed: u64) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let pages = Zipf::new(PAGES);
    let mut random = Random(seed);
    for line in 0..lines {
        // below 1, so that each day is busier than the one before it
        let seconds = (86_400.0 * DAYS * (line as f64 / lines as f64).powf(0.8)) as u64;
        let (day, hour, minute, second) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        writeln!(
            file,
            "192.0.2.{} - - [{:02}/Sep/2014:{hour:02}:{minute:02}:{second:02} +0000] \"GET /products/{} HTTP/1.1\" {} {} \
             \"-\" \"Mozilla/5.0 (made up)\"",
            random.below(256),
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

/// A few pages that everybody sees, and many that hardly anybody does: the n-th is seen 1/n as often as the first.
struct Zipf {
    cumulated: Vec<f64>,
}

impl Zipf {
    fn new(pages: usize) -> Self {
        let mut sum = 0.0;
        let weights = (1..=pages).map(|rank| 1.0 / rank as f64);
        Zipf {
            cumulated: weights
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect(),
        }
    }

    /// 0 is the page that is seen most.
    fn pick(&self, random: &mut Random) -> usize {
        let total = self.cumulated.last().copied().unwrap_or(0.0);
        let at = random.fraction() * total;
        self.cumulated.partition_point(|sum| *sum <= at)
    }
}

/// SplitMix64, spelt out here so that no version of a library changes the log.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// From 0 up to, and never, 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
