//! What to do about a journal that has no room: the last rungs of the guard ladder, behind `wal_guard`.
//!
//! What has to go by its retention goes once nobody needs it. An optional sink that needs it is cut loose; a required one keeps it, and
//! then either nothing more is taken in, or the sink is cut loose, too. Whoever is cut loose is told of beforehand, and what he
//! does not get is on record before it goes.

use crate::settings::WhenFull;
use postrider_core::ports::Room;
use postrider_core::position::Position;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// A sink that reads the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) name: Arc<str>,
    pub(crate) required: bool,
    /// Everything at or before is settled, durably; of one that has nothing yet, what it begins behind.
    pub(crate) position: Position,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ruling {
    /// Nobody is kept from anything at or before.
    pub(crate) release: Position,
    /// What is put on record before that: who gets nothing between two positions.
    pub(crate) cut: Vec<(Arc<str>, Position, Position)>,
    /// The slot waits for these no longer.
    pub(crate) let_go: BTreeSet<Arc<str>>,
    /// Nothing more is taken in.
    pub(crate) blocked: bool,
    pub(crate) warnings: Vec<Warning>,
}

/// Something that a person should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Warning {
    pub(crate) sink: Arc<str>,
    pub(crate) rung: Rung,
}

/// How far it has come with a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rung {
    /// It holds the oldest of a journal that is nearly full, and is cut loose next.
    BeforeCut,
    /// The same, and then nothing more is taken in.
    BeforeBlock,
    /// It is why nothing is taken in.
    Blocks,
    /// It was cut loose.
    Cut,
}

/// Decides. `end` is the last position that everybody has who needs nothing.
pub(crate) fn rule(room: &Room, holders: &[Holder], when_full: WhenFull, end: Position) -> Ruling {
    let mut ruling =
        Ruling { release: end, cut: Vec::new(), let_go: BTreeSet::new(), blocked: false, warnings: Vec::new() };
    for holder in holders {
        ruling.climb(room, holder, when_full);
    }
    ruling
}

impl Ruling {
    fn climb(&mut self, room: &Room, holder: &Holder, when_full: WhenFull) {
        let Holder { name, required, position } = holder;
        let may_block = *required && when_full == WhenFull::Block;
        // Age alone is no reason to take anything from a required sink.
        let goes = if *required { room.over } else { room.expired };
        let is_cut = *position < room.oldest;
        let rung = match goes.filter(|to| position < to) {
            _ if is_cut => {
                self.put_on_record(holder, room.oldest);
                Some(Rung::Cut)
            }
            Some(_) if may_block => {
                self.blocked = true;
                self.hold(*position);
                Some(Rung::Blocks)
            }
            Some(to) => {
                self.put_on_record(holder, to);
                self.hold(to);
                Some(Rung::Cut)
            }
            None => {
                self.hold(*position);
                let next = if may_block { Rung::BeforeBlock } else { Rung::BeforeCut };
                room.near.is_some_and(|near| *position < near).then_some(next)
            }
        };
        self.warnings.extend(rung.map(|rung| Warning { sink: Arc::clone(name), rung }));
    }

    fn put_on_record(&mut self, holder: &Holder, to: Position) {
        self.cut.push((Arc::clone(&holder.name), holder.position, to));
        if holder.required {
            self.let_go.insert(Arc::clone(&holder.name));
        }
    }

    fn hold(&mut self, position: Position) {
        self.release = self.release.min(position);
    }
}

