//! The outcomes that wait for a checkpoint, oldest first: those whose claim is still known apart from the others.
//!
//! The table writes the former in a statement of their own. Were both in one call, an outcome that the database refuses would
//! have others in doubt that are written already.

use postrider_core::work::WorkKey;
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct Settling {
    known: VecDeque<WorkKey>,
    others: VecDeque<WorkKey>,
    /// Whose turn it is, where both wait.
    others_next: bool,
}

impl Settling {
    pub(super) fn push(&mut self, key: WorkKey, knows_claim: bool) {
        let queue = if knows_claim { &mut self.known } else { &mut self.others };
        queue.push_back(key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.others.is_empty()
    }

    /// How many the next statement could name, were it as long as it liked.
    pub(super) fn waiting(&self) -> usize {
        self.known.len().max(self.others.len())
    }

    /// Those that the next statement names.
    pub(super) fn take(&mut self, rows_max: usize) -> Vec<WorkKey> {
        let others = self.known.is_empty() || (self.others_next && !self.others.is_empty());
        self.others_next = !others;
        let queue = if others { &mut self.others } else { &mut self.known };
        let rows = queue.len().min(rows_max);
        queue.drain(..rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_outcomes_of_one_kind_and_the_kinds_take_turns() {
        let key = |number: usize| WorkKey::new(["g".to_owned(), number.to_string()]);
        let mut settling = Settling::default();
        (0..5).for_each(|number| settling.push(key(number), number % 2 == 0));
        assert_eq!(settling.waiting(), 3);
        assert_eq!(settling.take(2), [key(0), key(2)]);
        assert_eq!(settling.take(2), [key(1), key(3)]);
        assert_eq!((settling.take(2), settling.is_empty()), (vec![key(4)], true));
        assert_eq!(settling.take(2), []);
    }
}
