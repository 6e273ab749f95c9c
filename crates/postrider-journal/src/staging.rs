//! The staging area: transactions before their outcome, one file for each, in the folder `staging` of the journal.
//!
//! | name | what |
//! |---|---|
//! | `XXXXXXXX.open` | in progress; a leftover is removed |
//! | `XXXXXXXX-LLLLLLLLLLLLLLLL.prepared` | waits for its verdict |
//! | `XXXXXXXX-LLLLLLLLLLLLLLLL-EEEEEEEEEEEEEEEE.finished` | the verdict has come and may not be durable in the journal yet |
//!
//! X: top-level transaction id; L: LSN of the prepare record; E: end LSN of the verdict's record; all in hexadecimal digits. A file
//! begins with 1024 bytes for the head, zero until it is prepared; then come blocks. Numbers are little-endian.
//!
//! | head, offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | CRC32C over the rest of the head |
//! | 4 | 8 | `PSTRSTG2` |
//! | 12 | 4 | transaction id |
//! | 16 | 8 | LSN of the prepare record |
//! | 24 | 8 | end LSN of the prepare record |
//! | 32 | 8 | length of the file |
//! | 40 | 4 | generation of the journal |
//! | 44 | 8 | system identifier |
//! | 52 | 2 + n | gid: length, then UTF-8 |
//!
//! | block, offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | CRC32C over the block's place, its length and its messages |
//! | 4 | 4 | length of the messages |
//! | 8 | … | the messages |

use crate::bytes_in::{BytesIn, push_text};
use crate::disk::directory::Directory;
use crate::disk::{Disk, DiskFile, SyncPoint};
use crate::failure;
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{Prepared, Staged, StagedAmount, Staging};
use postrider_core::position::{Generation, Lsn};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const FOLDER: &str = "staging";
const MAGIC: [u8; 8] = *b"PSTRSTG2";
/// Room for the longest gid: 199 bytes of the server's encoding, in UTF-8.
const HEAD_BYTES: usize = 1024;
const BLOCK_HEAD_BYTES: usize = 8;

/// Which life of which server a journal follows. Ids of transactions begin anew with each, and gids are whatever the application
/// makes them: what was prepared in one is never taken for what another commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    pub system_identifier: u64,
    pub generation: Generation,
    /// The generations that are known to have begun, and up to where their server has the log of those before it;
    /// [`Lsn::ZERO`]: it has nothing of it.
    pub begun: Vec<(Generation, Lsn)>,
}

/// The staging area of one journal.
#[derive(Debug)]
struct StagingArea {
    disk: Arc<dyn Disk>,
    life: Life,
    bytes_max: u64,
    /// In progress, by transaction id.
    open: BTreeMap<u32, OpenFile>,
    /// Bytes of all files in progress.
    open_bytes: u64,
    prepared: BTreeMap<u32, PreparedFile>,
}

/// What the head of a file says.
#[derive(Debug)]
struct Head {
    prepared: Prepared,
    /// Bytes of the file.
    length: u64,
    generation: Generation,
    system_identifier: u64,
}

/// A transaction in progress.
#[derive(Debug)]
struct OpenFile {
    file: Arc<dyn DiskFile>,
    /// Bytes behind the head.
    length: u64,
}

/// A prepared transaction.
#[derive(Debug)]
struct PreparedFile {
    file: Arc<dyn DiskFile>,
    /// Bytes behind the head.
    length: u64,
    prepared: Prepared,
    /// Where the record of its verdict ends, once that has come.
    verdict: Option<Lsn>,
}

/// What a file's name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Open { xid: u32 },
    Prepared { xid: u32, prepare_lsn: Lsn },
    Finished { xid: u32, prepare_lsn: Lsn, end_lsn: Lsn },
}

