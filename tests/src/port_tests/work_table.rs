//! The guards of the work table.

use postrider_core::paused::{PauseChange, Paused, PausedPart};
use postrider_core::ports::{
    BoxFuture, Checkpoint, CheckpointReply, Claim, ClaimReply, ClaimRequest, Transition, WorkTable,
};
use postrider_core::time::Timestamp;
use postrider_core::work::{DefinitionName, OwnerId, StageName, StageState, WorkKey, WorkVersion};
use std::time::Duration;

/// A table without rows, and the hand that writes it beside the port.
pub trait Fixture {
    fn table(&self) -> &dyn WorkTable;

    /// Whose lock the table's door holds.
    fn owner(&self) -> OwnerId;

    /// Commits a new row, visible when this returns.
    fn submit<'a>(&'a self, key: &'a WorkKey, stage: &'a str) -> BoxFuture<'a, ()>;

    /// Commits what a person ordered to pause or resume, visible when this returns.
    fn order(&self, change: PauseChange) -> BoxFuture<'_, ()>;

    /// Lets the server's time go by.
    fn pass(&self, span: Duration) -> BoxFuture<'_, ()>;
}

const STAGE: &str = "PRICING";
const NEXT: &str = "APPROVAL";
const DEFINITION: &str = "quote@3";
const LEASE: Duration = Duration::from_secs(60);

/// Every rule in turn, each on rows of its own.
pub async fn suite(fixture: &dyn Fixture) {
    claims_are_guarded(fixture).await;
    checkpoints_are_guarded(fixture).await;
    transitions_write_what_they_say(fixture).await;
    success_is_chained_into_the_next_claim(fixture).await;
    abandoned_rows_are_taken_over(fixture).await;
    refused_rows_are_parked_and_nothing_else_of_them_changes(fixture).await;
    open_rows_come_in_key_order_without_the_closed(fixture).await;
    what_is_paused_is_read_in_the_snapshot_of_the_open_rows(fixture).await;
    owners_that_live_are_known(fixture).await;
}

async fn claims_are_guarded(fixture: &dyn Fixture) {
    let key = submitted(fixture, "claim").await;
    let first = claimed(fixture, &key, 0).await.expect("a new row is due");
    assert_eq!((first.fence, first.attempt, first.epoch, first.payload_changed), (1, 1, 0, false));
    assert_eq!(&*first.payload, "{\"n\": 1}");
    assert_eq!(first.definition, Some(DefinitionName::new(DEFINITION)), "a row without a definition gets one");
    let row = row(fixture, &key).await;
    assert_eq!((row.state, row.fence, row.attempt_count), (StageState::Running, 1, 1));
    assert_eq!(row.lease_owner, Some(fixture.owner()));
    assert!(row.lease_until.is_some() && !row.closed);
    // The fence has moved on, the row runs, the stage is another, the row is not there.
    assert_eq!(claimed(fixture, &key, 0).await, None);
    assert_eq!(claimed(fixture, &key, 1).await, None);
    let fresh = submitted(fixture, "claim-stage").await;
    let elsewhere = ClaimRequest { stage: StageName::new(NEXT), ..request(&fresh, 0) };
    assert_eq!(claim(fixture, &[elsewhere]).await, []);
    let spent = ClaimRequest { attempt_limit: 0, ..request(&fresh, 0) };
    assert_eq!(claim(fixture, &[spent]).await, []);
    assert_eq!(claimed(fixture, &WorkKey::new(["claim", "nobody"]), 0).await, None);
    // Of many in one statement those come back whose guard holds.
    let replies = claim(fixture, &[request(&key, 1), request(&fresh, 0)]).await;
    assert_eq!(replies.len(), 1, "{replies:?}");
}

async fn checkpoints_are_guarded(fixture: &dyn Fixture) {
    let key = submitted(fixture, "checkpoint").await;
    claimed(fixture, &key, 0).await.expect("a new row is due");
    let good = checkpoint(&key, 1, Transition::Finish);
    let stranger = fixture.table().checkpoint(OwnerId(77), std::slice::from_ref(&good)).await.unwrap();
    assert_eq!(stranger, []);
    assert_eq!(write(fixture, &checkpoint(&key, 2, Transition::Finish)).await, []);
    let elsewhere = Checkpoint { stage: StageName::new(NEXT), ..good.clone() };
    assert_eq!(write(fixture, &elsewhere).await, []);
    assert_eq!(write(fixture, &good).await, [CheckpointReply::Written { key: key.clone() }]);
    // It runs no more.
    assert_eq!(write(fixture, &good).await, []);
    let row = row(fixture, &key).await;
    assert!(row.closed && row.state == StageState::Done && row.fence == 1 && row.lease_owner.is_none(), "{row:?}");
}

