//! How many open rows wait for a person, for who asks how things are: as the last read of all open rows had them, and those that
//! this process has left so since that read began. Nothing is decided by it.
//!
//! What is written in the moment in which a read begins can be counted twice, until the next; what a person let go on is counted until then.

use super::state::State;
use crate::telemetry::RowsWaiting;
use postrider_core::ports::Transition;
use postrider_core::work::{StageState, WorkVersion};

#[derive(Debug, Default)]
pub(crate) struct WaitingCount {
    /// `None`: not all open rows have been read yet.
    known: Option<RowsWaiting>,
    /// What the read under way has seen so far.
    read: RowsWaiting,
    /// Left so by us since it began.
    left: RowsWaiting,
}

impl WaitingCount {
    /// All open rows begin to be read. A read before it may have ended in the middle.
    pub(super) fn read_begins(&mut self) {
        (self.read, self.left) = (RowsWaiting::default(), RowsWaiting::default());
    }

    /// A page of them.
    pub(super) fn count(&mut self, page: &[WorkVersion]) {
        for version in page {
            add(&mut self.read, version.state);
        }
    }
}

impl State {
    /// All open rows were read.
    pub(super) fn waiting_read(&mut self) {
        let WaitingCount { known, read, left } = &mut self.waiting;
        let rows = RowsWaiting {
            non_resumable: read.non_resumable.saturating_add(left.non_resumable),
            unknown: read.unknown.saturating_add(left.unknown),
        };
        *known = Some(rows);
        self.telemetry.note_waiting(rows);
    }

    /// We have left a row in this state.
    pub(super) fn note_waiting(&mut self, state: StageState) {
        add(&mut self.waiting.left, state);
        if let Some(known) = &mut self.waiting.known {
            add(known, state);
            self.telemetry.note_waiting(*known);
        }
    }

    /// An outcome of ours stands in its row.
    pub(super) fn note_ending(&mut self, transition: &Transition) {
        match transition {
            Transition::Park { .. } => self.note_waiting(StageState::NonResumable),
            Transition::Unknown { .. } => self.note_waiting(StageState::Unknown),
            Transition::Advance { .. }
            | Transition::Chain { .. }
            | Transition::Finish
            | Transition::Retry { .. }
            | Transition::Defer { .. }
            | Transition::Release => {}
        }
    }
}

fn add(rows: &mut RowsWaiting, state: StageState) {
    let count = match state {
        StageState::NonResumable => &mut rows.non_resumable,
        StageState::Unknown => &mut rows.unknown,
        _ => return,
    };
    *count = count.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::play::{Play, stage};
    use crate::executor::timetable::Sweep;
    use postrider_core::ports::ClaimReply;
    use postrider_core::snapshot::Snapshot;
    use postrider_core::work::WorkKey;
    use std::collections::BTreeMap;

    fn page(states: &[StageState]) -> Vec<WorkVersion> {
        let row = |(number, state): (usize, &StageState)| WorkVersion {
            state: *state,
            ..WorkVersion::unclaimed(WorkKey::new(["read".to_owned(), number.to_string()]), "FIRST")
        };
        states.iter().enumerate().map(row).collect()
    }

    /// NON_RESUMABLE and UNKNOWN, as the status has them.
    fn shown(play: &Play) -> Option<(u64, u64)> {
        play.state.telemetry.status().rows_waiting.map(|rows| (rows.non_resumable, rows.unknown))
    }

    fn load(play: &mut Play, pages: &[&[StageState]]) {
        play.state.read_begins(None);
        pages.iter().for_each(|states| play.state.observe_page(page(states)));
        play.state.open_rows_read(&Snapshot::parse("100:100:").expect("a snapshot"));
    }

    #[test]
    fn rows_that_wait_for_a_person_are_counted_once_all_open_rows_were_read() {
        let mut play = Play::new(vec![stage("FIRST", "http://core", None)], BTreeMap::new());
        play.state.read_begins(None);
        play.state.observe_page(page(&[StageState::Unknown, StageState::Unknown]));
        assert_eq!(shown(&play), None, "a read that failed in the middle says nothing");
        load(&mut play, &[&[StageState::NonResumable, StageState::Unknown], &[StageState::NonResumable]]);
        assert_eq!(shown(&play), Some((2, 1)));
        play.state.read_begins(Some(Sweep::Slow));
        play.state.suspect(&page(&[StageState::Unknown]));
        assert_eq!(shown(&play), Some((2, 1)));
        play.state.sweep_ended();
        assert_eq!(shown(&play), Some((0, 1)), "two were let go on");
    }

    /// A receiver that refuses: each row is parked by its first call.
    #[test]
    fn what_this_process_parks_is_counted_at_once_and_once() {
        let mut play = Play::new(vec![stage("FIRST", "http://core", None)], BTreeMap::new());
        play.status = 422;
        load(&mut play, &[&[StageState::Unknown]]);
        play.submit("FIRST", 3);
        play.run();
        assert_eq!(shown(&play), Some((3, 1)));
        load(&mut play, &[&[StageState::NonResumable; 3], &[StageState::Unknown]]);
        assert_eq!(shown(&play), Some((3, 1)), "the read has seen them");
    }

    /// The read's snapshot is of before.
    #[test]
    fn what_is_parked_while_the_rows_are_read_is_not_lost() {
        let mut play = Play::new(vec![stage("FIRST", "http://core", None)], BTreeMap::new());
        play.status = 422;
        play.state.read_begins(None);
        play.submit("FIRST", 2);
        play.run();
        assert_eq!(shown(&play), None);
        play.state.open_rows_read(&Snapshot::parse("100:100:").expect("a snapshot"));
        assert_eq!(shown(&play), Some((2, 0)));
    }

    #[test]
    fn a_claim_that_finds_no_attempt_left_and_one_that_parks_its_row_count_too() {
        let mut play = Play::new(vec![stage("FIRST", "http://core", None)], BTreeMap::new());
        load(&mut play, &[]);
        play.submit("FIRST", 2);
        let (requests, _) = play.state.next_claims();
        let [first, second] = [0, 1].map(|row| WorkKey::new(["FIRST".to_owned(), row.to_string()]));
        let replies = vec![ClaimReply::AtLimit { key: first, fence: 1 }, ClaimReply::Parked { key: second, fence: 1 }];
        play.state.claims_replied(&requests, replies);
        assert_eq!(shown(&play), Some((1, 1)));
    }
}
