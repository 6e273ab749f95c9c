//! All that Postrider says to PostgreSQL: connections, the replication stream, slots, the work table.
//!
//! It knows nothing of the engine, of delivery or of HTTP.

mod client;
mod errors;
mod options;
mod quote;
mod tls;
mod work_table;

pub use options::{ConnectOptions, TlsMode, connect_client};
pub use work_table::{PgWorkTable, WorkTableSettings};