/// Opens the staging area of the journal in directory `dir`, whose lock the caller holds by having the journal open. What is in
/// progress may take `bytes_max` bytes before it says that it is full. What was prepared in another `life` than the journal's goes.
///
/// # Errors
///
/// `Disk` where the disk refuses; `JournalCorrupt` where a prepared transaction does not read back as it was written.
pub fn open_staging(dir: &Path, life: Life, bytes_max: u64) -> Result<Box<dyn Staging>> {
    open_staging_on(Arc::new(Directory::new(&dir.join(FOLDER))), life, bytes_max)
}

/// Opens a staging area on any [`Disk`]; otherwise as [`open_staging`].
///
/// # Errors
///
/// As those of [`open_staging`].
pub fn open_staging_on(disk: Arc<dyn Disk>, life: Life, bytes_max: u64) -> Result<Box<dyn Staging>> {
    let refused = |error| failure::disk("cannot open the staging area", error);
    disk.make().map_err(refused)?;
    disk.sync_parent(SyncPoint::Parent).map_err(refused)?;
    let mut area =
        StagingArea { disk, life, bytes_max, open: BTreeMap::new(), open_bytes: 0, prepared: BTreeMap::new() };
    for text in area.disk.list().map_err(refused)? {
        match Name::parse(&text) {
            Some(Name::Open { .. }) => area.disk.remove(&text).map_err(refused)?,
            Some(name) => area.recover(name, &text)?,
            None => {}
        }
    }
    // A killed process may have left a name in the page cache only.
    area.disk.sync_names(SyncPoint::StagedName).map_err(refused)?;
    Ok(Box::new(area))
}

impl StagingArea {
    fn recover(&mut self, name: Name, text: &str) -> Result<()> {
        let refused = |error| failure::disk("cannot read the staging area", error);
        let file = self.disk.open(text).map_err(refused)?;
        let mut head = vec![0; HEAD_BYTES];
        let count = file.read_at(&mut head, 0).map_err(refused)?;
        head.truncate(count);
        let found = file.length().map_err(refused)?;
        let damaged = |what| corrupt(self.disk.as_ref(), text, 0, what);
        let head = decode_head(&head).ok_or_else(|| damaged("the head does not match its checksum"))?;
        let is_ours = self.life.has(&head);
        let Head { prepared, length, .. } = head;
        let (xid, prepare_lsn, verdict) = match name {
            Name::Finished { xid, prepare_lsn, end_lsn } => (xid, prepare_lsn, Some(end_lsn)),
            Name::Prepared { xid, prepare_lsn } => (xid, prepare_lsn, None),
            Name::Open { .. } => return Ok(()),
        };
        if (prepared.xid, prepared.prepare_lsn) != (xid, prepare_lsn) {
            return Err(damaged("the head is that of another transaction"));
        }
        if found != length {
            return Err(damaged("the file has not the length that its head says"));
        }
        if !is_ours {
            tracing::warn!(
                gid = prepared.gid,
                prepared_at = %prepared.prepare_lsn,
                "a prepared transaction of the server that was left is dropped: the server of now never had it"
            );
            return self
                .disk
                .remove(text)
                .map_err(|error| failure::disk("cannot remove a prepared transaction", error));
        }
        let length = length.saturating_sub(failure::offset(HEAD_BYTES));
        self.prepared.insert(xid, PreparedFile { file, length, prepared, verdict });
        Ok(())
    }

    fn drop_open(&mut self, xid: u32) -> Result<()> {
        let Some(open) = self.open.remove(&xid) else { return Ok(()) };
        self.open_bytes = self.open_bytes.saturating_sub(open.length);
        let name = Name::Open { xid }.text();
        self.disk.remove(&name).map_err(|error| failure::disk("cannot remove a staged transaction", error))
    }

    fn begin(&mut self, xid: u32) -> Result<&mut OpenFile> {
        if !self.open.contains_key(&xid) {
            let refused = |error| failure::disk("cannot stage a transaction", error);
            let file = self.disk.create(&Name::Open { xid }.text()).map_err(refused)?;
            file.write_at(&[0; HEAD_BYTES], 0).map_err(refused)?;
            self.open.insert(xid, OpenFile { file, length: 0 });
        }
        self.open.get_mut(&xid).ok_or_else(|| not_staged(xid))
    }

