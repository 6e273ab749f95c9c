//! Transactions that come before their outcome, on real servers of every version: streamed while in progress, and prepared
//! (cases P-05 to P-10).

mod drain;

mod needs_postgres {
    use super::drain::{Outcome, Server};
    use postrider_core::error::ErrorKind;
    use postrider_core::position::Lsn;
    use std::ops::RangeInclusive;
    use xtask::postgres::Shutdown;

    /// Every transaction that does not fit is streamed: some hundred rows of these tests.
    const SMALL_MEMORY: (&str, &str) = ("logical_decoding_work_mem", "64kB");

    macro_rules! on_version {
        ($module:ident, $version:literal, $($name:ident),*) => {
            mod $module {
                $(
                    #[test]
                    fn $name() {
                        super::$name($version);
                    }
                )*
            }
        };
    }

    macro_rules! tests {
        ($($name:ident),* $(,)?) => {
            on_version!(on_14, 14, $($name),*);
            on_version!(on_15, 15, $($name),*);
            on_version!(on_16, 16, $($name),*);
            on_version!(on_17, 17, $($name),*);
            on_version!(on_18, 18, $($name),*);
        };
    }

    tests!(
        a_streamed_transaction_with_savepoints_leaves_what_a_whole_one_does,
        a_message_that_a_savepoint_may_have_taken_back_is_read_again_whole,
        a_streamed_transaction_that_rolls_back_leaves_nothing_and_the_slot_moves_over_it,
        a_stray_abort_is_nothing,
        a_huge_streamed_transaction_arrives_once_through_a_crash_in_its_middle,
        a_transaction_beyond_the_staging_areas_bound_is_read_again_whole,
        streams_interleave,
        a_streamed_transaction_has_each_table_as_it_was,
        without_two_phase_a_prepared_transaction_comes_at_its_commit,
        a_prepared_transaction_waits_for_its_verdict_across_restarts_of_both,
        an_unconfirmed_prepare_comes_again_and_a_marked_slot_needs_no_key,
        what_was_prepared_before_the_slot_was_marked_comes_at_its_verdict,
        a_commit_of_a_prepared_transaction_that_is_gone_is_an_error_with_the_cure,
        what_was_decided_while_nobody_read_here_is_given_up_and_nothing_else,
    );

    fn rows(ids: RangeInclusive<u32>) -> String {
        let (first, last) = (ids.start(), ids.end());
        format!("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series({first}, {last}) AS i;")
    }

    fn texts(ids: impl IntoIterator<Item = u32>) -> Vec<String> {
        ids.into_iter().map(|id| id.to_string()).collect()
    }

    /// P-05, and P-03 under streaming.
    fn a_streamed_transaction_with_savepoints_leaves_what_a_whole_one_does(version: u32) {
        let server = Server::start(version, &[SMALL_MEMORY]);
        let sql = [
            "BEGIN;",
            &rows(1..=500),
            "SAVEPOINT a;",
            &rows(1001..=1500),
            "ROLLBACK TO a;",
            &rows(501..=505),
            // Nested ones: the inner released, the outer rolled back, with messages between rows.
            "SAVEPOINT b;",
            &rows(2001..=2400),
            "SAVEPOINT c;",
            &rows(3001..=3400),
            "SELECT pg_logical_emit_message(true, 'p', 'gone');",
            "RELEASE c;",
            &rows(2401..=2402),
            "ROLLBACK TO b;",
            &rows(506..=506),
            "SELECT pg_logical_emit_message(true, 'p', 'kept');",
            "SAVEPOINT d; SAVEPOINT e;",
            &rows(507..=900),
            "RELEASE e; RELEASE d;",
            "COMMIT;",
        ]
        .concat();
        server.run(&sql);
        let mut expected = texts(1..=506);
        expected.push("kept".to_owned());
        expected.extend(texts(507..=900));
        let streamed = server.drain("streamed", |source| source.streaming(true)).read_to_end();
        assert_eq!(streamed.contents(), expected);
        assert!(
            streamed.count('S') > 1 && streamed.count('c') == 1 && streamed.count('A') >= 3,
            "{}",
            streamed.kinds()
        );
        let whole = server.drain("whole", |source| source).read_to_end();
        assert_eq!(whole.events(), streamed.events(), "position by position");
        assert_eq!(whole.count('S'), 0);
    }

