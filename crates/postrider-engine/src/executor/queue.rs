//! The due rows of one stage, and whose turn it is: the groups take turns, and within a group the row that was due first has the first.

use postrider_core::stage::Step;
use postrider_core::work::WorkKey;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Bound;

/// Rows with the same text in one part of their keys, by the hash of that text; without such a part, all rows. Should two texts ever have
/// one hash, their rows share a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Group(u64);

/// A row's place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Seat {
    group: Group,
    number: u64,
}

/// The due rows of one stage.
///
/// They stand in the order of their groups, and the turn goes round in that order. So between two turns of one group each other
/// group has at most one, and a group costs no memory beside its rows.
#[derive(Debug)]
pub(super) struct Queue {
    step: Step,
    part: Option<usize>,
    seats: BTreeMap<Seat, WorkKey>,
    turn: Turn,
    lanes: Option<Lanes>,
}

/// Whose turn it is, and how many rows it has had.
#[derive(Debug, Default)]
struct Turn {
    group: Group,
    rows: usize,
}

/// The groups of a stage that runs one row of each at a time.
#[derive(Debug, Default)]
struct Lanes {
    /// With a row that is due, and none that runs.
    free: BTreeSet<Group>,
    busy: BTreeSet<Group>,
}

impl Queue {
    /// `part`: which part of a key names the row's group.
    pub(super) fn new(step: Step, part: Option<usize>, serial: bool) -> Queue {
        let lanes = serial.then(Lanes::default);
        Queue { step, part, seats: BTreeMap::new(), turn: Turn::default(), lanes }
    }

    /// One name for all its rows.
    pub(super) fn step(&self) -> &Step {
        &self.step
    }

    /// Numbers rise: the lowest of a group is its next.
    pub(super) fn push(&mut self, key: &WorkKey, number: u64) {
        let group = self.group(key);
        if let Some(lanes) = &mut self.lanes
            && !lanes.busy.contains(&group)
        {
            lanes.free.insert(group);
        }
        self.seats.insert(Seat { group, number }, key.clone());
    }

    pub(super) fn remove(&mut self, key: &WorkKey, number: u64) {
        self.leave_seat(Seat { group: self.group(key), number });
    }

    /// The next row, if one may run. A group has up to `turn_rows` rows in its turn while others wait, and one where it is a lane.
    pub(super) fn pop(&mut self, turn_rows: usize) -> Option<WorkKey> {
        let seat = match &self.lanes {
            Some(lanes) => self.first_of(after(&lanes.free, self.turn.group)?)?,
            None => self.rest_of_turn(turn_rows).or_else(|| self.first_after(self.turn.group))?,
        };
        self.turn.rows = if seat.group == self.turn.group { self.turn.rows.saturating_add(1) } else { 1 };
        self.turn.group = seat.group;
        self.leave_seat(seat)
    }

    /// Whether there is a row that may run.
    pub(super) fn has_next(&self) -> bool {
        self.len() > 0
    }

    /// How many rows may run, one of each lane.
    pub(super) fn len(&self) -> usize {
        self.lanes.as_ref().map_or(self.seats.len(), |lanes| lanes.free.len())
    }

    /// Whether nothing of the row's group stands in its way.
    pub(super) fn may_run(&self, key: &WorkKey) -> bool {
        self.lanes.as_ref().is_none_or(|lanes| !lanes.busy.contains(&self.group(key)))
    }

    /// The row runs.
    pub(super) fn begin(&mut self, key: &WorkKey) {
        if self.lanes.is_none() {
            return;
        }
        let group = self.group(key);
        if let Some(lanes) = &mut self.lanes {
            lanes.free.remove(&group);
            let is_first = lanes.busy.insert(group);
            debug_assert!(is_first, "a serial lane has one row at a time");
        }
    }

    /// The row runs no more.
    pub(super) fn end(&mut self, key: &WorkKey) {
        if self.lanes.is_none() {
            return;
        }
        let group = self.group(key);
        let waits = self.first_of(group).is_some();
        if let Some(lanes) = &mut self.lanes {
            lanes.busy.remove(&group);
            if waits {
                lanes.free.insert(group);
            }
        }
    }

    fn leave_seat(&mut self, seat: Seat) -> Option<WorkKey> {
        let row = self.seats.remove(&seat);
        let is_last = self.lanes.is_some() && self.first_of(seat.group).is_none();
        if let Some(lanes) = &mut self.lanes
            && is_last
        {
            lanes.free.remove(&seat.group);
        }
        row
    }

    fn rest_of_turn(&self, turn_rows: usize) -> Option<Seat> {
        if self.turn.rows < turn_rows { self.first_of(self.turn.group) } else { None }
    }

    fn first_of(&self, group: Group) -> Option<Seat> {
        let seats = Seat { group, number: 0 }..=Seat { group, number: u64::MAX };
        self.seats.range(seats).next().map(|(seat, _)| *seat)
    }

    /// The first row of the next group of the circle.
    fn first_after(&self, group: Group) -> Option<Seat> {
        let passed = Seat { group, number: u64::MAX };
        let mut rest = self.seats.range((Bound::Excluded(passed), Bound::Unbounded));
        rest.next().or_else(|| self.seats.first_key_value()).map(|(seat, _)| *seat)
    }

