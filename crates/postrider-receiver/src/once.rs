//! What: lets a consumer act once on an event that may be delivered more than once.
//! Where: the first statement of the transaction that acts on the event.
//! Takes and gives: a transaction, a consumer and an event's identity; whether to act.
//! Never: begins, commits or rolls back the transaction.

use tokio_postgres::Transaction;
use tokio_postgres::types::Type;

use crate::error::Error;

/// Whether a consumer sees an event for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a repeat must not take effect"]
pub enum Once {
    /// It does: act, then commit.
    First,
    /// It was acted on before, in a transaction that committed: do nothing, answer as a success.
    Repeat,
}

/// Records that the consumer acts on the event in this transaction.
///
/// It must be the same transaction that holds the effect. In one of its own, committed first, it loses the event when
/// the process dies before the effect. While another transaction has recorded the same event and not ended, it waits:
/// after that one's commit it gives [`Once::Repeat`], after its rollback [`Once::First`].
///
/// `event_id` is the event's identity (header `webhook-id`), `position` where it stood in the log (header
/// `Postrider-Position`), if it is known.
///
/// # Errors
///
/// Under REPEATABLE READ and SERIALIZABLE a commit of the other transaction gives
/// [`ErrorKind::Retry`](crate::ErrorKind::Retry). After any error the transaction can only be rolled back.
pub async fn once(
    transaction: &Transaction<'_>,
    consumer: &str,
    event_id: &str,
    position: Option<&str>,
) -> Result<Once, Error> {
    let row = transaction
        .query_typed_one(
            "SELECT postrider_receiver.once($1, $2, $3)",
            &[(&consumer, Type::TEXT), (&event_id, Type::TEXT), (&position, Type::TEXT)],
        )
        .await?;
    Ok(if row.try_get(0)? { Once::First } else { Once::Repeat })
}
