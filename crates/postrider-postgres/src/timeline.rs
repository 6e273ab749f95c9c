//! Where a server left the timelines before its own, told by its history file.

use postrider_core::error::Result;
use postrider_core::ports::SourceIdentity;
use postrider_core::position::Lsn;

use crate::errors::{Phase, protocol_violation};
use crate::wire::Wire;

/// How a server is related to the one that a journal was written from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kinship {
    /// It is the same, on the same timeline.
    Same,
    /// It is the same, promoted since: its log is the journal's up to this, and another one from there on.
    Promoted { left_at: Lsn },
    /// It is another one: a clause for each thing that differs.
    Stranger(Vec<String>),
}

/// Asks the server `now`, which is at the other end of the wire.
pub(crate) async fn kinship(wire: &mut Wire, held: &SourceIdentity, now: &SourceIdentity) -> Result<Kinship> {
    let differs = held.differences(now);
    if !differs.is_empty() {
        return Ok(Kinship::Stranger(differs));
    }
    if held.timeline == now.timeline {
        return Ok(Kinship::Same);
    }
    let rows = wire.query(Phase::Query, &format!("TIMELINE_HISTORY {}", now.timeline)).await?;
    // filename, content
    let content = rows.into_iter().next().and_then(|row| row.into_iter().nth(1).flatten());
    let content = content.ok_or_else(|| protocol_violation("The answer to TIMELINE_HISTORY has no content."))?;
    Ok(match left_at(&content, held.timeline) {
        Some(left_at) => Kinship::Promoted { left_at },
        None => Kinship::Stranger(vec![format!(
            "its timeline is {}, and the server's timeline {} does not come from it",
            held.timeline, now.timeline
        )]),
    })
}

/// Reads a history file: a line for each timeline before, with its number and the position where it was left (server source,
/// `timeline.c`).
fn left_at(content: &str, timeline: u32) -> Option<Lsn> {
    content.lines().filter(|line| !line.trim_start().starts_with('#')).find_map(|line| {
        let mut words = line.split_whitespace();
        let number: u32 = words.next()?.parse().ok()?;
        let lsn = words.next()?.parse().ok()?;
        (number == timeline).then_some(lsn)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_says_where_each_timeline_was_left() {
        let content = "# made by hand\n1\t0/3000148\tno recovery target specified\n\n2\t1/50000D8\tbefore 2026-01-01\n";
        assert_eq!(left_at(content, 1), Some(Lsn(0x300_0148)));
        assert_eq!(left_at(content, 2), Some(Lsn(0x1_0500_00D8)));
        assert_eq!(left_at(content, 3), None);
        assert_eq!(left_at("1 nonsense", 1), None);
    }
}
