//! What the integration tests share: the simulation, the tests that every port's implementation passes, the conformance suite of
//! the stream, and the targets of the fuzz tests.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

pub mod conformance;
pub mod fuzz;
pub mod model;
pub mod port_tests;
pub mod sim;
