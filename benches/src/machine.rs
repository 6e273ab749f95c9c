//! The machine in one line: a figure without it says nothing.

use std::fs;
use std::thread::available_parallelism;

/// Processor, cores, memory, kernel.
pub(crate) fn line() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = field(&cpuinfo, "model name").unwrap_or("unknown processor");
    let cores = available_parallelism().map_or(0, usize::from);
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kb: u64 =
        field(&meminfo, "MemTotal").and_then(|text| text.trim_end_matches(" kB").parse().ok()).unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {cores} cores, {} MiB, Linux {}", total_kb / 1024, kernel.trim())
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}
