//! What the tests of the whole are played with: a cluster, the quoting service, endpoints that misbehave, orchestrators.

mod database;
mod endpoint;
mod plan;
mod rider;
mod scene;
mod versions;

pub(super) use database::{Database, lsn};
pub(super) use endpoint::{Endpoint, Play, Request, free_port};
pub(super) use plan::{outbox, sink_http, sink_ndjson, stage, work};
pub(super) use rider::Rider;
pub(super) use scene::Scene;
pub(super) use versions::{on_every_version, on_versions};

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take that must come about; generous, since two cores may be shared by many.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds, and fails with `what` if it never does.
#[track_caller]
pub(super) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Waits until there is a value.
#[track_caller]
pub(super) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came about that {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Checks that a span lies below a bound, and says what it was.
#[track_caller]
pub(super) fn assert_within<T: PartialOrd + Debug>(what: &str, value: T, bound: T) {
    assert!(value <= bound, "{what}: {value:?}, and at most {bound:?} was promised");
}

/// The folder of the programs, built once for each run of the tests.
fn programs() -> PathBuf {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    let folder = PROGRAMS.get_or_init(|| {
        let own = std::env::current_exe().expect("a test has a file");
        let profile = own.ancestors().nth(2).expect("a test lies in target/PROFILE/deps").to_path_buf();
        xtask::workspace::build_programs(&profile).expect("the programs can be built");
        profile
    });
    folder.clone()
}
