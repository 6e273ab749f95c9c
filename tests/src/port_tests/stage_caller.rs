//! The way to a stage's endpoint: one request for one call, and the facts of what came back.

use bytes::Bytes;
use postrider_core::outcome::{Declared, Lost, Outcome};
use postrider_core::ports::{StageCall, StageCaller};
use postrider_core::time::Timestamp;
use postrider_core::trace::Trace;
use postrider_core::work::{DefinitionName, StageName, WorkKey};
use std::time::Duration;

/// How the endpoint meets the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Play {
    Done,
    /// 429 with `Retry-After: 2`.
    Defer,
    /// 500 without a word of the receiver's.
    Fail,
    /// No answer within the time-out.
    Stall,
    /// The connection ends without an answer.
    Hang,
    /// Nobody listens.
    Gone,
}

/// An endpoint and the way to it.
pub trait Fixture {
    fn caller(&self) -> &dyn StageCaller;

    fn play(&self, play: Play);

    /// The idempotency keys of the requests that arrived, in order.
    fn requests(&self) -> Vec<String>;
}

pub async fn suite(fixture: &dyn Fixture) {
    let plays = [Play::Done, Play::Defer, Play::Fail, Play::Stall, Play::Hang, Play::Gone];
    for (number, play) in plays.into_iter().enumerate() {
        fixture.play(play);
        let outcome = fixture.caller().call(call(number)).await;
        match (play, &outcome) {
            (Play::Done, Outcome::Answered(answer)) => {
                assert_eq!((answer.status, answer.declared, answer.replayed), (200, Some(Declared::Done), false));
            }
            (Play::Defer, Outcome::Answered(answer)) => {
                assert_eq!((answer.status, answer.declared), (429, Some(Declared::Retry)));
                assert_eq!(answer.retry_after, Some(Duration::from_secs(2)));
            }
            (Play::Fail, Outcome::Answered(answer)) => assert_eq!((answer.status, answer.declared), (500, None)),
            (Play::Stall, Outcome::Lost(Lost::Timeout)) | (Play::Hang, Outcome::Lost(Lost::Reset)) => {}
            (Play::Gone, Outcome::NotSent(_)) => {}
            _ => panic!("{play:?} came to {outcome:?}"),
        }
    }
    let expected: Vec<String> = (0..5).map(|number| call(number).idempotency_key).collect();
    assert_eq!(fixture.requests(), expected, "each call is one request, and one that was not sent is none");
}

fn call(number: usize) -> StageCall {
    StageCall {
        stage: StageName::new("APPROVAL"),
        idempotency_key: format!("g/q{number}/APPROVAL/0"),
        attempt: 1,
        fence: 1,
        definition: DefinitionName::new("quote@1"),
        trace: Trace::of(&WorkKey::new(["g".to_owned(), format!("q{number}")]), &StageName::new("APPROVAL"), 0, 1),
        made_at: Timestamp(1_700_000_000_000_000),
        timeout: Duration::from_millis(200),
        body: Bytes::from_static(b"{\"group_id\":\"g\"}"),
    }
}
