//! Which executors work on one table, and which of them begins with a row.
//!
//! This decides only who tries first: the fence decides who works on the row. Views that differ for a while cost a claim that fails, or a
//! row that waits until they agree.

use crate::work::{OwnerId, WorkKey};
use std::collections::BTreeSet;

/// What an executor says of itself through the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    pub owner: OwnerId,
    /// It claims nothing more: its rows are the others'.
    pub leaving: bool,
}

/// The executors of one table, as one of them sees it.
#[derive(Debug, Clone)]
pub struct Members {
    me: OwnerId,
    others: BTreeSet<OwnerId>,
    /// Rows with the same text in this part of their keys are one executor's; `None`: each row for itself.
    kept_together: Option<usize>,
}

impl Presence {
    /// The content of its logical message; [`crate::shape::presence`] reads it.
    pub fn content(self) -> String {
        let op = if self.leaving { "leaving" } else { "here" };
        format!(r#"{{"op": "{op}", "owner": "{}"}}"#, self.owner)
    }
}

impl Members {
    /// `me` alone.
    pub fn new(me: OwnerId, kept_together: Option<usize>) -> Members {
        Members { me, others: BTreeSet::new(), kept_together }
    }

    pub fn others(&self) -> &BTreeSet<OwnerId> {
        &self.others
    }

    /// Says whether it is new. Ourselves we know.
    pub fn join(&mut self, owner: OwnerId) -> bool {
        owner != self.me && self.others.insert(owner)
    }

    /// Says whether it was there.
    pub fn leave(&mut self, owner: OwnerId) -> bool {
        self.others.remove(&owner)
    }

    /// Whether we begin with the row: of all members we weigh most for it (rendezvous hashing). Where a member comes or goes, only the
    /// rows that it gets or had change hands.
    pub fn is_mine(&self, key: &WorkKey) -> bool {
        if self.others.is_empty() {
            return true;
        }
        let hash = self.hash(key);
        let weight = |owner: OwnerId| (mixed(hash ^ mixed(owner.0)), owner);
        let mine = weight(self.me);
        self.others.iter().all(|other| weight(*other) < mine)
    }

    fn hash(&self, key: &WorkKey) -> u64 {
        match self.kept_together {
            Some(part) => fnv(key.parts().nth(part).unwrap_or_default().bytes()),
            None => fnv(key.parts().flat_map(|part| part.bytes().chain([0]))),
        }
    }
}

/// FNV-1a: every process must come to the same number, whatever it was built with.
fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}

/// The finalizer of splitmix64: each bit of the input changes half of the output's.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNERS: [OwnerId; 3] = [OwnerId(1), OwnerId(2), OwnerId(0xFFFF_0000_1234_5678)];

    /// The view of each of the owners, who all know each other.
    fn views(owners: &[OwnerId], kept_together: Option<usize>) -> Vec<Members> {
        let view = |me: &OwnerId| {
            let mut members = Members::new(*me, kept_together);
            for owner in owners {
                members.join(*owner);
            }
            members
        };
        owners.iter().map(view).collect()
    }

    /// Whose the row is, by its place among the views.
    fn whose(views: &[Members], key: &WorkKey) -> Vec<usize> {
        (0..views.len()).filter(|place| views[*place].is_mine(key)).collect()
    }

    fn keys() -> impl Iterator<Item = WorkKey> {
        (0..9_000).map(|number| WorkKey::new([format!("g{}", number % 7), format!("q{number}")]))
    }

    #[test]
    fn each_row_is_exactly_one_members_and_each_has_its_share() {
        let views = views(&OWNERS, None);
        let mut shares = [0; 3];
        for key in keys() {
            let owners = whose(&views, &key);
            assert_eq!(owners.len(), 1, "{key:?} is {owners:?}'s");
            shares[owners[0]] += 1;
        }
        assert!(shares.iter().all(|share| (2_800..3_200).contains(share)), "{shares:?}");
    }

    #[test]
    fn a_member_that_goes_gives_its_rows_and_no_others() {
        let (three, two) = (views(&OWNERS, None), views(&OWNERS[..2], None));
        for key in keys() {
            let (before, after) = (whose(&three, &key), whose(&two, &key));
            assert!(before == after || before == [2], "{key:?} went from {before:?} to {after:?}");
        }
    }

    #[test]
    fn a_group_that_is_kept_together_is_one_members() {
        let views = views(&OWNERS, Some(0));
        let mut of_group = std::collections::BTreeMap::new();
        for key in keys() {
            let group = key.parts().next().unwrap_or_default().to_owned();
            let owners = whose(&views, &key);
            assert_eq!(of_group.entry(group).or_insert_with(|| owners.clone()), &owners);
        }
    }

    #[test]
    fn who_is_alone_has_every_row() {
        let mut alone = Members::new(OwnerId(1), None);
        assert!(!alone.join(OwnerId(1)), "we are no other");
        assert!(keys().all(|key| alone.is_mine(&key)));
        assert!(alone.join(OwnerId(2)) && !alone.join(OwnerId(2)));
        assert!(alone.leave(OwnerId(2)) && !alone.leave(OwnerId(2)));
        assert!(keys().all(|key| alone.is_mine(&key)));
    }

    /// Two processes of different builds must agree.
    #[test]
    fn the_hash_is_the_same_for_ever() {
        let members = views(&OWNERS, None);
        let key = WorkKey::new(["east", "Q-1"]);
        assert_eq!(members[0].hash(&key), 0x1FD2_3C61_31DB_D49F);
        assert_eq!(mixed(1), 0x5692_161D_100B_05E5);
    }
}
