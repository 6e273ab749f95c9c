//! What the integration tests share: the simulation, the tests that every port's implementation passes, and the conformance suite of
//! the stream.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

pub mod conformance;
pub mod port_tests;
pub mod sim;
