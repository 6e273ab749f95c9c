//! The one integration binary: the ports' common tests, the simulation, the conformance suite, fuzzing, and the whole on real servers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod conformance;
mod fuzz;
mod held;
mod model;
mod port_tests;
mod sim;
mod whole;
