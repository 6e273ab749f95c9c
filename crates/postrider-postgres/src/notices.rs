//! The triggers by which a work table tells what other sessions than an executor's do to its rows.
//!
//! They stand in for the updates and deletes that the work table's publication leaves out, so that our own transitions need not come
//! back through the log. An executor's sessions are exempt by a setting that the triggers' WHEN clause reads: for them the
//! function is never called, and their updates stay HOT. What is told is a transactional logical message, so that it comes with its
//! transaction, or not at all.

use postrider_core::error::Result;
use postrider_core::route::WorkMapping;

use crate::check::field;
use crate::client::{Connection, Parameters};
use crate::objects::{DEFINER, SEARCH_PATH, work_name};
use crate::quote::{quote_identifier, quote_literal, quote_table};

/// The name of the trigger for rows; that for TRUNCATE has it as its beginning.
pub(crate) const TRIGGER: &str = "postrider_notice";

/// The statements that make the triggers of a work table, or replace them. They fire for replicated changes, too, and need no privilege
/// of whoever writes the row.
pub(crate) fn statements(mapping: &WorkMapping) -> String {
    let (table, function) = (work_name(mapping), function_name(mapping));
    format!(
        "CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql {DEFINER}
AS $notice${body}$notice$;
CREATE OR REPLACE TRIGGER {TRIGGER} AFTER UPDATE OR DELETE ON {table} FOR EACH ROW
    WHEN (current_setting('postrider.quiet', true) IS DISTINCT FROM 'on') EXECUTE FUNCTION {function}();
CREATE OR REPLACE TRIGGER {TRIGGER}_truncate AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {function}();
ALTER TABLE {table} ENABLE ALWAYS TRIGGER {TRIGGER};
ALTER TABLE {table} ENABLE ALWAYS TRIGGER {TRIGGER}_truncate;",
        body = body(mapping),
    )
}

/// Whether the table has both triggers, enabled always, with the function that we would make now.
pub(crate) async fn are_there(connection: &Connection, mapping: &WorkMapping) -> Result<bool> {
    let text = "SELECT count(*) FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid \
         WHERE t.tgrelid = to_regclass($1) AND t.tgname::text IN ($2, $2 || '_truncate') AND t.tgenabled = 'A' AND p.prosrc = $3 \
           AND p.proconfig @> $4";
    let parameters: Parameters = vec![
        Box::new(work_name(mapping)),
        Box::new(TRIGGER.to_owned()),
        Box::new(body(mapping)),
        Box::new(vec![SEARCH_PATH]),
    ];
    let rows = connection.query(&text.into(), &parameters).await?;
    Ok(rows.first().map_or(Ok(0), |row| field::<i64>(row, 0))? == 2)
}

fn function_name(mapping: &WorkMapping) -> String {
    quote_table(&mapping.schema, &format!("postrider_notice_{}", mapping.table))
}

/// The function's own text. An update that touches nothing an executor asks about tells nothing.
///
/// The message is in UTF-8 whatever the database's encoding is; where that is SQL_ASCII nobody knows what the bytes are.
fn body(mapping: &WorkMapping) -> String {
    let prefix = quote_literal(&mapping.notice_prefix());
    let key = |row: &str| {
        let parts: Vec<String> =
            mapping.key.iter().map(|column| format!("{row}.{}::text", quote_identifier(column))).collect();
        format!("json_build_array({})", parts.join(", "))
    };
    let told = mapping.version_columns();
    let told: Vec<(&str, &str)> = told.into_iter().filter_map(|(member, column)| Some((member, column?))).collect();
    let members: Vec<String> =
        told.iter().map(|(member, column)| format!("'{member}', NEW.{}::text", quote_identifier(column))).collect();
    // As texts: a type's own `=` may be out of sight.
    let row = |row: &str| {
        let key = mapping.key.iter().map(String::as_str);
        let columns = key.chain(told.iter().map(|(_, column)| *column));
        let columns: Vec<String> = columns.map(|column| format!("{row}.{}::text", quote_identifier(column))).collect();
        format!("ROW({})", columns.join(", "))
    };
    format!(
        "
DECLARE
    notice json;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        PERFORM pg_logical_emit_message(true, {prefix}, 'truncate');
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        notice := json_build_object('gone', {old_key});
    ELSIF {old_row} IS NOT DISTINCT FROM {new_row} THEN
        RETURN NULL;
    ELSIF {old_key}::text = {new_key}::text THEN
        notice := json_build_object('key', {new_key}, {members});
    ELSE
        notice := json_build_object('key', {new_key}, 'was', {old_key}, {members});
    END IF;
    PERFORM pg_logical_emit_message(true, {prefix}, convert_to(notice::text,
        CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END));
    RETURN NULL;
END
",
        old_key = key("OLD"),
        new_key = key("NEW"),
        old_row = row("OLD"),
        new_row = row("NEW"),
        members = members.join(", "),
    )
}
