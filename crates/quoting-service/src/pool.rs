//! What: a few database connections that requests take turns with.
//! Where: under every transaction of the service.
//! Takes and gives: a configuration; a connection for as long as it is held.
//! Never: has more connections than it was told, or lends one that it knows is lost.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::{Client, Config, Error, NoTls};

/// A bounded set of connections, opened when they are needed. Who finds none free waits in turn.
#[derive(Debug)]
pub(crate) struct Pool {
    config: Config,
    idle: Mutex<Vec<Client>>,
    turns: Semaphore,
}

impl Pool {
    pub(crate) fn new(config: Config, connections: usize) -> Pool {
        Pool { config, idle: Mutex::default(), turns: Semaphore::new(connections) }
    }

    /// Gives a connection, a new one where the idle ones are lost.
    pub(crate) async fn lend(&self) -> Result<Lent<'_>, Error> {
        let turn = self.turns.acquire().await.expect("the pool's semaphore is never closed");
        let idle = self.take_idle();
        let client = match idle {
            Some(client) => client,
            None => self.connect().await?,
        };
        Ok(Lent { pool: self, client: Some(client), _turn: turn })
    }

    fn take_idle(&self) -> Option<Client> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|client| !client.is_closed());
        idle.pop()
    }

    async fn connect(&self) -> Result<Client, Error> {
        let (client, connection) = self.config.connect(NoTls).await?;
        // The connection's end is seen by its client, which then is closed.
        tokio::spawn(connection);
        Ok(client)
    }
}

/// A connection that goes back to the pool when dropped. A transaction left open on it is rolled back by its own drop.
#[derive(Debug)]
pub(crate) struct Lent<'p> {
    pool: &'p Pool,
    client: Option<Client>,
    _turn: SemaphorePermit<'p>,
}

impl Deref for Lent<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        self.client.as_ref().expect("only drop takes the client")
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut Client {
        self.client.as_mut().expect("only drop takes the client")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.extend(self.client.take());
    }
}
