//! All that Postrider says to PostgreSQL: connections, the replication stream, slots, the work table.
//!
//! It knows nothing of the engine, of delivery or of HTTP.

mod errors;
