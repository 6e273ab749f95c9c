//! Exactly what may be typed in a configuration file.
//!
//! Every key is optional here and absent until typed; what must be there, and what an absent key means, is
//! `meaning`'s to say. The comments are the reference page, word for word.

use crate::config::place::At;
use crate::config::quantity::{ByteSize, Frequency, Span};
use crate::config::secret::Secret;
use crate::config::table::{Names, typed_table};
use std::collections::BTreeMap;

/// Keys of [`File`] that hold plain values: TOML puts them before the first table.
pub(crate) const TOP_LEVEL_KEYS: [&str; 2] = ["ack", "wal_guard"];

/// Keys that the design has and this version does not, with their tables.
pub(crate) const LATER_KEYS: [(&str, &str); 4] =
    [("work.stage", "async"), ("work.stage", "compensate"), ("sink", "brokers"), ("sink", "topic")];

typed_table! {
    /// Keys of the file itself: they stand before the first table.
    File {
        /// When the server may forget its log. `"sinks"`: once every required sink has taken it and the journal has
        /// it on disk. `"journal"`: once the journal has it on disk, so that a sink that is down costs the primary
        /// nothing.
        /// Default: `"sinks"`.
        ack: String,
        /// With `ack = "sinks"`: above so much log kept by the server for us, confirm at the journal until it is
        /// less again. This keeps a sink that is down from filling the primary's disk.
        /// Default: never.
        wal_guard: ByteSize,
        /// The PostgreSQL server whose log is read. Mandatory.
        source: Source,
        /// The local journal: what was read is kept here until everybody has it. Mandatory.
        journal: Journal,
        /// Where events come from, any number: each one table or one prefix of logical messages.
        outbox: Vec<At<Outbox>>,
        /// The work table and its stages. Without it no stage is called.
        work: Work,
        /// Where events go, any number.
        sink: Vec<At<Sink>>,
        /// The HTTP server for /healthz, /readyz, /metrics and /status. It has no password: keep it on loopback or
        /// behind a proxy.
        server: Server,
        /// Bounds.
        limits: Limits,
        /// How often Postrider speaks to the primary on its own account.
        periods: Periods,
    }
}

typed_table! {
    /// The PostgreSQL server whose log is read.
    Source {
        /// Connection URL or `key=value` pairs, as libpq has them: `"postgres://user@host:5432/database"`. `"env:NAME"` takes
        /// it from the environment variable NAME, which keeps a password out of the file. What it leaves out comes from
        /// PGHOST, PGUSER, PGPASSWORD, a password file and their like, as for psql: connections.md beside this page has every
        /// parameter.
        url: Secret,
        /// A program and its arguments, `["aws", "rds", "generate-db-auth-token", …]`: run for each new connection, and the one line
        /// that it prints within 30 s is the password. For the short-lived tokens of managed servers. No shell is involved.
        password_command: Vec<At<Secret>>,
        /// Name of the replication slot: lower-case letters, digits and underscores.
        /// Default: `"postrider"`.
        slot: String,
        /// Name of the publication.
        /// Default: `"postrider"`.
        publication: String,
        /// Read large transactions while they are in progress: they wait in the journal's directory instead of on the
        /// primary's disk, and their events are there sooner after the commit. What is delivered is the same.
        /// Default: `true`.
        streaming: bool,
        /// Read prepared transactions (PREPARE TRANSACTION) before their verdict, from PostgreSQL 15 on. They are kept
        /// durably in the journal's directory, and nowhere else that can be read again, and delivered at COMMIT PREPARED.
        /// This marks the slot for good: to go back, drop the slot. A slot that is marked is read so in any case; without
        /// it a prepared transaction is read at its COMMIT PREPARED.
        /// Default: `false`.
        two_phase: bool,
        /// Have standbys keep a copy of the slot, so that it is there after a promotion (PostgreSQL 17 and later; it takes
        /// `sync_replication_slots` on the standby, too). `true`: `postrider setup` makes the slot so, changes one that is not so,
        /// and refuses a server that cannot. `false`: it makes it without. `postrider check` says what is missing for it.
        /// Default: a new slot is made so where the server can, since it costs nothing there; a slot that is there stays as it is.
        failover: bool,
        /// Read from a standby (PostgreSQL 16 and later), so that the primary decodes nothing: the slot is the standby's own, and the
        /// publication the primary's. Without `[work]` only, since claims are written. The server may be a primary all the same: a
        /// promotion changes nothing.
        /// Default: `false`.
        standby: bool,
    }
}

