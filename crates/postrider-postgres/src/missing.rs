//! Mapped tables that are not there, and what became of them: a publication follows its tables wherever they are renamed or moved to.

use postrider_core::error::Result;
use tokio_postgres::Row;

use crate::check::field;
use crate::client::{Connection, Parameters};
use crate::objects::{MISSING_TABLE_HINT, SourceObjects};
use crate::quote::quote_table;

/// The mapped tables that are not there.
#[derive(Debug)]
pub(crate) struct Missing {
    /// Quoted.
    pub(crate) tables: Vec<String>,
    /// What our publications have beside the mapped tables, where one of these is missing. Quoted.
    strangers: Vec<String>,
}

impl Missing {
    pub(crate) async fn look(connection: &Connection, objects: &SourceObjects) -> Result<Missing> {
        let routing = &objects.routing;
        let outbox = routing.outbox_tables.iter().map(|table| (&table.schema, &table.table));
        let mapped = outbox.chain(routing.work.iter().map(|mapping| (&mapping.schema, &mapping.table)));
        let (schemas, names): (Vec<String>, Vec<String>) =
            mapped.map(|(schema, name)| (schema.clone(), name.clone())).unzip();
        // No `to_regclass`: it fails where the schema may not be used.
        let text = "SELECT t.schema, t.name FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS t (schema, name, place) \
             WHERE NOT EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE n.nspname = t.schema AND c.relname = t.name AND c.relkind IN ('r', 'p')) ORDER BY t.place";
        let rows = connection.query(&text.into(), &vec![Box::new(schemas), Box::new(names)]).await?;
        let missing = names_of(&rows)?;
        if missing.is_empty() {
            return Ok(Missing { tables: missing, strangers: Vec::new() });
        }
        let text = "SELECT DISTINCT n.nspname::text, c.relname::text FROM pg_publication AS p \
             JOIN pg_publication_rel AS r ON r.prpubid = p.oid JOIN pg_class AS c ON c.oid = r.prrelid \
             JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE p.pubname = ANY ($1::text[]) ORDER BY 1, 2";
        let parameters: Parameters = vec![Box::new(vec![objects.publication.clone(), objects.work_publication_name()])];
        let rows = connection.query(&text.into(), &parameters).await?;
        let tables = objects.tables();
        let strangers = names_of(&rows)?.into_iter().filter(|name| !tables.contains(name)).collect();
        Ok(Missing { tables: missing, strangers })
    }

    pub(crate) fn has(&self, table: &str) -> bool {
        self.tables.iter().any(|missing| missing == table)
    }

    /// A table may be there under another name.
    pub(crate) fn may_be_renamed(&self) -> bool {
        !self.strangers.is_empty()
    }

    /// What to do about one of them.
    pub(crate) fn hint(&self) -> String {
        if self.strangers.is_empty() {
            return MISSING_TABLE_HINT.to_owned();
        }
        format!(
            "The publication has {}, which the configuration does not name. If that is the table, renamed or moved, give the configuration its name; if nobody wants it any more, take it out of the publication with ALTER PUBLICATION … DROP TABLE, and run `postrider setup`. If another configuration reads it, leave it there, and make the missing table by hand first.",
            self.strangers.join(" and ")
        )
    }
}

/// Schema and table of each row, quoted.
fn names_of(rows: &[Row]) -> Result<Vec<String>> {
    rows.iter().map(|row| Ok(quote_table(field(row, 0)?, field(row, 1)?))).collect()
}
