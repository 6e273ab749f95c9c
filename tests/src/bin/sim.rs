//! `cargo x sim`: the simulation for many seeds, or for one.

use postrider_tests::sim::{campaign, scenario::Scenario};
use std::process::ExitCode;

const USAGE: &str = "usage: sim [--seeds N] [--from S] | [--seed S] [--history]";

fn main() -> ExitCode {
    let mut seeds = 1_000;
    let mut from = 0;
    let mut history = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--history" {
            history = true;
            continue;
        }
        let number = arguments.next().and_then(|text| text.parse::<u64>().ok());
        match (argument.as_str(), number) {
            ("--seeds", Some(count)) => seeds = count,
            ("--from", Some(seed)) => from = seed,
            ("--seed", Some(seed)) => (from, seeds) = (seed, 1),
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    if history {
        let report = Scenario::default().run(from);
        report.history.iter().for_each(|record| println!("{record:?}"));
        return ExitCode::SUCCESS;
    }
    let (text, well) = campaign::run(Scenario::default(), from, seeds).print();
    print!("{text}");
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
