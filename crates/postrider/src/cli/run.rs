//! `postrider run`: everything, until it is told to end.

use crate::cli::{ConfigurationFile, block_on};
use crate::config::{self, Configuration, is_temporary_slot};
use crate::connect::Patience;
use crate::console::{self, Console};
use crate::explain::costs;
use crate::succession::{self, Verdict};
use crate::{exit, wiring};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::LogSource;
use postrider_core::position::Lsn;
use postrider_core::time::Timestamp;
use postrider_core::work::OwnerId;
use postrider_engine::{Parts, Shutdown, Telemetry, World};
use postrider_journal::Reader;
use postrider_postgres::streams_work_table;
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Read the log, call the stages, deliver the events, until SIGTERM or SIGINT
#[derive(Debug, clap::Args)]
pub(super) struct Run {
    #[command(flatten)]
    configuration: ConfigurationFile,
    /// Share the stages with the process that has the slot, and do nothing else: no outbox, no sink. The log is read through a temporary slot,
    /// and the journal stands in `stages` beneath the other's directory. Any number of such processes, on any machine, from the same file.
    #[arg(long)]
    stages_only: bool,
}

impl Run {
    pub(super) fn obey(self) -> Result<u8> {
        let configuration = config::load(&self.configuration.path)?;
        let (owner, world) = wiring::chance()?;
        let configuration = if self.stages_only { configuration.of_stages_only(owner)? } else { configuration };
        block_on(run(configuration, owner, Arc::new(world)))?;
        Ok(exit::OK)
    }
}

async fn run(configuration: Configuration, owner: OwnerId, world: Arc<dyn World>) -> Result<()> {
    let shutdown = Shutdown::default();
    end_on_signals(&shutdown)?;
    let telemetry = Arc::new(Telemetry::default());
    let settings = wiring::settings(&configuration);

    // First of all the console, so that whoever watches can see what the rest is waiting for.
    let listener = console::listen(configuration.listen).await?;
    let console = Console::new(telemetry.clone(), world.clone(), settings.limits.heartbeat_overdue)
        .with_endpoints(wiring::stage_origins(&configuration));
    let console = tokio::spawn(console::serve(listener, Arc::new(console)));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %owner, listen = %configuration.listen, "postrider starts");

    let patience = Patience { limits: settings.limits, world: &*world, telemetry: &telemetry, shutdown: &shutdown };
    let outcome = match assemble(&configuration, owner, &patience, (&world, &telemetry)).await {
        Ok(Some(parts)) => postrider_engine::run(parts, settings, shutdown.clone()).await,
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    console.abort();
    match &outcome {
        Ok(()) => tracing::info!("postrider ends in good order"),
        Err(error) => log_end(error),
    }
    outcome
}

/// One line for whoever has only the log; the caller prints the error with its cure.
fn log_end(error: &Error) {
    let (kind, message) = (error.kind(), error.message());
    tracing::error!(code = kind.code(), exit_code = kind.exit_code(), "postrider ends: {message}. {}", costs(kind));
}

/// Everything that a run consists of. `None`: the end was asked for before it was there.
async fn assemble(
    configuration: &Configuration,
    owner: OwnerId,
    patience: &Patience<'_>,
    (world, telemetry): (&Arc<dyn World>, &Arc<Telemetry>),
) -> Result<Option<Parts>> {
    let source = wiring::source(configuration);
    let Some(identity) = patience.insist("asking the server who it is", || source.identify()).await? else {
        return Ok(None);
    };
    // Before the journal is made: it is bound to its slot for ever, and a mistyped name must not bind it.
    if patience.insist("checking the server", || source.check(Lsn::ZERO)).await?.is_none() {
        return Ok(None);
    }
    if configuration.source.temporary {
        discard_old(configuration)?;
    } else if succeed(configuration, patience, world.now()).await?.is_none() {
        return Ok(None);
    }
    let journal = wiring::journal(configuration, &identity)?;
    let source = source.of_journal(journal.identity);
    let staging = wiring::staging(configuration, journal.life)?;
    // After all that says more: of a second process with the same configuration, that the journal is in use.
    let sinks = wiring::sinks(configuration, telemetry)?;
    let work = match configuration.executed() {
        None => None,
        Some(work) => {
            let open = || wiring::work(configuration, work, owner, telemetry);
            match patience.insist("opening the work table", open).await? {
                None => return Ok(None),
                opened => opened,
            }
        }
    };
    if work.is_none() && say_what_is_unobserved(configuration, patience).await?.is_none() {
        return Ok(None);
    }
    Ok(Some(Parts {
        source: Arc::new(source),
        writer: journal.writer,
        staging,
        journal: journal.journal,
        positions: journal.positions,
        primary: Arc::new(wiring::primary(configuration)),
        routing: Arc::new(wiring::routing(configuration)),
        onlook: configuration.work.as_ref().filter(|_| work.is_none()).map(wiring::onlook),
        work,
        sinks,
        world: world.clone(),
        telemetry: telemetry.clone(),
    }))
}

