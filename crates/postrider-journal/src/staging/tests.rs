//! Random work with crashes at any operation, damage, and names.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use super::*;
use crate::testing::{Chance, FakeDisk};

const BYTES_MAX: u64 = 1 << 20;

/// What the outside knows.
#[derive(Debug, Default)]
struct World {
    /// Prepared with success, and what they hold.
    prepared: BTreeMap<u32, Vec<Vec<u8>>>,
    /// Verdicts that were taken with success, and that the journal did not lose.
    verdicts: BTreeMap<u32, Lsn>,
    /// Where the journal is found after a crash.
    journal_end: Lsn,
    xid: u32,
    lsn: u64,
}

fn life(generation: u32) -> Life {
    Life { system_identifier: 7, generation: Generation(generation), begun: Vec::new() }
}

fn prepared(xid: u32) -> Prepared {
    let at = u64::from(xid) * 1_000;
    Prepared { xid, gid: format!("gid {xid}"), prepare_lsn: Lsn(at), end_lsn: Lsn(at + 8) }
}

fn blocks(staging: &mut dyn Staging, staged: Staged) -> Result<Vec<Vec<u8>>> {
    let (mut blocks, mut place, mut block) = (Vec::new(), 0, Vec::new());
    while let Some(next) = staging.read(staged, place, &mut block)? {
        blocks.push(block.clone());
        place = next;
    }
    Ok(blocks)
}

/// Runs one seed; the text says what was lost or stayed for ever.
fn run(seed: u64, ignored: Option<SyncPoint>) -> Result<(), String> {
    let mut chance = Chance::new(seed);
    let mut world = World::default();
    let mut disk = FakeDisk::new();
    if let Some(point) = ignored {
        disk.ignore(point);
    }
    for round in 0..6 {
        disk.power_off_after(if chance.one_in(3) { 1_000 } else { chance.below(60) });
        match live(&mut world, &disk, &mut chance) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Disk => {}
            Err(error) => return Err(format!("seed {seed}, round {round}: {}", error.report())),
        }
        disk = if chance.one_in(4) { disk.kill() } else { disk.crash(seed.wrapping_add(round)) };
    }
    live(&mut world, &disk, &mut chance).map_err(|error| format!("seed {seed}, at the end: {}", error.report()))
}

/// One life of a process. An error of kind `Internal` is a finding.
fn live(world: &mut World, disk: &FakeDisk, chance: &mut Chance) -> Result<()> {
    let mut staging = open_staging_on(Arc::new(disk.clone()), life(1), BYTES_MAX)?;
    staging.restart(world.journal_end)?;
    world.verdicts.retain(|_, end_lsn| *end_lsn <= world.journal_end);
    check(world, &mut *staging)?;
    staging.release(world.journal_end)?;
    for _ in 0..chance.below(30) {
        step(world, &mut *staging, chance)?;
    }
    Ok(())
}

