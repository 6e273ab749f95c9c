//! What reaches the server when there is nothing to do, counted in the server's own log.

use std::time::{Duration, Instant};

use super::house::House;
use crate::error::{Context, Error, Result};
use crate::workspace::PATIENCE;

/// How long the silence is listened to.
const LISTEN_FOR: Duration = Duration::from_secs(5);

/// Lets the server log every statement for a while, and returns how many came per second from others than the demo.
pub(super) async fn statements_per_second(house: &House) -> Result<f64> {
    house.cluster().set("log_statement", "all")?;
    house.cluster().reload()?;
    wait_until_all_is_logged(house).await?;
    let before = house.cluster().read_log()?.len();
    tokio::time::sleep(LISTEN_FOR).await;
    let log = house.cluster().read_log()?;
    let heard = log.get(before..).unwrap_or_default();
    Ok(f64::from(statements_in(heard)) / LISTEN_FOR.as_secs_f64())
}

/// A statement that is logged proves that the setting has come through, at least for a new session.
async fn wait_until_all_is_logged(house: &House) -> Result<()> {
    let client = house.connect("demo").await?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let row = client.query_one("SHOW log_statement", &[]).await.context(|| "cannot ask for a setting")?;
        if row.get::<_, &str>(0) == "all" {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::new("the server did not begin to log its statements"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Counts the statements of others in a part of the log, whose lines are `time [pid] application LOG:  statement: …`.
fn statements_in(log: &str) -> u32 {
    let of_others = |line: &&str| {
        let is_statement = line.contains("LOG:  statement: ") || line.contains("LOG:  execute ");
        is_statement && !line.contains("] demo LOG:  ")
    };
    log.lines().filter(of_others).map(|_| 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_of_others_are_counted() {
        let log = "\
2026-01-01 00:00:00.000 UTC [1] postrider LOG:  statement: SELECT 1
2026-01-01 00:00:00.000 UTC [1] postrider LOG:  execute s1: SELECT 2
\tFROM t
2026-01-01 00:00:00.000 UTC [2] demo LOG:  statement: SHOW log_statement
2026-01-01 00:00:00.000 UTC [3] LOG:  checkpoint starting: time
2026-01-01 00:00:00.000 UTC [4]  LOG:  execute <unnamed>: SELECT 3
";
        assert_eq!(statements_in(log), 3);
    }
}