    /// As it was in each earlier run: the simulation repeats itself by its seed.
    fn group(&self, key: &WorkKey) -> Group {
        let Some(part) = self.part else { return Group::default() };
        let mut hasher = DefaultHasher::new();
        key.parts().nth(part).hash(&mut hasher);
        Group(hasher.finish())
    }
}

/// The next of a circle.
fn after(circle: &BTreeSet<Group>, passed: Group) -> Option<Group> {
    let mut rest = circle.range((Bound::Excluded(passed), Bound::Unbounded));
    rest.next().or_else(|| circle.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(serial: bool, rows: &[&str]) -> Queue {
        let mut queue = Queue::new(Step::new("quote@1", "A"), Some(0), serial);
        for (number, row) in rows.iter().enumerate() {
            queue.push(&key(row), u64::try_from(number).expect("a number"));
        }
        queue
    }

    /// The letter is the group.
    fn key(row: &str) -> WorkKey {
        WorkKey::new([&row[..1], row])
    }

    fn pop(queue: &mut Queue) -> Option<String> {
        pop_turn(queue, 1)
    }

    fn pop_turn(queue: &mut Queue, turn_rows: usize) -> Option<String> {
        queue.pop(turn_rows).map(|key| key.parts().nth(1).unwrap_or_default().to_owned())
    }

    fn drain(queue: &mut Queue) -> Vec<String> {
        std::iter::from_fn(|| pop(queue)).collect()
    }

    /// The groups in the order of their turns.
    fn turns(rows: &[String]) -> Vec<&str> {
        let mut turns: Vec<&str> = rows.iter().map(|row| &row[..1]).collect();
        turns.dedup();
        turns
    }

    fn of<'a>(group: &str, rows: &'a [String]) -> Vec<&'a str> {
        rows.iter().map(String::as_str).filter(|row| row.starts_with(group)).collect()
    }

    #[test]
    fn groups_take_turns_and_within_one_the_first_is_first() {
        let mut queue = queue(false, &["b3", "b1", "b2", "a2", "a1", "c1", "c4"]);
        let rows = drain(&mut queue);
        let round: BTreeSet<&str> = turns(&rows)[..3].iter().copied().collect();
        assert_eq!(round.len(), 3, "each has its turn before any has another: {rows:?}");
        assert_eq!((of("a", &rows), of("b", &rows)), (vec!["a2", "a1"], vec!["b3", "b1", "b2"]));
        assert!(!queue.has_next());
    }

    #[test]
    fn a_turn_may_be_of_several_rows_and_ends_where_the_group_has_no_more() {
        let mut queue = queue(false, &["a1", "a2", "a3", "a4", "b1", "b2", "b3", "c1"]);
        let rows: Vec<String> = std::iter::from_fn(|| pop_turn(&mut queue, 2)).collect();
        let (turns, round) = (turns(&rows), rows[..5].iter().map(|row| &row[..1]));
        assert_eq!(turns[..3].iter().collect::<BTreeSet<_>>().len(), 3, "{rows:?}");
        assert_eq!(round.filter(|group| *group == "a").count(), 2, "{rows:?}");
        assert_eq!((of("a", &rows), of("b", &rows)), (vec!["a1", "a2", "a3", "a4"], vec!["b1", "b2", "b3"]));
    }

    #[test]
    fn without_groups_the_first_is_first() {
        let mut queue = Queue::new(Step::new("quote@1", "A"), None, false);
        ["b1", "a1", "b2"].iter().zip(0..).for_each(|(row, number)| queue.push(&key(row), number));
        assert_eq!(drain(&mut queue), ["b1", "a1", "b2"]);
    }

    #[test]
    fn whoever_comes_waits_behind_one_row_of_each_other_group() {
        for newcomer in ["a1", "c1", "e1"] {
            let mut queue = queue(false, &["b1", "b2", "b3", "d1", "d2", "d3"]);
            pop(&mut queue);
            queue.push(&key(newcomer), 9);
            let before = drain(&mut queue).iter().position(|row| row == newcomer).expect("it has its turn");
            assert!(before <= 2, "{newcomer} waits behind {before}");
        }
    }

    #[test]
    fn what_left_the_queue_has_no_turn() {
        let mut queue = queue(false, &["a1", "a2", "b1"]);
        queue.remove(&key("a1"), 0);
        queue.push(&key("a1"), 7);
        assert_eq!(of("a", &drain(&mut queue)), ["a2", "a1"]);
    }

    #[test]
    fn a_serial_lane_gives_its_next_row_when_the_last_has_ended_and_blocks_nobody_else() {
        let mut queue = queue(true, &["a1", "a2", "a3", "b1"]);
        let mut first = [pop(&mut queue), pop(&mut queue)].map(|row| row.expect("two lanes are free"));
        first.sort();
        assert_eq!(first, ["a1", "b1"]);
        first.iter().for_each(|row| queue.begin(&key(row)));
        queue.push(&key("b2"), 8);
        assert!(!queue.has_next() && pop(&mut queue).is_none());
        assert!(!queue.may_run(&key("a9")) && queue.may_run(&key("c9")));
        queue.end(&key("b1"));
        assert_eq!(drain(&mut queue), ["b2"]);
        queue.remove(&key("a2"), 1);
        queue.end(&key("a1"));
        assert_eq!(pop(&mut queue).as_deref(), Some("a3"));
        queue.begin(&key("a3"));
        queue.end(&key("a3"));
        assert!(!queue.has_next(), "a lane that nobody waits in is not free, it is gone");
    }
}
