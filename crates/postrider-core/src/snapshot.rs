//! Which transactions a reader of the tables could see (PostgreSQL manual, "System Information Functions", `pg_snapshot`).

/// What `pg_current_snapshot()` says: 64-bit ids of top-level transactions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Every lower id had ended.
    pub xmin: u64,
    /// No id at or above had ended.
    pub xmax: u64,
    /// Ids between the two that were still running, ascending.
    pub running: Vec<u64>,
}

impl Snapshot {
    /// Reads the text form `xmin:xmax:a,b,c`.
    pub fn parse(text: &str) -> Option<Snapshot> {
        let mut fields = text.split(':');
        let xmin = fields.next()?.parse().ok()?;
        let xmax = fields.next()?.parse().ok()?;
        let list = fields.next()?;
        let running = match list {
            "" => Vec::new(),
            list => list.split(',').map(|id| id.parse().ok()).collect::<Option<_>>()?,
        };
        if fields.next().is_some() || xmin > xmax || !running.is_sorted() {
            return None;
        }
        Some(Snapshot { xmin, xmax, running })
    }

    /// Whether this snapshot sees a committed transaction, known by the 32-bit id the log carries. The id is taken for the
    /// one nearest to `xmax`: ids in use at one time span less than 2^31.
    pub fn sees(&self, xid: u32) -> bool {
        !self.has_running(self.widen(xid))
    }

    /// Whether a transaction was still running, or had not begun.
    pub fn has_running(&self, xid: u64) -> bool {
        xid >= self.xmax || self.running.binary_search(&xid).is_ok()
    }

    /// Whether a transaction got its id after this snapshot was taken.
    pub fn began_after(&self, xid: u32) -> bool {
        self.widen(xid) >= self.xmax
    }

    /// The 64-bit id of a transaction, by the 32 bits of it that the log carries.
    pub fn widen(&self, xid: u32) -> u64 {
        let low = u32::try_from(self.xmax & 0xFFFF_FFFF).unwrap_or_default();
        let ahead = xid.wrapping_sub(low).cast_signed();
        self.xmax.saturating_add_signed(i64::from(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        Snapshot::parse(text).expect("a snapshot")
    }

    #[test]
    fn running_and_later_transactions_are_unseen() {
        let snapshot = snapshot("10:15:10,12");
        let seen: Vec<u32> = (8..18).filter(|xid| snapshot.sees(*xid)).collect();
        assert_eq!(seen, [8, 9, 11, 13, 14]);
    }

    #[test]
    fn ids_are_compared_across_the_wrap_of_32_bits() {
        let snapshot = snapshot("4294967290:4294967300:4294967299");
        assert!(snapshot.sees(u32::MAX));
        assert!(snapshot.sees(2));
        assert!(!snapshot.sees(3));
        assert!(!snapshot.sees(4));
    }

    #[test]
    fn malformed_text_is_refused() {
        for text in ["", "1:2", "2:1:", "1:2:x", "1:9:5,3", "1:2::", "-1:2:"] {
            assert_eq!(Snapshot::parse(text), None, "{text:?}");
        }
    }
}
