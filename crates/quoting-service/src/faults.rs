//! What: what goes wrong on purpose.
//! Where: after a request's commit, before its answer.
//! Takes and gives: a seed and the request's identity; the fault for that request.
//! Never: depends on the order in which requests come, so a seed gives the same faults again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use clap::ValueEnum;

/// How often an answer is lost or late.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// What the choice of requests depends on.
    pub seed: u64,
    /// Share of requests, 0 to 1, whose connection is reset instead of answered.
    pub drop_replies: f64,
    /// Share of requests, 0 to 1, that are answered late.
    pub stall: f64,
    /// How late.
    pub stall_for: Duration,
}

/// A safety that is taken away, so that a test can see what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sabotage {
    /// Keys and event identities are not looked at: every request is executed.
    NoKeys,
    /// The key is stored with fence and attempt in it, so that each attempt is another request.
    NoFence,
}

/// What happens to one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Drop,
    Stall(Duration),
}

impl Faults {
    /// The fault of a request: the same for the same seed, identity and turn. A repeat has another turn, so that no
    /// request is lost for ever.
    pub(crate) fn strike(&self, identity: &str, turn: i64) -> Fault {
        let mut hasher = DefaultHasher::new();
        (self.seed, identity, turn).hash(&mut hasher);
        let mut chance = fastrand::Rng::with_seed(hasher.finish());
        if chance.f64() < self.drop_replies {
            Fault::Drop
        } else if chance.f64() < self.stall {
            Fault::Stall(self.stall_for)
        } else {
            Fault::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Fault, Faults};
    use std::time::Duration;

    fn strikes(faults: &Faults) -> Vec<Fault> {
        (0..10_000).map(|turn| faults.strike("g/q/PRICING/0", turn)).collect()
    }

    #[test]
    fn a_seed_repeats_its_faults_and_another_has_others() {
        let faults = Faults { seed: 7, drop_replies: 0.1, stall: 0.1, stall_for: Duration::from_millis(5) };
        assert_eq!(strikes(&faults), strikes(&faults.clone()));
        assert_ne!(strikes(&faults), strikes(&Faults { seed: 8, ..faults }));
    }

    #[test]
    fn shares_are_kept() {
        let stall_for = Duration::from_millis(5);
        let counts = |drop_replies, stall| {
            let all = strikes(&Faults { seed: 1, drop_replies, stall, stall_for });
            let of = |fault| all.iter().filter(|one| **one == fault).count();
            (of(Fault::Drop), of(Fault::Stall(stall_for)))
        };
        assert_eq!(counts(0.0, 0.0), (0, 0));
        assert_eq!(counts(1.0, 1.0), (10_000, 0));
        assert_eq!(counts(0.0, 1.0), (0, 10_000));
        let (dropped, stalled) = counts(0.1, 0.5);
        assert!((800..1200).contains(&dropped) && (4_000..5_000).contains(&stalled), "{dropped} {stalled}");
    }
}
