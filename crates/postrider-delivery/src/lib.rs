//! All that leaves the building: stage calls and events over HTTP, events as lines of JSON.
//!
//! Each part implements a port of `postrider-core`. Nothing here knows where an event came from, what a slot is, or what
//! an outcome means: it reports facts.

mod call;
mod connect;
mod credentials;
mod endpoint;
mod event_json;
mod exchange;
mod from_files;
mod header;
mod http_events;
mod ndjson;
mod signature;
#[cfg(test)]
mod test_server;
mod tls;

pub use call::HttpStageCaller;
pub use endpoint::Endpoint;
pub use event_json::{render, rfc3339};
pub use exchange::HttpSettings;
pub use from_files::FileWatch;
pub use http_events::{HttpEventSettings, HttpEventSink};
pub use ndjson::NdjsonSink;
pub use tls::{ClientFiles, TlsFiles, TlsRoots};
