//! PostgreSQL: found or fetched, and run as private clusters on loopback.

mod account;
mod certificate;
pub(crate) mod cluster;
mod fetch;
mod folder;
pub(crate) mod installation;
pub(crate) mod shared;
mod standby;
pub(crate) mod standing;
mod template;
