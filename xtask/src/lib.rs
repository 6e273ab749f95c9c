//! What the repository's own commands are made of, and what its tests and benches borrow from them:
//! private PostgreSQL clusters, processes that are stopped by their id, the rules of the tidy test.

mod bench;
mod check;
pub mod cli;
mod demo;
mod docs;
pub mod error;
mod port;
pub mod process;
mod record;
mod services;
mod sim;
mod test;
pub mod tidy;
pub mod workspace;

/// Real PostgreSQL servers: finding or fetching one, and private clusters of it.
pub mod postgres {
    pub use crate::services::postgres::cluster::{Builder, Cluster, Shutdown};
    pub use crate::services::postgres::installation::{Installation, find};
    pub use crate::services::postgres::shared::shared;
    pub use crate::services::postgres::standing::Standing;
}
