//! The journal: the server's own messages of each committed transaction, on the local disk.
//!
//! A directory of segments ([`open`]). One writer appends whole transactions; any number of followers read them from
//! any position on, live or weeks later, on the same path. What is appended is followed at once; what is durable is known, and
//! nothing else may be confirmed to the server.
//!
//! The writer and the followers share the files and the news that the end has moved. Everything that waits for the disk
//! happens on one thread of the journal's own. The formats are written down in `segment.rs`, `frame.rs` and `positions.rs`.
//!
//! Files: `NNNN.segment` (and `NNNN.segment.new` until everything before it is on the disk), `positions`, `gaps`, `synced`, `moves.jsonl`, and `lock`,
//! which the process that has the journal open holds. Beside them the folder `staging` has the transactions whose outcome is not known
//! yet ([`open_staging`]).

mod adopt;
mod append;
mod bytes_in;
mod discard;
mod disk;
mod failure;
mod follow;
mod frame;
mod frames;
mod gaps;
mod log;
mod moving;
mod open;
mod order;
mod positions;
mod reader;
mod recover;
mod retention;
mod schema;
mod sealed;
mod segment;
mod staging;
mod survey;
mod sync;
mod synced;
pub mod testing;
mod verify;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod generation_tests;
#[cfg(test)]
mod reader_tests;
#[cfg(test)]
mod tests;

pub use adopt::{Adoption, accept, adopt};
pub use discard::discard;
pub use disk::{Disk, DiskFile, DiskLock, SyncPoint};
pub use moving::Moving;
pub use open::{Opened, Settings, open, open_on};
pub use reader::{Reader, Reading, SegmentSummary};
pub use staging::{Life, open_staging, open_staging_on};
pub use survey::{Survey, Surveyed, survey, survey_on};
pub use verify::{Examiner, Fault, FaultKind, Verified, verify, verify_on};
