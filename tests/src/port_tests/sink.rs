//! One suite over every sink.

use bytes::Bytes;
use postrider_core::event::{Event, Payload};
use postrider_core::ports::Sink;
use postrider_core::position::{Generation, Lsn, Position};
use postrider_core::time::Timestamp;

/// A consumer that has nothing at first.
pub trait Fixture {
    /// A sink to it, as a new process opens it.
    fn open(&self) -> Box<dyn Sink>;

    /// The ids that it has, in the order of their first arrival.
    fn ids(&self) -> Vec<String>;
}

pub async fn suite(fixture: &dyn Fixture) {
    let events: Vec<Event> = (0..12).map(event).collect();
    let mut sink = fixture.open();
    assert_eq!(sink.position().await.unwrap(), None, "nothing is there");
    let written = sink.write(&[]).await;
    assert_eq!((written.settled, written.error.is_none()), (0, true));
    settle(&mut *sink, &events[..5]).await;
    assert_eq!(in_order(&fixture.ids()), 5);
    drop(sink);
    // A new process that knows less repeats some, and nothing is in another order by that.
    let mut sink = fixture.open();
    if let Some(kept) = sink.position().await.unwrap() {
        assert_eq!(kept, events[4].position.just_before(), "others may share the last one's position");
    }
    settle(&mut *sink, &events[3..]).await;
    assert_eq!(in_order(&fixture.ids()), 12);
}

async fn settle(sink: &mut dyn Sink, events: &[Event]) {
    let written = sink.write(events).await;
    assert!(written.error.is_none(), "{:?}", written.error);
    assert_eq!(written.settled, events.len());
}

/// How many events there are. Those of one key stand in their order.
fn in_order(ids: &[String]) -> usize {
    for lane in 0..3 {
        let numbers: Vec<u64> = ids.iter().map(|id| id.parse().unwrap()).filter(|number| number % 3 == lane).collect();
        assert!(numbers.is_sorted(), "{ids:?}");
    }
    ids.len()
}

fn event(number: u64) -> Event {
    Event {
        id: number.to_string().into(),
        position: Position { generation: Generation::FIRST, commit_lsn: Lsn(100 + number), ordinal: 0 },
        committed_at: Timestamp(1_767_225_600_000_000),
        source: "public.outbox_event".into(),
        key: Some(format!("key-{}", number % 3).into()),
        event_type: Some("submitted".into()),
        topic: None,
        headers: None,
        payload: Payload::Json(Bytes::from_static(b"{\"n\": 1}")),
    }
}