    /// A message right before a savepoint's first row may be the savepoint's: the server does not say.
    fn a_message_that_a_savepoint_may_have_taken_back_is_read_again_whole(version: u32) {
        let server = Server::start(version, &[SMALL_MEMORY]);
        let sql = [
            "BEGIN;",
            &rows(1..=500),
            "SELECT pg_logical_emit_message(true, 'p', 'kept');",
            "SAVEPOINT a;",
            "SELECT pg_logical_emit_message(true, 'p', 'gone');",
            &rows(1001..=2000),
            "ROLLBACK TO a;",
            &rows(501..=1000),
            "COMMIT;",
        ]
        .concat();
        server.run(&sql);
        let mut drain = server.drain("doubt", |source| source.streaming(true));
        let Outcome::Failed(error) = drain.read_on() else { panic!("it was read: {}", drain.kinds()) };
        assert_eq!(error.kind(), ErrorKind::Transient, "{}", error.report());
        assert!(drain.contents().is_empty());
        drain.reconnect();
        let drain = drain.read_to_end();
        let mut expected = texts(1..=500);
        expected.push("kept".to_owned());
        expected.extend(texts(501..=1000));
        assert_eq!(drain.contents(), expected);
    }

    /// P-06.
    fn a_streamed_transaction_that_rolls_back_leaves_nothing_and_the_slot_moves_over_it(version: u32) {
        let server = Server::start(version, &[SMALL_MEMORY]);
        let mut drain = server.drain("rolled_back", |source| source.streaming(true));
        let open = server.session();
        open.run(&format!("BEGIN; {}", rows(1..=2000)));
        drain.read_until_kinds("E");
        assert!(drain.staged_files() > 0);
        open.run("ROLLBACK");
        server.run(&rows(5000..=5000));
        let drain = drain.read_to_end();
        assert_eq!(drain.contents(), ["5000"]);
        assert!(drain.kinds().contains('A'), "{}", drain.kinds());
        assert_eq!(drain.staged_files(), 0);
    }

    /// P-07: version 18 tells of the abort of a savepoint that it never streamed, to protocol version 1, too.
    fn a_stray_abort_is_nothing(version: u32) {
        let server = Server::start(version, &[SMALL_MEMORY]);
        let sql = [
            "BEGIN;",
            &rows(1..=200),
            "SAVEPOINT a;",
            &rows(1001..=1050),
            "RELEASE a;",
            &rows(2001..=3000),
            "ROLLBACK;",
            &rows(5000..=5000),
        ];
        server.run(&sql.concat());
        for streaming in [false, true] {
            let drain = server.drain(&format!("stray_{streaming}"), |source| source.streaming(streaming)).read_to_end();
            assert_eq!(drain.contents(), ["5000"]);
            let stray = drain.kinds().starts_with('A');
            assert_eq!(stray, version == 18, "streaming {streaming}: {}", drain.kinds());
        }
    }

    /// P-08.
    fn a_huge_streamed_transaction_arrives_once_through_a_crash_in_its_middle(version: u32) {
        let server = Server::start(version, &[SMALL_MEMORY]);
        server.run(&rows(1..=100_000));
        server.run(&rows(200_000..=200_000));
        let mut drain = server.drain("huge", |source| source.streaming(true));
        drain.read_bytes(5_000_000);
        assert!(drain.contents().is_empty() && drain.staged_files() == 1);
        drain.crash();
        assert_eq!(drain.staged_files(), 0, "leftovers go at the start");
        let drain = drain.read_to_end();
        let mut expected = texts(1..=100_000);
        expected.push("200000".to_owned());
        assert!(drain.contents() == expected, "{} rows", drain.contents().len());
        assert!(drain.count('S') > 10, "{}", drain.count('S'));
    }

    fn a_transaction_beyond_the_staging_areas_bound_is_read_again_whole(version: u32) {
        let server = Server::start(version, &[SMALL_MEMORY]);
        server.run(&rows(1..=12_000));
        server.run(&rows(30_000..=30_000));
        let mut drain = server.drain("bounded", |source| source.streaming(true));
        drain.room(1 << 20);
        let Outcome::Failed(error) = drain.read_on() else { panic!("it was read") };
        assert_eq!(error.kind(), ErrorKind::Transient, "{}", error.report());
        assert!(error.report().contains("the staging area is full"), "{}", error.report());
        drain.reconnect();
        let drain = drain.read_to_end();
        let expected = [texts(1..=12_000), texts([30_000])].concat();
        assert!(drain.contents() == expected, "{} rows", drain.contents().len());
        assert_eq!(drain.staged_files(), 0);
    }

