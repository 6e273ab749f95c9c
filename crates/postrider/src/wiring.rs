//! Which real thing stands behind each port: the only place that knows all crates.

use crate::config::{Configuration, HttpTarget, Sink, Target, Work};
use postrider_core::error::{Error, ErrorKind, Result};
use postrider_core::ports::{self, SourceIdentity};
use postrider_core::position::Position;
use postrider_core::route::Routing;
use postrider_core::stage::Step;
use postrider_core::work::OwnerId;
use postrider_delivery::{
    Endpoint, FileWatch, HttpEventSettings, HttpEventSink, HttpSettings, HttpStageCaller, NdjsonSink,
};
use postrider_engine::{
    Limits, OnlookPart, Periods, Settings, SinkPart, SystemWorld, Telemetry, WorkPart, WorkSettings,
};
use postrider_journal::{Life, Opened};
use postrider_postgres::{PgPrimary, PgWorkTable, ReplicationSource, SourceObjects, WorkTableSettings};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The server's log.
pub(crate) fn source(configuration: &Configuration) -> ReplicationSource {
    let source = &configuration.source;
    let replication = ReplicationSource::new(source.options.clone(), source.slot.as_str(), source.publication.as_str())
        .streaming(source.streaming)
        .two_phase(source.two_phase)
        .standby(source.standby)
        .temporary(source.temporary);
    match objects(configuration).work_publication() {
        Some(publication) => replication.and(publication),
        None => replication,
    }
}

/// The questions that the server is asked in passing.
pub(crate) fn primary(configuration: &Configuration) -> PgPrimary {
    let source = &configuration.source;
    let primary = PgPrimary::new(source.options.clone(), source.slot.as_str()).temporary(source.temporary);
    match configuration.executed() {
        Some(work) => primary.of_work(&work.mapping),
        None => primary,
    }
}

/// The journal of this source.
pub(crate) fn journal(configuration: &Configuration, identity: &SourceIdentity) -> Result<Opened> {
    let journal = &configuration.journal;
    let settings = postrider_journal::Settings {
        segment_bytes: journal.segment_bytes,
        retain_bytes: journal.retention_bytes,
        retain_age: journal.retention_age,
    };
    postrider_journal::open(&journal.dir, identity, &settings)
}

/// Where transactions wait for their outcome, beside the open journal.
pub(crate) fn staging(configuration: &Configuration, life: Life) -> Result<Box<dyn ports::Staging>> {
    let journal = &configuration.journal;
    postrider_journal::open_staging(&journal.dir, life, journal.staging_bytes)
}

/// Which tables and messages are ours.
pub(crate) fn routing(configuration: &Configuration) -> Routing {
    Routing {
        outbox_tables: configuration.outbox_tables.clone(),
        outbox_prefixes: configuration.outbox_prefixes.clone(),
        work: configuration.work.as_ref().map(|work| work.mapping.clone()),
    }
}

/// What must be in the database.
pub(crate) fn objects(configuration: &Configuration) -> SourceObjects {
    SourceObjects {
        publication: configuration.source.publication.clone(),
        slot: configuration.source.slot.clone(),
        two_phase: configuration.source.two_phase,
        failover: configuration.source.failover,
        standby: configuration.source.standby,
        quiet: configuration.executed().is_some_and(|work| work.quiet),
        observe: configuration.work.is_some() && configuration.executed().is_none(),
        same_tx: configuration.executed().is_some_and(Work::has_same_tx),
        routing: routing(configuration),
        history: configuration.executed().is_some_and(|work| work.history.is_some()),
    }
}

/// The stage executor's neighbours. Asks the server for the work table's columns.
pub(crate) async fn work(
    configuration: &Configuration,
    work: &Work,
    owner: OwnerId,
    telemetry: &Arc<Telemetry>,
) -> Result<WorkPart> {
    let options = configuration.source.options.clone();
    let settings = WorkTableSettings {
        history: work.history.is_some(),
        key_retention: work.key_retention.clone(),
        ..WorkTableSettings::new(owner)
    };
    let table = PgWorkTable::open(options, &work.mapping, &settings).await?;
    let caller = HttpStageCaller::new(work.endpoints.clone(), &http(telemetry))?;
    Ok(WorkPart {
        settings: WorkSettings {
            definitions: work.definitions.clone(),
            endpoints: work.endpoint_policies.clone(),
            key_names: work.mapping.key.clone(),
            fair_by: work.fair_by,
            owner,
            quiet: work.quiet,
            unfenced: work.unfenced,
            names_owner: work.mapping.lease_owner.is_some(),
            history: work.history,
        },
        table: Arc::new(table),
        caller: Arc::new(caller),
    })
}

/// What looking on needs.
pub(crate) fn onlook(work: &Work) -> OnlookPart {
    OnlookPart { definitions: work.definitions.clone() }
}

/// The consumers of events. Opens and locks the files of those that write to one.
pub(crate) fn sinks(configuration: &Configuration, telemetry: &Arc<Telemetry>) -> Result<Vec<SinkPart>> {
    configuration.sinks.iter().map(|part| sink(part, telemetry)).collect()
}

