//! Whether the process does its work, judged from what it knows without asking anybody.

use postrider_core::time::Timestamp;
use postrider_engine::Status;
use std::time::Duration;

/// What keeps the process from being ready, one sentence each; empty: it is ready.
///
/// `heartbeat_overdue`: how old the last heartbeat seen back may be. It is what tells an idle database from a log that no
/// longer comes through.
pub(crate) fn obstacles(status: &Status, now: Timestamp, heartbeat_overdue: Duration) -> Vec<String> {
    let mut obstacles = Vec::new();
    if !status.connected {
        let why = status.trouble.as_deref().unwrap_or("it is being opened");
        obstacles.push(format!("The replication stream is not open: {}.", why.trim_end_matches('.')));
    } else if let Some(trouble) = &status.trouble {
        obstacles.push(format!("There is trouble: {}.", trouble.trim_end_matches('.')));
    }
    match status.heartbeat_seen_at {
        None => obstacles.push("No heartbeat has come back through the log yet.".to_owned()),
        Some(seen_at) => {
            let age_us = u64::try_from(now.0.saturating_sub(seen_at.0)).unwrap_or(0);
            if Duration::from_micros(age_us) > heartbeat_overdue {
                let (age_s, limit_s) = (age_us / 1_000_000, heartbeat_overdue.as_secs());
                obstacles.push(format!("The last heartbeat came back {age_s} s ago, expected within {limit_s} s."));
            }
        }
    }
    if !status.work_ready {
        obstacles.push("The open work rows are still being read.".to_owned());
    }
    obstacles
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(change: impl FnOnce(&mut Status), expected: Expect) {
        let mut status = Status {
            connected: true,
            work_ready: true,
            heartbeat_seen_at: Some(Timestamp(100_000_000)),
            ..Status::default()
        };
        change(&mut status);
        expected.assert_eq(&obstacles(&status, Timestamp(130_000_000), Duration::from_secs(30)).join("\n"));
    }

    #[test]
    fn each_obstacle_is_one_sentence() {
        check(|_| {}, expect![""]);
        check(|status| status.connected = false, expect!["The replication stream is not open: it is being opened."]);
        check(
            |status| {
                status.connected = false;
                status.trouble = Some("PR011 the server cannot be reached.".to_owned());
            },
            expect!["The replication stream is not open: PR011 the server cannot be reached."],
        );
        check(
            |status| status.trouble = Some("PR016 the disk is full".to_owned()),
            expect!["There is trouble: PR016 the disk is full."],
        );
        check(|status| status.heartbeat_seen_at = None, expect!["No heartbeat has come back through the log yet."]);
        check(
            |status| status.heartbeat_seen_at = Some(Timestamp(99_999_999)),
            expect!["The last heartbeat came back 30 s ago, expected within 30 s."],
        );
        check(|status| status.work_ready = false, expect!["The open work rows are still being read."]);
    }

    #[test]
    fn a_clock_that_was_set_back_is_no_obstacle() {
        check(|status| status.heartbeat_seen_at = Some(Timestamp(200_000_000)), expect![""]);
    }

    #[test]
    fn obstacles_come_all_at_once() {
        let obstacles = obstacles(&Status::default(), Timestamp(0), Duration::from_secs(30));
        assert_eq!(obstacles.len(), 3);
    }
}