fn check(world: &World, staging: &mut dyn Staging) -> Result<()> {
    let wrong = |what: String| Err(Error::new(ErrorKind::Internal, what));
    for (xid, expected) in &world.prepared {
        let over = world.verdicts.contains_key(xid);
        match staging.prepared(*xid) {
            Some(_) if over => return wrong(format!("transaction {xid} stays for ever")),
            None if !over => return wrong(format!("transaction {xid} is lost")),
            Some(found) if found != prepared(*xid) => return wrong(format!("transaction {xid} is another one")),
            Some(_) if blocks(staging, Staged::Prepared(*xid))? != *expected => {
                return wrong(format!("transaction {xid} holds something else"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn step(world: &mut World, staging: &mut dyn Staging, chance: &mut Chance) -> Result<()> {
    match chance.below(4) {
        0 | 1 => {
            world.xid += 1;
            let xid = world.xid;
            let mut expected = Vec::new();
            for _ in 0..chance.below(4) {
                let block = vec![u8::try_from(xid % 256).unwrap(); usize::try_from(chance.below(3_000)).unwrap()];
                let place = staging.append(xid, &block)?;
                expected.push(block);
                if chance.one_in(3) {
                    staging.append(xid, b"aborted")?;
                    staging.append(xid, b"too")?;
                    staging.cut(xid, place)?;
                }
            }
            if chance.one_in(4) {
                return staging.discard(xid);
            }
            staging.prepare(&prepared(xid))?;
            world.prepared.insert(xid, expected);
        }
        2 => {
            let open: Vec<_> = world.prepared.keys().filter(|xid| staging.prepared(**xid).is_some()).copied().collect();
            let Some(xid) = open.get(usize::try_from(chance.below(open.len() as u64)).unwrap()) else { return Ok(()) };
            world.lsn += 100;
            let end_lsn = Lsn(world.lsn);
            staging.finish(*xid, end_lsn)?;
            world.verdicts.insert(*xid, end_lsn);
            // The journal has the transaction; it is durable, or lost and comes again.
            if chance.one_in(2) {
                world.journal_end = end_lsn;
            }
        }
        _ => {
            staging.release(world.journal_end)?;
        }
    }
    Ok(())
}

#[test]
fn what_is_prepared_outlives_every_crash_and_what_is_over_does_not() {
    for seed in 0..2_000 {
        run(seed, None).unwrap();
    }
}

#[test]
fn no_fsync_can_be_left_out() {
    for point in [SyncPoint::StagedData, SyncPoint::StagedName, SyncPoint::VerdictName] {
        // The same seed with the sync loses nothing, so it is the sync that is missed.
        let found = (0..5_000).find(|seed| run(*seed, Some(point)).is_err() && run(*seed, None).is_ok());
        assert!(found.is_some(), "nothing is lost without the sync of {point:?}");
    }
}

#[test]
fn every_flipped_bit_of_a_prepared_transaction_is_found() {
    let disk = FakeDisk::new();
    let mut staging = open_staging_on(Arc::new(disk.clone()), life(1), BYTES_MAX).unwrap();
    staging.append(7, b"one").unwrap();
    staging.append(7, b"two").unwrap();
    staging.prepare(&prepared(7)).unwrap();
    let (name, bytes) = disk.files().pop_first().unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let disk = FakeDisk::new();
        disk.put(&name, bytes);
        let read = open_staging_on(Arc::new(disk), life(1), BYTES_MAX)
            .and_then(|mut staging| blocks(&mut *staging, Staged::Prepared(7)));
        assert_eq!(read.unwrap_err().kind(), ErrorKind::JournalCorrupt, "bit {bit}");
    }
}

/// The server takes 199 bytes in its own encoding; in UTF-8 each may become three.
#[test]
fn the_longest_gid_reads_back() {
    let disk = FakeDisk::new();
    let mut staging = open_staging_on(Arc::new(disk.clone()), life(1), BYTES_MAX).unwrap();
    let longest = Prepared { gid: "\u{20AC}".repeat(199), ..prepared(7) };
    staging.prepare(&longest).unwrap();
    let staging = open_staging_on(Arc::new(disk), life(1), BYTES_MAX).unwrap();
    assert_eq!(staging.prepared(7), Some(longest));
}

#[test]
fn a_disk_without_room_says_so_and_what_to_do() {
    let disk = FakeDisk::new();
    let mut staging = open_staging_on(Arc::new(disk.clone()), life(1), BYTES_MAX).unwrap();
    staging.append(7, b"one").unwrap();
    disk.power_off_after(0);
    let error = staging.append(7, b"two").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disk);
    assert!(error.hint().unwrap().contains("nothing is lost"), "{}", error.report());
}

#[test]
fn a_name_reads_back_and_no_other_is_taken_for_one() {
    let (xid, prepare_lsn, end_lsn) = (0xAB, Lsn(0x16_B374_D848), Lsn(0x17_0000_0000));
    for name in [Name::Open { xid }, Name::Prepared { xid, prepare_lsn }, Name::Finished { xid, prepare_lsn, end_lsn }]
    {
        assert_eq!(Name::parse(&name.text()), Some(name));
    }
    for foreign in ["lock", "ab.open", "000000AB.open", "000000ab.prepared", "000000ab-1.prepared", "000000ab.open.new"]
    {
        assert_eq!(Name::parse(foreign), None, "{foreign}");
    }
}

/// Kept is what the server of now has: all of its own generation, and of an earlier one what was prepared before the servers parted.
#[test]
fn what_another_life_prepared_is_never_used() {
    let disk = FakeDisk::new();
    let mut staging = open_staging_on(Arc::new(disk.clone()), life(1), BYTES_MAX).unwrap();
    for xid in [1, 2] {
        staging.append(xid, b"rows").unwrap();
        staging.prepare(&prepared(xid)).unwrap();
    }
    let amount = staging.amount();
    assert_eq!((amount.in_progress, amount.prepared), (0, 2));
    assert!(amount.bytes > 8);
    drop(staging);
    let left = |disk: &FakeDisk, life: Life| {
        let staging = open_staging_on(Arc::new(disk.clone()), life, BYTES_MAX).unwrap();
        [1, 2].map(|xid| staging.prepared(xid).is_some())
    };
    assert_eq!(left(&disk, life(1)), [true, true]);
    // A segment that begins the next generation may be gone: it was judged at the start after the adoption.
    assert_eq!(left(&disk, life(3)), [true, true]);
    let promoted = Life { begun: vec![(Generation(1), Lsn::ZERO), (Generation(2), prepared(1).end_lsn)], ..life(2) };
    assert_eq!(left(&disk, promoted), [true, false]);
    assert_eq!(disk.files().len(), 1, "what is of no use takes no room");
    assert_eq!(left(&disk, Life { begun: vec![(Generation(2), Lsn::ZERO)], ..life(2) }), [false, false]);

    let disk = FakeDisk::new();
    let mut staging = open_staging_on(Arc::new(disk.clone()), life(1), BYTES_MAX).unwrap();
    staging.append(1, b"rows").unwrap();
    staging.prepare(&prepared(1)).unwrap();
    drop(staging);
    assert_eq!(left(&disk, Life { system_identifier: 8, ..life(1) }), [false, false]);
}
