//! Names and texts as SQL has them (manual, "Lexical Structure").

/// An identifier in double quotes.
pub(crate) fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A table's name with its schema, both in double quotes.
pub(crate) fn quote_table(schema: &str, table: &str) -> String {
    format!("{}.{}", quote_identifier(schema), quote_identifier(table))
}

/// The statement that drops a slot, to be pasted.
pub(crate) fn drop_slot_statement(slot: &str) -> String {
    format!("SELECT pg_drop_replication_slot({});", quote_literal(slot))
}

/// A text as a literal, whatever `standard_conforming_strings` is.
pub(crate) fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if text.contains('\\') { format!(" E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_within_are_doubled() {
        assert_eq!(quote_table("a\"b", "C d"), r#""a""b"."C d""#);
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal(r"a\b"), r" E'a\\b'");
    }
}
