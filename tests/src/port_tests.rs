//! What every implementation of a port must do, the real one and the fake of the simulation alike.
//!
//! Each suite is one function over a fixture; `tests/port_tests.rs` calls it for each implementation.

pub mod journal;
pub mod log;
pub mod sink;
pub mod stage_caller;
pub mod staging;
pub mod work_table;
