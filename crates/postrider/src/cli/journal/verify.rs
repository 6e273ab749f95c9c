//! `postrider journal verify`: whether every frame of every segment is as it was written and can be decoded.

use crate::reading::JournalPlace;
use crate::{exit, output};
use postrider_core::change::Change;
use postrider_core::decode::{DecodeError, Decoder};
use postrider_core::error::{ErrorKind, Result};
use postrider_core::ports::SchemaBlock;
use postrider_core::transaction::Part;
use postrider_journal::{Examiner, Fault, FaultKind, Verified, verify};
use serde_json::{Value, json};

/// Read every frame of every segment: checksums, order, whole transactions, schema frames, and that all of it decodes
///
/// Exit code 0: all is whole; an unfinished end, which the next start cuts, is no fault. Exit code 5: something is damaged.
#[derive(Debug, clap::Args)]
pub(super) struct Verify {
    #[command(flatten)]
    place: JournalPlace,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

/// Decodes all that it is shown, as a consumer would.
#[derive(Debug, Default)]
struct Examination {
    decoder: Decoder,
    faults: Vec<Fault>,
}

impl Verify {
    pub(super) fn obey(self) -> Result<u8> {
        let dir = self.place.dir(self.place.configuration()?.as_ref());
        let mut examination = Examination::default();
        let verified = verify(&dir, &mut examination)?;
        let damaged = examination.faults.iter().any(|fault| fault.kind != FaultKind::Unfinished);
        let code = if damaged { ErrorKind::JournalCorrupt.exit_code() } else { exit::OK };
        if self.json {
            let faults: Vec<Value> = examination.faults.iter().map(fault_json).collect();
            output::json(&json!({
                "ok": !damaged,
                "exit_code": code,
                "dir": dir.display().to_string(),
                "verified": verified_json(&verified),
                "faults": faults,
            }));
        } else {
            examination.faults.iter().for_each(|fault| output::data(&fault_text(fault)));
            let Verified { segments, bytes, frames, transactions, changes } = verified;
            output::data(&format!(
                "{}: {segments} segments, {bytes} bytes; {frames} frames, {transactions} transactions, {changes} changes {}",
                dir.display(),
                if damaged { "are whole, beside what is named above" } else { "are whole" }
            ));
        }
        Ok(code)
    }
}

impl Examiner for Examination {
    fn schema(&mut self, schema: &SchemaBlock) -> Result<(), String> {
        // From nothing, as a consumer that begins here.
        self.decoder = Decoder::new();
        self.decoder.load(schema).map_err(|error| format!("the schema frame cannot be decoded: {error}"))
    }

    fn part(&mut self, part: Part<'_>) -> Result<(), String> {
        let counted = u64::from(part.head.changes);
        let found = count(self.decoder.changes(part)).map_err(|error| format!("a frame cannot be decoded: {error}"))?;
        if found == counted {
            return Ok(());
        }
        Err(format!("a frame says that it holds {counted} changes and holds {found}"))
    }

    fn found(&mut self, fault: Fault) {
        self.faults.push(fault);
    }
}

/// How many changes there are; logical messages do not count.
fn count(mut changes: postrider_core::decode::Changes<'_>) -> Result<u64, DecodeError> {
    let mut count = 0_u64;
    while let Some(change) = changes.next() {
        if !matches!(change?.1, Change::Message(_)) {
            count = count.saturating_add(1);
        }
    }
    Ok(count)
}

fn verified_json(verified: &Verified) -> Value {
    json!({
        "segments": verified.segments,
        "bytes": verified.bytes,
        "frames": verified.frames,
        "transactions": verified.transactions,
        "changes": verified.changes,
    })
}

fn fault_json(fault: &Fault) -> Value {
    let (word, after, until) = match fault.kind {
        FaultKind::Unfinished => ("unfinished", None, None),
        FaultKind::Damaged { after, until } => ("damaged", Some(after), until),
        FaultKind::Positions => ("positions", None, None),
    };
    json!({
        "kind": word,
        "file": fault.file,
        "offset": fault.offset,
        "message": fault.what,
        "readable_to": after.map(|position| position.to_string()),
        "readable_after": until.map(|position| position.to_string()),
        "hint": cure(fault),
    })
}

fn fault_text(fault: &Fault) -> String {
    let word = if fault.kind == FaultKind::Unfinished { "note   " } else { "damaged" };
    let Fault { file, offset, what, .. } = fault;
    format!("{word} {file}, at byte {offset}: {what}.\n        {}", cure(fault))
}

fn cure(fault: &Fault) -> String {
    match fault.kind {
        FaultKind::Unfinished => {
            "The end is being written, or a crash left it: nothing to do, the next start cuts it and the \
             server sends it again."
                .to_owned()
        }
        FaultKind::Damaged { after, until: Some(until) } => format!(
            "Restore the file from a copy. Without one, a consumer that needs what stands between {after} and {until} stops \
             there; consumers that have passed {until} are not affected."
        ),
        FaultKind::Damaged { after, until: None } => format!(
            "Restore the file from a copy, before the next start: that refuses the journal where this is known to have been \
             durable, and else cuts everything after {after}. Without a copy, what comes after is lost unless the server still \
             has it. Where the machine has crashed since the last start this may be the trace of that, and the server has it."
        ),
        FaultKind::Positions => {
            "Restore the file from a copy, or remove it: every consumer then starts at the oldest position held."
                .to_owned()
        }
    }
}
