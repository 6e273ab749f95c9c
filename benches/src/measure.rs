//! Medians, percentiles, and the checksum that tells whether both sides read the same.

/// The middle value; of an even number the mean of the two in the middle. Of none it is not a number.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len() % 2) {
        (None, _) => f64::NAN,
        (Some(upper), 1) => *upper,
        (Some(upper), _) => f64::midpoint(*upper, sorted[middle - 1]),
    }
}

/// The smallest value that `share` of all are at or below.
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

/// Rows, their values, and a checksum over the bytes of these, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) rows: u64,
    pub(crate) values: u64,
    pub(crate) checksum: u64,
}

impl Tally {
    pub(crate) fn row<'a>(&mut self, columns: impl Iterator<Item = Option<&'a [u8]>>) {
        self.rows += 1;
        for column in columns {
            self.values += 1;
            match column {
                None => self.mix(u64::MAX),
                Some(bytes) => self.bytes(bytes),
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.mix(word.iter().fold(0, |all, byte| (all << 8) | u64::from(*byte)));
        }
        self.mix(words.remainder().iter().fold(bytes.len() as u64, |all, byte| (all << 8) | u64::from(*byte)));
    }

    /// One multiplication a word: it must not weigh on what is measured.
    fn mix(&mut self, word: u64) {
        self.checksum = (self.checksum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[5.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 0.99), 198.0);
        assert_eq!(percentile(&values, 0.5), 100.0);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
    }

    #[test]
    fn the_checksum_sees_order_nulls_and_lengths() {
        let of = |columns: &[Option<&'static str>]| {
            let mut tally = Tally::default();
            tally.row(columns.iter().map(|column| column.map(str::as_bytes)));
            tally.checksum
        };
        let all = [
            of(&[Some("a"), Some("b")]),
            of(&[Some("b"), Some("a")]),
            of(&[Some("ab"), Some("")]),
            of(&[Some("a"), None]),
            of(&[Some("abcdefghi")]),
            of(&[Some("abcdefghj")]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one), "{at}");
        }
    }
}
