//! What people hold back, as `postrider.pauses` has it.

use postrider_core::error::Result;
use postrider_core::paused::{Paused, PausedPart};
use postrider_core::time::Timestamp;
use tokio_postgres::Row;

use super::layout::unreadable;

/// The columns of one part, of the table as `p`.
pub(crate) const COLUMNS: &str =
    "p.stage, p.definition, p.endpoint, (extract(epoch FROM p.paused_at) * 1000000)::int8, p.who, p.why";

/// Reads the columns from `first` on; `None` where an outer join found none.
pub(crate) fn read(row: &Row, first: usize) -> Result<Option<Paused>> {
    let text = |index: usize| row.try_get::<_, Option<&str>>(first + index).map_err(unreadable);
    let mut names = [""; 3];
    for (index, name) in names.iter_mut().enumerate() {
        *name = text(index)?.unwrap_or_default();
    }
    let Some(part) = PausedPart::of(names) else { return Ok(None) };
    let since: i64 = row.try_get(first + 3).map_err(unreadable)?;
    let [who, why] = [text(4)?, text(5)?].map(|said| said.unwrap_or_default().to_owned());
    Ok(Some(Paused { part, since: Timestamp(since), who, why }))
}
