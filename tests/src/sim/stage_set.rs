//! The one workflow of the simulation: four stages in a line.

use postrider_core::stage::{Backoff, Definitions, END, Next, StageClass, StageGraph, StagePolicy};
use postrider_core::work::{DefinitionName, StageName};
use std::time::Duration;

/// Names of the stages, in order.
pub const STAGES: [&str; 4] = ["PRICING", "APPROVAL", "BINDING", "ISSUING"];

/// The stage whose receiver makes an external call and keeps its own intents.
pub const EXTERNAL: &str = "BINDING";

/// Where all of them are called.
pub const ENDPOINT: &str = "http://core";

/// The stage whose receiver moves the row on in the transaction of its work, and keeps no keys.
pub const MOVED_ON: &str = "PRICING";

/// The stage that runs one row of a group at a time.
const SERIAL: &str = "APPROVAL";

pub const TIMEOUT: Duration = Duration::from_millis(500);
pub const LEASE: Duration = Duration::from_millis(1_500);

pub fn class(stage: &str) -> StageClass {
    match stage {
        "ISSUING" => StageClass::Natural,
        MOVED_ON => StageClass::SameTx,
        _ => StageClass::Keyed,
    }
}

/// Where a row goes from a stage.
pub fn next(stage: &str) -> Next {
    after(STAGES.iter().position(|name| *name == stage).expect("a stage of the simulation"))
}

fn after(place: usize) -> Next {
    Next::of(STAGES.get(place + 1).copied().unwrap_or(END))
}

/// The definition that all rows get.
pub const DEFINITION: &str = "quoting@1";

pub fn definitions(attempt_limit: u32) -> Definitions {
    let policies = STAGES.iter().enumerate().map(|(place, name)| StagePolicy {
        name: StageName::new(name),
        class: class(name),
        endpoint: ENDPOINT.into(),
        next: vec![after(place)],
        attempt_limit,
        deferral_limit: Some(50),
        timeout: TIMEOUT,
        lease: LEASE,
        backoff: Backoff { first: Duration::from_millis(50), max: Duration::from_secs(1) },
        concurrency: 16,
        rate: None,
        serial: *name == SERIAL,
        priority: 0,
        by_others: false,
        request_bytes_max: 1 << 20,
    });
    Definitions::new(DefinitionName::new(DEFINITION), StageGraph::new(policies.collect()).unwrap())
}
