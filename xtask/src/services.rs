//! The real servers that the tests, the benches and the demo run against.

pub(crate) mod postgres;
