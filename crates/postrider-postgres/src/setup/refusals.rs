//! What is said before anything is made: that what is asked for would do harm, or would be of no use.

use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::position::Lsn;

use super::{is_canonical, value};
use crate::check::slot::find_slot;
use crate::client::{Connection, Parameters};
use crate::missing::Missing;
use crate::objects::{SourceObjects, outbox_name, work_name};
use crate::slot_state::{Place, SlotState, judge, refusal};

/// Refuses a database in which a step could not be taken, or would not do what it is for.
pub(super) async fn refuse(connection: &Connection, objects: &SourceObjects) -> Result<()> {
    refuse_slot(connection, objects).await?;
    refuse_missing(connection, objects).await?;
    refuse_unidentified(connection, objects).await
}

/// A slot of that name that nobody can read for us would be kept, as if it were ours.
async fn refuse_slot(connection: &Connection, objects: &SourceObjects) -> Result<()> {
    let database = value::<String>(connection, "SELECT current_database()::text", Parameters::new()).await?;
    let database = database.unwrap_or_default();
    let place = Place { slot: &objects.slot, database: &database, durable_end: Lsn::ZERO, after_peer: false };
    let state = judge(find_slot(connection, &objects.slot).await?.as_ref(), place);
    match refusal(&state, place) {
        Some(error) if state != SlotState::Missing => Err(error),
        _ => Ok(()),
    }
}

/// A table of the user's own must be there; one of ours is made, unless it is there under another name: the new one would be empty.
async fn refuse_missing(connection: &Connection, objects: &SourceObjects) -> Result<()> {
    let missing = Missing::look(connection, objects).await?;
    let outbox = objects.routing.outbox_tables.iter();
    let ours = outbox.filter(|table| table.table == "outbox_event").map(outbox_name);
    let work = objects.routing.work.iter().filter(|mapping| !objects.observe && is_canonical(mapping));
    let ours: Vec<String> = ours.chain(work.map(work_name)).collect();
    let refused = missing.tables.iter().find(|table| missing.may_be_renamed() || !ours.contains(table));
    let Some(table) = refused else { return Ok(()) };
    Err(Error::new(ErrorKind::Table, "a table does not exist")
        .with_detail(format!("There is no table {table}, so nothing was made."))
        .with_hint(missing.hint()))
}

/// Says so before the publication is made: from then on the server refuses every update and delete of a table whose rows it cannot name.
async fn refuse_unidentified(connection: &Connection, objects: &SourceObjects) -> Result<()> {
    let mut tables: Vec<String> = objects.routing.outbox_tables.iter().map(outbox_name).collect();
    tables.extend(objects.routing.work.as_ref().filter(|_| !objects.quiet).map(work_name));
    let text = "SELECT t.name FROM unnest($1::text[]) AS t (name) JOIN pg_class AS c ON c.oid = to_regclass(t.name) \
         WHERE NOT EXISTS (SELECT FROM pg_publication WHERE pubname = $2) AND c.relreplident <> 'f' \
           AND NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate \
             AND (i.indisreplident OR c.relreplident = 'd' AND i.indisprimary)) LIMIT 1";
    let parameters: Parameters = vec![Box::new(tables), Box::new(objects.publication.clone())];
    let Some(name) = value::<String>(connection, text, parameters).await? else { return Ok(()) };
    Err(Error::new(ErrorKind::Table, "a table has no replica identity")
        .with_detail(format!("Once {name} is published, every update and delete of it would fail, so nothing was made."))
        .with_hint(format!(
            "Give {name} a primary key, or ALTER TABLE {name} REPLICA IDENTITY USING INDEX one that is unique and has no nulls; then run `postrider setup` again."
        )))
}
