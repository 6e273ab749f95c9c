//! `postrider replay`: sends a sink again what it had, or passes over what it shall not get.

use crate::cli::{ConfigurationFile, block_on};
use crate::config::{self, Configuration, Sink, Target, suggest};
use crate::reading::{Limit, Place, Range, Seen, Visit, Wish, walk};
use crate::{exit, output, wiring};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::position::{Generation, Position};
use postrider_core::route::{Route, Router, Routing};
use postrider_core::time::Timestamp;
use postrider_core::transaction::Part;
use postrider_delivery::rfc3339;
use postrider_engine::{WhenFull, World};
use postrider_journal::{Moving, Reader};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::ops::ControlFlow;

/// Set one sink to another place in the journal: what comes after it is sent again at the next start of `run`
///
/// The process must not run: its position is moved under the journal's lock. --dry-run counts beside it.
#[derive(Debug, clap::Args)]
pub(super) struct Replay {
    /// The sink's name in the configuration.
    sink: String,
    #[command(flatten)]
    configuration: ConfigurationFile,
    /// The first place that is sent: `beginning`, `end`, a position, a log sequence number, a time with its zone, or how
    /// long ago (30m).
    #[arg(long, value_name = "PLACE")]
    from: Place,
    /// Go forward, too: the events between are never sent to this sink. A record of it is kept.
    #[arg(long)]
    skip: bool,
    /// Count what would be sent or passed over, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

const GOING: &str = "The journal holds more before that than `journal.retention` keeps: it goes at the next start.";

/// A move of the sink's position, and what lies between.
#[derive(Debug)]
struct Plan {
    sink: String,
    /// `None`: nothing was saved yet.
    saved: Option<Position>,
    to: Position,
    direction: Ordering,
    /// What comes after what is saved is no longer held, up to here: nobody can count it.
    unheld_until: Option<Position>,
    /// What stands before the place is held, and has to go at the next start.
    going_until: Option<Position>,
    between: Count,
    is_done: bool,
}

/// Events, and when the first and the last of them were committed.
#[derive(Debug)]
struct Count {
    router: Router,
    events: u64,
    committed: Option<(Timestamp, Timestamp)>,
}

impl Replay {
    pub(super) fn obey(self) -> Result<u8> {
        let configuration = config::load(&self.configuration.path)?;
        let plan = block_on(self.carry_out(&configuration))?;
        if self.json {
            output::json(&plan.to_json());
        } else {
            output::data(&plan.to_text());
        }
        Ok(exit::OK)
    }

    async fn carry_out(&self, configuration: &Configuration) -> Result<Plan> {
        let sink = named(configuration, &self.sink)?;
        let dir = &configuration.journal.dir;
        // Before the lock, which would be made in any directory.
        drop(Reader::open(dir)?);
        let lock = if self.dry_run { None } else { Some(Moving::lock(dir)?.ok_or_else(|| running(configuration))?) };
        let mut reader = Reader::open(dir)?;
        let (_, world) = wiring::chance()?;
        let going = going(configuration, sink, &reader, world.now())?;
        let mut plan = self.plan(configuration, &mut reader, going, &world).await?;
        if plan.direction == Ordering::Greater && !self.skip {
            return Err(plan.would_skip());
        }
        let Some(lock) = lock.filter(|_| plan.direction != Ordering::Equal) else { return Ok(plan) };
        if let Some(kept) = wiring::kept_position(sink).await?.filter(|kept| *kept >= plan.to) {
            return Err(keeps_its_own(sink, kept));
        }
        let record = json!({ "at": rfc3339(world.now()), "by": user(), "moved": plan.to_json() });
        lock.move_consumer(&plan.sink, plan.to, &record.to_string())?;
        plan.is_done = true;
        Ok(plan)
    }

    /// `going`: what stands at or before this has to go at the next start, so that nobody can be set there.
    async fn plan(
        &self,
        configuration: &Configuration,
        reader: &mut Reader,
        going: Option<Position>,
        world: &dyn World,
    ) -> Result<Plan> {
        let mut start = self.from.begin(reader, world.now())?;
        let going_until = going.filter(|going| start.after < *going);
        match (going_until, self.from) {
            (Some(going), Place::Beginning) => start.after = going,
            (Some(going), _) => return Err(has_to_go(going)),
            (None, _) => {}
        }
        if start.earlier_is_gone {
            return Err(Error::new(ErrorKind::JournalForeign, "the journal begins later than this time")
                .with_detail(format!("What was committed before {} is no longer held.", start.after))
                .with_hint("`--from beginning` sends what there is; rebuild the consumer if it needs what is gone."));
        }
        let saved = reader.positions()?.get(self.sink.as_str()).copied();
        let oldest = reader.oldest();
        // Without a saved position the sink begins with the oldest event.
        let (to, at) = (start.after, saved.unwrap_or(oldest));
        let unheld_until = (at < oldest).then_some(oldest);
        let range = Range { after: at.min(to).max(oldest), to: Some(Limit::Position(at.max(to))), follow: false };
        let routing = Routing { work: None, ..wiring::routing(configuration) };
        let mut between = Count { router: Router::new(routing), events: 0, committed: None };
        walk(reader, range, world, &mut between).await?;
        let direction = to.cmp(&at);
        Ok(Plan { sink: self.sink.clone(), saved, to, direction, unheld_until, going_until, between, is_done: false })
    }
}

impl Plan {
    fn to_json(&self) -> Value {
        let time =
            |pick: fn((Timestamp, Timestamp)) -> Timestamp| self.between.committed.map(|both| rfc3339(pick(both)));
        json!({
            "sink": self.sink,
            "saved": self.saved.map(|position| position.to_string()),
            "to": self.to.to_string(),
            "direction": match self.direction {
                Ordering::Less => "back",
                Ordering::Equal => "stay",
                Ordering::Greater => "forward",
            },
            "events": self.between.events,
            "unheld_until": self.unheld_until.map(|position| position.to_string()),
            "going_until": self.going_until.map(|position| position.to_string()),
            "first_committed_at": time(|both| both.0),
            "last_committed_at": time(|both| both.1),
            "done": self.is_done,
        })
    }

