//! A disk in memory that forgets what was not made durable, for tests here and in other crates.
//!
//! [`FakeDisk`] keeps for each file what a crash of the machine is sure to leave, and every write since, in order. The same
//! for names. [`FakeDisk::crash`] gives the disk as it may be found after the power was gone: of each
//! write since the last sync everything, some sectors, or nothing arrived, in any order; a file may have grown to its new
//! length with zeros in the place of the bytes; each new, changed or removed name may have arrived or not. [`FakeDisk::kill`]
//! gives the disk as the next process finds it when only this one died. The old handles go on working on the old disk, and
//! change nothing in the new one.

use crate::disk::{Disk, DiskFile, DiskLock, SyncPoint};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A write arrives or is lost in pieces of this many bytes.
const SECTOR_BYTES: usize = 512;

/// The fake [`Disk`].
#[derive(Debug, Clone, Default)]
pub struct FakeDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Clone, Default)]
struct State {
    files: BTreeMap<u64, Contents>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    unsynced_names: Vec<NameChange>,
    next_file: u64,
    made: bool,
    made_durably: bool,
    locked: bool,
    ignored: BTreeSet<SyncPoint>,
    /// So many more changes and syncs succeed before the power is gone.
    power: Option<u64>,
    syncs: BTreeMap<SyncPoint, u64>,
}

#[derive(Debug, Clone, Default)]
struct Contents {
    now: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<FileChange>,
}

#[derive(Debug, Clone)]
enum FileChange {
    Write { offset: usize, bytes: Vec<u8> },
    Truncate(usize),
}

#[derive(Debug, Clone)]
enum NameChange {
    Put(String, u64),
    Move(String, String, u64),
    Remove(String),
}

#[derive(Debug)]
struct FakeFile {
    disk: FakeDisk,
    id: u64,
}

#[derive(Debug)]
struct FakeLock(FakeDisk);

/// A small generator of numbers from a seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    /// A number below `limit`, or 0 where the limit is.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)).checked_rem(limit).unwrap_or(0)
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

impl FakeDisk {
    /// An empty disk without the directory.
    pub fn new() -> FakeDisk {
        FakeDisk::default()
    }

    /// From now on syncs at `point` do nothing and report success.
    pub fn ignore(&self, point: SyncPoint) {
        self.state().ignored.insert(point);
    }

    /// After `operations` more changes and syncs every further one fails and does nothing.
    pub fn power_off_after(&self, operations: u64) {
        self.state().power = Some(operations);
    }

    /// How often each sync was asked for.
    pub fn syncs(&self) -> BTreeMap<SyncPoint, u64> {
        self.state().syncs.clone()
    }

    /// What a new process finds after this one was killed: all of it.
    #[must_use]
    pub fn kill(&self) -> FakeDisk {
        let mut state = self.state().clone();
        state.locked = false;
        state.power = None;
        FakeDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// What is found after the machine lost its power; the seed decides what of the unsynced arrived.
    #[must_use]
    pub fn crash(&self, seed: u64) -> FakeDisk {
        let mut chance = Chance::new(seed);
        let before = self.state().clone();
        let mut after =
            State { ignored: before.ignored, next_file: before.next_file, syncs: before.syncs, ..State::default() };
        if before.made && (before.made_durably || chance.one_in(2)) {
            after.made = true;
            after.made_durably = true;
            after.names = before.durable_names;
            for change in before.unsynced_names {
                if chance.one_in(2) {
                    change.apply(&mut after.names);
                }
            }
            for id in after.names.values() {
                let found = before.files.get(id).map(|contents| contents.found(&mut chance)).unwrap_or_default();
                after.files.insert(*id, Contents { now: found.clone(), durable: found, unsynced: Vec::new() });
            }
            after.durable_names = after.names.clone();
        }
        FakeDisk { state: Arc::new(Mutex::new(after)) }
    }

    /// The files by name, as a process sees them.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.state();
        let bytes = |id| state.files.get(id).map(|contents| contents.now.clone()).unwrap_or_default();
        state.names.iter().map(|(name, id)| (name.clone(), bytes(id))).collect()
    }

    /// Replaces the bytes of a file, durably; makes it if it is not there.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.state();
        let id = state.find(name).unwrap_or_else(|_| state.new_file());
        state.made = true;
        state.made_durably = true;
        state.names.insert(name.to_owned(), id);
        state.durable_names.insert(name.to_owned(), id);
        state.files.insert(id, Contents { now: bytes.clone(), durable: bytes, unsynced: Vec::new() });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one of the operations that are left.
    fn changing(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        if let Some(left) = state.power {
            state.power = Some(left.checked_sub(1).ok_or_else(|| io::Error::other("the power is gone"))?);
        }
        Ok(state)
    }

    /// Takes one of the operations that are left; `None` where the sync at `point` is ignored.
    fn syncing(&self, point: SyncPoint) -> io::Result<Option<MutexGuard<'_, State>>> {
        let mut state = self.changing()?;
        let count = state.syncs.entry(point).or_default();
        *count = count.saturating_add(1);
        Ok(if state.ignored.contains(&point) { None } else { Some(state) })
    }
}

