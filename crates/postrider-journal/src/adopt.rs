//! Goes on with another server, because a person has decided so: a new generation, with what is left out on record.

use crate::disk::directory::Directory;
use crate::disk::{Disk, SyncPoint};
use crate::failure;
use crate::gaps::Gaps;
use crate::open::in_use_or;
use crate::recover::{Heir, Recovered, create_segment, prove, recover};
use crate::segment::{SegmentHeader, SegmentName};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{Gap, SchemaBlock, SourceIdentity};
use postrider_core::position::{Generation, Lsn};
use std::path::Path;
use std::sync::Arc;

/// What becomes of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adoption {
    /// Whose log it goes on with.
    pub identity: SourceIdentity,
    /// Where that log begins for us: what ends at or before is here, or on record as missing.
    pub begins: Lsn,
    /// In the generations so far, what commits at or after this never happened on that server, and is given to nobody any
    /// more. `None`: nothing is known of it.
    pub cut: Option<Lsn>,
    /// Log positions begin anew, or go another way: a new generation. `false`: it is the same log, and only something between is left
    /// out.
    pub new_generation: bool,
    /// What is left out, and why: the record of the adoption.
    pub gap: Gap,
}

/// Adopts in the directory `dir`, which no process may have open. Returns the generation from now on.
///
/// # Errors
///
/// `Configuration` where there is no journal; those of [`crate::open`].
pub fn adopt(dir: &Path, adoption: &Adoption) -> Result<Generation> {
    adopt_on(Arc::new(Directory::new(dir)), adoption)
}

/// Takes every gap on record as known and accepted. No process may have the journal open.
///
/// # Errors
///
/// As those of [`adopt`].
pub fn accept(dir: &Path) -> Result<()> {
    let disk = Directory::new(dir);
    let _lock = disk.lock().map_err(|error| in_use_or(&disk.location(), error))?;
    Gaps::open(&disk)?.accept(&disk)
}

pub(crate) fn adopt_on(disk: Arc<dyn Disk>, adoption: &Adoption) -> Result<Generation> {
    let disk = disk.as_ref();
    let _lock = disk.lock().map_err(|error| in_use_or(&disk.location(), error))?;
    let Some(recovered) = recover(disk, Heir::Anybody)? else {
        return Err(Error::new(ErrorKind::Configuration, "there is no journal to go on with")
            .with_detail(format!("The directory is {}.", disk.location()))
            .with_hint("`postrider run` makes a new one."));
    };
    // The record first: a crash between the two leaves a record too many, and never a gap without one.
    Gaps::open(disk)?.record(disk, adoption.gap.clone())?;
    let header = next_header(&recovered, adoption)?;
    let refused = |error| failure::disk("cannot make the journal durable", error);
    let tail = create_segment(disk, &header, &SchemaBlock::default())?;
    disk.sync_names(SyncPoint::OpenedNames).map_err(refused)?;
    prove(disk, header.name, tail.file.as_ref()).map_err(refused)?;
    Ok(header.name.generation)
}

fn next_header(recovered: &Recovered, adoption: &Adoption) -> Result<SegmentHeader> {
    let Recovered { segments, tail, .. } = recovered;
    let exhausted = || Error::new(ErrorKind::Internal, "the journal has no number left");
    let last = segments.back().ok_or_else(exhausted)?.name;
    let generation = if adoption.new_generation {
        Generation(last.generation.0.checked_add(1).ok_or_else(exhausted)?)
    } else {
        last.generation
    };
    let number = last.number.checked_add(1).ok_or_else(exhausted)?;
    let start = if adoption.new_generation { adoption.begins } else { adoption.begins.max(tail.end.lsn) };
    Ok(SegmentHeader {
        identity: adoption.identity.clone(),
        name: SegmentName { generation, start, number },
        chain: tail.chain,
        commit: tail.order.commit,
        commit_generation: last.generation,
        cut: adoption.cut.unwrap_or(Lsn::ZERO),
    })
}
