//! The engine on fake ports in virtual time: everything goes wrong in it, from a seed, and it repeats itself exactly.

pub mod campaign;
pub mod database;
pub mod endpoint;
pub mod faults;
pub mod journal;
pub mod log;
pub mod scenario;
pub mod shared;
pub mod signal;
pub mod sink;
pub mod stage_set;
pub mod staging;
pub mod time;
pub mod work_table;
