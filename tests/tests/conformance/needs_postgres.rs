//! Every case on every version, as the server is now.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::frame::Frame;
use postrider_core::ports::LogSource;
use postrider_core::position::Lsn;
use postrider_postgres::ReplicationSource;
use postrider_tests::conformance::case::Case;
use postrider_tests::conformance::oracle;
use postrider_tests::conformance::recording::Recording;
use postrider_tests::conformance::server::{Database, quiet};
use postrider_tests::conformance::substance::substance;
use tokio::time::timeout;
use xtask::postgres::shared;

mod scenes;

const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

macro_rules! on_version {
    ($module:ident, $version:literal, $($name:ident),*) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $name() {
                    super::run(stringify!($name), $version).await;
                }
            )*

            scenes!($version, d_08_a_publication_younger_than_a_change_is_an_error_for_ever);
            scenes!($version, d_09_a_missing_publication_is_found_before_the_stream_starts);
            scenes!($version, p_14_the_slot_moves_over_what_is_not_for_us_and_over_nothing_else);
        }
    };
}

macro_rules! scenes {
    ($version:literal, $name:ident) => {
        #[tokio::test]
        async fn $name() {
            super::scenes::$name($version).await;
        }
    };
}

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        on_version!(on_14, 14, $($name),*);
        on_version!(on_15, 15, $($name),*);
        on_version!(on_16, 16, $($name),*);
        on_version!(on_17, 17, $($name),*);
        on_version!(on_18, 18, $($name),*);
        const CASES: &[&str] = &[$(stringify!($name)),*];
    };
}

cases!(
    d_01_ddl_within_a_transaction,
    d_02_rename_and_set_schema,
    d_04_one_name_in_two_schemas,
    d_06_odd_identifiers,
    d_12_partitions_by_leaf,
    d_12_partitions_by_root,
    d_14_truncate,
    d_15_type_dropped_and_made_again,
    p_01_interleaved,
    p_02_many_rows_at_one_lsn,
    p_03_savepoints,
    p_04_nothing_to_tell,
    p_05_savepoint_streamed,
    p_05_savepoint_streamed_in_parallel,
    p_05_savepoint_without_streaming,
    p_06_streamed_and_rolled_back,
    p_09_prepared_as_one,
    p_10_two_phase,
    p_10_two_phase_streamed,
    p_11_messages,
    p_12_origin,
    r_01_untouched_large_value,
    r_02_untouched_large_value_under_full,
    r_04_key_change_and_large_value,
    r_04_large_key,
    r_06_full_identity,
    r_06_index_identity,
    r_06_work_table_under_full,
    r_07_no_identity,
    r_08_identity_index_dropped,
    r_09_generated_columns,
    r_09_published_generated_columns,
    r_11_dropped_columns,
    r_12_row_filter,
    r_13_column_list,
    r_14_inserts_only,
    r_15_no_columns,
    t_01_numeric_specials,
    t_02_far_dates,
    t_04_end_of_day,
    t_06_infinite_intervals,
    t_06_intervals,
    t_08_arrays,
    t_09_enums,
    t_11_composites,
    t_12_domains,
    t_13_other_types,
    t_14_json,
    t_16_padding,
    t_17_bytea,
);

/// All versions at once: it is waited for longer than anything else here.
#[tokio::test]
async fn s_05_a_huge_transaction_that_is_read_slowly_costs_no_connection() {
    let read = scenes::s_05_a_huge_transaction_that_is_read_slowly_costs_no_connection;
    // While a server starts, nothing else goes on in this thread, and connections time out.
    let _started: Vec<_> = (14..=18).map(|version| shared(version).unwrap()).collect();
    futures_util::future::join_all((14..=18).map(read)).await;
}

#[test]
fn every_case_is_a_test() {
    let names: Vec<String> = Case::all().into_iter().map(|case| case.name).collect();
    assert_eq!(names, CASES);
}

/// What comes before its outcome may have rolled back when the server sends it.
#[test]
fn what_comes_before_its_outcome_is_recorded_alone() {
    for case in Case::all() {
        let early = ["streaming", "two_phase"].iter().any(|option| case.options.contains_key(*option));
        assert_eq!(case.alone.is_some(), early, "{}", case.name);
    }
}

/// What the server sends now is what was recorded, the walsender sends the same bytes through our own client, and what we read of
/// them is what the server says. A version that cannot have the case refuses it by itself.
async fn run(name: &str, version: u32) {
    let case = Case::named(name);
    let cluster = if case.alone.is_some() { Arc::new(quiet(version).unwrap()) } else { shared(version).unwrap() };
    let recorded = match Database::of(&case, &cluster).await {
        Ok(database) => database.record(&case).await.map(|recording| (database, recording)),
        Err(refusal) => Err(refusal),
    };
    if !case.is_of(version) {
        let refusal = recorded.err().unwrap_or_else(|| panic!("{version} has the case all the same"));
        assert!(["42601", "22007", "22023", "0A000", "XX000"].contains(&refusal.sqlstate.as_str()), "{refusal:?}");
        return;
    }
    let (database, recording) = recorded.unwrap();
    oracle::check(&case, &recording);
    assert_eq!(
        substance(&recording),
        substance(&Recording::read(&case, version)),
        "`cargo x record` shows the difference"
    );
    if case.protocol() == 1 {
        let expected = told_once(recording.messages.iter().map(|sent| sent.payload.clone()));
        assert_eq!(stream(&database, expected.len()).await, expected);
    }
    database.remove(&cluster).await;
}

/// The first messages that come through the replication client.
async fn stream(database: &Database, count: usize) -> Vec<Vec<u8>> {
    let source = ReplicationSource::new(database.options().clone(), database.name(), "p");
    let mut session = source.open(Lsn::ZERO).await.unwrap();
    let mut payloads = Vec::new();
    while payloads.len() < count {
        let batch = timeout(PATIENCE, session.reader.read()).await.expect("nothing comes").unwrap();
        for frame in batch.frames() {
            if let Frame::XLogData { payload, .. } = frame.unwrap() {
                payloads.push(payload.to_vec());
            }
        }
        payloads = told_once(payloads);
    }
    payloads
}

/// Without descriptions that came before: how often the server repeats one depends on what others do.
fn told_once(payloads: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut told = BTreeSet::new();
    let is_new = |payload: &Vec<u8>| !matches!(payload[0], b'R' | b'Y') || told.insert(payload.clone());
    payloads.into_iter().filter(is_new).collect()
}
