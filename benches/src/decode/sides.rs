//! What each side does with a recording: it touches the bytes of every value, in the order of the stream.

use bytes::Bytes;
use pg_walstream::protocol::{LogicalReplicationMessage, TupleData};
use pg_walstream::{EventType, LogicalReplicationParser, PgOutputDecoder, RowData};
use postrider_core::assemble::Assembler;
use postrider_core::change::Change;
use postrider_core::decode::Decoder;
use postrider_core::pgoutput::{Message, OldTuple};
use postrider_core::position::Lsn;
use postrider_core::transaction::{PART_BYTES_MAX, TransactionBatch};
use xtask::error::{Context, Error, Result};

use crate::measure::Tally;
use crate::recvlogical::bytes_of;

/// Messages to changes of known tables: the steps *assemble* and *decode* of the walk.
pub(super) fn decode_ours(messages: &[Bytes], tally: &mut Tally) -> Result<()> {
    let (mut assembler, mut decoder) = (Assembler::new(Lsn(0)), Decoder::new());
    let mut batch = TransactionBatch::new();
    for message in messages {
        assembler.push(message, &mut batch).context(|| "cannot assemble")?;
        if batch.byte_len() >= PART_BYTES_MAX {
            decode_batch(&mut decoder, &batch, tally)?;
            batch.clear();
        }
    }
    decode_batch(&mut decoder, &batch, tally)
}

/// Messages as they are, columns by their place.
pub(super) fn parse_ours(messages: &[Bytes], tally: &mut Tally) -> Result<()> {
    for message in messages {
        match Message::parse(message).context(|| "cannot parse")? {
            Message::Insert(insert) => tally.row(insert.new.columns().map(bytes_of)),
            Message::Update(update) => {
                touch_old(update.old, tally);
                tally.row(update.new.columns().map(bytes_of));
            }
            Message::Delete(delete) => touch_old(Some(delete.old), tally),
            _ => {}
        }
    }
    Ok(())
}

/// Messages to events of known tables, values by their column's name.
pub(super) fn decode_theirs(messages: Vec<Bytes>, tally: &mut Tally) -> Result<()> {
    let mut decoder = PgOutputDecoder::with_protocol_version(1);
    for message in messages {
        let event = decoder.decode_message(message, pg_walstream::Lsn::new(0)).context(|| "cannot decode")?;
        match event.map(|event| event.event_type) {
            Some(EventType::Insert { data, .. }) => touch_named(&data, tally),
            Some(EventType::Update { old_data, new_data, .. }) => {
                if let Some(old) = old_data {
                    touch_named(&old, tally);
                }
                touch_named(&new_data, tally);
            }
            Some(EventType::Delete { old_data, .. }) => touch_named(&old_data, tally),
            _ => {}
        }
    }
    Ok(())
}

/// Messages as they are, columns by their place, none of them copied: the fastest that the crate has.
pub(super) fn parse_theirs(messages: Vec<Bytes>, tally: &mut Tally) -> Result<()> {
    let mut parser = LogicalReplicationParser::with_protocol_version(1);
    for message in messages {
        match parser.parse_wal_message_bytes(message).context(|| "cannot parse")?.message {
            LogicalReplicationMessage::Insert { tuple, .. } => touch_placed(&tuple, tally),
            LogicalReplicationMessage::Update { old_tuple, new_tuple, .. } => {
                if let Some(old) = old_tuple {
                    touch_placed(&old, tally);
                }
                touch_placed(&new_tuple, tally);
            }
            LogicalReplicationMessage::Delete { old_tuple, .. } => touch_placed(&old_tuple, tally),
            _ => {}
        }
    }
    Ok(())
}

fn decode_batch(decoder: &mut Decoder, batch: &TransactionBatch, tally: &mut Tally) -> Result<()> {
    for part in batch.parts() {
        let mut changes = decoder.changes(part);
        while let Some(change) = changes.next() {
            match change.context(|| "cannot decode")?.1 {
                Change::Insert { new, .. } => tally.row(new.columns().map(bytes_of)),
                Change::Update { old, new, .. } => {
                    touch_old(old, tally);
                    tally.row(new.columns().map(bytes_of));
                }
                Change::Delete { old, .. } => touch_old(Some(old), tally),
                other => return Err(Error::new(format!("nobody wrote this change: {other:?}"))),
            }
        }
    }
    Ok(())
}

fn touch_old(old: Option<OldTuple<'_>>, tally: &mut Tally) {
    if let Some(old) = old {
        tally.row(old.tuple().columns().map(bytes_of));
    }
}

fn touch_named(row: &RowData, tally: &mut Tally) {
    tally.row(row.iter().map(|(_, value)| (!value.is_null()).then(|| value.as_bytes())));
}

fn touch_placed(tuple: &TupleData, tally: &mut Tally) {
    tally.row(tuple.columns.iter().map(|value| (!value.is_null()).then(|| value.as_bytes())));
}