    fn rename(&self, from: Name, to: Name, point: SyncPoint) -> Result<()> {
        let renamed = self.disk.rename(&from.text(), &to.text()).and_then(|()| self.disk.sync_names(point));
        renamed.map_err(|error| failure::disk("cannot keep a prepared transaction", error))
    }
}

impl Staging for StagingArea {
    fn restart(&mut self, journal_end: Lsn) -> Result<()> {
        while let Some(xid) = self.open.keys().next().copied() {
            self.drop_open(xid)?;
        }
        let early = |file: &&PreparedFile| file.verdict.is_some_and(|end_lsn| end_lsn > journal_end);
        let early: Vec<_> = self.prepared.values().filter(early).map(PreparedFile::name).collect();
        for name in early {
            let Name::Finished { xid, prepare_lsn, .. } = name else { continue };
            self.rename(name, Name::Prepared { xid, prepare_lsn }, SyncPoint::StagedName)?;
            if let Some(file) = self.prepared.get_mut(&xid) {
                file.verdict = None;
            }
        }
        Ok(())
    }

    fn append(&mut self, xid: u32, block: &[u8]) -> Result<u64> {
        let refused = |error| {
            failure::disk("cannot stage a transaction", error)
                .with_hint("Make room on the disk of the journal and start again: nothing is lost, the server sends the transaction once more.")
        };
        let open = self.begin(xid)?;
        let frame = encode_block(open.length, block)
            .ok_or_else(|| Error::new(ErrorKind::Internal, "a staged block is longer than its format allows"))?;
        open.file.write_at(&frame, in_file(open.length)).map_err(refused)?;
        open.length = open.length.saturating_add(failure::offset(frame.len()));
        let place = open.length;
        self.open_bytes = self.open_bytes.saturating_add(failure::offset(frame.len()));
        Ok(place)
    }

    fn cut(&mut self, xid: u32, place: u64) -> Result<()> {
        let Some(open) = self.open.get_mut(&xid).filter(|open| place < open.length) else { return Ok(()) };
        open.file.truncate(in_file(place)).map_err(|error| failure::disk("cannot cut a staged transaction", error))?;
        self.open_bytes = self.open_bytes.saturating_sub(open.length.saturating_sub(place));
        open.length = place;
        Ok(())
    }

    fn read(&mut self, staged: Staged, place: u64, block: &mut Vec<u8>) -> Result<Option<u64>> {
        let found = match staged {
            Staged::Open(xid) => self.open.get(&xid).map(|open| (&open.file, open.length, Name::Open { xid })),
            Staged::Prepared(xid) => self.prepared.get(&xid).map(|file| (&file.file, file.length, file.name())),
        };
        // A transaction of which nothing was left may have no file.
        let Some((file, length, name)) = found.filter(|(_, length, _)| place < *length) else { return Ok(None) };
        let damaged = |what| corrupt(self.disk.as_ref(), &name.text(), in_file(place), what);
        let refused = |error| failure::disk("cannot read a staged transaction", error);
        let mut head = [0; BLOCK_HEAD_BYTES];
        let count = file.read_at(&mut head, in_file(place)).map_err(refused)?;
        let mut fields = BytesIn(head.get(..count).unwrap_or_default());
        let (Some(crc), Some(bytes)) = (fields.u32(), fields.u32()) else {
            return Err(damaged("the file ends within a block"));
        };
        let next = place.saturating_add(failure::offset(BLOCK_HEAD_BYTES)).saturating_add(u64::from(bytes));
        if next > length {
            return Err(damaged("a block is longer than the file"));
        }
        block.clear();
        block.resize(usize::try_from(bytes).unwrap_or(usize::MAX), 0);
        let at = in_file(place).saturating_add(failure::offset(BLOCK_HEAD_BYTES));
        let count = file.read_at(block, at).map_err(refused)?;
        if count != block.len() || block_crc(place, bytes, block) != crc {
            return Err(damaged("a block does not match its checksum"));
        }
        Ok(Some(next))
    }

