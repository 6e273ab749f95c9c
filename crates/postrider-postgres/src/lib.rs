//! All that Postrider says to PostgreSQL: connections, the replication stream, slots, the work table.
//!
//! It knows nothing of the engine, of delivery or of HTTP.

mod client;
mod confirm;
mod errors;
mod identity;
mod options;
mod quote;
mod read;
mod replication;
mod source;
mod tls;
mod wire;
mod work_table;

pub use options::{ConnectOptions, TlsMode, connect_client};
pub use replication::slot::{CreatedSlot, create_slot, drop_slot};
pub use source::ReplicationSource;
pub use work_table::{PgWorkTable, WorkTableSettings};
