//! Which executors work on one table, and which of them begins with a row.
//!
//! This decides only who tries first: the fence decides who works on the row. Views that differ for a while cost a claim that fails, or a
//! row that waits until they agree.

use crate::work::{DefinitionName, OwnerId, WorkKey};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What an executor says of itself through the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    pub owner: OwnerId,
    /// It claims nothing more: its rows are the others'.
    pub leaving: bool,
    /// The definitions that its configuration has.
    pub definitions: BTreeSet<DefinitionName>,
    pub together: Together,
}

/// Which rows are one executor's. Those that share the rows must agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Together {
    /// Each row by itself.
    No,
    /// Those with the same text in this part of their keys, for a stage that takes them one at a time.
    Part(u32),
    /// All: without groups such a stage has one lane.
    All,
}

/// The executors of one table, as one of them sees it.
#[derive(Debug, Clone)]
pub struct Members {
    me: OwnerId,
    definitions: BTreeSet<DefinitionName>,
    /// With the definitions that each has.
    others: BTreeMap<OwnerId, BTreeSet<DefinitionName>>,
    together: Together,
}

impl Presence {
    /// The content of its logical message; [`crate::shape::presence`] reads it.
    pub fn content(&self) -> String {
        let op = if self.leaving { "leaving" } else { "here" };
        let definitions: Vec<&str> = self.definitions.iter().map(DefinitionName::as_str).collect();
        let together = match self.together {
            Together::No => Value::Null,
            Together::Part(part) => part.into(),
            Together::All => "all".into(),
        };
        let owner = self.owner.to_string();
        json!({ "op": op, "owner": owner, "definitions": definitions, "together": together }).to_string()
    }
}

impl Members {
    /// `me` alone, with its definitions.
    pub fn new(me: Presence) -> Members {
        let Presence { owner, definitions, together, leaving: _ } = me;
        Members { me: owner, definitions, others: BTreeMap::new(), together }
    }

    pub fn together(&self) -> Together {
        self.together
    }

    pub fn others(&self) -> impl ExactSizeIterator<Item = OwnerId> {
        self.others.keys().copied()
    }

    /// Says whether it is new. Ourselves we know.
    pub fn join(&mut self, owner: OwnerId, definitions: BTreeSet<DefinitionName>) -> bool {
        owner != self.me && self.others.insert(owner, definitions).is_none()
    }

    /// Says whether it was there.
    pub fn leave(&mut self, owner: OwnerId) -> bool {
        self.others.remove(&owner).is_some()
    }

    /// Whether we begin with the row: of all members that have its definition we weigh most for it (rendezvous hashing). Where a member comes or
    /// goes, only the rows that it gets or had change hands. A row without a definition is anybody's, and so is one whose definition nobody has.
    pub fn is_mine(&self, key: &WorkKey, definition: Option<&DefinitionName>) -> bool {
        if self.others.is_empty() {
            return true;
        }
        let has = |definitions: &BTreeSet<DefinitionName>| definition.is_none_or(|name| definitions.contains(name));
        let i_have = has(&self.definitions);
        let anybody = !i_have && !self.others.values().any(has);
        if !i_have && !anybody {
            return false;
        }
        let hash = self.hash(key);
        let weight = |owner: OwnerId| (mixed(hash ^ mixed(owner.0)), owner);
        let mine = weight(self.me);
        let mut rivals = self.others.iter().filter(|(_, definitions)| anybody || has(definitions));
        rivals.all(|(other, _)| weight(*other) < mine)
    }