/// One sentence for what it is, one for what it costs, one for what to type.
impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sink = &self.sink;
        match self.rung {
            Rung::BeforeCut => write!(
                f,
                "The journal is nearly full, and the sink {sink} lacks the oldest of it. Once it is full, {sink} is cut loose: what has to go is never sent to it. Bring it back, or raise journal.retention.size and start again."
            ),
            Rung::BeforeBlock => write!(
                f,
                "The journal is nearly full, and the required sink {sink} lacks the oldest of it. Once it is full, nothing more is read, for no stage and no sink, and the server keeps its log. Bring {sink} back, or raise journal.retention.size, or give it up with required = false, and start again; a new one that may do without the past, stop Postrider and type: postrider replay {sink} --from end --skip"
            ),
            Rung::Blocks => write!(
                f,
                "The journal is full, and the required sink {sink} lacks the oldest of it. Nothing is read, for no stage and no sink, and the server keeps its log. Bring {sink} back, or raise journal.retention.size, or give it up with required = false, and start again; a new one that may do without the past, stop Postrider and type: postrider replay {sink} --from end --skip"
            ),
            Rung::Cut => write!(
                f,
                "The sink {sink} was cut loose: the journal no longer holds what it lacks. It gets nothing until it is set to what is held. Rebuild it from the tables, or stop Postrider and type: postrider replay {sink} --from beginning --skip"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use postrider_core::position::{Generation, Lsn};

    fn at(lsn: u64) -> Position {
        Position::whole(Generation::FIRST, Lsn(lsn))
    }

    fn room(oldest: u64, over: Option<u64>, near: Option<u64>) -> Room {
        let over = over.map(at);
        Room { held_bytes: 9, limit_bytes: 10, oldest: at(oldest), expired: over, over, near: near.map(at) }
    }

    fn check(room: Room, holders: &[(bool, Position)], when_full: WhenFull, expected: Expect) {
        let holders: Vec<Holder> = holders
            .iter()
            .zip(["a", "b"])
            .map(|(&(required, position), name)| Holder { name: name.into(), required, position })
            .collect();
        let Ruling { release, cut, let_go, blocked, warnings } = rule(&room, &holders, when_full, at(100));
        let mut told = format!("release {}{}", release.commit_lsn.0, if blocked { ", block" } else { "" });
        for (name, from, to) in cut {
            told += &format!(", cut {name} {}-{}", from.commit_lsn.0, to.commit_lsn.0);
        }
        for name in let_go {
            told += &format!(", let {name} go");
        }
        for Warning { sink, rung } in warnings {
            told += &format!(", {sink} {rung:?}");
        }
        expected.assert_eq(&told);
    }

    const OPTIONAL: bool = false;
    const REQUIRED: bool = true;

    #[test]
    fn with_room_the_slowest_holds_what_it_lacks_and_is_told_of_when_room_gets_scarce() {
        let both = [(REQUIRED, at(50)), (OPTIONAL, at(30))];
        check(room(10, None, None), &both, WhenFull::Block, expect!["release 30"]);
        check(room(10, None, None), &[], WhenFull::Block, expect!["release 100"]);
        check(room(10, None, Some(40)), &both, WhenFull::Block, expect!["release 30, b BeforeCut"]);
        check(room(10, None, Some(60)), &both, WhenFull::Block, expect!["release 30, a BeforeBlock, b BeforeCut"]);
        check(room(10, None, Some(60)), &both, WhenFull::DropOldest, expect!["release 30, a BeforeCut, b BeforeCut"]);
    }

    #[test]
    fn an_optional_sink_is_cut_loose_and_a_required_one_blocks_or_is_cut_loose_as_was_chosen() {
        let both = [(REQUIRED, at(50)), (OPTIONAL, at(30))];
        check(
            room(10, Some(40), Some(60)),
            &both,
            WhenFull::Block,
            expect!["release 40, cut b 30-40, a BeforeBlock, b Cut"],
        );
        let full = room(10, Some(55), Some(60));
        check(full, &both, WhenFull::Block, expect!["release 50, block, cut b 30-55, a Blocks, b Cut"]);
        check(
            full,
            &both,
            WhenFull::DropOldest,
            expect!["release 55, cut a 50-55, cut b 30-55, let a go, a Cut, b Cut"],
        );
    }

    #[test]
    fn who_was_cut_loose_holds_nothing_any_more_and_stays_on_record() {
        let cut = [(REQUIRED, at(50)), (OPTIONAL, at(30))];
        check(
            room(60, None, None),
            &cut,
            WhenFull::Block,
            expect!["release 100, cut a 50-60, cut b 30-60, let a go, a Cut, b Cut"],
        );
        let set_to_what_is_held = [(REQUIRED, at(60)), (OPTIONAL, at(60))];
        check(room(60, None, None), &set_to_what_is_held, WhenFull::Block, expect!["release 60"]);
    }

    #[test]
    fn who_begins_at_the_beginning_holds_all_of_it_and_what_goes_before_is_on_record() {
        let new = [(REQUIRED, Position::START), (OPTIONAL, Position::START)];
        let from_the_beginning = |room: Room| Room { oldest: Position::START, ..room };
        check(from_the_beginning(room(0, None, None)), &new, WhenFull::Block, expect!["release 0"]);
        let full = from_the_beginning(room(0, Some(70), Some(80)));
        check(full, &new[1..], WhenFull::Block, expect!["release 70, cut a 0-70, a Cut"]);
        check(full, &new[..1], WhenFull::Block, expect!["release 0, block, a Blocks"]);
        let gone = room(60, None, None);
        check(gone, &new[1..], WhenFull::Block, expect!["release 100, cut a 0-60, a Cut"]);
    }

    #[test]
    fn age_takes_nothing_from_a_required_sink() {
        let aged = Room { expired: Some(at(60)), ..room(10, None, None) };
        let both = [(REQUIRED, at(50)), (OPTIONAL, at(30))];
        check(aged, &both, WhenFull::DropOldest, expect!["release 50, cut b 30-60, b Cut"]);
        check(aged, &both[..1], WhenFull::Block, expect!["release 50"]);
    }
}
