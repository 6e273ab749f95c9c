//! The loops: from the log to the stages and sinks, and back to an acknowledgement.
//!
//! The engine knows its neighbours only through the ports of `postrider-core`. [`run`] starts everything and returns
//! when the process shall end: after an orderly shutdown, or with the error that a person must act on.

mod clock;
mod confirm;
#[cfg(test)]
mod counted;
mod deliver;
mod executor;
mod follow;
mod health;
mod intake;
mod ladder;
mod limits;
mod onlooker;
mod pause;
mod purge;
mod run;
mod settings;
mod settle;
mod shutdown;
mod sight;
mod survey;
mod telemetry;
mod world;

pub use limits::Limits;
pub use onlooker::{DelaySummary, Observed, ObservedStage};
pub use run::{OnlookPart, Parts, SinkPart, WorkPart, run};
pub use settings::{Ack, EndpointPolicy, Periods, Settings, UnfencedWrites, WhenFull, WorkSettings};
pub use shutdown::Shutdown;
pub use survey::{Survey, survey};
pub use telemetry::{
    BadEnd, ConsumerStatus, LATE, MemberLabel, OpenCircuit, RowsWaiting, StageCalls, StageHarm, StageLabel,
    StageTrouble, Status, Streak, Telemetry,
};
pub use world::{SystemWorld, World};
