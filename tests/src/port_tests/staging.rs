//! The staging area: transactions before their outcome.

use postrider_core::ports::{Prepared, Staged, Staging};
use postrider_core::position::Lsn;

/// A directory that is empty at first, with room for some hundred kilobytes of transactions in progress.
pub trait Fixture {
    /// Opens what is there; the one of before is dropped.
    fn open(&self) -> Box<dyn Staging>;
}

pub fn suite(fixture: &dyn Fixture) {
    let mut staging = fixture.open();
    staging.restart(Lsn::ZERO).unwrap();
    blocks_read_back_until_they_are_cut_or_discarded(&mut *staging);
    what_is_in_progress_goes_with_its_connection(&mut *staging);
    it_is_full_at_its_limit(&mut *staging);
    what_is_prepared_stays(fixture, staging);
    a_verdict_stands_once_the_journal_has_it(fixture);
}

fn blocks_read_back_until_they_are_cut_or_discarded(staging: &mut dyn Staging) {
    staging.append(1, b"one").unwrap();
    let second = staging.append(1, b"two").unwrap();
    staging.append(2, b"other").unwrap();
    staging.append(1, &[7; 70_000]).unwrap();
    assert_eq!(read(staging, Staged::Open(1)), [&b"one"[..], b"two", &[7; 70_000]]);
    staging.cut(1, second).unwrap();
    assert!(staging.append(1, b"three").unwrap() > second);
    assert_eq!(read(staging, Staged::Open(1)), [&b"one"[..], b"two", b"three"]);
    staging.cut(1, 0).unwrap();
    assert!(read(staging, Staged::Open(1)).is_empty());
    staging.append(1, b"four").unwrap();
    assert_eq!(
        (read(staging, Staged::Open(1)), read(staging, Staged::Open(2))),
        (vec![b"four".to_vec()], vec![b"other".to_vec()])
    );
    staging.discard(1).unwrap();
    staging.discard(1).unwrap();
    assert!(read(staging, Staged::Open(1)).is_empty());
    assert_eq!(staging.prepared(2), None);
}

fn what_is_in_progress_goes_with_its_connection(staging: &mut dyn Staging) {
    staging.append(3, b"three").unwrap();
    staging.restart(Lsn::ZERO).unwrap();
    assert!(read(staging, Staged::Open(2)).is_empty() && read(staging, Staged::Open(3)).is_empty());
}

fn it_is_full_at_its_limit(staging: &mut dyn Staging) {
    let mut blocks = 0;
    while !staging.is_full() {
        staging.append(4, &[0; 10_000]).unwrap();
        blocks += 1;
        assert!(blocks < 100, "there is no limit");
    }
    staging.discard(4).unwrap();
    assert!(!staging.is_full(), "what is discarded takes no room");
}

fn what_is_prepared_stays(fixture: &dyn Fixture, mut staging: Box<dyn Staging>) {
    staging.append(5, b"early").unwrap();
    staging.prepare(&prepared(5)).unwrap();
    assert!(read(&mut *staging, Staged::Open(5)).is_empty());
    assert_eq!(read(&mut *staging, Staged::Prepared(5)), [b"early"]);
    // It comes again; until it has come whole, the first one stays.
    staging.append(5, b"la").unwrap();
    staging.restart(Lsn::ZERO).unwrap();
    assert_eq!(read(&mut *staging, Staged::Prepared(5)), [b"early"]);
    staging.append(5, b"late").unwrap();
    staging.prepare(&prepared(5)).unwrap();
    // One without a single message.
    staging.prepare(&prepared(6)).unwrap();
    staging.append(7, b"in progress").unwrap();
    drop(staging);
    let mut staging = fixture.open();
    staging.restart(Lsn::ZERO).unwrap();
    assert_eq!(read(&mut *staging, Staged::Prepared(5)), [b"late"]);
    assert_eq!((staging.prepared(5), staging.prepared(6)), (Some(prepared(5)), Some(prepared(6))));
    assert_eq!(staging.waiting(), [prepared(5), prepared(6)]);
    assert!(read(&mut *staging, Staged::Prepared(6)).is_empty());
    assert!(read(&mut *staging, Staged::Open(7)).is_empty());
    assert_eq!(staging.prepared(7), None);
}

fn a_verdict_stands_once_the_journal_has_it(fixture: &dyn Fixture) {
    let mut staging = fixture.open();
    staging.restart(Lsn::ZERO).unwrap();
    staging.finish(5, Lsn(500)).unwrap();
    staging.finish(6, Lsn(600)).unwrap();
    assert_eq!((staging.prepared(5), staging.prepared(6)), (None, None));
    assert_eq!(read(&mut *staging, Staged::Prepared(5)), [b"late"], "it is still to be copied");
    drop(staging);
    // The journal has the verdict of the one, and has lost that of the other.
    let mut staging = fixture.open();
    staging.restart(Lsn(500)).unwrap();
    assert_eq!((staging.prepared(5), staging.prepared(6)), (None, Some(prepared(6))));
    assert_eq!(staging.waiting(), [prepared(6)]);
    assert!(staging.release(Lsn(499)).unwrap());
    assert!(!staging.release(Lsn(500)).unwrap());
    assert!(read(&mut *staging, Staged::Prepared(5)).is_empty());
    staging.finish(6, Lsn(600)).unwrap();
    assert!(!staging.release(Lsn(600)).unwrap());
    drop(staging);
    let mut staging = fixture.open();
    staging.restart(Lsn(600)).unwrap();
    assert_eq!((staging.prepared(5), staging.prepared(6)), (None, None));
}

fn prepared(xid: u32) -> Prepared {
    Prepared {
        xid,
        gid: format!("gid {xid}"),
        prepare_lsn: Lsn(u64::from(xid) * 10),
        end_lsn: Lsn(u64::from(xid) * 10 + 5),
    }
}

fn read(staging: &mut dyn Staging, staged: Staged) -> Vec<Vec<u8>> {
    let (mut blocks, mut place, mut block) = (Vec::new(), 0, Vec::new());
    while let Some(next) = staging.read(staged, place, &mut block).unwrap() {
        blocks.push(block.clone());
        place = next;
    }
    blocks
}
