//! Job queues that others make, as further sides of a bench: which there are, which are wanted, and how each is set.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::process::Command;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use xtask::error::{Context, Error, Result};

mod install;

/// A queue of somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub(crate) enum Peer {
    /// The package of npm.
    GraphileWorker,
    /// The crate.
    Awa,
}

/// Which of them take part.
#[derive(Debug, Default, Args)]
pub(crate) struct Wanted {
    /// Only this queue of others, which must be had then; can be given again.
    #[arg(long, value_name = "NAME")]
    peer: Vec<Peer>,
    /// Not this queue of others; can be given again.
    #[arg(long, value_name = "NAME")]
    without: Vec<Peer>,
}

/// Those that take part, and what is to be said of the others.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    pub(crate) installed: Vec<Peer>,
    left_out: Vec<String>,
}

/// Jobs that graphile-worker may work at once: as many as its local queue holds, so that those that add the next stage's job add it together.
const GRAPHILE_JOBS_AT_ONCE: u32 = 500;

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::GraphileWorker => "graphile-worker",
            Self::Awa => "awa",
        }
    }

    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::GraphileWorker => "0.18.0",
            Self::Awa => "0.6.9",
        }
    }

    /// Where its tables are.
    pub(crate) fn schema(self) -> &'static str {
        match self {
            Self::GraphileWorker => "graphile_worker",
            Self::Awa => "awa",
        }
    }

    /// A query for how many of so many jobs are not done.
    pub(crate) fn undone(self, jobs: u64) -> String {
        match self {
            // A job that is done is deleted.
            Self::GraphileWorker => "SELECT count(*) FROM graphile_worker._private_jobs".into(),
            // The sum that the package's own exact count of a queue makes: what is counted, what is not yet, and what was pruned.
            Self::Awa => format!(
                "SELECT {jobs} - (SELECT coalesce(sum(live_terminal_count), 0) FROM awa.queue_terminal_live_counts)
                     - (SELECT coalesce(sum(terminal_delta), 0) FROM awa.queue_terminal_count_deltas)
                     - (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
                     - (SELECT coalesce(sum(pruned_completed_count), 0) FROM awa.queue_terminal_rollups)"
            ),
        }
    }

    /// Whether a job's row is updated at all.
    pub(crate) fn updates_jobs(self) -> bool {
        match self {
            Self::GraphileWorker => true,
            Self::Awa => false,
        }
    }

    /// The statement that adds a job of the first stage, with its quote as the parameter.
    pub(crate) fn insertion(self) -> &'static str {
        match self {
            Self::GraphileWorker => {
                "SELECT graphile_worker.add_job('STAGE_1',
                     json_build_object('group_id', 'g', 'quote_id', $1::text, 'premium', 100.50))"
            }
            Self::Awa => {
                "SELECT awa.insert_job_compat(p_kind => 'STAGE_1', p_queue => 'work',
                     p_args => jsonb_build_object('group_id', 'g', 'quote_id', $1::text, 'premium', 100.50))"
            }
        }
    }

    /// Its best documented settings, as its program takes them.
    pub(crate) fn settings(self, url: &str) -> Value {
        match self {
            Self::GraphileWorker => json!({
                "url": url,
                "jobs_at_once": GRAPHILE_JOBS_AT_ONCE,
                "local_queue": 500,
                "batch_delay_ms": 0,
                "connections": 25,
            }),
            Self::Awa => json!({
                "url": url,
                "workers": 1024,
                "completion_shards": 1,
                "claimers": 1,
                "poll_ms": 50,
                "connections": 20,
            }),
        }
    }

    /// The program that takes part as this side.
    pub(crate) fn command(self, verb: &str, settings: &Value) -> Result<Command> {
        let mut command = install::program(self, &self.dir()?);
        if let Some(shards) = settings["completion_shards"].as_u64() {
            // The package takes it from nowhere else.
            command.env("AWA_COMPLETION_SHARDS", shards.to_string());
        }
        command.arg(verb).arg(settings.to_string());
        Ok(command)
    }

    /// Its folder among what is built, beside the folder of the profile that this program was built in.
    fn dir(self) -> Result<PathBuf> {
        let program = std::env::current_exe().context(|| "cannot find this program")?;
        let target = program.ancestors().nth(2).ok_or_else(|| Error::new("this program is in no folder of cargo's"))?;
        Ok(target.join("peers").join(self.name()))
    }
}

impl Display for Peer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.version())
    }
}

impl Wanted {
    /// Fetches or builds those that are wanted, not there yet, and of use.
    ///
    /// # Errors
    /// When one that was named cannot be had; one that was not named is left out, which [`Peers::say`] tells.
    pub(crate) fn install(&self, is_of_use: impl Fn(Peer) -> bool) -> Result<Peers> {
        self.install_with(is_of_use, |peer| install::install(peer, &peer.dir()?))
    }

