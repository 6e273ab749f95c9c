//! Trying again what may work later, while the process is not running yet.

use postrider_core::error::{Reaction, Result};
use postrider_core::stage::Backoff;
use postrider_engine::{Limits, Shutdown, Telemetry, World};
use std::future::Future;

/// Who waits, and what he tells meanwhile.
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    pub(crate) limits: Limits,
    pub(crate) world: &'a dyn World,
    pub(crate) telemetry: &'a Telemetry,
    pub(crate) shutdown: &'a Shutdown,
}

impl Patience<'_> {
    /// Tries until it works. `None`: the end of the process was asked for meanwhile.
    ///
    /// The trouble is logged when it changes, not at each try, and shown in the status.
    ///
    /// # Errors
    /// The first error that no other try would mend.
    pub(crate) async fn insist<T, F: Future<Output = Result<T>>>(
        &self,
        what: &str,
        mut attempt: impl FnMut() -> F,
    ) -> Result<Option<T>> {
        let backoff = Backoff { first: self.limits.retry_first, max: self.limits.retry_max };
        let mut failures = 0_u32;
        let mut told = None;
        loop {
            let outcome = tokio::select! {
                biased;
                () = self.shutdown.requested() => return Ok(None),
                outcome = attempt() => outcome,
            };
            match outcome {
                Ok(value) => {
                    if told.is_some() {
                        tracing::info!("{what}: it works now");
                    }
                    self.telemetry.update(|status| status.trouble = None);
                    return Ok(Some(value));
                }
                Err(error) if error.kind().reaction() == Reaction::Retry => {
                    let trouble = error.report();
                    if told.as_ref() != Some(&trouble) {
                        self.telemetry.update(|status| status.trouble = Some(trouble.clone()));
                        tracing::warn!("{what}: {trouble}; trying again until it works");
                        told = Some(trouble);
                    }
                }
                Err(error) => return Err(error),
            }
            // Many processes do not come back at one moment.
            failures = failures.saturating_add(1);
            tokio::select! {
                biased;
                () = self.shutdown.requested() => return Ok(None),
                () = self.world.sleep(backoff.spread(failures, self.world.random())) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;
    use postrider_core::error::{Error, ErrorKind};
    use postrider_engine::SystemWorld;
    use std::cell::Cell;
    use std::time::Duration;

    /// Tries something that fails with each of `kinds` in turn and then works; returns the outcome and the tries.
    async fn insist_on(kinds: &[ErrorKind], shutdown: &Shutdown) -> (Result<Option<()>>, usize) {
        let (world, telemetry) = (SystemWorld::new(1), Telemetry::default());
        let limits = Limits { retry_first: Duration::from_millis(1), ..Limits::default() };
        let patience = Patience { limits, world: &world, telemetry: &telemetry, shutdown };
        let tries = Cell::new(0);
        let outcome = patience
            .insist("testing", || {
                let failure = kinds.get(tries.get()).map(|kind| Error::new(*kind, "not yet"));
                tries.set(tries.get() + 1);
                std::future::ready(failure.map_or(Ok(()), Err))
            })
            .await;
        (outcome, tries.get())
    }

    #[tokio::test]
    async fn what_may_pass_is_tried_again_and_what_may_not_ends_it() {
        let shutdown = Shutdown::default();
        let (outcome, tries) = insist_on(&[ErrorKind::Disconnected, ErrorKind::SlotInUse], &shutdown).await;
        assert_eq!((outcome.unwrap(), tries), (Some(()), 3));
        let (outcome, tries) = insist_on(&[ErrorKind::Disconnected, ErrorKind::Authentication], &shutdown).await;
        assert_eq!((outcome.unwrap_err().kind(), tries), (ErrorKind::Authentication, 2));
    }

    #[tokio::test]
    async fn a_shutdown_ends_the_waiting() {
        let shutdown = Shutdown::default();
        shutdown.request();
        let (outcome, tries) = insist_on(&[ErrorKind::Disconnected; 1000], &shutdown).await;
        assert_eq!(outcome.unwrap(), None);
        assert!(tries <= 1, "{tries} tries");
    }
}