async fn transitions_write_what_they_say(fixture: &dyn Fixture) {
    let reason = || "because".to_owned();
    let after = Duration::from_secs(3_600);
    let next = StageName::new(NEXT);
    let expected = [
        (Transition::Advance { next }, StageState::Pending, NEXT, (0, 0), false),
        (Transition::Retry { after, reason: reason() }, StageState::Retry, STAGE, (1, 0), true),
        (Transition::Defer { after, reason: reason(), counted: true }, StageState::Retry, STAGE, (0, 1), true),
        (Transition::Defer { after, reason: reason(), counted: false }, StageState::Retry, STAGE, (0, 0), true),
        (Transition::Park { reason: reason() }, StageState::NonResumable, STAGE, (1, 0), false),
        (Transition::Unknown { reason: reason() }, StageState::Unknown, STAGE, (1, 0), false),
        (Transition::Release, StageState::Pending, STAGE, (0, 0), false),
    ];
    for (number, (transition, state, stage, counts, later)) in expected.into_iter().enumerate() {
        let key = submitted(fixture, &format!("transition-{number}")).await;
        claimed(fixture, &key, 0).await.expect("a new row is due");
        let written = write(fixture, &checkpoint(&key, 1, transition.clone())).await;
        assert_eq!(written, [CheckpointReply::Written { key: key.clone() }], "{transition:?}");
        let row = row(fixture, &key).await;
        assert_eq!((row.state, row.stage.as_str(), row.fence), (state, stage, 1), "{transition:?}");
        assert_eq!((row.attempt_count, row.deferral_count), counts, "{transition:?}");
        assert_eq!(row.next_attempt_at.is_some(), later, "{transition:?}");
        assert!(row.lease_owner.is_none() && !row.closed, "{transition:?}");
        if later {
            assert_eq!(claimed(fixture, &key, 1).await, None, "not due before its time: {transition:?}");
        }
    }
}

async fn success_is_chained_into_the_next_claim(fixture: &dyn Fixture) {
    let key = submitted(fixture, "chain").await;
    claimed(fixture, &key, 0).await.expect("a new row is due");
    let chain = Transition::Chain { next: StageName::new(NEXT), lease: LEASE };
    let written = write(fixture, &checkpoint(&key, 1, chain)).await;
    let [CheckpointReply::Chained(claim)] = &written[..] else { panic!("{written:?}") };
    assert_eq!((claim.stage.as_str(), claim.fence, claim.attempt, claim.deferrals), (NEXT, 2, 1, 0));
    let row = row(fixture, &key).await;
    assert_eq!((row.state, row.fence, row.attempt_count), (StageState::Running, 2, 1));
    assert_eq!((row.stage.as_str(), row.lease_owner), (NEXT, Some(fixture.owner())));
}

async fn abandoned_rows_are_taken_over(fixture: &dyn Fixture) {
    let other = OwnerId(0xABCD);
    let short = Duration::from_millis(20);
    let (leased, dead, spent) = (
        submitted(fixture, "take-over-lease").await,
        submitted(fixture, "take-over-dead").await,
        submitted(fixture, "take-over-spent").await,
    );
    let requests = [
        ClaimRequest { lease: short, ..request(&leased, 0) },
        request(&dead, 0),
        ClaimRequest { lease: short, ..request(&spent, 0) },
    ];
    assert_eq!(fixture.table().claim(other, &requests, &[]).await.unwrap().len(), 3);
    fixture.pass(short * 3).await;
    let over = |key| ClaimRequest { take_over: true, ..request(key, 1) };
    assert_eq!(claimed(fixture, &leased, 1).await, None, "a running row is taken only as one");
    assert_eq!(claim(fixture, &[over(&dead)]).await, [], "its lease holds and nobody says that its owner is dead");
    let replies = fixture.table().claim(fixture.owner(), &[over(&dead)], &[other]).await.unwrap();
    assert!(
        matches!(&replies[..], [ClaimReply::Claimed(claim)] if claim.fence == 2 && claim.attempt == 2),
        "{replies:?}"
    );
    let replies = claim(fixture, &[over(&leased)]).await;
    assert!(matches!(&replies[..], [ClaimReply::Claimed(claim)] if claim.fence == 2), "{replies:?}");
    let last = ClaimRequest { attempt_limit: 1, ..over(&spent) };
    assert_eq!(claim(fixture, &[last]).await, [ClaimReply::AtLimit { key: spent.clone(), fence: 2 }]);
    let row = row(fixture, &spent).await;
    assert_eq!((row.state, row.fence, row.attempt_count), (StageState::Unknown, 2, 1));
    // The one who slept writes nothing.
    let late = checkpoint(&leased, 1, Transition::Finish);
    assert_eq!(fixture.table().checkpoint(other, &[late]).await.unwrap(), []);
}

