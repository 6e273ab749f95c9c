//! A staging area in memory: of what is in progress nothing outlives its connection, and what is prepared is durable at once.

use super::shared::Process;
use postrider_core::error::Result;
use postrider_core::ports::{Prepared, Staged, StagedAmount, Staging};
use postrider_core::position::Lsn;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Room for transactions in progress, in bytes; those of the simulation are small.
const BYTES_MAX: usize = 100_000;

type Blocks = Vec<Vec<u8>>;

/// The disk of one machine; it outlives the processes.
#[derive(Debug, Clone, Default)]
pub struct StagingDisk(Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
struct Contents {
    open: BTreeMap<u32, Blocks>,
    prepared: BTreeMap<u32, Kept>,
}

#[derive(Debug)]
struct Kept {
    prepared: Prepared,
    blocks: Blocks,
    verdict: Option<Lsn>,
}

/// The staging area as one process has it open.
#[derive(Debug)]
pub struct FakeStaging {
    process: Arc<Process>,
    disk: StagingDisk,
}

impl FakeStaging {
    pub fn open(process: &Arc<Process>, disk: &StagingDisk) -> Box<dyn Staging> {
        if !process.is_dead() {
            disk.0.lock().unwrap().open.clear();
        }
        Box::new(FakeStaging { process: process.clone(), disk: disk.clone() })
    }

    /// Changes the disk, unless the process is dead.
    fn change(&self, change: impl FnOnce(&mut Contents)) {
        if !self.process.is_dead() {
            change(&mut self.disk.0.lock().unwrap());
        }
    }
}

impl StagingDisk {
    /// How many prepared transactions it holds.
    pub fn prepared(&self) -> usize {
        self.0.lock().unwrap().prepared.len()
    }
}

impl Staging for FakeStaging {
    fn restart(&mut self, journal_end: Lsn) -> Result<()> {
        self.change(|contents| {
            contents.open.clear();
            contents
                .prepared
                .values_mut()
                .for_each(|kept| kept.verdict = kept.verdict.filter(|end| *end <= journal_end));
        });
        Ok(())
    }

    fn append(&mut self, xid: u32, block: &[u8]) -> Result<u64> {
        self.change(|contents| contents.open.entry(xid).or_default().push(block.to_vec()));
        Ok(self.disk.0.lock().unwrap().open.get(&xid).map_or(0, Vec::len) as u64)
    }

    fn cut(&mut self, xid: u32, place: u64) -> Result<()> {
        self.change(|contents| {
            if let Some(blocks) = contents.open.get_mut(&xid) {
                blocks.truncate(usize::try_from(place).unwrap());
            }
        });
        Ok(())
    }

    fn read(&mut self, staged: Staged, place: u64, block: &mut Vec<u8>) -> Result<Option<u64>> {
        let contents = self.disk.0.lock().unwrap();
        let blocks = match staged {
            Staged::Open(xid) => contents.open.get(&xid),
            Staged::Prepared(xid) => contents.prepared.get(&xid).map(|kept| &kept.blocks),
        };
        let found = blocks.and_then(|blocks| blocks.get(usize::try_from(place).unwrap()));
        Ok(found.map(|found| {
            block.clone_from(found);
            place + 1
        }))
    }

    fn discard(&mut self, xid: u32) -> Result<()> {
        self.change(|contents| {
            contents.open.remove(&xid);
        });
        Ok(())
    }

    fn prepare(&mut self, prepared: &Prepared) -> Result<()> {
        self.change(|contents| {
            let blocks = contents.open.remove(&prepared.xid).unwrap_or_default();
            let kept = Kept { prepared: prepared.clone(), blocks, verdict: None };
            contents.prepared.insert(prepared.xid, kept);
        });
        Ok(())
    }

    fn prepared(&self, xid: u32) -> Option<Prepared> {
        let contents = self.disk.0.lock().unwrap();
        contents.prepared.get(&xid).filter(|kept| kept.verdict.is_none()).map(|kept| kept.prepared.clone())
    }

    fn waiting(&self) -> Vec<Prepared> {
        let contents = self.disk.0.lock().unwrap();
        let waiting = contents.prepared.values().filter(|kept| kept.verdict.is_none());
        waiting.map(|kept| kept.prepared.clone()).collect()
    }

    fn finish(&mut self, xid: u32, end_lsn: Lsn) -> Result<()> {
        self.change(|contents| {
            if let Some(kept) = contents.prepared.get_mut(&xid) {
                kept.verdict = Some(end_lsn);
            }
        });
        Ok(())
    }

    fn release(&mut self, durable_end: Lsn) -> Result<bool> {
        self.change(|contents| contents.prepared.retain(|_, kept| kept.verdict.is_none_or(|end| end > durable_end)));
        Ok(self.disk.0.lock().unwrap().prepared.values().any(|kept| kept.verdict.is_some()))
    }

    fn is_full(&self) -> bool {
        let contents = self.disk.0.lock().unwrap();
        contents.open.values().flatten().map(Vec::len).sum::<usize>() >= BYTES_MAX
    }

    fn amount(&self) -> StagedAmount {
        let contents = self.disk.0.lock().unwrap();
        let waiting = || contents.prepared.values().filter(|kept| kept.verdict.is_none());
        let blocks = contents.open.values().chain(waiting().map(|kept| &kept.blocks)).flatten();
        StagedAmount {
            in_progress: contents.open.len(),
            prepared: waiting().count(),
            bytes: blocks.map(|block| block.len() as u64).sum(),
        }
    }
}
