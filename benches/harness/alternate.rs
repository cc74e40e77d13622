//! Both sides in turn, so that what else the machine does meets both, and the median of what they did.

/// What both sides did, round by round.
pub struct Rounds<T> {
    pub ours: Vec<T>,
    pub theirs: Vec<T>,
}

/// Runs both sides in turn, each first in every other round. One more round before warms them up and is not kept.
pub async fn alternate<T>(
    rounds: usize,
    mut ours: impl AsyncFnMut() -> T,
    mut theirs: impl AsyncFnMut() -> T,
) -> Rounds<T> {
    let mut kept = Rounds { ours: Vec::new(), theirs: Vec::new() };
    for round in 0..=rounds {
        let (one, other) = if round % 2 == 0 {
            let one = ours().await;
            (one, theirs().await)
        } else {
            let other = theirs().await;
            (ours().await, other)
        };
        if round > 0 {
            kept.ours.push(one);
            kept.theirs.push(other);
        }
    }
    kept
}

impl<T> Rounds<T> {
    /// The median of the rounds' ratios, ours to theirs.
    pub fn ratio(&self, of: impl Fn(&T) -> f64) -> f64 {
        median(self.ours.iter().zip(&self.theirs).map(|(ours, theirs)| of(ours) / of(theirs)))
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
