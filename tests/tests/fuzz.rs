//! The recordings and bounded numbers of damaged inputs through every fuzz target.

use std::panic::catch_unwind;

use fastrand::Rng;
use postrider_tests::fuzz::{TARGETS, corpus, mutate::mutate};

/// Damaged inputs for each target. They are the same in every run; cargo-fuzz finds new ones.
const INPUTS: usize = 20_000;

#[test]
fn neither_recordings_nor_what_damage_makes_of_them_stop_a_parser() {
    for (name, target) in TARGETS {
        let corpus = corpus::of(name);
        assert!(corpus.len() > 20, "{name} has a corpus of {}", corpus.len());
        let mut rng = Rng::with_seed(1);
        let damaged = (0..INPUTS).map(|_| {
            let (input, other) = (rng.usize(..corpus.len()), rng.usize(..corpus.len()));
            mutate(&mut rng, &corpus[input], &corpus[other])
        });
        for input in corpus.iter().cloned().chain(damaged) {
            if catch_unwind(|| target(&input)).is_err() {
                panic!("the target {name} fails with b\"{}\"", input.escape_ascii());
            }
        }
    }
}

/// Every target of cargo-fuzz is one of ours, and the other way round.
#[test]
fn cargo_fuzz_has_the_same_targets() {
    let folder = xtask::workspace::root().join("tests/fuzz/fuzz_targets");
    let mut found: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    found.sort();
    let mut ours: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    ours.sort_unstable();
    assert_eq!(found, ours);
}