/// An observer's stream without the work table is as quiet as one of a table to which nothing happens. `None`: the end was asked for meanwhile.
async fn say_what_is_unobserved(configuration: &Configuration, patience: &Patience<'_>) -> Result<Option<()>> {
    let Some(work) = &configuration.work else { return Ok(Some(())) };
    let objects = wiring::objects(configuration);
    let look = || streams_work_table(&configuration.source.options, &objects);
    let found = patience.insist("looking for the work table in the publication", look).await?;
    if found == Some(false) {
        tracing::warn!(
            "the publication \"{}\" does not have the table {}.{}: nothing of it will be observed. `postrider check` says what to type.",
            objects.publication,
            work.mapping.schema,
            work.mapping.table
        );
    }
    Ok(found.map(|_| ()))
}

/// Nobody goes on from a further process's journal: what it needs is in the rows.
fn discard_old(configuration: &Configuration) -> Result<()> {
    let dir = &configuration.journal.dir;
    // What cannot be read any more was left by a process that was killed while it made it.
    if let Ok(Some(held)) = Reader::find(dir)
        && !is_temporary_slot(&held.identity().slot)
    {
        return Err(Error::new(
            ErrorKind::JournalForeign,
            "the journal of a slot that lasts stands where a further process makes its own",
        )
        .with_detail(format!("The directory is {}, and its slot \"{}\".", dir.display(), held.identity().slot))
        .with_hint("Give that process another directory, and move the journal there while it does not run."));
    }
    postrider_journal::discard(dir)
}

/// Finds out whether the server's log goes on from the journal. A server that was promoted a little before the journal's end, with
/// nothing of ours between, is adopted at once: nobody has anything to decide. `None`: the end was asked for meanwhile.
async fn succeed(configuration: &Configuration, patience: &Patience<'_>, now: Timestamp) -> Result<Option<()>> {
    let look = || succession::look(configuration);
    let Some(found) = patience.insist("comparing journal and server", look).await? else { return Ok(None) };
    let Some(succession) = found else { return Ok(Some(())) };
    // All other verdicts are told when the journal, and then the stream, is opened.
    let Verdict::Diverged { .. } = succession.verdict else { return Ok(Some(())) };
    if let Some(error) = succession.refusal() {
        return Err(error);
    }
    if let Some(adoption) = succession.adoption(now)? {
        let generation = postrider_journal::adopt(&configuration.journal.dir, &adoption)?;
        tracing::warn!(generation = generation.0, begins = %adoption.begins, "{}", adoption.gap.reason);
    }
    Ok(Some(()))
}

/// The first SIGTERM or SIGINT asks for an end in good order; the second ends the process where it stands.
fn end_on_signals(shutdown: &Shutdown) -> Result<()> {
    let mut terminate = listen_to(SignalKind::terminate())?;
    let mut interrupt = listen_to(SignalKind::interrupt())?;
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        either(&mut terminate, &mut interrupt).await;
        tracing::info!("asked to end; requests in flight are waited for, a second signal ends at once");
        shutdown.request();
        either(&mut terminate, &mut interrupt).await;
        tracing::warn!("a second signal: ending at once");
        std::process::exit(exit::SECOND_SIGNAL);
    });
    Ok(())
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}

fn listen_to(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|error| Error::new(ErrorKind::Internal, "cannot listen to signals").with_source(error))
}