    fn install_with(&self, is_of_use: impl Fn(Peer) -> bool, install: impl Fn(Peer) -> Result<()>) -> Result<Peers> {
        let mut peers = Peers::default();
        for peer in Peer::value_variants().iter().copied() {
            if !self.wants(peer) || !is_of_use(peer) {
                peers.left_out.push(format!("{peer} is not wanted"));
                continue;
            }
            match install(peer) {
                Ok(()) => peers.installed.push(peer),
                Err(error) if self.peer.contains(&peer) => return Err(error),
                Err(error) => {
                    eprintln!("left out  {peer} cannot be had: {}", error.report());
                    peers.left_out.push(format!("{peer} cannot be had"));
                }
            }
        }
        Ok(peers)
    }

    fn wants(&self, peer: Peer) -> bool {
        (self.peer.is_empty() || self.peer.contains(&peer)) && !self.without.contains(&peer)
    }
}

impl Peers {
    /// With which settings each takes part, and who does not, as a bench's output states it.
    pub(crate) fn say(&self) -> String {
        let mut parts: Vec<String> =
            self.installed.iter().map(|peer| format!("{peer}: {}", peer.described())).collect();
        parts.extend(self.left_out.iter().map(|left_out| format!("left out: {left_out}")));
        parts.join("; ")
    }
}

impl Peer {
    /// The settings but for the address.
    fn described(self) -> String {
        let settings = self.settings("");
        let members = settings.as_object().into_iter().flatten().filter(|(name, _)| *name != "url");
        members.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        wanted: Wanted,
    }

    fn wanted(words: &[&str]) -> Wanted {
        Line::try_parse_from([&["bench"], words].concat()).unwrap().wanted
    }

    fn of_use(_: Peer) -> bool {
        true
    }

    fn missing(_: Peer) -> Result<()> {
        Err(Error::new("there is no npm"))
    }

    #[test]
    fn all_take_part_unless_some_are_named() {
        let graphile = Peer::GraphileWorker;
        for (words, wants) in [
            (&[][..], true),
            (&["--peer", "graphile-worker"], true),
            (&["--peer", "awa"], false),
            (&["--without", "awa"], true),
            (&["--without", "graphile-worker"], false),
            (&["--peer", "graphile-worker", "--without", "graphile-worker"], false),
        ] {
            assert_eq!(wanted(words).wants(graphile), wants, "{words:?}");
        }
        assert!(Line::try_parse_from(["bench", "--peer", "another"]).is_err());
    }

    #[test]
    fn one_that_cannot_be_had_is_left_out_aloud_and_is_an_error_where_it_was_named() {
        let peers = wanted(&[]).install_with(of_use, missing).unwrap();
        assert!(peers.installed.is_empty());
        assert!(peers.say().contains("left out: graphile-worker 0.18.0 cannot be had"), "{}", peers.say());
        let error = wanted(&["--peer", "graphile-worker"]).install_with(of_use, missing).unwrap_err();
        assert_eq!(error.to_string(), "there is no npm");
        let peers = wanted(&["--peer", "awa"]).install_with(|_| false, missing).unwrap();
        assert!(peers.say().contains("left out: awa 0.6.9 is not wanted"), "{}", peers.say());
        let peers = wanted(&["--without", "graphile-worker"]).install_with(of_use, missing).unwrap();
        assert!(peers.say().contains("left out: graphile-worker 0.18.0 is not wanted"), "{}", peers.say());
    }

    #[test]
    fn what_a_program_takes_from_its_environment_is_set_there() {
        for (peer, expected) in [(Peer::Awa, true), (Peer::GraphileWorker, false)] {
            let command = peer.command("work", &peer.settings("postgres://a")).unwrap();
            let shards = command
                .get_envs()
                .any(|(name, value)| name == "AWA_COMPLETION_SHARDS" && value.is_some_and(|value| value == "1"));
            assert_eq!(shards, expected, "{peer}");
        }
    }

    #[test]
    fn the_settings_are_told_but_for_the_address() {
        let peers = wanted(&[]).install_with(of_use, |_| Ok(())).unwrap();
        assert_eq!(peers.installed, Peer::value_variants());
        let told = peers.say();
        assert!(told.contains("graphile-worker 0.18.0: batch_delay_ms=0"), "{told}");
        assert!(told.contains("local_queue=500") && !told.contains("url"), "{told}");
        assert!(told.contains("awa 0.6.9: claimers=1"), "{told}");
    }
}
