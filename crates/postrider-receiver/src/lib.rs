//! What: what a receiving service links, so that a stage call or an event that comes again changes nothing.
//! Where: at the far end of the walk, behind the service's own endpoint and inside its own transaction.
//! Takes and gives: request headers and a transaction of the caller's; the word to act, to replay or to refuse.
//! Never: opens a connection, begins or commits a transaction, or knows a web framework.
//!
//! Three means, each written in the same transaction as the effect:
//!
//! - [`once`] for events: act only if it returns [`Once::First`].
//! - [`begin`] and [`store`] for stage calls: the key is taken first, then comes the work, then the answer is stored, and
//!   one commit makes all three true. A repeat gets the stored answer, byte for byte.
//! - [`Advance`] for calls of stages of class `same_tx`, whose work is on the work table's own database: the work comes first, then the row
//!   is moved on, and one commit makes both true. A request that comes too late finds the fence raised, and its work is rolled back.
//!   [`check_same_tx`] is for a receiver's own tests: it finds one that catches the refusal and commits.
//!
//! Before either, [`SigningSecrets::verify`] says whether a request comes from whom it should.
//!
//! The SQL functions in the folder `sql` do the work, in the schema `postrider_receiver`, so a service in any language
//! has the same store; [`install`] creates them. The schema's name is fixed: the functions name their tables in full,
//! whatever the session's `search_path` is.
//!
//! ```no_run
//! # use postrider_receiver::{Answer, Begin, Error, Fingerprint, IdempotencyKey, Outcome, Request, Scope, begin, store};
//! # use std::time::Duration;
//! # async fn bind(client: &mut tokio_postgres::Client, key: IdempotencyKey, body: &[u8]) -> Result<Answer, Error> {
//! let request = Request {
//!     scope: Scope::new("", "POST", "/stages/binding"),
//!     key,
//!     fingerprint: Fingerprint::of("POST", "/stages/binding", "", body),
//!     fence: None,
//! };
//! let transaction = client.transaction().await?;
//! let claim = match begin(&transaction, &request, Duration::from_millis(100)).await? {
//!     Begin::Fresh(claim) => claim,
//!     Begin::Replay(stored) => return Ok(stored.into_replay()),
//!     Begin::KeyReused => return Ok(Answer::of(422, Outcome::Permanent)),
//!     Begin::InProgress => return Ok(Answer::of(409, Outcome::InProgress)),
//! };
//! transaction.execute("UPDATE policies SET bound = true", &[]).await?;
//! let answer = Answer::of(200, Outcome::Done);
//! store(&transaction, claim, &answer).await?;
//! transaction.commit().await?;
//! # Ok(answer)
//! # }
//! ```

mod advance;
mod answer;
mod begin;
mod contract;
mod error;
mod fingerprint;
mod install;
mod key;
mod once;
mod outcome;
mod scope;
mod signature;
mod stage_request;
mod store;

pub use advance::{Advance, Next, WorkTable};
pub use answer::{Answer, MAX_BODY_BYTES, StoredAnswer};
pub use begin::{Begin, Claim, Request, begin};
pub use contract::{Breach, ContractColumns, ContractRow, check_same_tx};
pub use error::{Error, ErrorKind};
pub use fingerprint::Fingerprint;
pub use install::install;
pub use key::{IdempotencyKey, KeyError, MAX_KEY_CHARS};
pub use once::{Once, once};
pub use outcome::{Outcome, UnknownOutcome};
pub use scope::Scope;
pub use signature::{SecretError, SignatureError, SigningSecrets};
pub use stage_request::{HeaderError, StageRequest};
pub use store::store;