    fn discard(&mut self, xid: u32) -> Result<()> {
        self.drop_open(xid)
    }

    fn prepare(&mut self, prepared: &Prepared) -> Result<()> {
        let xid = prepared.xid;
        let OpenFile { file, length } = {
            self.begin(xid)?;
            self.open.remove(&xid).ok_or_else(|| not_staged(xid))?
        };
        self.open_bytes = self.open_bytes.saturating_sub(length);
        let head = encode_head(prepared, in_file(length), &self.life).ok_or_else(|| {
            Error::new(ErrorKind::Internal, "the gid of a transaction is longer than the server allows")
        })?;
        file.write_at(&head, 0)
            .and_then(|()| file.sync(SyncPoint::StagedData))
            .map_err(|error| failure::disk("cannot keep a prepared transaction", error))?;
        // It may have come before: under the same name the new file takes the old one's place.
        let staged = PreparedFile { file, length, prepared: prepared.clone(), verdict: None };
        self.rename(Name::Open { xid }, staged.name(), SyncPoint::StagedName)?;
        self.prepared.insert(xid, staged);
        Ok(())
    }

    fn prepared(&self, xid: u32) -> Option<Prepared> {
        self.prepared.get(&xid).filter(|file| file.verdict.is_none()).map(|file| file.prepared.clone())
    }

    fn waiting(&self) -> Vec<Prepared> {
        let waiting = self.prepared.values().filter(|file| file.verdict.is_none());
        waiting.map(|file| file.prepared.clone()).collect()
    }

    fn finish(&mut self, xid: u32, end_lsn: Lsn) -> Result<()> {
        let Some(file) = self.prepared.get(&xid) else { return Err(not_staged(xid)) };
        let prepare_lsn = file.prepared.prepare_lsn;
        self.rename(file.name(), Name::Finished { xid, prepare_lsn, end_lsn }, SyncPoint::VerdictName)?;
        if let Some(file) = self.prepared.get_mut(&xid) {
            file.verdict = Some(end_lsn);
        }
        Ok(())
    }

    fn release(&mut self, durable_end: Lsn) -> Result<bool> {
        let over = |file: &&PreparedFile| file.verdict.is_some_and(|end_lsn| end_lsn <= durable_end);
        let over: Vec<_> = self.prepared.values().filter(over).map(|file| (file.prepared.xid, file.name())).collect();
        for (xid, name) in over {
            let removed = self.disk.remove(&name.text());
            removed.map_err(|error| failure::disk("cannot remove a prepared transaction", error))?;
            self.prepared.remove(&xid);
        }
        Ok(self.prepared.values().any(|file| file.verdict.is_some()))
    }

    fn is_full(&self) -> bool {
        self.open_bytes >= self.bytes_max
    }

    fn amount(&self) -> StagedAmount {
        let waiting = || self.prepared.values().filter(|file| file.verdict.is_none());
        StagedAmount {
            in_progress: self.open.len(),
            prepared: waiting().count(),
            bytes: waiting().fold(self.open_bytes, |bytes, file| bytes.saturating_add(file.length)),
        }
    }
}

impl Life {
    /// Whether the server of now has what was prepared.
    fn has(&self, head: &Head) -> bool {
        head.system_identifier == self.system_identifier
            && head.generation <= self.generation
            && self
                .begun
                .iter()
                .filter(|(begun, _)| *begun > head.generation)
                .all(|(_, cut)| head.prepared.end_lsn <= *cut)
    }
}

impl PreparedFile {
    fn name(&self) -> Name {
        let Prepared { xid, prepare_lsn, .. } = self.prepared;
        match self.verdict {
            Some(end_lsn) => Name::Finished { xid, prepare_lsn, end_lsn },
            None => Name::Prepared { xid, prepare_lsn },
        }
    }
}

