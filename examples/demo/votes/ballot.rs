//! The votes to cast: the same numbers give the same votes.

use crate::zipf::{Random, Zipf};

#[derive(Clone, Debug, clap::Args)]
pub struct Ballot {
    /// The number of votes to cast
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub votes: u64,
    /// The number of items, Zipf-distributed: the n-th gets 1/n as many votes as the first
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub items: u32,
    /// The seed of the votes: the same number gives the same votes
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

impl Ballot {
    /// Returns the item of each vote. Items are numbered from 1.
    pub fn votes(&self) -> impl Iterator<Item = u32> + use<> {
        let zipf = Zipf::new(self.items as usize);
        let mut random = Random(self.seed);
        (0..self.votes).map(move |_| 1 + zipf.pick(&mut random) as u32)
    }

    /// Returns the ballot as command-line arguments.
    pub fn args(&self) -> Vec<String> {
        let Ballot { votes, items, seed } = self;
        vec![
            format!("--votes={votes}"),
            format!("--items={items}"),
            format!("--seed={seed}"),
        ]
    }
}
