//! Who has the first turn of a run. What came before leaves the caches and the disk in some state: it must not be the same side's loss each time.

/// The two sides of most benches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Other,
}

pub(crate) const SIDES: [Side; 2] = [Side::Ours, Side::Other];

/// The sides in the order of this run, from 1: as they are given, in every other run from the last to the first.
pub(crate) fn order<S>(sides: impl Into<Vec<S>>, run: usize) -> Vec<S> {
    let mut sides = sides.into();
    if run.is_multiple_of(2) {
        sides.reverse();
    }
    sides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_run_begins_with_the_last_side() {
        assert_eq!(order(SIDES, 1), [Side::Ours, Side::Other]);
        assert_eq!(order(SIDES, 2), [Side::Other, Side::Ours]);
        assert_eq!(order(SIDES, 3), order(SIDES, 1));
        assert_eq!(order(["a", "b", "c"], 4), ["c", "b", "a"]);
    }
}
