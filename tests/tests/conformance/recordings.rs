//! The recordings, without any server.

use postrider_core::assemble::Assembler;
use postrider_core::decode::Decoder;
use postrider_core::pgoutput::{Message, ParseProblem};
use postrider_core::position::Lsn;
use postrider_core::route::{Route, Router, Routing, WorkMapping};
use postrider_core::shape::{WorkChange, work_change};
use postrider_core::transaction::TransactionBatch;
use postrider_core::work::WorkKey;
use postrider_tests::conformance::case::{Case, VERSIONS};
use postrider_tests::conformance::oracle;
use postrider_tests::conformance::recording::Recording;

/// Every recording there should be.
fn recordings() -> impl Iterator<Item = (Case, u32, Recording)> {
    let cases = Case::all();
    VERSIONS.flat_map(move |version| {
        let of_version: Vec<_> = cases.iter().filter(|case| case.is_of(version)).cloned().collect();
        of_version.into_iter().map(move |case| {
            let recording = Recording::read(&case, version);
            (case, version, recording)
        })
    })
}

/// `docs/conformance.md` has a line for each case.
#[test]
fn the_page_has_every_case() {
    let page = xtask::workspace::root().join("docs/conformance.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, cases) = page.split_once("## The cases").unwrap();
    let (cases, _) = cases.split_once("\n## ").unwrap();
    let shown: Vec<&str> =
        cases.lines().filter(|line| line.split('`').count() == 3 && line.starts_with("| ")).collect();
    let line = |case: &Case| {
        let (first, last) = (case.versions.start(), case.versions.end());
        let versions = if first == last { first.to_string() } else { format!("{first} to {last}") };
        let why = if case.why_not_all.is_empty() { String::new() } else { format!(": {}", case.why_not_all) };
        format!("| {} | `{}` | {} | {} | {versions}{why} |", case.number, case.name, case.title, case.protocol())
    };
    assert_eq!(shown, Case::all().iter().map(line).collect::<Vec<_>>());
}

#[test]
fn every_recording_reads_as_the_server_says() {
    let mut failed = Vec::new();
    for (case, version, recording) in recordings() {
        let name = format!("pg{version} {}", case.name);
        if std::panic::catch_unwind(|| oracle::check(&case, &recording)).is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn every_cut_of_a_recorded_message_is_an_error_with_its_offset() {
    for (case, _, recording) in recordings() {
        let mut streaming = false;
        for sent in &recording.messages {
            let bytes = sent.payload.as_slice();
            let parse =
                |bytes| if streaming { Message::parse_streamed(bytes).err() } else { Message::parse(bytes).err() };
            assert_eq!(parse(bytes), None);
            // An abort ends before its place in protocols below 4.
            for cut in (0..bytes.len()).filter(|cut| !(bytes[0] == b'A' && *cut == 9)) {
                let error = parse(&bytes[..cut]).unwrap_or_else(|| panic!("{}: cut at {cut}", case.name));
                assert!(error.offset <= cut, "{error}");
            }
            let error = parse(&[bytes, b"x"].concat()).expect("one byte too many");
            let (at, problem) = (bytes.len(), ParseProblem::TrailingBytes);
            assert!(bytes[0] == b'A' || (error.offset, error.problem) == (at, problem), "{error}");
            match bytes[0] {
                b'S' => streaming = true,
                b'E' => streaming = false,
                _ => {}
            }
        }
    }
}

/// a change of the key is one change that names the old one, whatever the log marks as key.
#[test]
fn the_key_of_a_work_row_is_what_the_mapping_says() {
    let name = |key: &WorkKey| key.parts().collect::<Vec<_>>().join("/");
    for version in VERSIONS {
        let recording = Recording::read(&Case::named("r_06_work_table_under_full"), version);
        let mut assembler = Assembler::new(Lsn::ZERO);
        let mut batch = TransactionBatch::new();
        recording.messages.iter().for_each(|sent| assembler.push(&sent.payload, &mut batch).unwrap());
        let mut router = Router::new(Routing { work: Some(WorkMapping::default()), ..Routing::default() });
        let mut decoder = Decoder::new();
        let mut seen = Vec::new();
        for part in batch.parts() {
            let mut changes = decoder.changes(part);
            while let Some(change) = changes.next() {
                let (_, change) = change.unwrap();
                let Route::Work(row) = router.route(&change).unwrap() else { panic!("{change:?}") };
                seen.push(match work_change(&row).unwrap() {
                    WorkChange::Version { version, moved_from } => {
                        assert_eq!(version.stage.as_str().len(), 2500, "the untouched stage comes from the old row");
                        let moved_from = moved_from.as_ref().map(name);
                        format!("{} fence {} moved from {moved_from:?}", name(&version.key), version.fence)
                    }
                    WorkChange::Gone(key) => format!("{} gone", name(&key)),
                });
            }
        }
        let expected = [
            "g/q1 fence 1 moved from None",
            "g/q1 fence 2 moved from None",
            "g/q2 fence 2 moved from Some(\"g/q1\")",
            "g/q2 gone",
        ];
        assert_eq!(seen, expected, "{version}");
    }
}
