//! Many seeds, and what they came to.

use super::faults::Hits;
use super::scenario::{Report, Scenario};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Seeds at once; each has a runtime of its own.
const THREADS: usize = 2;
/// From so many seeds on, an await or a fault that was never hit is a failure.
const ALL_HIT_FROM: u64 = 1_000;
/// Failing seeds after which no more are tried.
const FAILURES_MAX: usize = 5;

/// What a campaign found.
#[derive(Debug, Default)]
pub struct Findings {
    pub seeds: u64,
    pub hits: Hits,
    /// Each failing seed with its first sentences.
    pub failures: Vec<(u64, Vec<String>)>,
    pub virtual_time: Duration,
    pub elapsed: Duration,
}

/// Runs the seeds from `from` on.
pub fn run(scenario: Scenario, from: u64, seeds: u64) -> Findings {
    let began = Instant::now();
    let next = Arc::new(AtomicU64::new(from));
    let found = Arc::new(Mutex::new(Findings::default()));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (next, found) = (next.clone(), found.clone());
            std::thread::spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + seeds || found.lock().unwrap().failures.len() >= FAILURES_MAX {
                        return;
                    }
                    let report = scenario.run(seed);
                    found.lock().unwrap().take(seed, &report);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut findings = std::mem::take(&mut *found.lock().unwrap());
    findings.failures.sort();
    findings.elapsed = began.elapsed();
    findings
}

impl Findings {
    fn take(&mut self, seed: u64, report: &Report) {
        self.seeds += 1;
        self.hits.add(&report.hits);
        self.virtual_time += report.elapsed;
        let sentences = sentences(report);
        if !sentences.is_empty() {
            self.failures.push((seed, sentences));
        }
    }

    /// The whole result as text, and whether all is well.
    pub fn print(&self) -> (String, bool) {
        let (mut text, missing) = self.hits.table();
        text += &format!(
            "{} seeds, {:.0} s of virtual time, {:.1} s\n",
            self.seeds,
            self.virtual_time.as_secs_f64(),
            self.elapsed.as_secs_f64()
        );
        let complete = missing == 0 || self.seeds < ALL_HIT_FROM;
        if !complete {
            text += &format!("{missing} counts are zero: what never happens is not tested\n");
        }
        for (seed, sentences) in &self.failures {
            text += &format!("seed {seed} failed; repeat it with `cargo x sim --seed {seed}`\n");
            sentences.iter().take(12).for_each(|sentence| text += &format!("  {sentence}\n"));
        }
        (text, complete && self.failures.is_empty())
    }
}

/// What is wrong with one seed.
pub fn sentences(report: &Report) -> Vec<String> {
    let violations = report.violations.iter().map(ToString::to_string);
    violations.chain(report.troubles.iter().cloned()).collect()
}