impl State {
    fn new_file(&mut self) -> u64 {
        self.next_file = self.next_file.saturating_add(1);
        self.files.insert(self.next_file, Contents::default());
        self.next_file
    }

    fn rename(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
    }

    fn find(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Contents {
    fn change(&mut self, change: FileChange) {
        change.apply(&mut self.now);
        self.unsynced.push(change);
    }

    /// What a crash leaves.
    fn found(&self, chance: &mut Chance) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        for change in &self.unsynced {
            match chance.below(4) {
                0 => change.apply(&mut bytes),
                1 => change.apply_partly(&mut bytes, chance),
                2 => change.apply_length(&mut bytes),
                _ => {}
            }
        }
        bytes
    }
}

impl FileChange {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            FileChange::Truncate(length) => bytes.resize(*length, 0),
            FileChange::Write { offset, bytes: written } => write(bytes, *offset, written),
        }
    }

    /// Some sectors arrive.
    fn apply_partly(&self, bytes: &mut Vec<u8>, chance: &mut Chance) {
        let FileChange::Write { offset, bytes: written } = self else { return };
        let mut at = *offset;
        let mut rest = written.as_slice();
        while !rest.is_empty() {
            // Sectors are those of the file, so that a write can be torn anywhere in its frame.
            let length = SECTOR_BYTES.saturating_sub(at % SECTOR_BYTES).clamp(1, rest.len());
            let (sector, others) = rest.split_at(length);
            if chance.one_in(2) {
                write(bytes, at, sector);
            }
            at = at.saturating_add(length);
            rest = others;
        }
    }

    /// The length arrives and the bytes do not.
    fn apply_length(&self, bytes: &mut Vec<u8>) {
        let FileChange::Write { offset, bytes: written } = self else { return };
        bytes.resize(bytes.len().max(offset.saturating_add(written.len())), 0);
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Put(name, id) => {
                names.insert(name.clone(), *id);
            }
            NameChange::Move(from, to, id) => {
                if names.get(from) == Some(id) {
                    names.remove(from);
                }
                names.insert(to.clone(), *id);
            }
            NameChange::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

impl Disk for FakeDisk {
    fn location(&self) -> String {
        "/fake".to_owned()
    }

    fn make(&self) -> io::Result<()> {
        self.changing()?.made = true;
        Ok(())
    }

    fn lock(&self) -> io::Result<Box<dyn DiskLock>> {
        let mut state = self.state();
        if state.locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.locked = true;
        Ok(Box::new(FakeLock(self.clone())))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.changing()?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = state.new_file();
        state.rename(NameChange::Put(name.to_owned(), id));
        drop(state);
        Ok(Arc::new(FakeFile { disk: self.clone(), id }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let id = self.state().find(name)?;
        Ok(Arc::new(FakeFile { disk: self.clone(), id }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.changing()?;
        let id = state.find(from)?;
        state.rename(NameChange::Move(from.to_owned(), to.to_owned(), id));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.changing()?;
        state.find(name)?;
        state.rename(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_names(&self, point: SyncPoint) -> io::Result<()> {
        if let Some(mut state) = self.syncing(point)? {
            state.unsynced_names.clear();
            state.durable_names = state.names.clone();
        }
        Ok(())
    }

    fn sync_parent(&self, point: SyncPoint) -> io::Result<()> {
        if let Some(mut state) = self.syncing(point)? {
            state.made_durably = state.made;
        }
        Ok(())
    }
}

impl DiskFile for FakeFile {
    fn number(&self) -> io::Result<u64> {
        Ok(self.id)
    }

    fn length(&self) -> io::Result<u64> {
        let state = self.disk.state();
        let length = state.files.get(&self.id).map_or(0, |contents| contents.now.len());
        Ok(u64::try_from(length).unwrap_or(u64::MAX))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.disk.state();
        let contents = state.files.get(&self.id).map(|contents| contents.now.as_slice()).unwrap_or_default();
        let from = contents.get(place(offset)..).unwrap_or_default();
        let count = from.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(from) {
            *to = *from;
        }
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.changing()?;
        let change = FileChange::Write { offset: place(offset), bytes: bytes.to_vec() };
        state.files.entry(self.id).or_default().change(change);
        Ok(())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.changing()?;
        state.files.entry(self.id).or_default().change(FileChange::Truncate(place(length)));
        Ok(())
    }

    fn sync(&self, point: SyncPoint) -> io::Result<()> {
        if let Some(mut state) = self.disk.syncing(point)? {
            let contents = state.files.entry(self.id).or_default();
            contents.unsynced.clear();
            contents.durable.clone_from(&contents.now);
        }
        Ok(())
    }
}

impl DiskLock for FakeLock {}

impl Drop for FakeLock {
    fn drop(&mut self) {
        self.0.state().locked = false;
    }
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

fn write(bytes: &mut Vec<u8>, offset: usize, written: &[u8]) {
    let end = offset.saturating_add(written.len());
    bytes.resize(bytes.len().max(end), 0);
    if let Some(room) = bytes.get_mut(offset..end) {
        room.copy_from_slice(written);
    }
}
