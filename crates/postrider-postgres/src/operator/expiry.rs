//! Whether a receiver may have forgotten the keys that a person's order would use again.

use std::time::Duration;

use postrider_core::error::Result;
use postrider_core::work::{WorkKey, WorkVersion};

use super::{Operator, WorkRow};
use crate::work_table::expiry::{AskedAgain, expired};

/// A row whose receiver may no longer know its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    pub key: WorkKey,
    /// When it may first have been acted on, as the server writes times.
    pub since: String,
}

impl Operator {
    /// Of these rows those whose receiver may have acted longer ago than a key of theirs is `kept`. Where the receiver's store is on this
    /// database and still has the key, it will answer from it, however long ago.
    ///
    /// # Errors
    /// What the server says.
    pub async fn expired(
        &self,
        rows: &[WorkRow],
        kept: &(dyn Fn(&WorkRow) -> Option<Duration> + Sync),
    ) -> Result<Vec<Expired>> {
        let mut asked = Vec::new();
        for row in rows {
            let WorkVersion { key, stage, epoch, .. } = &row.version;
            asked.extend(kept(row).map(|kept| AskedAgain { key, stage, epoch: *epoch, kept }));
        }
        let found = expired(&self.connection, &self.layout, &asked).await?;
        let expired = found
            .into_iter()
            .filter_map(|(place, since)| asked.get(place).map(|row| Expired { key: row.key.clone(), since }));
        Ok(expired.collect())
    }
}
