//! Small damage to bytes, from a seed.

use fastrand::Rng;

/// Numbers that parsers stumble over, as bytes.
const ODD: [&[u8]; 8] = [
    &[0],
    &[0xff],
    &[0xff; 2],
    &[0x7f, 0xff, 0xff, 0xff],
    &[0x80, 0, 0, 0],
    &[0xff; 4],
    &[0; 4],
    b"-9223372036854775808",
];

/// An input is never longer.
pub const BYTES_MAX: usize = 64 * 1024;

/// Changes `input` at one to four places; `other` is what may be spliced in.
pub fn mutate(rng: &mut Rng, input: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..rng.usize(1..5) {
        let at = rng.usize(..=bytes.len());
        match rng.u8(..8) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << rng.u8(..8),
            2 if at < bytes.len() => bytes[at] = rng.u8(..),
            3 => drop(bytes.drain(at..(at + rng.usize(..9)).min(bytes.len()))),
            4 => bytes.truncate(at),
            5 => {
                let odd = ODD[rng.usize(..ODD.len())];
                let end = (at + odd.len()).min(bytes.len());
                bytes.splice(at..end, odd.iter().copied());
            }
            6 => {
                let end = (at + rng.usize(..33)).min(bytes.len());
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let from = rng.usize(..=other.len());
                let upto = (from + rng.usize(..65)).min(other.len());
                bytes.splice(at..at, other[from..upto].iter().copied());
            }
        }
    }
    bytes.truncate(BYTES_MAX);
    bytes
}
