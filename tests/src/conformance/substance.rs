//! What stays the same when a case is recorded again: everything but LSNs, transaction ids, times, the oids of what a user made, and how
//! often the server repeats itself.

use std::collections::BTreeSet;

use super::recording::{Expected, Recording};

/// The first oid that is not the same in every cluster.
pub(super) const FIRST_USER_OID: u32 = 16_384;

/// The recording as text, with zeros for what differs from one run to the next. Descriptions that came before are left out: the
/// server repeats one whenever anything may have changed, also by what others do.
pub fn substance(recording: &Recording) -> String {
    let mut streaming = false;
    let mut described: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut text = String::new();
    for sent in &recording.messages {
        let mut bytes = sent.payload.clone();
        Blank { bytes: &mut bytes, at: 0 }.message(streaming);
        match bytes.first() {
            Some(b'R' | b'Y') if !described.insert(bytes.clone()) => continue,
            Some(b'S') => streaming = true,
            Some(b'E') => streaming = false,
            _ => {}
        }
        text.push_str(&format!("{}\n", bytes.escape_ascii()));
    }
    let Expected { changes, types, tables } = &recording.expected;
    changes.iter().for_each(|line| text.push_str(&format!("{}\n", without_numbers(line))));
    text + &format!("{types:?}\n{tables:?}\n")
}

/// `BEGIN 745` and `COMMIT 745 (at …)` without their numbers.
fn without_numbers(line: &str) -> &str {
    ["BEGIN", "COMMIT"].into_iter().find(|word| line.starts_with(&format!("{word} "))).unwrap_or(line)
}

/// A place in a message, going forward.
struct Blank<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Blank<'_> {
    fn message(&mut self, streaming: bool) {
        let tag = self.u8();
        if streaming && b"RYIUDTM".contains(&tag) {
            self.zero(4);
        }
        match tag {
            b'B' => self.zero(20),
            b'C' => self.behind_flags(24),
            b'O' => self.zero(8),
            b'R' => self.relation(),
            b'Y' | b'I' | b'U' | b'D' => self.oid(),
            b'T' => {
                let count = self.u32();
                self.at += 1;
                (0..count).for_each(|_| self.oid());
            }
            b'M' => self.behind_flags(8),
            b'S' => self.zero(4),
            b'c' => {
                self.zero(4);
                self.behind_flags(24);
            }
            // All of an abort: two ids, and from protocol 4 on a place and a time.
            b'A' => self.zero(self.bytes.len() - self.at),
            b'b' => self.zero(28),
            b'P' | b'K' | b'p' => self.behind_flags(28),
            b'r' => self.behind_flags(36),
            _ => {}
        }
    }

    fn relation(&mut self) {
        self.oid();
        self.name();
        self.name();
        self.at += 1;
        let columns = u16::from_be_bytes([self.u8(), self.u8()]);
        for _ in 0..columns {
            self.at += 1;
            self.name();
            self.oid();
            self.at += 4;
        }
    }

    fn behind_flags(&mut self, count: usize) {
        self.at += 1;
        self.zero(count);
    }

    fn zero(&mut self, count: usize) {
        self.bytes[self.at..self.at + count].fill(0);
        self.at += count;
    }

    fn oid(&mut self) {
        if self.u32() >= FIRST_USER_OID {
            self.at -= 4;
            self.zero(4);
        }
    }

    fn name(&mut self) {
        while self.u8() != 0 {}
    }

    fn u8(&mut self) -> u8 {
        self.at += 1;
        self.bytes[self.at - 1]
    }

    fn u32(&mut self) -> u32 {
        self.at += 4;
        u32::from_be_bytes(self.bytes[self.at - 4..self.at].try_into().unwrap())
    }
}