typed_table! {
    /// The local journal.
    Journal {
        /// Its directory, on a local disk; it is created if it is not there. Mandatory.
        dir: String,
        /// Size at which a new file is begun.
        /// Default: `"64MiB"`.
        segment_size: ByteSize,
        /// How much journal is kept, so that a consumer can be set back.
        retention: Retention,
        /// What to do once the journal is larger than `retention.size` and a required sink lacks the oldest of it. `"block"`: nothing
        /// more is read, for no stage and no sink, until there is room, and the server keeps its log. `"drop_oldest"`: the
        /// oldest goes, and the sink is cut loose with what it lacks on record, as an optional one is in any case; the
        /// slot no longer waits for it.
        /// Default: `"block"`.
        when_full: String,
        /// How much of transactions in progress may wait in the directory, beside the journal itself. A transaction
        /// that goes beyond is read again after its commit, and waits on the primary's disk until then. Prepared
        /// transactions do not count: they have to be kept.
        /// Default: `"10GiB"`.
        staging_size: ByteSize,
    }
}

typed_table! {
    /// How much journal is kept.
    Retention {
        /// The oldest files go once the journal is larger than this. An optional sink that lacks some of it is cut loose, with
        /// what it lacks on record; of a required one `when_full` says what happens. A warning comes at four fifths.
        /// Default: `"20GiB"`.
        size: ByteSize,
        /// Files go, too, once all in them was committed longer ago than this, but never what a required sink still lacks.
        /// Default: never.
        age: Span,
    }
}

typed_table! {
    /// Where events come from: a table or a prefix, not both.
    Outbox {
        /// A table whose inserted rows are events: `"schema.table"`; without a schema, `public`.
        table: String,
        /// The table's own names for the columns; what is left out has the name of its key.
        columns: OutboxColumns,
        /// A prefix of `pg_logical_emit_message` whose messages are events.
        prefix: String,
    }
}

typed_table! {
    /// The table's own names for the columns of an outbox.
    OutboxColumns {
        /// What identifies the event for ever.
        /// Default: `"id"`.
        id: String,
        /// Events with the same key are delivered in the order of their commits; `""`: the table has no such
        /// column, and each event stands by itself.
        /// Default: `"aggregate_key"`.
        aggregate_key: String,
        /// What happened; `""`: the table has no such column.
        /// Default: `"event_type"`.
        event_type: String,
        /// The event itself.
        /// Default: `"payload"`.
        payload: String,
        /// Where a sink that has topics puts it; `""`: the table has no such column.
        /// Default: `"topic"`.
        topic: String,
        /// A JSON object of headers; `""`: the table has no such column.
        /// Default: `"headers"`.
        headers: String,
        /// When the row was written; not part of the event, which has the time of its commit.
        /// Default: `"created_at"`, if the table has it.
        created_at: String,
        /// Set by a poller that works beside us; an update that sets nothing else is ignored.
        /// Default: `"published_at"`, if the table has it.
        published_at: String,
    }
}