    /// Two streamed transactions and a whole one between them.
    fn streams_interleave(version: u32) {
        let server = Server::start(version, &[SMALL_MEMORY]);
        let (one, other) = (server.session(), server.session());
        one.run(&format!("BEGIN; {}", rows(1..=600)));
        other.run(&format!("BEGIN; {}", rows(10_001..=10_600)));
        one.run(&rows(601..=1200));
        server.run(&rows(5000..=5000));
        other.run(&format!("{} COMMIT", rows(10_601..=11_200)));
        one.run(&format!("{} COMMIT", rows(1201..=1201)));
        let drain = server.drain("interleaved", |source| source.streaming(true)).read_to_end();
        let expected = [texts([5000]), texts(10_001..=11_200), texts(1..=1201)].concat();
        assert_eq!(drain.contents(), expected);
        assert!(drain.count('c') == 2, "{}", drain.kinds());
    }

    /// The tables change while a transaction is in progress.
    fn a_streamed_transaction_has_each_table_as_it_was(version: u32) {
        let server = Server::start(version, &[SMALL_MEMORY]);
        let sql = [
            "CREATE TYPE mood AS ENUM ('sad', 'ok'); BEGIN;",
            &rows(1..=600),
            "SAVEPOINT a; ALTER TABLE t ADD COLUMN m mood DEFAULT 'ok';",
            &rows(1001..=1600),
            "ROLLBACK TO a;",
            "ALTER TABLE t ADD COLUMN n int;",
            &rows(601..=1200),
            "COMMIT;",
            &rows(1201..=1201),
        ]
        .concat();
        server.run(&sql);
        let drain = server.drain("altered", |source| source.streaming(true)).read_to_end();
        assert_eq!(drain.contents(), texts(1..=1201));
        assert_eq!(drain.widths(), [(2, 600), (3, 601)]);
    }

    /// P-09.
    fn without_two_phase_a_prepared_transaction_comes_at_its_commit(version: u32) {
        let server = Server::start(version, &[]);
        server.run(&format!("BEGIN; {} PREPARE TRANSACTION '@_g';", rows(1..=3)));
        server.run(&rows(10..=10));
        server.run("COMMIT PREPARED '@_g'");
        let drain = server.drain("one_phase", |source| source.streaming(true)).read_to_end();
        assert_eq!(drain.contents(), ["10", "1", "2", "3"]);
        assert!(!drain.kinds().contains('b'), "{}", drain.kinds());
    }

    /// P-10.
    fn a_prepared_transaction_waits_for_its_verdict_across_restarts_of_both(version: u32) {
        let mut server = Server::alone(version, &[SMALL_MEMORY]);
        if version < 15 {
            let error = server.drain("refused", |source| source.two_phase(true)).open_error();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{}", error.report());
            return;
        }
        let mut drain = server.drain("two_phase", |source| source.streaming(true).two_phase(true));
        drain.read_to_end_of_log();
        server.run(&format!("BEGIN; {} PREPARE TRANSACTION '@_small';", rows(1..=3)));
        server.run(&format!(
            "BEGIN; {} SAVEPOINT a; {} ROLLBACK TO a; PREPARE TRANSACTION '@_large';",
            rows(10_001..=11_000),
            rows(20_001..=21_000)
        ));
        server.run(&format!("BEGIN; {} PREPARE TRANSACTION '@_undone';", rows(30_001..=30_002)));
        server.run(&rows(100..=100));
        drain.read_to_end_of_log();
        assert_eq!(drain.contents(), ["100"]);
        assert!(drain.kinds().contains('b') && drain.kinds().contains('p'), "{}", drain.kinds());
        drain.confirm();
        drain.crash();
        server.restart(Shutdown::Immediate);
        drain.moved(&server);
        server.run("ROLLBACK PREPARED '@_undone'");
        server.run("COMMIT PREPARED '@_large'");
        server.run(&rows(101..=101));
        server.run("COMMIT PREPARED '@_small'");
        drain.read_to_end_of_log();
        let expected = [texts([100]), texts(10_001..=11_000), texts([101, 1, 2, 3])].concat();
        assert_eq!(drain.contents(), expected);
        assert!(
            !drain.kinds_since_crash().contains('b'),
            "the prepare does not come again: {}",
            drain.kinds_since_crash()
        );
        drain.release();
        assert_eq!(drain.staged_files(), 0);
    }

