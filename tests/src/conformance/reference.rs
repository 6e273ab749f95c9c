//! A reader of every protocol version that holds everything in memory: what the assembler is compared with.

use std::collections::BTreeMap;

use postrider_core::pgoutput::{Begin, BeginPrepare, Commit, CommitPrepared, Message, StreamCommit};
use postrider_core::position::Lsn;
use postrider_core::time::Timestamp;

/// A committed transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    pub xid: u32,
    pub commit_lsn: Lsn,
    pub end_lsn: Lsn,
    pub committed_at: Timestamp,
    /// The tables and types that the server described before, outside of streams: it does not do so again for this
    /// transaction, though what it did so in may commit later or never.
    pub schema: Vec<Vec<u8>>,
    /// Its messages as they come outside of a stream, without BEGIN and COMMIT.
    pub messages: Vec<Vec<u8>>,
}

/// Messages and the schema that they were sent under.
#[derive(Debug, Default, Clone)]
struct Body {
    schema: Vec<Vec<u8>>,
    messages: Vec<Vec<u8>>,
}

/// What has come and has no verdict yet.
#[derive(Debug, Default)]
struct Open {
    /// Each message with the (sub)transaction that it belongs to.
    streams: BTreeMap<u32, Vec<(u32, Vec<u8>)>>,
    prepared: BTreeMap<String, Body>,
    /// The transaction between a begin and its end.
    current: Body,
    /// All descriptions outside of streams so far.
    described: Vec<Vec<u8>>,
}

/// The committed transactions in commit order, those without a message among them.
pub fn transactions<'a>(payloads: impl IntoIterator<Item = &'a [u8]>) -> Vec<Transaction> {
    let mut open = Open::default();
    let mut done = Vec::new();
    let mut streaming = None;
    let mut xid_now = 0;
    for payload in payloads {
        let (xid, message) = match streaming {
            Some(_) => Message::parse_streamed(payload).unwrap(),
            None => (None, Message::parse(payload).unwrap()),
        };
        match message {
            Message::Begin(Begin { xid, .. }) | Message::BeginPrepare(BeginPrepare { xid, .. }) => {
                xid_now = xid;
                open.current.schema.clone_from(&open.described);
            }
            Message::StreamStart(start) => streaming = Some(start.xid),
            Message::StreamStop => streaming = None,
            Message::StreamAbort(abort) if abort.xid == abort.subxid => {
                open.streams.remove(&abort.xid);
            }
            Message::StreamAbort(abort) => {
                open.streams.entry(abort.xid).or_default().retain(|(xid, _)| *xid != abort.subxid);
            }
            Message::Prepare(prepare) => {
                open.prepared.insert(prepare.gid.to_owned(), std::mem::take(&mut open.current));
            }
            Message::StreamPrepare(prepare) => {
                let body = open.take_stream(prepare.xid);
                open.prepared.insert(prepare.gid.to_owned(), body);
            }
            Message::RollbackPrepared(rollback) => {
                open.prepared.remove(rollback.gid);
            }
            Message::Commit(Commit { commit_lsn, end_lsn, committed_at, .. }) => {
                let body = std::mem::take(&mut open.current);
                done.push(body.committed(xid_now, [commit_lsn, end_lsn], committed_at));
            }
            Message::StreamCommit(StreamCommit { xid, commit_lsn, end_lsn, committed_at, .. }) => {
                done.push(open.take_stream(xid).committed(xid, [commit_lsn, end_lsn], committed_at));
            }
            Message::CommitPrepared(CommitPrepared { xid, commit_lsn, end_lsn, committed_at, gid, .. }) => {
                let body = open.prepared.remove(gid).expect("it was prepared");
                done.push(body.committed(xid, [commit_lsn, end_lsn], committed_at));
            }
            // What is not transactional belongs to nothing.
            Message::LogicalMessage(message) if !message.transactional => {}
            _ => match streaming {
                Some(top) => {
                    let plain = xid.map_or_else(|| payload.to_vec(), |_| [&payload[..1], &payload[5..]].concat());
                    open.streams.entry(top).or_default().push((xid.unwrap_or(top), plain));
                }
                None => {
                    if matches!(message, Message::Relation(_) | Message::Type(_)) {
                        open.described.push(payload.to_vec());
                    }
                    open.current.messages.push(payload.to_vec());
                }
            },
        }
    }
    assert!(open.streams.is_empty() && open.prepared.is_empty(), "a case ends with every verdict: {open:?}");
    done
}

impl Body {
    fn committed(self, xid: u32, [commit_lsn, end_lsn]: [Lsn; 2], committed_at: Timestamp) -> Transaction {
        Transaction { xid, commit_lsn, end_lsn, committed_at, schema: self.schema, messages: self.messages }
    }
}

impl Open {
    /// A stream describes its tables itself.
    fn take_stream(&mut self, xid: u32) -> Body {
        let messages = self.streams.remove(&xid).unwrap_or_default().into_iter().map(|(_, message)| message).collect();
        Body { schema: Vec::new(), messages }
    }
}
