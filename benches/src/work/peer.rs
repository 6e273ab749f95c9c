//! A queue of others as a side: its jobs, and the process that does them. It speaks with the bench as our own sides do.

use std::process::Command;

use serde_json::{Value, json};
use xtask::error::Result;
use xtask::process::run;

use super::Load;
use super::turn::GROUP_ROWS;
use crate::peers::Peer;
use crate::server::Server;

/// Makes its tables.
pub(crate) fn set_up(server: &Server, peer: Peer) -> Result<()> {
    run(&mut peer.command("set-up", &peer.settings(&server.url()))?).map(drop)
}

/// Makes its jobs, and leaves its tables as the other sides' are left.
pub(super) async fn fill(server: &Server, peer: Peer, load: Load) -> Result<()> {
    server.execute("CHECKPOINT").await?;
    run(&mut peer.command("fill", &settings(peer, &server.url(), load))?)?;
    let all = format!(
        "SELECT string_agg(format('%I.%I', schemaname, relname), ', ') FROM pg_stat_user_tables WHERE schemaname = '{}'",
        peer.schema()
    );
    let tables = server.text(&all).await?;
    server.execute(&format!("VACUUM (ANALYZE) {tables}")).await
}

/// The process that does them.
pub(super) fn work(server: &Server, peer: Peer, load: Load) -> Result<Command> {
    peer.command("work", &settings(peer, &server.url(), load))
}

fn settings(peer: Peer, url: &str, load: Load) -> Value {
    let mut settings = peer.settings(url);
    settings["rows"] = json!(load.rows);
    settings["stages"] = json!(load.stages);
    settings["group_rows"] = json!(GROUP_ROWS);
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_told_how_much_there_is_to_do() {
        let load = Load { rows: 10, stages: 4, history: false, concurrency: 7, call_ms: 0 };
        let told = settings(Peer::GraphileWorker, "postgres://a", load);
        for (name, value) in
            [("url", json!("postgres://a")), ("rows", json!(10)), ("stages", json!(4)), ("local_queue", json!(500))]
        {
            assert_eq!(told[name], value, "{name}");
        }
    }
}