async fn refused_rows_are_parked_and_nothing_else_of_them_changes(fixture: &dyn Fixture) {
    let refused = |request| ClaimRequest { refusal: Some("VERSION_GONE: because".to_owned()), ..request };
    let (fresh, later, taken) = (
        submitted(fixture, "refuse").await,
        submitted(fixture, "refuse-later").await,
        submitted(fixture, "refuse-taken").await,
    );
    let replies = claim(fixture, &[refused(request(&fresh, 0))]).await;
    assert_eq!(replies, [ClaimReply::Parked { key: fresh.clone(), fence: 1 }]);
    let parked = row(fixture, &fresh).await;
    assert_eq!((parked.state, parked.fence, parked.attempt_count), (StageState::NonResumable, 1, 0));
    assert_eq!((parked.definition, parked.stage.as_str(), parked.closed), (None, STAGE, false));
    // It rests now, whatever is asked of it.
    assert_eq!(claim(fixture, &[refused(request(&fresh, 1)), request(&fresh, 1)]).await, []);
    // A row that is not due is refused all the same, and keeps the definition that its claim gave it.
    claimed(fixture, &later, 0).await.expect("a new row is due");
    let after = Duration::from_secs(3_600);
    write(fixture, &checkpoint(&later, 1, Transition::Retry { after, reason: "because".to_owned() })).await;
    let replies = claim(fixture, &[refused(request(&later, 1))]).await;
    assert_eq!(replies, [ClaimReply::Parked { key: later.clone(), fence: 2 }]);
    let parked = row(fixture, &later).await;
    assert_eq!(parked.definition, Some(DefinitionName::new(DEFINITION)));
    // One that runs is refused only once it may be taken over.
    claimed(fixture, &taken, 0).await.expect("a new row is due");
    assert_eq!(claim(fixture, &[refused(request(&taken, 1))]).await, []);
    let over = ClaimRequest { take_over: true, ..refused(request(&taken, 1)) };
    assert_eq!(claim(fixture, std::slice::from_ref(&over)).await, []);
    let replies = fixture.table().claim(fixture.owner(), &[over], &[fixture.owner()]).await.unwrap();
    assert_eq!(replies, [ClaimReply::Parked { key: taken.clone(), fence: 2 }]);
    assert_eq!(row(fixture, &taken).await.lease_owner, None);
}

async fn open_rows_come_in_key_order_without_the_closed(fixture: &dyn Fixture) {
    let mut expected = Vec::new();
    for number in 0..30 {
        let key = submitted(fixture, &format!("open-{number:02}")).await;
        if number % 3 == 0 {
            claimed(fixture, &key, 0).await.expect("a new row is due");
            write(fixture, &checkpoint(&key, 1, Transition::Finish)).await;
        } else {
            expected.push(key);
        }
    }
    let mut reader = fixture.table().open_rows().await.unwrap();
    let late = submitted(fixture, "open-late").await;
    let mut rows = Vec::new();
    loop {
        let page = reader.next_page().await.unwrap();
        if page.is_empty() {
            break;
        }
        rows.extend(page);
    }
    assert!(rows.is_sorted_by(|one, other| one.key < other.key));
    assert!(rows.iter().all(|row| !row.closed && row.key != late), "one snapshot, of open rows");
    let ours: Vec<WorkKey> = rows.into_iter().map(|row| row.key).filter(|key| expected.contains(key)).collect();
    assert_eq!(ours, expected);
    assert!(reader.snapshot().xmin <= reader.snapshot().xmax);
    let reading = fixture.table().read(&[late.clone(), WorkKey::new(["open", "nobody"])]).await.unwrap();
    assert_eq!(reading.rows.iter().map(|row| &row.key).collect::<Vec<_>>(), [&late]);
    assert!(reading.snapshot.xmax > reader.snapshot().xmax, "a later read has a later snapshot");
}