    /// A prepare that was not confirmed comes again; a slot that is marked sends it to who did not ask, too.
    fn an_unconfirmed_prepare_comes_again_and_a_marked_slot_needs_no_key(version: u32) {
        if version < 15 {
            return;
        }
        let server = Server::start(version, &[]);
        let mut drain = server.drain("again", |source| source.two_phase(true));
        server.run(&format!("BEGIN; {} PREPARE TRANSACTION '@_g';", rows(1..=3)));
        drain.read_until_kinds("P");
        drain.crash();
        drain.wish(|source| source.two_phase(false));
        server.run("COMMIT PREPARED '@_g'");
        drain.read_to_end_of_log();
        assert_eq!(drain.contents(), ["1", "2", "3"]);
        assert_eq!(drain.kinds_since_crash().matches('b').count(), 1, "{}", drain.kinds_since_crash());
    }

    /// What was prepared before the slot was marked comes whole at its verdict, and a rollback alone.
    fn what_was_prepared_before_the_slot_was_marked_comes_at_its_verdict(version: u32) {
        if version < 15 {
            return;
        }
        let server = Server::start(version, &[]);
        let mut drain = server.drain("early", |source| source);
        server.run(&format!("BEGIN; {} PREPARE TRANSACTION '@_g';", rows(1..=3)));
        server.run(&format!("BEGIN; {} PREPARE TRANSACTION '@_h';", rows(4..=6)));
        server.run(&rows(100..=100));
        drain.read_to_end_of_log();
        drain.confirm();
        drain.crash();
        drain.wish(|source| source.two_phase(true));
        drain.read_to_end_of_log();
        server.run("ROLLBACK PREPARED '@_h'; COMMIT PREPARED '@_g'");
        drain.read_to_end_of_log();
        assert_eq!(drain.contents(), ["100", "1", "2", "3"]);
        assert!(drain.kinds_since_crash().ends_with("rbRIIIPK"), "{}", drain.kinds_since_crash());
    }

    /// The folder was lost: the rows cannot come again, and nothing is passed over in silence.
    fn a_commit_of_a_prepared_transaction_that_is_gone_is_an_error_with_the_cure(version: u32) {
        if version < 15 {
            return;
        }
        let server = Server::start(version, &[]);
        let mut drain = server.drain("lost", |source| source.two_phase(true));
        server.run(&format!("BEGIN; {} PREPARE TRANSACTION '@_g';", rows(1..=3)));
        drain.read_to_end_of_log();
        assert_eq!(drain.staged_files(), 1);
        drain.confirm();
        drain.lose_staging();
        server.run("COMMIT PREPARED '@_g'");
        let Outcome::Failed(error) = drain.read_on() else { panic!("it was read") };
        assert_eq!(error.kind(), ErrorKind::JournalForeign);
        assert!(error.report().contains("_g\"") && error.hint().is_some(), "{}", error.report());
        assert!(drain.end() > Lsn::ZERO);
    }

    /// The slot moved past two verdicts. One gid of theirs is used again, and a third transaction is still prepared.
    fn what_was_decided_while_nobody_read_here_is_given_up_and_nothing_else(version: u32) {
        if version < 15 {
            return;
        }
        let server = Server::start(version, &[]);
        let mut drain = server.drain("left", |source| source.two_phase(true));
        for (id, gid) in [(1, "a"), (2, "b"), (3, "c")] {
            server.run(&format!("BEGIN; {} PREPARE TRANSACTION '@_{gid}';", rows(id..=id)));
        }
        drain.read_to_end_of_log();
        drain.confirm();
        assert_eq!((drain.staged_files(), drain.given_up().len()), (3, 0));
        server.run("COMMIT PREPARED '@_a'; ROLLBACK PREPARED '@_b'");
        drain.left_behind();
        server.run(&format!("BEGIN; {} PREPARE TRANSACTION '@_a';", rows(4..=4)));
        server.run(&rows(5..=5));
        drain.read_to_end_of_log();
        assert_eq!(drain.given_up(), ["a", "b"]);
        server.run("COMMIT PREPARED '@_c'; COMMIT PREPARED '@_a'");
        drain.read_to_end_of_log();
        assert_eq!(drain.contents(), ["5", "3", "4"]);
        drain.release();
        assert_eq!(drain.staged_files(), 0);
    }
}
