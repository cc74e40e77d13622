//! Both sides in turn, so that what else the machine does meets both. A figure is the median of the ratios of
//! neighbouring rounds, which a noisy machine moves less than the ratio of two medians.

/// What both sides did, round by round.
pub struct Rounds<T> {
    pub ours: Vec<T>,
    pub theirs: Vec<T>,
}

/// Runs both sides in so many rounds, after one that warms them up.
pub async fn alternate<T>(
    rounds: usize,
    mut ours: impl AsyncFnMut() -> T,
    mut theirs: impl AsyncFnMut() -> T,
) -> Rounds<T> {
    let mut kept = Rounds::new();
    for round in 0..=rounds {
        kept.measure(round, &mut ours, &mut theirs).await;
    }
    kept
}

impl<T> Rounds<T> {
    pub fn new() -> Self {
        Rounds { ours: Vec::new(), theirs: Vec::new() }
    }

    /// Runs both sides in turn, each first in every other round. Round 0 warms them up and is not kept.
    pub async fn measure(&mut self, round: usize, ours: impl AsyncFnOnce() -> T, theirs: impl AsyncFnOnce() -> T) {
        let (one, other) = if round.is_multiple_of(2) {
            let one = ours().await;
            (one, theirs().await)
        } else {
            let other = theirs().await;
            (ours().await, other)
        };
        if round > 0 {
            self.ours.push(one);
            self.theirs.push(other);
        }
    }

    /// Ours to theirs, round by round.
    pub fn ratios(&self, of: impl Fn(&T) -> f64) -> impl Iterator<Item = f64> {
        self.ours.iter().zip(&self.theirs).map(move |(ours, theirs)| of(ours) / of(theirs))
    }

    /// The median of these ratios.
    pub fn ratio(&self, of: impl Fn(&T) -> f64) -> f64 {
        median(self.ratios(of))
    }
}

pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}
