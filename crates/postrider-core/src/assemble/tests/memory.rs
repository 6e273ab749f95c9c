//! A staging area in memory.

use crate::assemble::Assembler;
use crate::error::Result;
use crate::ports::{Prepared, Staged, StagedAmount, Staging};
use crate::position::Lsn;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

type Blocks = Vec<Vec<u8>>;

/// What outlives an assembler.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory(pub(super) Arc<Mutex<Contents>>);

#[derive(Debug, Default)]
pub(super) struct Contents {
    open: BTreeMap<u32, Blocks>,
    prepared: BTreeMap<u32, (Prepared, Blocks, Option<Lsn>)>,
    pub(super) full: bool,
    /// The largest block that was ever handed over.
    pub(super) block_bytes: usize,
}

impl Staging for Memory {
    fn restart(&mut self, journal_end: Lsn) -> Result<()> {
        let mut contents = self.0.lock().unwrap();
        contents.open.clear();
        contents.prepared.values_mut().for_each(|(.., verdict)| *verdict = verdict.filter(|end| *end <= journal_end));
        Ok(())
    }

    fn append(&mut self, xid: u32, block: &[u8]) -> Result<u64> {
        let mut contents = self.0.lock().unwrap();
        contents.block_bytes = contents.block_bytes.max(block.len());
        let blocks = contents.open.entry(xid).or_default();
        blocks.push(block.to_vec());
        Ok(blocks.len() as u64)
    }

    fn cut(&mut self, xid: u32, place: u64) -> Result<()> {
        self.0.lock().unwrap().open.get_mut(&xid).unwrap().truncate(usize::try_from(place).unwrap());
        Ok(())
    }

    fn read(&mut self, staged: Staged, place: u64, block: &mut Vec<u8>) -> Result<Option<u64>> {
        let contents = self.0.lock().unwrap();
        let blocks = match staged {
            Staged::Open(xid) => contents.open.get(&xid),
            Staged::Prepared(xid) => contents.prepared.get(&xid).map(|(_, blocks, _)| blocks),
        };
        let found = blocks.and_then(|blocks| blocks.get(usize::try_from(place).unwrap()));
        Ok(found.map(|found| {
            block.clone_from(found);
            place + 1
        }))
    }

    fn discard(&mut self, xid: u32) -> Result<()> {
        self.0.lock().unwrap().open.remove(&xid);
        Ok(())
    }

    fn prepare(&mut self, prepared: &Prepared) -> Result<()> {
        let mut contents = self.0.lock().unwrap();
        let blocks = contents.open.remove(&prepared.xid).unwrap_or_default();
        contents.prepared.insert(prepared.xid, (prepared.clone(), blocks, None));
        Ok(())
    }

    fn prepared(&self, xid: u32) -> Option<Prepared> {
        let contents = self.0.lock().unwrap();
        contents.prepared.get(&xid).filter(|(.., verdict)| verdict.is_none()).map(|(prepared, ..)| prepared.clone())
    }

    fn waiting(&self) -> Vec<Prepared> {
        let contents = self.0.lock().unwrap();
        let waiting = contents.prepared.values().filter(|(.., verdict)| verdict.is_none());
        waiting.map(|(prepared, ..)| prepared.clone()).collect()
    }

    fn finish(&mut self, xid: u32, end_lsn: Lsn) -> Result<()> {
        self.0.lock().unwrap().prepared.get_mut(&xid).unwrap().2 = Some(end_lsn);
        Ok(())
    }

    fn release(&mut self, durable_end: Lsn) -> Result<bool> {
        let mut contents = self.0.lock().unwrap();
        contents.prepared.retain(|_, (.., verdict)| verdict.is_none_or(|end| end > durable_end));
        Ok(contents.prepared.values().any(|(.., verdict)| verdict.is_some()))
    }

    fn is_full(&self) -> bool {
        self.0.lock().unwrap().full
    }

    fn amount(&self) -> StagedAmount {
        StagedAmount::default()
    }
}

impl Memory {
    pub(super) fn assembler(&self, journal_end: u64) -> Assembler {
        let mut assembler = Assembler::with_staging(Lsn(journal_end), Box::new(self.clone()));
        assembler.restart().unwrap();
        assembler
    }

    pub(super) fn open(&self) -> Vec<u32> {
        self.0.lock().unwrap().open.keys().copied().collect()
    }

    pub(super) fn prepared(&self) -> Vec<u32> {
        self.0.lock().unwrap().prepared.keys().copied().collect()
    }
}
