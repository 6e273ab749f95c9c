//! What: takes an idempotency key for the caller's transaction.
//! Where: the first statement of the transaction that does a stage's work.
//! Takes and gives: a transaction and a request; whether to work, to replay, to refuse or to come again.
//! Never: begins, commits or rolls back the transaction.

use std::time::Duration;

use tokio_postgres::Transaction;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use crate::answer::StoredAnswer;
use crate::error::Error;
use crate::fingerprint::Fingerprint;
use crate::key::IdempotencyKey;
use crate::scope::Scope;

/// A request as the store knows it.
#[derive(Clone, Debug)]
pub struct Request {
    /// What the key is unique in.
    pub scope: Scope,
    /// The key as sent.
    pub key: IdempotencyKey,
    /// What tells this request from another under the same key.
    pub fingerprint: Fingerprint,
    /// The fence that the request carried, kept for whoever looks later.
    pub fence: Option<i64>,
}

/// What to do with a request. All but [`Begin::Fresh`] leave nothing to commit: roll the transaction back.
#[derive(Debug)]
pub enum Begin<'r> {
    /// The key is this transaction's: do the work, [`store`](crate::store) the answer, commit.
    Fresh(Claim<'r>),
    /// It was executed before: send the stored answer.
    Replay(StoredAnswer),
    /// The key was used for another request: answer 422; what is stored stays as it is.
    KeyReused,
    /// The key is being executed elsewhere, or was left without an answer: answer 409.
    InProgress,
}

/// The right to store the answer of one request, once.
#[derive(Debug)]
#[must_use = "a key committed without its answer is answered as in progress for ever"]
pub struct Claim<'r> {
    pub(crate) request: &'r Request,
}

/// Takes the request's key for the transaction.
///
/// While another transaction holds the key, it waits for that one's end, at most `lock_timeout` (at least one
/// millisecond). If that one commits, its answer is replayed; if it rolls back, this one is [`Begin::Fresh`].
///
/// # Errors
///
/// Under REPEATABLE READ and SERIALIZABLE a commit of the other transaction gives
/// [`ErrorKind::Retry`](crate::ErrorKind::Retry): run the transaction again, and it replays. After any error, and after
/// [`Begin::InProgress`], the transaction can only be rolled back.
pub async fn begin<'r>(
    transaction: &Transaction<'_>,
    request: &'r Request,
    lock_timeout: Duration,
) -> Result<Begin<'r>, Error> {
    let lock_timeout_ms = i32::try_from(lock_timeout.as_millis()).unwrap_or(i32::MAX);
    let answered = transaction
        .query_typed_one(
            "SELECT verdict, answer_status, answer_headers, answer_body \
             FROM postrider_receiver.begin_request($1, $2, $3, $4, $5)",
            &[
                (&request.scope.as_str(), Type::TEXT),
                (&request.key.as_str(), Type::TEXT),
                (&request.fingerprint.as_bytes(), Type::BYTEA),
                (&request.fence, Type::INT8),
                (&lock_timeout_ms, Type::INT4),
            ],
        )
        .await;
    let row = match answered {
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => return Ok(Begin::InProgress),
        other => other?,
    };
    match row.try_get(0)? {
        "fresh" => Ok(Begin::Fresh(Claim { request })),
        "key-reused" => Ok(Begin::KeyReused),
        "in-progress" => Ok(Begin::InProgress),
        "replay" => StoredAnswer::new(row.try_get(1)?, row.try_get(2)?, row.try_get(3)?).map(Begin::Replay),
        _ => Err(Error::unreadable()),
    }
}
