//! A case: a script that any client can run, with what must be known to judge what comes of it.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The versions that the suite runs on.
pub const VERSIONS: RangeInclusive<u32> = 14..=18;

/// One file of `tests/golden/cases`.
#[derive(Debug, Clone)]
pub struct Case {
    /// The file's stem.
    pub name: String,
    /// `R-12`
    pub number: String,
    pub title: String,
    pub versions: RangeInclusive<u32>,
    /// Why it cannot exist on the other versions.
    pub why_not_all: String,
    /// What is said to `pgoutput`.
    pub options: BTreeMap<String, String>,
    /// Settings of the session that reads the log.
    pub reader: Option<String>,
    /// Tables that the publication does not have, and `test_decoding` shows all the same.
    pub unpublished: Vec<String>,
    /// Why `test_decoding` says something else; [`Case::by_hand`] is then what is right.
    pub unlike_test_decoding: Option<String>,
    /// Why the tables at the end are not what the changes make of empty ones.
    pub unlike_tables: Option<String>,
    /// Why what the server sends depends on what else happens on it meanwhile.
    pub alone: Option<String>,
    /// Before the slots are made.
    pub setup: Vec<Statement>,
    pub script: Vec<Statement>,
    /// The changes, one in a line as `test_decoding` would write it, without BEGIN and COMMIT.
    pub by_hand: Vec<String>,
}

/// One statement of a case.
#[derive(Debug, Clone)]
pub struct Statement {
    /// The session that runs it.
    pub session: String,
    pub sql: String,
    /// The SQLSTATE that it must fail with.
    pub fails: Option<String>,
}

/// The folder of cases and recordings.
pub fn golden_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

impl Case {
    /// All cases, by name.
    pub fn all() -> Vec<Case> {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(golden_dir().join("cases")).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let read = |path: PathBuf| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            Case::parse(name, &fs::read_to_string(path).unwrap())
        };
        paths.into_iter().map(read).collect()
    }

    pub fn named(name: &str) -> Case {
        let path = golden_dir().join("cases").join(format!("{name}.sql"));
        Case::parse(name.to_owned(), &fs::read_to_string(path).unwrap())
    }

    /// Whether the version can have it.
    pub fn is_of(&self, version: u32) -> bool {
        self.versions.contains(&version)
    }

    pub fn protocol(&self) -> u32 {
        self.options["proto_version"].parse().unwrap()
    }

    pub fn is_two_phase(&self) -> bool {
        self.options.contains_key("two_phase")
    }

    fn parse(name: String, text: &str) -> Case {
        let defaults = [("proto_version", "1"), ("publication_names", "p"), ("messages", "true")];
        let mut case = Case {
            name,
            number: String::new(),
            title: String::new(),
            versions: VERSIONS,
            why_not_all: String::new(),
            options: defaults.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            reader: None,
            unpublished: Vec::new(),
            unlike_test_decoding: None,
            unlike_tables: None,
            alone: None,
            setup: Vec::new(),
            script: Vec::new(),
            by_hand: Vec::new(),
        };
        let mut reader = Reader { in_script: false, session: "a".to_owned(), fails: None, sql: String::new() };
        for line in text.lines() {
            if let Some(directive) = line.strip_prefix("-- @") {
                let (word, rest) = directive.split_once(' ').unwrap_or((directive, ""));
                case.direct(&mut reader, word, rest);
            } else if let Some(expected) = line.strip_prefix("--= ") {
                case.by_hand.push(expected.to_owned());
            } else {
                reader.take(line, if reader.in_script { &mut case.script } else { &mut case.setup });
            }
        }
        assert!(reader.sql.is_empty(), "{}: a statement does not end", case.name);
        assert!(!case.number.is_empty() && !case.script.is_empty(), "{}: it lacks a number or a script", case.name);
        case
    }

    fn direct(&mut self, reader: &mut Reader, word: &str, rest: &str) {
        let two = || rest.split_once(' ').unwrap_or((rest, ""));
        match word {
            "case" => (self.number, self.title) = (two().0.to_owned(), two().1.to_owned()),
            "versions" => {
                let (first, last) = two().0.split_once('-').unwrap();
                self.versions = first.parse().unwrap()..=last.parse().unwrap();
                self.why_not_all = two().1.to_owned();
            }
            "options" => {
                let options = rest.split(' ').map(|option| option.split_once('=').unwrap());
                self.options.extend(options.map(|(key, value)| (key.to_owned(), value.to_owned())));
            }
            "reader" => self.reader = Some(rest.to_owned()),
            "unpublished" => self.unpublished.push(rest.to_owned()),
            "unlike" if two().0 == "tables" => self.unlike_tables = Some(two().1.to_owned()),
            "unlike" => self.unlike_test_decoding = Some(two().1.to_owned()),
            "alone" => self.alone = Some(rest.to_owned()),
            "script" => reader.in_script = true,
            "session" => reader.session = rest.to_owned(),
            "fails" => reader.fails = Some(rest.to_owned()),
            _ => panic!("{}: unknown directive @{word}", self.name),
        }
    }
}

/// The state between two lines.
struct Reader {
    in_script: bool,
    session: String,
    fails: Option<String>,
    sql: String,
}

impl Reader {
    /// A statement ends with a semicolon at the end of a line.
    fn take(&mut self, line: &str, statements: &mut Vec<Statement>) {
        self.sql.push_str(line);
        if line.ends_with(';') {
            let sql = std::mem::take(&mut self.sql);
            statements.push(Statement { session: self.session.clone(), sql, fails: self.fails.take() });
        } else {
            self.sql.push('\n');
        }
    }
}