typed_table! {
    /// The work table and its stages.
    Work {
        /// The table: `"schema.table"`; without a schema, `public`. Mandatory.
        table: String,
        /// `"execute"`: Postrider works on the rows. `"observe"`: somebody else does, and Postrider looks on: it claims nothing, calls nobody and
        /// writes nothing, and reports for each stage when it would have started which rows, and how much later they were started
        /// ([moving-from-polling.md](moving-from-polling.md)). The table needs no more than its key, its stage and its state for that.
        /// Default: `"execute"`.
        mode: String,
        /// Keep Postrider's own transitions out of the log: the work table gets a publication of its own, `<publication>_work`, with
        /// its inserts only, and a trigger that tells what every other session does to its rows. That costs the server less
        /// for each stage. `false`: the log brings every change of the table, ours among them, and the table has no trigger.
        /// Default: `true`.
        quiet: bool,
        /// What becomes of a row that somebody writes while an attempt at it runs, without raising its fence, as every writer must.
        /// `"park"`: it is set aside where it was put (`UNFENCED_WRITE`), and a person finds out who did that; where several executors share the
        /// rows, the one that begins with it may go on from there before. `"reread"`: it goes on from there.
        /// Default: `"park"`.
        unfenced_writes: String,
        /// The key column whose text is the row's group. Where rows wait for a stage, the groups take turns, so that one with many rows
        /// does not keep the others waiting. `""`: no groups, first come, first served.
        /// Default: the first key column, if the key has more than one.
        fair_by: String,
        /// The table's own names for the columns; what is left out has the name of its key.
        columns: WorkColumns,
        /// The table's own words for the states, `{ PENDING = ["NEW", "QUEUED"], RUNNING = "IN_PROGRESS", DONE = "OK" }`; a state that is left
        /// out has ours. Of several words for one state all are read, and the first is written. Each word is one state's: one that Postrider
        /// is to leave alone goes to a state that it never writes, `WAITING` for instance. `postrider check` counts the open rows with a word
        /// that is no state's.
        states: BTreeMap<String, At<Names>>,
        /// The definition, `"name@version"`, that the stages below are of: rows that have none get it at their first claim, and
        /// keep it. Change it with the stages, and keep the earlier ones below as long as rows are under them.
        /// Default: `"default@1"`, for a team that never changes its stages.
        definition: String,
        /// Request headers of every stage; values as for a stage's.
        headers: BTreeMap<String, At<Secret>>,
        /// The certificates of every stage's connections, where its URL is `https` and it has no `tls` itself.
        tls: Tls,
        /// Signs the requests of every stage that has no `signing_secret` itself.
        signing_secret: Secret,
        /// What became of each attempt, kept in the table `postrider.work_history` beside the work table.
        history: History,
        /// What an endpoint takes over all its stages, one each. Without it the stages' own limits hold alone.
        endpoint: Vec<At<WorkEndpoint>>,
        /// One stage of the workflow each. Mandatory.
        stage: Vec<At<Stage>>,
        /// Earlier definitions that open rows are still under, any number. A row under one that is nowhere is parked
        /// (`VERSION_GONE`); `postrider check` counts them beforehand.
        earlier: Vec<At<Earlier>>,
    }
}

typed_table! {
    /// A definition that no new row gets.
    Earlier {
        /// Its name, `"name@version"`, as the row's `definition` column has it. Mandatory.
        name: String,
        /// Its stages, with the same keys as `[[work.stage]]`. Mandatory.
        stage: Vec<At<Stage>>,
    }
}

typed_table! {
    /// What became of each attempt, kept in the table `postrider.work_history` beside the work table.
    History {
        /// Whether it is kept: one row for each attempt that ends, written by the statement that ends it.
        /// Default: `true`.
        enabled: bool,
        /// A workflow's history goes once it has ended longer ago than this; while it is open nothing of it goes. At least
        /// `journal.retention.age`: what can be replayed can be looked up.
        /// Default: `"30d"`, or `journal.retention.age` where that is longer.
        retention: Span,
    }
}

typed_table! {
    /// The table's own names for the columns of the work table. `""`: it has no such column. What that costs, `postrider check` says;
    /// without `attempt_count`, `fence`, `next_attempt_at`, `lease_until` or `updated_at` no stage is executed.
    WorkColumns {
        /// The columns that identify a row, in order.
        /// Default: `["group_id", "quote_id"]`.
        key: Vec<At<String>>,
        /// Default: `"stage"`.
        stage: String,
        /// Default: `"stage_state"`.
        stage_state: String,
        /// Default: `"attempt_count"`.
        attempt_count: String,
        /// Default: `"deferral_count"`.
        deferral_count: String,
        /// Default: `"fence"`.
        fence: String,
        /// Default: `"epoch"`.
        epoch: String,
        /// Default: `"next_attempt_at"`.
        next_attempt_at: String,
        /// Default: `"lease_until"`.
        lease_until: String,
        /// Default: `"lease_owner"`.
        lease_owner: String,
        /// Default: `"closed_at"`.
        closed_at: String,
        /// Default: `"definition"`.
        definition: String,
        /// Default: `"request_hash"`.
        request_hash: String,
        /// What each stage is sent.
        /// Default: `"payload"`.
        payload: String,
        /// Default: `"last_error"`.
        last_error: String,
        /// Default: `"updated_at"`.
        updated_at: String,
    }
}

