//! The due rows of one stage, and whose turn it is: the groups take turns, and within a group the row that was due first.

use postrider_core::stage::Step;
use postrider_core::work::{PartSpan, WorkKey};
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Rows with the same text in one part of their keys; without such a part, all rows.
#[derive(Debug, Clone)]
struct Group {
    /// One of its rows.
    row: WorkKey,
    /// Where in the row's key its name stands.
    name: PartSpan,
}

/// A row's place in the queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Seat {
    group: Group,
    number: u64,
}

/// The due rows of one stage.
///
/// They stand in the order of their groups' names, and the turn goes round in that order. So between two rows of one group each other
/// group has at most one, and a group costs no memory beside its rows.
#[derive(Debug)]
pub(super) struct Queue {
    step: Step,
    part: Option<usize>,
    seats: BTreeSet<Seat>,
    /// Whose turn was last.
    served: Option<Group>,
    lanes: Option<Lanes>,
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
        Queue { step, part, seats: BTreeSet::new(), served: None, lanes: serial.then(Lanes::default) }
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
            lanes.free.insert(group.clone());
        }
        self.seats.insert(Seat { group, number });
    }

    pub(super) fn remove(&mut self, key: &WorkKey, number: u64) {
        self.leave_seat(&Seat { group: self.group(key), number });
    }

    /// The next row, if one may run.
    pub(super) fn pop(&mut self) -> Option<WorkKey> {
        let seat = match &self.lanes {
            Some(lanes) => self.first_of(after(&lanes.free, self.served.as_ref())?)?.clone(),
            None => {
                let passed = self.served.clone().map(|group| Seat { group, number: u64::MAX });
                after(&self.seats, passed.as_ref())?.clone()
            }
        };
        self.leave_seat(&seat);
        self.served = Some(seat.group.clone());
        Some(seat.group.row)
    }

    /// Whether there is a row that may run.
    pub(super) fn has_next(&self) -> bool {
        self.lanes.as_ref().map_or(!self.seats.is_empty(), |lanes| !lanes.free.is_empty())
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
        let waits = self.first_of(&group).is_some();
        if let Some(lanes) = &mut self.lanes {
            lanes.busy.remove(&group);
            if waits {
                lanes.free.insert(group);
            }
        }
    }

    fn leave_seat(&mut self, seat: &Seat) {
        self.seats.remove(seat);
        let is_last = self.lanes.is_some() && self.first_of(&seat.group).is_none();
        if let Some(lanes) = &mut self.lanes
            && is_last
        {
            lanes.free.remove(&seat.group);
        }
    }

    fn first_of(&self, group: &Group) -> Option<&Seat> {
        let from = Seat { group: group.clone(), number: 0 };
        self.seats.range(from..).next().filter(|seat| seat.group == *group)
    }

    fn group(&self, key: &WorkKey) -> Group {
        let name = self.part.and_then(|part| key.span(part)).unwrap_or_default();
        Group { row: key.clone(), name }
    }
}

impl Group {
    fn name(&self) -> &str {
        self.row.text(self.name)
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Group) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Group {}

impl PartialOrd for Group {
    fn partial_cmp(&self, other: &Group) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Group {
    fn cmp(&self, other: &Group) -> Ordering {
        self.name().cmp(other.name())
    }
}

/// The next of a circle.
fn after<'a, T: Ord>(circle: &'a BTreeSet<T>, passed: Option<&T>) -> Option<&'a T> {
    let rest = passed.and_then(|passed| circle.range((Bound::Excluded(passed), Bound::Unbounded)).next());
    rest.or_else(|| circle.first())
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
        queue.pop().map(|key| key.parts().nth(1).unwrap_or_default().to_owned())
    }

    fn drain(queue: &mut Queue) -> Vec<String> {
        std::iter::from_fn(|| pop(queue)).collect()
    }

    #[test]
    fn groups_take_turns_and_within_one_the_first_is_first() {
        let mut queue = queue(false, &["b3", "b1", "b2", "a2", "a1", "c1"]);
        assert_eq!(drain(&mut queue), ["a2", "b3", "c1", "a1", "b1", "b2"]);
        assert!(!queue.has_next());
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
        assert_eq!(drain(&mut queue), ["a2", "b1", "a1"]);
    }

    #[test]
    fn a_serial_lane_gives_its_next_row_when_the_last_has_ended_and_blocks_nobody_else() {
        let mut queue = queue(true, &["a1", "a2", "a3", "b1"]);
        for row in ["a1", "b1"] {
            assert_eq!(pop(&mut queue).as_deref(), Some(row));
            queue.begin(&key(row));
        }
        queue.push(&key("b2"), 8);
        assert!(!queue.has_next() && queue.pop().is_none());
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
