//! Whether a receiver may know the key of a row's stage, so that the stage must keep its name.

use std::collections::BTreeSet;
use std::sync::Arc;

use postrider_core::error::Result;
use postrider_core::work::WorkKey;

use super::{Operator, WorkRow};
use crate::store::WORK_HISTORY;
use crate::work_table::asked::{find_asked, key_parameters};
use crate::work_table::expiry::NOT_ACTED_ON;

impl Operator {
    /// Of these rows those whose receiver may know the key of their stage: it must not become another.
    ///
    /// A hash or a counted attempt says so. That there is none says nothing: an order of a person forgets both. Then the history has the attempts,
    /// which it keeps as long as the row is open; where none is kept, a row that was ever written is taken for one that was asked for.
    ///
    /// # Errors
    /// What the server says.
    pub async fn keyed(&self, rows: &[WorkRow]) -> Result<BTreeSet<WorkKey>> {
        let layout = &self.layout;
        let before = if layout.history {
            format!(
                "EXISTS (SELECT FROM {history} AS h WHERE h.key = ARRAY[{key}] COLLATE \"default\" AND h.work_table = t.tableoid \
                  AND h.stage = t.{stage}::text AND h.epoch = {epoch} AND NOT coalesce({NOT_ACTED_ON}, false))",
                history = WORK_HISTORY.qualified(),
                key = layout.key_texts(),
                stage = layout.stage.name,
                epoch = layout.epoch.value(),
            )
        } else {
            format!("t.{} > 0", layout.fence.name)
        };
        let text: Arc<str> = format!(
            "SELECT asked.ord FROM ({asked}) AS asked JOIN {table} AS t ON {keys} WHERE {was_sent} OR t.{attempts} > 0 OR {before}",
            was_sent = layout.was_sent(),
            asked = layout.asked(&[]),
            table = layout.table,
            keys = layout.key_matches(),
            attempts = layout.attempt_count.name,
        )
        .into();
        let parameters = key_parameters(layout.key.len(), rows.iter().map(|row| &row.version.key))?;
        let answers = self.connection.query(&text, &parameters).await?;
        answers.iter().map(|answer| Ok(find_asked(answer, rows)?.1.version.key.clone())).collect()
    }
}
