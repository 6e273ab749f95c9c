//! `cargo x sim`: the simulation for many seeds, or for one.

use postrider_core::history::lines::write;
use postrider_tests::sim::{campaign, scenario::Scenario};
use std::process::ExitCode;

const USAGE: &str = "usage: sim [--seeds N] [--from S] | --seed S [--lines FILE]";

fn main() -> ExitCode {
    let mut seeds = 1_000;
    let mut from = 0;
    let mut lines = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let text = arguments.next().unwrap_or_default();
        match (argument.as_str(), text.parse::<u64>()) {
            ("--seeds", Ok(count)) => seeds = count,
            ("--from", Ok(seed)) => from = seed,
            ("--seed", Ok(seed)) => (from, seeds) = (seed, 1),
            ("--lines", _) if !text.is_empty() => lines = Some(text),
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    if let Some(path) = lines {
        let report = Scenario::default().run(from);
        if let Err(error) = std::fs::write(&path, write(&report.rules, &report.history)) {
            eprintln!("cannot write {path}: {error}");
            return ExitCode::from(2);
        }
    }
    let (text, well) = campaign::run(Scenario::default(), from, seeds).print();
    print!("{text}");
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