typed_table! {
    /// What an endpoint takes over all its stages.
    WorkEndpoint {
        /// Which: scheme, host and port as in the stages' URLs; a path says nothing. Mandatory.
        url: String,
        /// Requests in flight at once, from this process.
        /// Default: no limit.
        concurrency: u32,
        /// As a stage's.
        /// Default: no limit.
        rate: Frequency,
        /// As a stage's.
        burst: u32,
    }
}

typed_table! {
    /// One stage of the workflow.
    Stage {
        /// The name, as the row's stage column has it. Mandatory.
        name: String,
        /// Where the request goes: `http://…` or `https://…`; `"env:NAME"` takes it from the environment. Mandatory.
        url: Secret,
        /// The stage after this one. Without it, success ends the workflow. Or a list, `["APPROVAL", "REFERRAL", "DONE"]`, of
        /// which the answer names one in its header Postrider-Next; `DONE` ends the workflow. A stage is never come to
        /// again: a workflow has no cycle.
        next: Names,
        /// What the receiver does so that a repeated request is harmless. `"natural"`: the work has a natural key, and
        /// doing it again finds it done. `"keyed"`: the receiver stores its answer under the idempotency key and
        /// replays it. `"same_tx"`: it moves the row on itself, by a function that `postrider setup` makes, in the transaction of its
        /// work on this database, and makes no call to others. Mandatory: nobody but you knows.
        class: String,
        /// Requests made for one row in this stage before it is set aside for a person.
        /// Default: `5`.
        attempts: u32,
        /// How often the endpoint may put one row off (429 or 503 with Retry-After) without using an attempt.
        /// Default: `100`.
        deferrals: u32,
        /// From the start of a request to the last byte of its answer.
        /// Default: `"30s"`.
        timeout: Span,
        /// How long a row is ours before others may take it over; must be longer than `timeout`.
        /// Default: twice the timeout.
        lease: Span,
        /// How long the receiver, and whoever is behind it, keeps an idempotency key. A row whose first request is older than that is not
        /// asked again, since the work could be done a second time: it is parked (`KEY_EXPIRED`), and `postrider work resume` refuses it.
        /// Default: for ever.
        key_retention: Span,
        /// Rows begin in this stage: the application inserts them here. `postrider check` tells of a stage that no other leads to.
        /// Default: `true` for the first stage, else `false`.
        entry: bool,
        /// What the receiver does, as far as you say it: `"database"`, it writes to its own; `"external"`, it calls somebody else;
        /// `"irreversible"`, it cannot be taken back. One word or a list. `postrider check` tells where that does not go well together.
        /// Default: nothing is said.
        effects: Names,
        /// Pause between attempts: a random share of `first`, doubled with each attempt, at most `max`.
        backoff: Backoff,
        /// Somebody else works on the stage, while the team moves here stage by stage: Postrider leads rows to it, and claims none of them until they have
        /// left it.
        /// Default: `false`.
        by_others: bool,
        /// Requests in flight at once.
        /// Default: `64`.
        concurrency: u32,
        /// At most so many requests leave in a second, a minute or an hour, from this process: `"100/s"`, `"600/m"`, `"5/h"`. Over
        /// any span of time it is no more than this and one `burst`.
        /// Default: no limit.
        rate: Frequency,
        /// So many requests may leave at once after a quiet time; with `rate`.
        /// Default: what the rate gives in a tenth of a second, at least 1.
        burst: u32,
        /// One request at a time for each group (`work.fair_by`); the rows of other groups do not wait for it.
        /// Default: `false`.
        serial: bool,
        /// Rows of a stage with a higher number are claimed before those of others, and get what an endpoint leaves first.
        /// Default: `0`.
        priority: u32,
        /// A row whose request would have a larger body is set aside for a person (`TOO_LARGE`), and nothing is sent. At most
        /// `concurrency` such bodies are in memory at once.
        /// Default: `"16MiB"`.
        request_size: ByteSize,
        /// Further request headers, in addition to those of `[work]` or in the place of the one with the same name. A value may be
        /// `"env:NAME"` or `"file:PATH"`, also behind one word: `"Bearer file:/run/secrets/token"`.
        headers: BTreeMap<String, At<Secret>>,
        /// The certificates of its connections. Default: those of `[work.tls]`, where the URL is `https`.
        tls: Tls,
        /// Signs each request as [Standard Webhooks](https://www.standardwebhooks.com) has it. `whsec_` and base64 of 24 to 64 bytes;
        /// `"env:NAME"` or `"file:PATH"` keeps it out of this file. Several with white space between them make several signatures, as
        /// long as the receivers are told of a new one. Default: that of `[work]`.
        signing_secret: Secret,
    }
}

