//! Which items are voted for: the same numbers give the same votes.

use crate::zipf::{Random, Zipf};

#[derive(Clone, Debug, clap::Args)]
pub struct Ballot {
    /// How many votes to cast
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub votes: u64,
    /// How many items there are, Zipf-distributed: the n-th gets 1/n of the votes that the first one gets
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub items: u32,
    /// Which votes to cast: the same number gives the same votes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl Ballot {
    /// The item of each vote, from 1.
    pub fn votes(&self) -> impl Iterator<Item = u32> + use<> {
        let zipf = Zipf::new(self.items as usize);
        let mut random = Random(self.seed);
        (0..self.votes).map(move |_| 1 + zipf.pick(&mut random) as u32)
    }

    /// As arguments of a process.
    pub fn args(&self) -> Vec<String> {
        let Ballot { votes, items, seed } = self;
        vec![format!("--votes={votes}"), format!("--items={items}"), format!("--seed={seed}")]
    }
}
