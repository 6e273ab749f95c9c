//! What the integration tests share: the simulation, and the tests that every port's implementation passes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

pub mod port_tests;
pub mod sim;