typed_table! {
    /// Certificates and a key in PEM. The files are read again when they change; while a new one cannot be used, the old ones are.
    Tls {
        /// A file with the authorities that the endpoint's certificate must come from; no others are trusted then.
        /// Default: those that the machine trusts.
        ca: String,
        /// A file with our own certificate, and those that lead from it to an authority; with `key`.
        /// Default: none.
        certificate: String,
        /// A file with its private key, without a password.
        key: String,
    }
}

typed_table! {
    /// Pause between attempts.
    Backoff {
        /// Default: `"1s"`.
        first: Span,
        /// Default: `"5m"`.
        max: Span,
    }
}

typed_table! {
    /// Where events go.
    Sink {
        /// The name under which the sink's position is kept. To rename it is to begin anew. Mandatory.
        name: String,
        /// `"http"`: one POST for each event. `"ndjson"`: one line of JSON for each event, into a file. Mandatory.
        kind: String,
        /// What it takes: `"outbox"`, the events of all outboxes.
        /// Default: `"outbox"`.
        from: String,
        /// For `http`: where to post; `"env:NAME"` takes it from the environment.
        url: Secret,
        /// For `ndjson`: the file; `"-"` is standard output.
        path: String,
        /// The journal keeps what this sink lacks, and with `ack = "sinks"` the server does, too. Otherwise it is cut loose
        /// where it holds a full journal.
        /// Default: `true`.
        required: bool,
        /// Events come once what they tell of is visible to every new session on the primary. For consumers that read the tables
        /// back: a commit is in the log before it is visible, and much longer where it waits for a synchronous standby. Asks the
        /// primary once for each batch.
        /// Default: `false`.
        wait_visible: bool,
        /// For `http`: requests in flight at once; events of one key always go one after the other.
        /// Default: `16`.
        in_flight: u32,
        /// For `http`: from the start of a request to the last byte of its answer.
        /// Default: `"30s"`.
        timeout: Span,
        /// For `http`: further request headers. A value may be `"env:NAME"` or `"file:PATH"`, also behind one word, as in
        /// `"Bearer file:/run/secrets/token"`; the file is read again when it changes.
        headers: BTreeMap<String, At<Secret>>,
    }
}

typed_table! {
    /// The HTTP server.
    Server {
        /// Address and port.
        /// Default: `"127.0.0.1:9464"`.
        listen: String,
    }
}

typed_table! {
    /// Bounds.
    Limits {
        /// How long a shutdown waits for requests in flight.
        /// Default: `"20s"`.
        drain: Span,
    }
}

typed_table! {
    /// How often Postrider speaks to the primary on its own account.
    Periods {
        /// Between heartbeats: a small logical message that shows that the log still comes through.
        /// Default: `"10s"`.
        heartbeat: Span,
        /// Between looks at the slot in pg_replication_slots.
        /// Default: `"30s"`.
        slot_health: Span,
        /// Between safety sweeps over the open rows of the work table.
        /// Default: `"1m"`.
        sweep: Span,
        /// With `work.mode = "observe"`: between the lines of the log that sum up what was seen.
        /// Default: `"1m"`.
        summary: Span,
    }
}