    fn to_text(&self) -> String {
        let moved = self.moved();
        match self.going_until {
            Some(_) => format!("{moved}\n{GOING} To have it sent, too, raise `journal.retention` first."),
            None => moved,
        }
    }

    fn moved(&self) -> String {
        let Plan { sink, to, .. } = self;
        let saved = self.saved.map_or("where nothing is saved yet".to_owned(), |saved| format!("at {saved}"));
        let events = self.events();
        match (self.direction, self.is_done) {
            (Ordering::Equal, _) => format!("{sink}: {saved}, which is there already; nothing was changed"),
            (Ordering::Less, true) => {
                format!("{sink}: set back to {to}; it was {saved}. At the next start it is sent again {events}")
            }
            (Ordering::Less, false) => {
                format!("{sink}: it is {saved}. Set back to {to} it would be sent again {events}; nothing was changed")
            }
            (Ordering::Greater, true) => {
                format!("{sink}: set forward to {to}; it was {saved}. It is never sent {events}")
            }
            (Ordering::Greater, false) => {
                format!(
                    "{sink}: it is {saved}. Set forward to {to} it would never be sent {events}; nothing was changed"
                )
            }
        }
    }

    fn events(&self) -> String {
        let counted = self.between.to_text();
        match self.unheld_until {
            Some(oldest) => format!("what is no longer held, and not counted, up to {oldest}; and {counted}"),
            None => counted,
        }
    }

    fn would_skip(&self) -> Error {
        let (sink, to, events) = (&self.sink, self.to, self.events());
        Error::new(ErrorKind::Configuration, "the sink has not come so far yet, and would be set forward")
            .with_detail(format!("Set to {to}, {sink} would never be sent {events}."))
            .with_hint("If that is meant, say `--skip`, too.")
    }
}

impl Count {
    fn to_text(&self) -> String {
        let count = match self.events {
            1 => "1 event".to_owned(),
            events => format!("{events} events"),
        };
        match self.committed {
            Some((first, last)) => format!("{count}, committed from {} to {}", rfc3339(first), rfc3339(last)),
            None => count,
        }
    }
}

impl Visit for Count {
    fn part(&mut self, _: &Part<'_>, _: Generation) -> Result<Wish> {
        Ok(Wish::Changes)
    }

    fn change(&mut self, seen: &Seen<'_>) -> Result<ControlFlow<()>> {
        if let Route::Outbox(_) | Route::OutboxMessage(_) = self.router.route(seen.change)? {
            self.events = self.events.saturating_add(1);
            let at = seen.head.committed_at;
            self.committed = Some((self.committed.map_or(at, |(first, _)| first), at));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn rest(&mut self) -> Result<ControlFlow<()>> {
        Ok(ControlFlow::Continue(()))
    }
}

fn named<'a>(configuration: &'a Configuration, name: &str) -> Result<&'a Sink> {
    if let Some(sink) = configuration.sinks.iter().find(|sink| sink.name == name) {
        return Ok(sink);
    }
    let error = Error::new(ErrorKind::Configuration, "there is no sink of this name");
    if name == "work" {
        return Err(error.with_hint(
            "`work` is the stages: they follow their rows and not the log. To have a stage executed again: \
             `postrider work reexecute`.",
        ));
    }
    let names: Vec<&str> = configuration.sinks.iter().map(|sink| sink.name.as_str()).collect();
    Err(error.with_hint(format!("The configuration says otherwise: {}", suggest(name, &names))))
}

/// What has to go by its retention though the sink lacks it, unless the sink is one that the journal waits for.
fn going(configuration: &Configuration, sink: &Sink, reader: &Reader, now: Timestamp) -> Result<Option<Position>> {
    let journal = &configuration.journal;
    let room = reader.room(journal.retention_bytes, journal.retention_age, now)?;
    Ok(match (sink.required, journal.when_full) {
        (true, WhenFull::Block) => None,
        (true, WhenFull::DropOldest) => room.over,
        (false, _) => room.expired,
    })
}

fn has_to_go(until: Position) -> Error {
    Error::new(ErrorKind::Configuration, "what stands there has to go at the next start, and the sink with it")
        .with_detail(format!("What stands up to {until} is more than `journal.retention` keeps."))
        .with_hint("Raise `journal.retention` first, or say `--from beginning`: it begins behind what has to go.")
}

fn running(configuration: &Configuration) -> Error {
    Error::new(ErrorKind::Disk, "the process runs, and keeps the positions itself")
        .with_detail(format!("A process has the journal in {} open.", configuration.journal.dir.display()))
        .with_hint(
            "Stop it, say this again, and start it: it ends in good order and goes on where it was. `--dry-run` counts beside it.",
        )
}

fn keeps_its_own(sink: &Sink, kept: Position) -> Error {
    let file = match &sink.target {
        Target::Ndjson(Some(path)) => path.display().to_string(),
        Target::Ndjson(None) | Target::Http(_) => "its own data".to_owned(),
    };
    Error::new(ErrorKind::SinkRefused, "the sink keeps its position with its data, and is further than that")
        .with_detail(format!("What stands in {file} reaches behind {kept}, and is never written twice."))
        .with_hint("Move the file away and say this again: a new one is written from there on.")
}

/// Who is logged in, as far as the environment says.
fn user() -> Option<String> {
    ["SUDO_USER", "USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok())
}
