//! `cargo x record`: every case on every version, taken down anew.

use std::process::ExitCode;

use postrider_tests::conformance::case::{Case, VERSIONS};
use postrider_tests::conformance::oracle;
use postrider_tests::conformance::recording::Recording;
use postrider_tests::conformance::server::{Database, quiet};
use postrider_tests::conformance::substance::substance;
use xtask::error::Result;

const USAGE: &str = "usage: record [--postgres NN] [--all]";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut versions = VERSIONS;
    let mut all = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--all" => all = true,
            "--postgres" => match arguments.next().and_then(|text| text.parse().ok()) {
                Some(version) => versions = version..=version,
                None => {
                    eprintln!("{USAGE}");
                    return ExitCode::from(2);
                }
            },
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    for version in versions {
        if let Err(error) = record(version, all).await {
            eprintln!("error: {}", error.report());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// A recording that says the same as before is left as it is, so that a diff shows what has changed.
async fn record(version: u32, all: bool) -> Result<()> {
    let cluster = quiet(version)?;
    let (mut same, mut written) = (0, Vec::new());
    for case in Case::all().into_iter().filter(|case| case.is_of(version)) {
        let database = Database::of(&case, &cluster).await.expect("the version has what the case needs");
        let recording = database.record(&case).await.expect("the version has the options");
        database.remove(&cluster).await;
        oracle::check(&case, &recording);
        let known = Recording::exists(&case, version).then(|| substance(&Recording::read(&case, version)));
        if !all && known.is_some_and(|known| known == substance(&recording)) {
            same += 1;
        } else {
            recording.write(&case, version);
            written.push(case.name);
        }
    }
    println!("PostgreSQL {version}: {same} the same, {} written {}", written.len(), written.join(" "));
    Ok(())
}
