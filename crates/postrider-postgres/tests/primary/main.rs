//! What we ask of the primary on ordinary connections, on a real server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

mod advance;
mod check;
mod database;
mod expiry;
mod heartbeat;
mod history;
mod known;
mod left_out;
mod mapped;
mod operator;
mod owners;
mod quiet;
mod races;
mod setup;
mod taking;
mod words;
mod work_table;
