//! What: stores the answer of a request that was begun.
//! Where: the last statement before the commit of the transaction that did the work.
//! Takes and gives: the claim that `begin` gave, and the answer; nothing.
//! Never: stores an answer that a later try could better.

use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use crate::answer::{Answer, MAX_BODY_BYTES};
use crate::begin::Claim;
use crate::error::Error;

/// Stores the answer that every repeat of the request will get.
///
/// # Errors
///
/// [`ErrorKind::Refused`](crate::ErrorKind::Refused), before the database is asked, if the answer is not
/// [final](Answer::is_final) (408, 409, 425, 429, 5xx), its body is longer than [`MAX_BODY_BYTES`], or a header is not
/// one line: roll the transaction back and send the answer without storing it. Otherwise as the database gives them.
pub async fn store(transaction: &Transaction<'_>, claim: Claim<'_>, answer: &Answer) -> Result<(), Error> {
    if !answer.is_final() {
        return Err(Error::refused(
            "answer is not final and must not be stored",
            "Only 2xx and 4xx are stored, and of the latter not 408, 409, 425 and 429.",
        ));
    }
    if answer.body.len() > MAX_BODY_BYTES {
        return Err(Error::refused("answer is too long to be stored", "A stored body has at most one mebibyte."));
    }
    transaction
        .query_typed_one(
            "SELECT postrider_receiver.store_answer($1, $2, $3, $4, $5)",
            &[
                (&claim.request.scope.as_str(), Type::TEXT),
                (&claim.request.key.as_str(), Type::TEXT),
                (&i32::from(answer.status), Type::INT4),
                (&answer.header_lines()?, Type::BYTEA),
                (&answer.body, Type::BYTEA),
            ],
        )
        .await?;
    Ok(())
}
