//! All that Postrider says to PostgreSQL: connections, the replication stream, slots, the work table.
//!
//! It knows nothing of the engine, of delivery or of HTTP.

mod advance;
mod check;
mod client;
mod columns;
mod confirm;
mod errors;
mod identity;
mod missing;
mod notices;
mod objects;
mod operator;
mod options;
mod password;
mod primary;
mod quote;
mod read;
mod replication;
mod setup;
mod slot_state;
mod source;
mod states;
mod store;
mod timeline;
mod tls;
mod wire;
mod words;
mod work_table;

pub use check::{Finding, OpenStep, Severity, Subject, check, foreign_states, open_steps, streams_work_table};
pub use client::connect_client;
pub use columns::{Without, WorkColumn, refused_columns, work_columns};
pub use objects::{Failover, SourceObjects};
pub use operator::{
    Access, Deed, Expired, FoundRows, Note, Operator, RowFilter, TimelineEntry, TriedOnce, UnreadableRow,
    UnreadableRows, WorkRow,
};
pub use options::ConnectOptions;
pub use primary::{HEARTBEAT_PREFIX, PgPrimary};
pub use replication::slot::{CreatedSlot, create_slot, drop_slot};
pub use setup::{
    Circumstances, Published, SetupReport, SetupSettings, Step, StepObject, StepOutcome, WorkIdentity, apply, plan,
};
pub use source::{Comparison, ReplicationSource};
pub use states::unwritable_stages;
pub use timeline::Kinship;
pub use work_table::{PgWorkTable, WorkTableSettings};