    fn hash(&self, key: &WorkKey) -> u64 {
        let part = |number| usize::try_from(number).ok().and_then(|number| key.parts().nth(number)).unwrap_or_default();
        match self.together {
            Together::No => fnv(key.parts().flat_map(|part| part.bytes().chain([0]))),
            Together::Part(number) => fnv(part(number).bytes()),
            Together::All => 0,
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
    fn views(owners: &[OwnerId], together: Together) -> Vec<Members> {
        let view = |me: &OwnerId| {
            let mut members = alone(*me, known(*me), together);
            for owner in owners {
                members.join(*owner, known(*owner));
            }
            members
        };
        owners.iter().map(view).collect()
    }

    fn alone(owner: OwnerId, definitions: BTreeSet<DefinitionName>, together: Together) -> Members {
        Members::new(Presence { owner, leaving: false, definitions, together })
    }

    /// The last of the owners has one definition more.
    fn known(owner: OwnerId) -> BTreeSet<DefinitionName> {
        let names = if owner == OWNERS[2] { &["quote@1", "quote@2"][..] } else { &["quote@1"] };
        names.iter().map(|name| DefinitionName::new(name)).collect()
    }

    /// Whose the row is, by its place among the views.
    fn whose(views: &[Members], key: &WorkKey) -> Vec<usize> {
        (0..views.len()).filter(|place| views[*place].is_mine(key, None)).collect()
    }

    fn keys() -> impl Iterator<Item = WorkKey> {
        (0..9_000).map(|number| WorkKey::new([format!("g{}", number % 7), format!("q{number}")]))
    }

    #[test]
    fn each_row_is_exactly_one_members_and_each_has_its_share() {
        let views = views(&OWNERS, Together::No);
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
        let (three, two) = (views(&OWNERS, Together::No), views(&OWNERS[..2], Together::No));
        for key in keys() {
            let (before, after) = (whose(&three, &key), whose(&two, &key));
            assert!(before == after || before == [2], "{key:?} went from {before:?} to {after:?}");
        }
    }

    #[test]
    fn a_row_is_one_members_that_has_its_definition_if_any_has() {
        let views = views(&OWNERS, Together::No);
        for key in keys().take(300) {
            let whose = |name| {
                let definition = DefinitionName::new(name);
                (0..3).filter(|place| views[*place].is_mine(&key, Some(&definition))).collect::<Vec<_>>()
            };
            assert_eq!(whose("quote@2"), [2]);
            assert_eq!(whose("quote@1"), self::whose(&views, &key));
            assert_eq!(whose("quote@3"), self::whose(&views, &key), "somebody has to park it");
        }
    }

    #[test]
    fn a_group_that_is_kept_together_is_one_members() {
        let all = views(&OWNERS, Together::All);
        let whose_first = whose(&all, &WorkKey::new(["a", "b"]));
        assert!(whose_first.len() == 1 && keys().all(|key| whose(&all, &key) == whose_first));
        let views = views(&OWNERS, Together::Part(0));
        let mut of_group = BTreeMap::new();
        for key in keys() {
            let group = key.parts().next().unwrap_or_default().to_owned();
            let owners = whose(&views, &key);
            assert_eq!(of_group.entry(group).or_insert_with(|| owners.clone()), &owners);
        }
    }

    #[test]
    fn who_is_alone_has_every_row() {
        let mut alone = alone(OwnerId(1), BTreeSet::new(), Together::No);
        let mut join = |owner| alone.join(owner, BTreeSet::new());
        assert!(!join(OwnerId(1)), "we are no other");
        assert!(join(OwnerId(2)) && !join(OwnerId(2)));
        assert!(alone.leave(OwnerId(2)) && !alone.leave(OwnerId(2)));
        let gone = DefinitionName::new("quote@9");
        assert!(keys().all(|key| alone.is_mine(&key, None) && alone.is_mine(&key, Some(&gone))));
    }

    /// Two processes of different builds must agree.
    #[test]
    fn the_hash_is_the_same_for_ever() {
        let members = views(&OWNERS, Together::No);
        let key = WorkKey::new(["east", "Q-1"]);
        assert_eq!(members[0].hash(&key), 0x1FD2_3C61_31DB_D49F);
        assert_eq!(mixed(1), 0x5692_161D_100B_05E5);
    }
}
