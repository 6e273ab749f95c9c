//! Where a stage call stands in a distributed trace: W3C Trace Context, <https://www.w3.org/TR/trace-context-2/>.
//!
//! Nothing is drawn by lot: whoever knows the row knows its trace, before the first call and years later, whichever process
//! made the calls.

use crate::work::{StageName, WorkKey};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use std::fmt;

/// One workflow: the same for every attempt of all its stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

/// One attempt within its workflow's trace. Its `Display` is the value of the header `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    id: TraceId,
    span: [u8; 8],
}

impl TraceId {
    /// From the SHA-256 of the key's parts, each behind its length, so that no two keys run together.
    pub fn of(key: &WorkKey) -> TraceId {
        let mut hasher = Sha256::new_with_prefix("postrider trace");
        key.parts().for_each(|part| absorb(&mut hasher, part.as_bytes()));
        TraceId(nonzero_head(&hasher.finalize()))
    }
}

impl Trace {
    /// The trace of one claim's call. The fence makes the span: it rises with every claim.
    pub fn of(key: &WorkKey, stage: &StageName, epoch: u32, fence: i64) -> Trace {
        let id = TraceId::of(key);
        let mut hasher = Sha256::new_with_prefix("postrider span");
        hasher.update(id.0);
        absorb(&mut hasher, stage.as_str().as_bytes());
        hasher.update(epoch.to_be_bytes());
        hasher.update(fence.to_be_bytes());
        Trace { id, span: nonzero_head(&hasher.finalize()) }
    }

    /// The workflow's.
    pub fn id(self) -> TraceId {
        self.id
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Display for Trace {
    /// Version 00 and the flag *sampled*: a workflow's calls are few and each is worth keeping; who wants fewer of them samples
    /// behind us.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-01", self.id, HEXLOWER.encode(&self.span))
    }
}

fn absorb(hasher: &mut Sha256, bytes: &[u8]) {
    hasher.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
    hasher.update(bytes);
}

/// The first bytes of the digest. All zeros mean "none" in a trace.
fn nonzero_head<const N: usize>(digest: &[u8]) -> [u8; N] {
    let mut head = [0; N];
    head.iter_mut().zip(digest).for_each(|(byte, digested)| *byte = *digested);
    if head == [0; N] { [1; N] } else { head }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn trace(parts: &[&str], stage: &str, epoch: u32, fence: i64) -> Trace {
        Trace::of(&WorkKey::new(parts.iter().copied()), &StageName::new(stage), epoch, fence)
    }

    fn traceparent(parts: &[&str], stage: &str, epoch: u32, fence: i64) -> String {
        trace(parts, stage, epoch, fence).to_string()
    }

    #[test]
    fn a_workflow_is_one_trace_and_each_attempt_a_span_of_its_own() {
        let first = traceparent(&["g", "q"], "PRICING", 0, 1);
        // Computed anew by any process, today and later: this value never changes.
        expect!["00-ca33c2b42ddfe804e01ea445579b4467-46590a4b6728070e-01"].assert_eq(&first);
        let others = [
            traceparent(&["g", "q"], "PRICING", 0, 2),
            traceparent(&["g", "q"], "PRICING", 1, 1),
            traceparent(&["g", "q"], "APPROVAL", 0, 1),
        ];
        for other in &others {
            assert_eq!(other.split('-').nth(1), first.split('-').nth(1), "one trace");
            assert_ne!(other.split('-').nth(2), first.split('-').nth(2), "another span");
        }
        assert_eq!(Some(trace(&["g", "q"], "PRICING", 0, 1).id().to_string().as_str()), first.split('-').nth(1));
    }

    #[test]
    fn keys_that_run_together_are_different_traces() {
        let keys = [&["ab", "c"][..], &["a", "bc"], &["abc"], &["abc", ""]];
        let ids: std::collections::BTreeSet<String> =
            keys.iter().map(|parts| TraceId::of(&WorkKey::new(parts.iter().copied())).to_string()).collect();
        assert_eq!(ids.len(), keys.len());
    }

    #[test]
    fn an_id_is_never_all_zeros() {
        assert_eq!(nonzero_head::<8>(&[0; 32]), [1; 8]);
        assert_eq!(nonzero_head::<2>(&[0, 7, 9]), [0, 7]);
    }
}
