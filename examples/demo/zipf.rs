//! A Zipf distribution and its random numbers: the same seed gives the same sequence.

/// A Zipf distribution: the n-th place is picked 1/n as often as the first.
pub struct Zipf {
    cumulated: Vec<f64>,
}

impl Zipf {
    pub fn new(places: usize) -> Self {
        let mut sum = 0.0;
        let weights = (1..=places).map(|rank| 1.0 / rank as f64);
        Zipf {
            cumulated: weights
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect(),
        }
    }

    /// Picks a place. Place 0 is picked most often.
    pub fn pick(&self, random: &mut Random) -> usize {
        let total = self.cumulated.last().copied().unwrap_or(0.0);
        let at = random.fraction() * total;
        self.cumulated.partition_point(|sum| *sum <= at)
    }
}

/// SplitMix64, implemented here so that no library upgrade changes the sequence.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number from 0 up to, but not including, 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
