//! Rows that we cannot read, on a real server: the others go on without them.

use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::database::{Database, canonical_mapping};
use crate::work_table::{ONE, ask, claim_one, key, open, with_rows};
use postrider_core::error::ErrorKind;
use postrider_core::ports::WorkTable;
use postrider_postgres::{Access, Operator, RowFilter, UnreadableRows};
use tracing_subscriber::fmt::MakeWriter;

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Hears this thread from now on.
    fn listen(&self) -> tracing::subscriber::DefaultGuard {
        let subscriber = tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(self.clone()).finish();
        tracing::subscriber::set_default(subscriber)
    }

    /// The lines since the last time.
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        self.clone()
    }
}

/// A database with so many rows, whose columns take anything.
async fn with_lax_rows(count: usize) -> Database {
    let database = with_rows(count).await;
    database
        .run(
            "ALTER TABLE pending_work DROP CONSTRAINT pending_work_stage_state_check, ALTER stage DROP NOT NULL,
                 ALTER stage_state DROP NOT NULL, ALTER attempt_count DROP NOT NULL, ALTER deferral_count DROP NOT NULL,
                 ALTER fence DROP NOT NULL, ALTER epoch DROP NOT NULL",
        )
        .await;
    database
}

#[tokio::test]
async fn rows_that_cannot_be_read_are_left_out_and_reported_once() {
    let bad = [
        "fence = NULL",
        "attempt_count = -1",
        "stage_state = 'NAPPING'",
        "stage = NULL",
        "epoch = -7",
        "deferral_count = NULL",
    ];
    let database = with_lax_rows(bad.len() + 2).await;
    for (number, change) in bad.iter().enumerate() {
        database.run(&format!("UPDATE pending_work SET {change} WHERE quote_id = 'q{number:05}'")).await;
    }
    let table = open(&database, ONE).await;
    let log = Log::default();
    let _listening = log.listen();
    let all: Vec<_> = (0..bad.len() + 2).map(key).collect();
    let expected = [key(bad.len() + 1), key(bad.len())];
    let line = "ERROR postrider_postgres::work_table::cells: the work table holds rows that we cannot read; they are left out: \
                `postrider work ls` names them, and says what to type rows=6 columns=\"\\\"attempt_count\\\", \\\"deferral_count\\\", \\\"epoch\\\", \\\"fence\\\", \\\"stage\\\", \\\"stage_state\\\"\"";

    let mut read: Vec<_> = table.read(&all).await.unwrap().rows.into_iter().map(|row| row.key).collect();
    read.sort();
    assert_eq!(read, expected);
    assert_eq!(log.take().iter().map(|line| line.trim()).collect::<Vec<_>>(), [line]);

    let mut pages = table.open_rows().await.unwrap();
    assert_eq!(pages.next_page().await.unwrap().into_iter().map(|row| row.key).collect::<Vec<_>>(), expected);
    assert_eq!(pages.next_page().await.unwrap(), []);
    assert_eq!(log.take().iter().map(|line| line.trim()).collect::<Vec<_>>(), [line]);
}

#[tokio::test]
async fn a_page_without_a_row_that_can_be_read_is_not_the_end() {
    let database = with_lax_rows(3_000).await;
    let table = open(&database, ONE).await;
    database.run("UPDATE pending_work SET fence = NULL WHERE (group_id, quote_id) < ('g5', '')").await;
    let mut pages = table.open_rows().await.unwrap();
    let mut count = 0;
    loop {
        let page = pages.next_page().await.unwrap();
        if page.is_empty() {
            break;
        }
        count += page.len();
    }
    let expected = database.text("SELECT count(fence)::text FROM pending_work").await;
    assert_eq!(count.to_string(), expected);
    assert!(count > 0 && count < 1_000);
}

#[tokio::test]
async fn a_claimed_row_that_cannot_be_read_does_not_take_the_batch_with_it() {
    let database = with_lax_rows(2).await;
    let table = open(&database, ONE).await;
    database.run("UPDATE pending_work SET epoch = -1 WHERE quote_id = 'q00000'").await;
    let replies = table.claim(ONE, &[ask(key(0), 0), ask(key(1), 0)], &[]).await.unwrap();
    assert_eq!(replies.len(), 1);
    assert_eq!(claim_one(&table, ONE, ask(key(1), 0)).await, None, "it is claimed already");
}

#[tokio::test]
async fn an_order_for_many_rows_goes_on_behind_a_page_that_cannot_be_read() {
    let database = with_lax_rows(20).await;
    database.run("UPDATE pending_work SET fence = NULL WHERE (group_id, quote_id) < ('g5', '')").await;
    let operator = Operator::open(&database.options(), &canonical_mapping(), true, Access::Look).await.unwrap();
    let (mut found, mut unreadable, mut after) = (Vec::new(), UnreadableRows::default(), None);
    loop {
        let page = operator.find(&RowFilter::default(), after.as_ref(), 3).await.unwrap();
        unreadable.add(page.unreadable);
        let Some(last) = page.rows.last() else { break };
        after = Some(last.version.key.clone());
        found.extend(page.rows.into_iter().map(|row| row.version.key));
    }
    assert_eq!(found.len().to_string(), database.text("SELECT count(fence)::text FROM pending_work").await);
    assert_eq!(unreadable.count, 20 - found.len());
    assert_eq!(unreadable.columns.iter().collect::<Vec<_>>(), ["\"fence\""]);
    let error = operator.row(&key(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Table);
    assert!(error.report().contains("1 row holds what cannot be read (in \"fence\")"), "{}", error.report());
    assert!(found.len() > 3 && found.is_sorted());
}
