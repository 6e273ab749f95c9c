//! A backlog in the server's log: outbox rows that a slot has not been read past, kept once and read again by each run from a copy of the slot.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::time::sleep;
use xtask::error::{Context, Error, Result};

use crate::server::{PUBLICATION, Server, connect};

/// The slot that keeps the backlog; nobody reads it.
const KEPT_SLOT: &str = "kept";

/// Sessions that write at once.
const WRITERS: u64 = 2;

/// How long a slot may take to become free, and to show what was confirmed.
const PATIENCE: Duration = Duration::from_secs(30);

/// One kind of transaction in a backlog.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) transactions: u64,
    pub(crate) rows_each: u64,
    /// Bytes added to each payload of about 170.
    pub(crate) padding_bytes: u64,
}

impl Load {
    pub(crate) fn rows(&self) -> u64 {
        self.transactions * self.rows_each
    }

    /// As many times the rows: in fewer transactions, and where there is one left, in a smaller one.
    pub(crate) fn scaled(self, scale: f64) -> Self {
        let transactions = self.transactions as f64 * scale;
        if transactions >= 1.0 {
            return Self { transactions: transactions as u64, ..self };
        }
        Self { transactions: 1, rows_each: ((self.rows() as f64 * scale) as u64).max(1), ..self }
    }
}

const WRITER: &str = r#"
    CREATE PROCEDURE write_backlog(first bigint, transactions bigint, rows_each bigint, padding bigint) LANGUAGE plpgsql AS $$
    BEGIN
        FOR t IN first .. first + transactions - 1 LOOP
            INSERT INTO outbox_event (aggregate_key, event_type, payload)
            SELECT 'quote-' || (t::bigint * 7919 + r) % 1000003, 'quote.priced',
                   ('{"quote_id": "' || t || '-' || r || '", "premium": ' || (t * 31 + r) % 100000 || '.50, "currency": "EUR", '
                    '"broker": "broker-' || t % 997 || '", "product": "commercial-property", "status": "PRICED", "note": "'
                    || substr(repeat(md5(t::text || r::text), 1 + (padding / 32)::int), 1, 32 + padding::int) || '"}')::jsonb
            FROM generate_series(1, rows_each) AS r;
            COMMIT;
        END LOOP;
    END $$"#;

/// Makes the publication and the slot; what is written from now on is the backlog.
pub(crate) async fn begin(server: &Server) -> Result<()> {
    server.execute(&format!("CREATE PUBLICATION {PUBLICATION} FOR TABLE outbox_event")).await?;
    server.execute(&format!("SELECT pg_create_logical_replication_slot('{KEPT_SLOT}', 'pgoutput')")).await?;
    server.execute(WRITER).await
}

/// Writes one load, in a few sessions.
pub(crate) async fn write(server: &Server, load: Load) -> Result<()> {
    let writers = if load.transactions >= WRITERS { WRITERS } else { 1 };
    let (share, rest) = (load.transactions / writers, load.transactions % writers);
    let sessions = (0..writers).map(async |writer| {
        let client = connect(&server.url()).await?;
        let transactions = if writer == 0 { share + rest } else { share };
        let first = if writer == 0 { 0 } else { rest + writer * share };
        let call = format!(
            "SET synchronous_commit = off; CALL write_backlog({first}, {transactions}, {}, {})",
            load.rows_each, load.padding_bytes
        );
        // A procedure that commits must not stand in one message with another statement.
        for statement in call.split("; ") {
            client.batch_execute(statement).await.context(|| "cannot write the backlog")?;
        }
        Ok::<_, Error>(())
    });
    try_join_all(sessions).await?;
    Ok(())
}

/// Flushes the backlog and returns the LSN that is behind all of it, and before the log's own end.
pub(crate) async fn end(server: &Server) -> Result<String> {
    server.execute("CREATE TABLE backlog_ends ()").await?;
    let end = server.text("SELECT pg_current_wal_lsn()::text").await?;
    server.execute("DROP TABLE backlog_ends").await?;
    server.execute("CHECKPOINT").await?;
    Ok(end)
}

/// A slot from which the whole backlog can be read.
pub(crate) async fn copy_slot(server: &Server, name: &str) -> Result<()> {
    server.execute(&format!("SELECT pg_copy_logical_replication_slot('{KEPT_SLOT}', '{name}')")).await
}

/// Makes sure that the backlog was confirmed to the slot, and drops it.
///
/// # Errors
/// When it was not: the side did not do its work.
pub(crate) async fn check_and_drop_slot(server: &Server, name: &str, end: &str) -> Result<()> {
    let state = format!(
        "SELECT active::text || ' ' || confirmed_flush_lsn::text || ' ' || (confirmed_flush_lsn >= '{end}')::text \
         FROM pg_replication_slots WHERE slot_name = '{name}'"
    );
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = server.text(&state).await?;
        // A walsender sees the end of its client a moment after the client has ended.
        if found.starts_with("false") {
            if !found.ends_with("true") {
                return Err(Error::new(format!("slot {name} was confirmed up to {found} and not to {end}")));
            }
            return server.execute(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
        }
        if Instant::now() > deadline {
            return Err(Error::new(format!("slot {name} is still in use: {found}")));
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scaled_load_has_fewer_transactions_and_then_smaller_ones() {
        let scaled = |transactions, rows_each, scale| {
            let load = Load { transactions, rows_each, padding_bytes: 7 }.scaled(scale);
            assert_eq!(load.padding_bytes, 7);
            (load.transactions, load.rows_each)
        };
        assert_eq!(scaled(2_000, 1_000, 1.0), (2_000, 1_000));
        assert_eq!(scaled(2_000, 1_000, 0.02), (40, 1_000));
        assert_eq!(scaled(1, 500_000, 0.02), (1, 10_000));
        assert_eq!(scaled(4, 1_000, 0.1), (1, 400));
        assert_eq!(scaled(1, 10, 0.001), (1, 1));
    }
}