impl Name {
    fn text(self) -> String {
        match self {
            Name::Open { xid } => format!("{xid:08x}.open"),
            Name::Prepared { xid, prepare_lsn } => format!("{xid:08x}-{:016x}.prepared", prepare_lsn.0),
            Name::Finished { xid, prepare_lsn, end_lsn } => {
                format!("{xid:08x}-{:016x}-{:016x}.finished", prepare_lsn.0, end_lsn.0)
            }
        }
    }

    fn parse(text: &str) -> Option<Name> {
        let (stem, kind) = text.split_once('.')?;
        let mut fields = stem.split('-').map(|digits| u64::from_str_radix(digits, 16).ok());
        let xid = u32::try_from(fields.next()??).ok()?;
        let mut lsn = || fields.next().flatten().map(Lsn);
        let name = match kind {
            "open" => Name::Open { xid },
            "prepared" => Name::Prepared { xid, prepare_lsn: lsn()? },
            "finished" => Name::Finished { xid, prepare_lsn: lsn()?, end_lsn: lsn()? },
            _ => return None,
        };
        // What does not print as it reads is not a name of ours.
        (name.text() == text).then_some(name)
    }
}

/// Where in the file a place is.
fn in_file(place: u64) -> u64 {
    place.saturating_add(failure::offset(HEAD_BYTES))
}

fn encode_block(place: u64, block: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(block.len()).ok()?;
    let mut frame = Vec::with_capacity(block.len().saturating_add(BLOCK_HEAD_BYTES));
    frame.extend_from_slice(&block_crc(place, length, block).to_le_bytes());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(block);
    Some(frame)
}

fn block_crc(place: u64, length: u32, block: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&place.to_le_bytes()), &length.to_le_bytes());
    crc32c::crc32c_append(crc, block)
}

fn encode_head(prepared: &Prepared, file_length: u64, life: &Life) -> Option<Vec<u8>> {
    let mut rest = MAGIC.to_vec();
    rest.extend_from_slice(&prepared.xid.to_le_bytes());
    rest.extend_from_slice(&prepared.prepare_lsn.0.to_le_bytes());
    rest.extend_from_slice(&prepared.end_lsn.0.to_le_bytes());
    rest.extend_from_slice(&file_length.to_le_bytes());
    rest.extend_from_slice(&life.generation.0.to_le_bytes());
    rest.extend_from_slice(&life.system_identifier.to_le_bytes());
    push_text(&mut rest, &prepared.gid)?;
    if rest.len() > HEAD_BYTES - 4 {
        return None;
    }
    rest.resize(HEAD_BYTES - 4, 0);
    Some([&crc32c::crc32c(&rest).to_le_bytes(), rest.as_slice()].concat())
}

fn decode_head(bytes: &[u8]) -> Option<Head> {
    let mut fields = BytesIn(bytes.get(..HEAD_BYTES)?);
    let crc = fields.u32()?;
    if crc32c::crc32c(fields.0) != crc || fields.array() != Some(MAGIC) {
        return None;
    }
    let (xid, prepare_lsn, end_lsn) = (fields.u32()?, Lsn(fields.u64()?), Lsn(fields.u64()?));
    let (length, generation) = (fields.u64()?, Generation(fields.u32()?));
    let system_identifier = fields.u64()?;
    let prepared = Prepared { xid, gid: fields.text()?.to_owned(), prepare_lsn, end_lsn };
    Some(Head { prepared, length, generation, system_identifier })
}

fn corrupt(disk: &dyn Disk, file: &str, offset: u64, what: &str) -> Error {
    Error::new(ErrorKind::JournalCorrupt, "a prepared transaction in the staging area is damaged")
        .with_detail(format!("In {}, file {file}, at byte {offset}: {what}.", disk.location()))
        .with_hint("Restore the file from a copy: the server does not send the transaction again. Where that cannot be, and it is still prepared, roll it back, let the application do it again, and move the file away.")
}

fn not_staged(xid: u32) -> Error {
    Error::new(ErrorKind::Internal, "a transaction is not in the staging area")
        .with_detail(format!("It is transaction {xid}."))
}

#[cfg(test)]
mod tests;
