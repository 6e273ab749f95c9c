//! The pure base of Postrider: what the log says, what a stage does next, and what may be confirmed.
//!
//! Nothing here reads a clock, rolls a die, opens a socket or a file. Time, chance and I/O come in as
//! arguments or through the traits of [`ports`].

pub mod assemble;
pub mod breaker;
pub mod call;
pub mod change;
pub mod decode;
pub mod error;
pub mod event;
pub mod frame;
pub mod frontier;
pub mod guard;
pub mod history;
pub mod json;
pub mod judge;
pub mod members;
pub mod observe;
pub mod order;
pub mod outcome;
pub mod paused;
pub mod pgoutput;
pub mod ports;
pub mod position;
pub mod rate;
pub mod relation;
pub mod route;
pub mod shape;
pub mod snapshot;
pub mod stage;
pub mod time;
pub mod trace;
pub mod transaction;
pub mod value;
pub mod work;
