//! The conformance suite of the stream: cases as SQL, what each version of the server makes of them, and whether what we read is
//! what the server itself says.
//!
//! `tests/golden/README.md` describes the files; `docs/conformance.md` says what the suite is.

pub mod case;
pub mod lines;
pub mod oracle;
pub mod recording;
pub mod replica;
pub mod server;
pub mod substance;
