//! The conformance suite of the stream: every case on every version, live and as recorded.

mod needs_postgres;
mod recordings;
