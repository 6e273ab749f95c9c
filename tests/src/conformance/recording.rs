//! A recording: the messages that one version sent for a case, and beside them what the server says of the same stretch of its log.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::case::{Case, golden_dir};

/// What came of a case on one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// `16.15`
    pub server: String,
    pub messages: Vec<Sent>,
    pub expected: Expected,
}

/// One message of the output plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The LSN in the header of its `XLogData`.
    pub lsn: String,
    pub payload: Vec<u8>,
}

/// The server's own word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// What `test_decoding` writes; of a case that it cannot judge, what the case says.
    pub changes: Vec<String>,
    /// The names of built-in types, as `format_type` writes them.
    pub types: BTreeMap<u32, String>,
    pub tables: Vec<Table>,
}

/// A published table as it is at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub schema: String,
    pub name: String,
    pub columns: Vec<String>,
    /// As COPY writes them in text format, sorted.
    pub rows: Vec<String>,
}

impl Recording {
    pub fn read(case: &Case, version: u32) -> Recording {
        let read = |extension| {
            let path = path(case, version, extension);
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let (stream, expected) = (read("jsonl"), read("txt"));
        let mut lines = stream.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let head = lines.next().unwrap();
        let messages = lines.map(|line| Sent {
            lsn: line["lsn"].as_str().unwrap().to_owned(),
            payload: from_hex(line["message"].as_str().unwrap()),
        });
        let server = head["server"].as_str().unwrap().to_owned();
        Recording { server, messages: messages.collect(), expected: Expected::parse(&expected) }
    }

    /// Whether there is one.
    pub fn exists(case: &Case, version: u32) -> bool {
        path(case, version, "jsonl").exists()
    }

    pub fn write(&self, case: &Case, version: u32) {
        fs::create_dir_all(golden_dir().join(format!("pg{version}"))).unwrap();
        fs::write(path(case, version, "jsonl"), self.stream_text(case)).unwrap();
        fs::write(path(case, version, "txt"), self.expected.text(case)).unwrap();
    }

    fn stream_text(&self, case: &Case) -> String {
        let head = json!({ "case": case.number, "title": case.title, "server": self.server, "options": case.options });
        let mut text = format!("{head}\n");
        for sent in &self.messages {
            writeln!(text, "{}", json!({ "lsn": sent.lsn, "message": to_hex(&sent.payload) })).unwrap();
        }
        text
    }
}

impl Expected {
    fn text(&self, case: &Case) -> String {
        let source = match &case.unlike_test_decoding {
            None => "test_decoding".to_owned(),
            Some(why) => format!("the case, not test_decoding: {why}"),
        };
        let mut text = format!("# changes, as said by {source}\n");
        self.changes.iter().for_each(|line| writeln!(text, "{line}").unwrap());
        text.push_str("# types\n");
        self.types.iter().for_each(|(oid, name)| writeln!(text, "{oid}\t{name}").unwrap());
        let unlike = case.unlike_tables.as_ref().map(|why| format!(", not made of these changes alone: {why}"));
        writeln!(text, "# tables at the end, as COPY writes them{}", unlike.unwrap_or_default()).unwrap();
        for table in &self.tables {
            writeln!(text, "{}", json!([table.schema, table.name, table.columns])).unwrap();
            table.rows.iter().for_each(|row| writeln!(text, " {row}").unwrap());
        }
        text
    }

    fn parse(text: &str) -> Expected {
        let mut expected = Expected::default();
        let mut section = "";
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("# ") {
                section = title.split([' ', ',']).next().unwrap();
                continue;
            }
            match section {
                "changes" => expected.changes.push(line.to_owned()),
                "types" => {
                    let (oid, name) = line.split_once('\t').unwrap();
                    expected.types.insert(oid.parse().unwrap(), name.to_owned());
                }
                _ => match line.strip_prefix(' ') {
                    Some(row) => expected.tables.last_mut().unwrap().rows.push(row.to_owned()),
                    None => {
                        let (schema, name, columns) = serde_json::from_str(line).unwrap();
                        expected.tables.push(Table { schema, name, columns, rows: Vec::new() });
                    }
                },
            }
        }
        expected
    }
}

fn path(case: &Case, version: u32, extension: &str) -> PathBuf {
    golden_dir().join(format!("pg{version}")).join(format!("{}.{extension}", case.name))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn from_hex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}
