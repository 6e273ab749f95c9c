//! What: creates the store in a database.
//! Where: at a service's start or in its migrations, before the first request.
//! Takes and gives: a connection that may create a schema; nothing.
//! Never: drops or empties anything.

use tokio_postgres::Client;

use crate::error::Error;

/// The SQL of the store, in the order in which it is run. Each file can be run again.
const FILES: [&str; 2] =
    [include_str!("../sql/0001_create_processed_events.sql"), include_str!("../sql/0002_create_idempotency_keys.sql")];

/// Two processes that create the same schema at once would fail on each other; the number only has to be the same.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7310579605372)";

/// Creates the schema `postrider_receiver` with its tables and functions, in one transaction. Running it again changes
/// nothing, and several processes may run it at once.
///
/// # Errors
///
/// As the database gives them; the role needs CREATE on the database.
pub async fn install(client: &mut Client) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(LOCK).await?;
    for file in FILES {
        transaction.batch_execute(file).await?;
    }
    transaction.commit().await?;
    Ok(())
}
