//! What: says up to where the slot may be confirmed.
//! Where: after *settle*, before *confirm*: the last step of the walk.
//! Takes and gives: the journal's durable end, each consumer's settled end; the one LSN that is safe to confirm.
//! Never: moves back, or passes what is not durable where the policy wants it.

use crate::position::Lsn;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The progress of everybody who must have a change before the server may forget it.
#[derive(Debug, Default)]
pub struct Frontier {
    durable: Lsn,
    required: BTreeMap<Arc<str>, Lsn>,
    let_go: BTreeSet<Arc<str>>,
    confirmed: Lsn,
}

impl Frontier {
    /// A frontier that waits for these consumers; none has settled anything yet.
    pub fn new(required: impl IntoIterator<Item = Arc<str>>) -> Frontier {
        Frontier { required: required.into_iter().map(|name| (name, Lsn::ZERO)).collect(), ..Frontier::default() }
    }

    /// Everything that ends at or before `end` survives a crash of this machine.
    pub fn durable(&mut self, end: Lsn) {
        self.durable = self.durable.max(end);
    }

    /// The consumer has settled everything that ends at or before `end`. A consumer that is not required counts for nothing.
    pub fn settled(&mut self, consumer: &str, end: Lsn) {
        if let Some(settled) = self.required.get_mut(consumer) {
            assert!(*settled <= end, "a consumer's settled end moved back");
            *settled = end;
        }
    }

    /// Of the required consumers, these are not waited for now: what they lack is on record.
    pub fn let_go(&mut self, consumers: BTreeSet<Arc<str>>) {
        self.let_go = consumers;
    }

    /// What may be confirmed now. `at_journal`: the required consumers are not waited for.
    pub fn confirmable(&mut self, at_journal: bool) -> Lsn {
        let waited_for = self.required.iter().filter(|(consumer, _)| !self.let_go.contains(*consumer));
        let settled = if at_journal { None } else { waited_for.map(|(_, settled)| *settled).min() };
        let safe = settled.map_or(self.durable, |settled| settled.min(self.durable));
        // Below an earlier confirm nothing can be taken back: the guard may have let it pass the consumers.
        self.confirmed = self.confirmed.max(safe);
        assert!(self.confirmed <= self.durable, "confirmed past the durable end of the journal");
        self.confirmed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    #[test]
    fn without_required_consumers_the_journal_decides() {
        let mut frontier = Frontier::new([]);
        frontier.durable(Lsn(10));
        frontier.settled("optional", Lsn(3));
        assert_eq!(frontier.confirmable(false), Lsn(10));
    }

    #[test]
    fn the_slowest_required_consumer_or_the_journal_holds_the_slot() {
        let mut frontier = Frontier::new([name("a"), name("b")]);
        frontier.durable(Lsn(10));
        assert_eq!(frontier.confirmable(false), Lsn::ZERO);
        frontier.settled("a", Lsn(8));
        frontier.settled("b", Lsn(12));
        assert_eq!(frontier.confirmable(false), Lsn(8));
        frontier.settled("a", Lsn(12));
        assert_eq!(frontier.confirmable(false), Lsn(10));
    }

    #[test]
    fn the_guard_passes_the_consumers_and_nothing_moves_back_after_it() {
        let mut frontier = Frontier::new([name("a")]);
        frontier.durable(Lsn(10));
        frontier.settled("a", Lsn(2));
        assert_eq!(frontier.confirmable(true), Lsn(10));
        frontier.settled("a", Lsn(5));
        assert_eq!(frontier.confirmable(false), Lsn(10));
    }

    #[test]
    fn who_is_let_go_is_not_waited_for_and_may_be_again() {
        let mut frontier = Frontier::new([name("a"), name("b")]);
        frontier.durable(Lsn(10));
        frontier.settled("a", Lsn(2));
        frontier.settled("b", Lsn(5));
        frontier.let_go([name("a")].into());
        assert_eq!(frontier.confirmable(false), Lsn(5));
        frontier.let_go([name("a"), name("b")].into());
        assert_eq!(frontier.confirmable(false), Lsn(10));
        frontier.let_go(BTreeSet::new());
        frontier.durable(Lsn(20));
        assert_eq!(frontier.confirmable(false), Lsn(10));
        frontier.settled("a", Lsn(15));
        frontier.settled("b", Lsn(15));
        assert_eq!(frontier.confirmable(false), Lsn(15));
    }

    #[test]
    #[should_panic(expected = "moved back")]
    fn a_consumer_that_moves_back_is_a_defect() {
        let mut frontier = Frontier::new([name("a")]);
        frontier.settled("a", Lsn(5));
        frontier.settled("a", Lsn(4));
    }
}