async fn what_is_paused_is_read_in_the_snapshot_of_the_open_rows(fixture: &dyn Fixture) {
    let part = |columns| PausedPart::of(columns).expect("a part");
    let pause = |part| {
        let [who, why] = ["ada", "because"].map(str::to_owned);
        fixture.order(PauseChange::Pause(Paused { part, since: Timestamp(0), who, why }))
    };
    let read = async || {
        let reader = fixture.table().open_rows().await.unwrap();
        let found = |paused: &Paused| (paused.part.clone(), paused.who.clone(), paused.why.clone());
        let mut found: Vec<_> = reader.pauses().iter().map(found).collect();
        found.sort();
        (reader, found)
    };
    let said = |part| (part, "ada".to_owned(), "because".to_owned());
    assert_eq!(read().await.1, []);
    let (stage, narrow, endpoint) =
        (part([STAGE, "", ""]), part([STAGE, DEFINITION, ""]), part(["", "", "http://core:80"]));
    pause(stage.clone()).await;
    pause(endpoint.clone()).await;
    let (reader, found) = read().await;
    assert_eq!(found, [said(stage.clone()), said(endpoint.clone())]);
    pause(narrow.clone()).await;
    fixture.order(PauseChange::Resume(stage.clone())).await;
    assert_eq!(reader.pauses().len(), 2, "one snapshot");
    assert_eq!(read().await.1, [said(narrow.clone()), said(endpoint.clone())]);
    fixture.order(PauseChange::Resume(narrow)).await;
    fixture.order(PauseChange::Resume(endpoint)).await;
    assert_eq!(read().await.1, []);
}

async fn owners_that_live_are_known(fixture: &dyn Fixture) {
    let living = fixture.table().living_owners().await.unwrap().expect("our own lock was never lost");
    assert!(living.contains(&fixture.owner()));
    assert!(!living.contains(&OwnerId(0xABCD)));
}

async fn submitted(fixture: &dyn Fixture, name: &str) -> WorkKey {
    let key = WorkKey::new(["port", name]);
    fixture.submit(&key, STAGE).await;
    key
}

fn request(key: &WorkKey, seen_fence: i64) -> ClaimRequest {
    let (key, stage) = (key.clone(), StageName::new(STAGE));
    let definition = DefinitionName::new(DEFINITION);
    ClaimRequest {
        key,
        stage,
        seen_fence,
        attempt_limit: 5,
        lease: LEASE,
        take_over: false,
        definition,
        refusal: None,
        untold: None,
    }
}

async fn claim(fixture: &dyn Fixture, requests: &[ClaimRequest]) -> Vec<ClaimReply> {
    fixture.table().claim(fixture.owner(), requests, &[]).await.unwrap()
}

async fn claimed(fixture: &dyn Fixture, key: &WorkKey, seen_fence: i64) -> Option<Claim> {
    match claim(fixture, &[request(key, seen_fence)]).await.pop()? {
        ClaimReply::Claimed(claim) => Some(claim),
        ClaimReply::AtLimit { .. } => panic!("a claim that takes nothing over finds no row at its limit"),
        ClaimReply::Parked { .. } => panic!("nothing was refused"),
    }
}

fn checkpoint(key: &WorkKey, fence: i64, transition: Transition) -> Checkpoint {
    Checkpoint {
        key: key.clone(),
        stage: StageName::new(STAGE),
        fence,
        status: None,
        transition,
        claim: None,
        untold: None,
    }
}

async fn write(fixture: &dyn Fixture, checkpoint: &Checkpoint) -> Vec<CheckpointReply> {
    fixture.table().checkpoint(fixture.owner(), std::slice::from_ref(checkpoint)).await.unwrap()
}

async fn row(fixture: &dyn Fixture, key: &WorkKey) -> WorkVersion {
    let mut reading = fixture.table().read(std::slice::from_ref(key)).await.unwrap();
    assert_eq!(reading.rows.len(), 1);
    reading.rows.pop().unwrap()
}
