//! `decode`: how fast the server's messages become changes whose values can be read.

use std::time::Instant;

use serde_json::{Map, json};
use xtask::error::{Context, Error, Result};

use crate::figure::{Better, Figure, Report};
use crate::measure::Tally;
use crate::server::Server;
use crate::turn::{SIDES, Side, order};
use crate::{Bench, no_such_case};
use recording::{CHANGES_EACH, Recording, Values};

mod recording;
mod sides;

/// Decode the same messages with Postrider's core and with the crate `pg_walstream`, turn by turn.
#[derive(Debug, clap::Parser)]
#[command(name = "decode")]
pub struct Decode {
    /// One JSON object a line on stdout for each figure.
    #[arg(long)]
    json: bool,
    /// How often each side decodes each recording.
    #[arg(long, default_value_t = 11)]
    runs: usize,
    /// The size of the recordings.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Only the case of this name.
    #[arg(long)]
    case: Option<String>,
}

/// How far the messages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// To changes of known tables.
    Decoded,
    /// To messages as they are.
    Parsed,
}

struct Case {
    name: &'static str,
    values: Values,
    depth: Depth,
    other_name: &'static str,
}

const CASES: [Case; 4] = [
    Case { name: "text", values: Values::Text, depth: Depth::Decoded, other_name: DECODER },
    Case { name: "text, parser alone", values: Values::Text, depth: Depth::Parsed, other_name: PARSER },
    Case { name: "binary", values: Values::Binary, depth: Depth::Decoded, other_name: DECODER },
    Case { name: "binary, parser alone", values: Values::Binary, depth: Depth::Parsed, other_name: PARSER },
];

const DECODER: &str = "pg_walstream decoder";
const PARSER: &str = "pg_walstream parser";

const TRANSACTIONS: f64 = 20_000.0;

const SETTINGS: [(&str, &str); 2] = [("max_wal_size", "16GB"), ("checkpoint_timeout", "1h")];

impl Bench for Decode {
    fn run(self) -> Result<()> {
        let wanted = |case: &&Case| self.case.as_deref().is_none_or(|only| only == case.name);
        let cases: Vec<_> = CASES.iter().filter(wanted).collect();
        if cases.is_empty() {
            return Err(no_such_case(CASES.iter().map(|case| case.name)));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let transactions = ((TRANSACTIONS * self.scale) as u64).max(1);
        // The server is gone before anything is measured.
        let recorded = runtime.context(|| "cannot start the runtime")?.block_on(record(transactions))?;
        let report = Report::begin("decode", self.json, recorded.settings);
        let mut figures = Vec::new();
        for case in cases {
            let recording = match case.values {
                Values::Text => &recorded.text,
                Values::Binary => &recorded.binary,
            };
            figures.extend(compare(case, recording, transactions * CHANGES_EACH, self.runs)?);
        }
        report.finish(&figures);
        Ok(())
    }
}

/// What a server sent, and which server that was.
struct Recorded {
    text: Recording,
    binary: Recording,
    settings: String,
}

async fn record(transactions: u64) -> Result<Recorded> {
    let server = Server::start(&SETTINGS).await?;
    recording::write(&server, transactions).await?;
    let text = recording::record(&server, Values::Text).await?;
    let binary = recording::record(&server, Values::Binary).await?;
    let ours = "ours: assembler and decoder of postrider-core";
    let other = "other: PgOutputDecoder, for the parser LogicalReplicationParser::parse_wal_message_bytes";
    let settings = Server::describe(server.cluster.installation().version(), &SETTINGS);
    Ok(Recorded { text, binary, settings: format!("{settings}; {ours}; {other}") })
}

fn compare(case: &Case, recording: &Recording, changes: u64, runs: usize) -> Result<[Figure; 2]> {
    eprintln!("recording {}: {} messages, {} bytes", case.name, recording.messages.len(), recording.byte_len);
    let (mut ours, mut other) = (Vec::new(), Vec::new());
    let mut reference = None;
    for run in 1..=runs {
        for side in order(SIDES, run) {
            let (tally, seconds) = decode(recording, case.depth, side)?;
            let expected = *reference.get_or_insert(tally);
            if tally != expected || tally.rows != changes {
                return Err(Error::new(format!(
                    "the sides read different values: {tally:?} and {expected:?} of {changes} changes"
                )));
            }
            match side {
                Side::Ours => ours.push(seconds),
                Side::Other => other.push(seconds),
            }
        }
        eprintln!("run {run}     ours {:.4} s, other {:.4} s", ours[run - 1], other[run - 1]);
    }
    let values = reference.map_or(0, |tally| tally.values);
    let amounts: [(&'static str, f64); 2] = [("values/s", values as f64), ("MB/s", recording.byte_len as f64 / 1e6)];
    Ok(amounts.map(|(unit, amount)| Figure {
        case: case.name.into(),
        unit,
        better: Better::More,
        ours: ours.iter().map(|seconds| amount / seconds).collect(),
        other_name: case.other_name,
        other: other.iter().map(|seconds| amount / seconds).collect(),
        goal: None,
        extra: extra(recording, values, changes),
    }))
}

/// One turn: what was read, and the seconds that it took.
fn decode(recording: &Recording, depth: Depth, side: Side) -> Result<(Tally, f64)> {
    let mut tally = Tally::default();
    // The other side takes each message as its own: it gets handles that were made before the clock runs.
    let handles = if side == Side::Other { recording.messages.clone() } else { Vec::new() };
    let began = Instant::now();
    match (side, depth) {
        (Side::Ours, Depth::Decoded) => sides::decode_ours(&recording.messages, &mut tally)?,
        (Side::Ours, Depth::Parsed) => sides::parse_ours(&recording.messages, &mut tally)?,
        (Side::Other, Depth::Decoded) => sides::decode_theirs(handles, &mut tally)?,
        (Side::Other, Depth::Parsed) => sides::parse_theirs(handles, &mut tally)?,
    }
    Ok((tally, began.elapsed().as_secs_f64()))
}

fn extra(recording: &Recording, values: u64, changes: u64) -> Map<String, serde_json::Value> {
    let members = [("bytes", json!(recording.byte_len)), ("values", json!(values)), ("changes", json!(changes))];
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
