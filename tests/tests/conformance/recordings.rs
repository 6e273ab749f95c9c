//! The recordings, without any server.

use postrider_core::pgoutput::{Message, ParseProblem};
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
    let shown: Vec<&str> = page.lines().filter(|line| line.split('`').count() == 3 && line.starts_with("| ")).collect();
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