/// Where a sink says itself that it is; `None` for one that keeps no position, or has nothing yet. Makes nothing: a file that
/// is not there stays so.
pub(crate) async fn kept_position(sink: &Sink) -> Result<Option<Position>> {
    match &sink.target {
        Target::Ndjson(Some(path)) if path.exists() => {
            ports::Sink::position(&mut NdjsonSink::open(path).map_err(|error| of_sink(sink, error))?).await
        }
        Target::Ndjson(_) | Target::Http(_) => Ok(None),
    }
}

/// Every endpoint that requests will go to, with the part that it belongs to.
pub(crate) fn endpoints(configuration: &Configuration) -> Vec<(String, Endpoint)> {
    let stages = configuration.executed().into_iter().flat_map(|work| {
        let is_ours = |step: &Step| work.definitions.policy(step).is_ok_and(|policy| !policy.by_others);
        work.endpoints.iter().filter(move |(step, _)| is_ours(step))
    });
    let stages = stages.map(|(step, endpoint)| (format!("stage {step}"), endpoint.clone()));
    let sinks = configuration.sinks.iter().filter_map(|sink| match &sink.target {
        Target::Http(target) => Some((format!("sink {}", sink.name), target.endpoint.clone())),
        Target::Ndjson(_) => None,
    });
    stages.chain(sinks).collect()
}

/// Where each stage's endpoint is, by the newest definition that has it: scheme, host and port.
pub(crate) fn stage_origins(configuration: &Configuration) -> BTreeMap<String, String> {
    let mut origins = BTreeMap::new();
    if let Some(work) = &configuration.work {
        let (current, earlier): (Vec<_>, Vec<_>) =
            work.endpoints.iter().partition(|(step, _)| step.definition == *work.definitions.current());
        let stages = earlier.into_iter().chain(current);
        origins.extend(stages.map(|(step, endpoint)| (step.stage.to_string(), endpoint.origin().to_owned())));
    }
    origins
}

/// What the engine is told.
pub(crate) fn settings(configuration: &Configuration) -> Settings {
    let periods = configuration.periods;
    Settings {
        ack: configuration.ack,
        when_full: configuration.journal.when_full,
        wal_guard_bytes: configuration.wal_guard_bytes,
        periods,
        limits: Limits { drain: configuration.drain, heartbeat_overdue: overdue(periods), ..Limits::default() },
    }
}

/// An identity for this start of the process, and a world with a seed of its own, both from the operating system's
/// randomness: a process that wakes up late must never be taken for its successor.
pub(crate) fn chance() -> Result<(OwnerId, SystemWorld)> {
    let random = || {
        getrandom::u64().map_err(|error| {
            Error::new(ErrorKind::Internal, "the operating system gives no randomness").with_source(error)
        })
    };
    Ok((OwnerId(random()?), SystemWorld::new(random()?)))
}

/// Three beats may be missed before the process calls itself not ready.
fn overdue(periods: Periods) -> std::time::Duration {
    periods.heartbeat.saturating_mul(3)
}

fn sink(sink: &Sink, telemetry: &Arc<Telemetry>) -> Result<SinkPart> {
    let port: Box<dyn ports::Sink> = match &sink.target {
        Target::Http(target) => Box::new(http_sink(target, telemetry)?),
        Target::Ndjson(Some(path)) => Box::new(NdjsonSink::open(path).map_err(|error| of_sink(sink, error))?),
        Target::Ndjson(None) => Box::new(NdjsonSink::stdout()?),
    };
    Ok(SinkPart {
        name: sink.name.as_str().into(),
        required: sink.required,
        wait_visible: sink.wait_visible,
        sink: port,
    })
}

fn of_sink(sink: &Sink, error: Error) -> Error {
    let detail = error.detail().unwrap_or_default();
    let detail = format!("It is the sink \"{}\". {detail}", sink.name);
    error.with_detail(detail.trim_end())
}

/// How requests leave, whosever they are.
fn http(telemetry: &Arc<Telemetry>) -> HttpSettings {
    let telemetry = Arc::clone(telemetry);
    let files = FileWatch::default().on_change(move |files, refusal| {
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        telemetry.note_credentials(&names.join(", "), refusal);
    });
    HttpSettings { files, ..HttpSettings::default() }
}

fn http_sink(target: &HttpTarget, telemetry: &Arc<Telemetry>) -> Result<HttpEventSink> {
    let settings = HttpEventSettings {
        http: http(telemetry),
        timeout: target.timeout,
        in_flight_max: usize::try_from(target.in_flight).unwrap_or(usize::MAX),
    };
    HttpEventSink::new(target.endpoint.clone(), &settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::understand;

    #[test]
    fn nobody_asks_the_endpoint_of_a_stage_that_is_left_to_others() {
        let text = "[source]\nurl = \"postgres://u@h/d\"\n[journal]\ndir = \"d\"\n[work]\ntable = \"w\"\n\
            [[work.stage]]\nname = \"A\"\nurl = \"http://core/\"\nclass = \"keyed\"\nnext = \"B\"\n\
            [[work.stage]]\nname = \"B\"\nurl = \"http://core/\"\nclass = \"keyed\"\nby_others = true\n";
        let configuration = understand(text, &BTreeMap::new()).expect("a configuration");
        let parts: Vec<String> = endpoints(&configuration).into_iter().map(|(part, _)| part).collect();
        assert_eq!(parts, ["stage A of default@1"]);
    }
}
