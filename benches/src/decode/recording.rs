//! What both sides decode: the messages of a table of many types, as a real server sends them.

use std::pin::pin;

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use xtask::error::{Context, Result};

use crate::server::{PUBLICATION, Server};

const SLOT: &str = "recorded";

/// Changes of one transaction: 10 inserts, 5 updates, 2 deletes.
pub(super) const CHANGES_EACH: u64 = 17;

const TABLE: &str = r#"
    CREATE TABLE quotes (
        id         bigint PRIMARY KEY,
        version    smallint NOT NULL,
        lines      integer NOT NULL,
        premium    numeric(12, 2) NOT NULL,
        loading    double precision NOT NULL,
        product    text NOT NULL,
        note       text,
        reference  uuid NOT NULL,
        bound      boolean NOT NULL,
        created_at timestamptz NOT NULL,
        expires_at timestamptz,
        details    jsonb NOT NULL,
        tags       text[] NOT NULL,
        scores     integer[]
    )"#;

const WRITER: &str = r#"
    CREATE PROCEDURE write_quotes(transactions bigint) LANGUAGE plpgsql AS $$
    BEGIN
        FOR t IN 1 .. transactions LOOP
            INSERT INTO quotes
            SELECT n, n % 7, (n * 7919) % 100003, (n * 31 % 1000000) / 100.0, sqrt(n), 'commercial-property',
                   CASE n % 3 WHEN 0 THEN NULL ELSE 'called back, see ' || md5(n::text) END, md5('quote ' || n)::uuid, n % 2 = 0,
                   timestamptz '2026-01-01 00:00:00+00' + n * interval '1.000001 s',
                   CASE n % 4 WHEN 0 THEN timestamptz '2027-01-01 00:00:00+00' + n * interval '1 min' END,
                   jsonb_build_object('broker', 'broker-' || n % 997, 'currency', 'EUR', 'sums', jsonb_build_array(n, n * 2.5)),
                   ARRAY['new', 'tag ' || n % 10], CASE n % 5 WHEN 0 THEN NULL ELSE ARRAY[n, NULL, n % 11]::integer[] END
            FROM generate_series(t * 10, t * 10 + 9) AS n;
            UPDATE quotes SET version = version + 1, bound = true, premium = premium * 1.05 WHERE id BETWEEN t * 10 AND t * 10 + 4;
            DELETE FROM quotes WHERE id BETWEEN t * 10 + 8 AND t * 10 + 9;
            COMMIT;
        END LOOP;
    END $$"#;

/// How the server writes values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    Text,
    Binary,
}

/// Every message in the order of the stream, next to each other in one buffer.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) messages: Vec<Bytes>,
    pub(super) byte_len: usize,
}

/// Makes the table, and a slot that keeps what is written to it.
pub(super) async fn write(server: &Server, transactions: u64) -> Result<()> {
    server.execute(TABLE).await?;
    server.execute(&format!("CREATE PUBLICATION {PUBLICATION} FOR TABLE quotes")).await?;
    server.execute(&format!("SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")).await?;
    server.execute(WRITER).await?;
    server.execute("SET synchronous_commit = off").await?;
    server.execute(&format!("CALL write_quotes({transactions})")).await?;
    // A slot gives what is flushed.
    server.execute("CHECKPOINT").await
}

/// Everything that was written, as `pgoutput` sends it with protocol version 1.
pub(super) async fn record(server: &Server, values: Values) -> Result<Recording> {
    let binary = values == Values::Binary;
    let query = format!(
        "SELECT data FROM pg_logical_slot_peek_binary_changes('{SLOT}', NULL, NULL, \
         'proto_version', '1', 'publication_names', '{PUBLICATION}', 'binary', '{binary}')"
    );
    let no_parameters: [&str; 0] = [];
    let rows = server.client.query_raw(&query, no_parameters).await.context(|| "cannot read the slot")?;
    let mut rows = pin!(rows);
    let (mut bytes, mut lengths) = (BytesMut::new(), Vec::new());
    while let Some(row) = rows.try_next().await.context(|| "cannot read the slot")? {
        let message: &[u8] = row.try_get(0).context(|| "no message came of the slot")?;
        bytes.extend_from_slice(message);
        lengths.push(message.len());
    }
    let byte_len = bytes.len();
    let messages = lengths.into_iter().map(|length| bytes.split_to(length).freeze()).collect();
    Ok(Recording { messages, byte_len })
}
