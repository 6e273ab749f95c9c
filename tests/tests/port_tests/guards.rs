//! Core's guards and the server's statements are one: both judge the same generated rows.

use super::real::needs_postgres::{Work, work};
use postrider_core::guard::{self, HashAfter};
use postrider_core::ports::{Checkpoint, CheckpointReply, Claim, ClaimReply, ClaimRequest, RowVersion, Transition};
use postrider_core::time::Timestamp;
use postrider_core::work::{DefinitionName, OwnerId, StageName, StageState, WorkKey, WorkVersion};
use postrider_tests::port_tests::work_table::Fixture;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

const ROWS: usize = 1_500;
const OTHER: OwnerId = OwnerId(0xABCD);
const DEAD: OwnerId = OwnerId(0xDEAD);
const STAGES: [&str; 3] = ["PRICING", "APPROVAL", "BOOKING"];
/// Far enough from now that no clock is in between.
const FAR: Duration = Duration::from_secs(3_600);

mod needs_postgres {
    use super::*;

    #[tokio::test]
    async fn core_and_the_server_let_the_same_claims_pass_and_write_the_same() {
        let mut fastrand = fastrand::Rng::with_seed(1);
        let work = work().await;
        let before = generated(&work, &mut fastrand).await;
        let requests: Vec<ClaimRequest> = before.values().map(|row| request(row, &mut fastrand)).collect();
        let earliest = server_now(&work).await;
        let replies = work.table().claim(work.owner(), &requests, &[DEAD]).await.unwrap();
        let latest = server_now(&work).await;
        let after = read(&work).await;
        let replies: BTreeMap<WorkKey, ClaimReply> = replies.into_iter().map(|reply| (key_of(&reply), reply)).collect();
        let (mut claimed, mut spent, mut parked) = (0, 0, 0);
        for request in &requests {
            let (row, now) = (&before[&request.key], &after[&request.key]);
            let reply = replies.get(&request.key);
            if !guard::may_claim(row, request, earliest, &[DEAD]) {
                assert_eq!((reply, now), (None, row), "refused: {request:?}");
                continue;
            }
            let expected = |at| guard::after_claim(row, request, work.owner(), at);
            assert_between(now, expected(earliest), expected(latest));
            match reply.unwrap_or_else(|| panic!("no reply to {request:?} of {row:?}")) {
                ClaimReply::Claimed(claim) => {
                    claimed += 1;
                    assert_eq!((claim.fence, claim.attempt), (now.fence, now.attempt_count));
                    assert_eq!(now.state, StageState::Running);
                }
                ClaimReply::AtLimit { fence, .. } => {
                    spent += 1;
                    assert_eq!((*fence, now.state), (now.fence, StageState::Unknown));
                }
                ClaimReply::Parked { fence, .. } => {
                    parked += 1;
                    assert_eq!((*fence, now.state), (now.fence, StageState::NonResumable));
                }
            }
        }
        let enough = claimed > ROWS / 20 && spent > ROWS / 200 && parked > ROWS / 50;
        assert!(enough, "{claimed} claimed, {spent} at their limit and {parked} refused show little");
    }

    #[tokio::test]
    async fn core_and_the_server_let_the_same_checkpoints_pass_and_write_the_same() {
        let mut fastrand = fastrand::Rng::with_seed(2);
        let work = work().await;
        let before = generated(&work, &mut fastrand).await;
        let hashes = hashes(&work).await;
        let versions = versions(&work).await;
        let mut checkpoints: Vec<Checkpoint> = before.values().map(|row| checkpoint(row, &mut fastrand)).collect();
        for (checkpoint, row) in checkpoints.iter_mut().zip(before.values()) {
            checkpoint.claim = claim(row, versions[&row.key], hashes[&row.key], &mut fastrand).map(Arc::new);
        }
        let earliest = server_now(&work).await;
        let replies = work.table().checkpoint(work.owner(), &checkpoints).await.unwrap();
        let latest = server_now(&work).await;
        let (after, hashes_after) = (read(&work).await, self::hashes(&work).await);
        let replies: BTreeMap<WorkKey, CheckpointReply> =
            replies.into_iter().map(|reply| (reply.key().clone(), reply)).collect();
        let mut written = HashSet::new();
        for checkpoint in &checkpoints {
            let (key, transition) = (&checkpoint.key, &checkpoint.transition);
            let (row, now) = (&before[key], &after[key]);
            let reply = replies.get(key);
            if !guard::may_checkpoint(row, checkpoint, work.owner()) {
                assert_eq!((reply, now, &hashes_after[key]), (None, row, &hashes[key]), "refused: {checkpoint:?}");
                continue;
            }
            let expected = |at| guard::after_checkpoint(row, transition, at);
            assert_between(now, expected(earliest), expected(latest));
            let hash = match guard::hash_after(row.fence, transition) {
                HashAfter::Kept => hashes[key],
                HashAfter::Forgotten => Hash::None,
                HashAfter::Anew => Hash::OfPayload,
            };
            assert_eq!(hashes_after[key], hash, "{checkpoint:?}");
            let chained = matches!(transition, Transition::Chain { .. });
            assert_eq!(matches!(reply, Some(CheckpointReply::Chained(_))), chained, "{reply:?}");
            assert!(reply.is_some(), "no reply to {checkpoint:?} of {row:?}");
            written.insert(std::mem::discriminant(transition));
        }
        assert_eq!(written.len(), 8, "every transition passes its guard somewhere");
    }
}

fn key_of(reply: &ClaimReply) -> WorkKey {
    match reply {
        ClaimReply::Claimed(claim) => claim.key.clone(),
        ClaimReply::AtLimit { key, .. } | ClaimReply::Parked { key, .. } => key.clone(),
    }
}

/// The row is what core makes of it at some time between the two.
fn assert_between(now: &WorkVersion, low: WorkVersion, high: WorkVersion) {
    let within = |low: Option<Timestamp>, now, high| low <= now && now <= high && low.is_some() == now.is_some();
    assert!(within(low.next_attempt_at, now.next_attempt_at, high.next_attempt_at), "{low:?} {now:?}");
    assert!(within(low.lease_until, now.lease_until, high.lease_until), "{low:?} {now:?}");
    let (next_attempt_at, lease_until) = (now.next_attempt_at, now.lease_until);
    assert_eq!(*now, WorkVersion { next_attempt_at, lease_until, ..low });
}

/// A request as somebody who saw the row would make it, with a mistake here and there.
fn request(row: &WorkVersion, random: &mut fastrand::Rng) -> ClaimRequest {
    ClaimRequest {
        key: row.key.clone(),
        stage: near_stage(row, random),
        seen_fence: near_fence(row, random),
        attempt_limit: random.u32(0..4),
        lease: Duration::from_secs(60),
        take_over: random.u8(0..4) > 0,
        definition: DefinitionName::new("quote@2"),
        refusal: (random.u8(0..4) == 0).then(|| "VERSION_GONE: because".to_owned()),
        untold: None,
    }
}

fn checkpoint(row: &WorkVersion, random: &mut fastrand::Rng) -> Checkpoint {
    let (after, reason) = (FAR, "because".to_owned());
    let next = StageName::new(random.choice(STAGES).unwrap());
    let transition = match random.u8(0..9) {
        0 => Transition::Advance { next },
        1 => Transition::Chain { next, lease: FAR },
        2 => Transition::Finish,
        3 => Transition::Retry { after, reason },
        4 => Transition::Defer { after, reason, counted: true },
        5 => Transition::Defer { after, reason, counted: false },
        6 => Transition::Park { reason },
        7 => Transition::Unknown { reason },
        _ => Transition::Release,
    };
    Checkpoint {
        key: row.key.clone(),
        stage: near_stage(row, random),
        fence: near_fence(row, random),
        status: None,
        transition,
        claim: None,
        untold: None,
    }
}

fn near_stage(row: &WorkVersion, random: &mut fastrand::Rng) -> StageName {
    if random.u8(0..8) == 0 { StageName::new(random.choice(STAGES).unwrap()) } else { row.stage.clone() }
}

fn near_fence(row: &WorkVersion, random: &mut fastrand::Rng) -> i64 {
    row.fence + *random.choice(&[0, 0, 0, 0, 0, 0, 1, -1]).unwrap()
}

/// Fills the table, and reads it as the port shows it. The keys of every other row stay held, as by somebody who inserts a row that
/// refers to it: that keeps nobody from writing the rest of the row, and has it taken by the statement that locks.
async fn generated(work: &Work, random: &mut fastrand::Rng) -> BTreeMap<WorkKey, WorkVersion> {
    let me = work.owner().to_string();
    let (me, other, dead) = (format!("'{me}'"), format!("'{OTHER}'"), format!("'{DEAD}'"));
    let owners = ["NULL".to_owned(), me.clone(), me.clone(), me, other, dead, "'somebody else'".to_owned()];
    let times = ["NULL".to_owned(), "now() - interval '1 hour'".to_owned(), "now() + interval '1 hour'".to_owned()];
    let ends = [times[0].clone(), times[0].clone(), times[1].clone()];
    // The three that claims and checkpoints are about are met more often than the others.
    let often = [StageState::Pending, StageState::Retry, StageState::Running, StageState::Running, StageState::Running];
    let states: Vec<StageState> = StageState::ALL.into_iter().chain(often.repeat(4)).collect();
    let hash_of_payload = "sha256(convert_to('{\"n\": 1}', 'UTF8'))";
    let hashes = ["NULL", hash_of_payload, "'\\x00'"];
    let mut rows = Vec::new();
    for number in 0..ROWS {
        let mut pick = |of: &[String]| random.choice(of).unwrap().clone();
        let (owner, next, until, closed) = (pick(&owners), pick(&times), pick(&times), pick(&ends));
        let definition = *random.choice(&["NULL", "'quote@1'"]).unwrap();
        let state = random.choice(&states).unwrap().as_str();
        let (stage, hash) = (random.choice(STAGES).unwrap(), random.choice(hashes).unwrap());
        let (attempts, deferrals, fence) = (random.u8(0..4), random.u8(0..2), random.u8(0..9));
        rows.push(format!(
            "('g', 'q{number:05}', {definition}, '{stage}', '{state}', {attempts}, {deferrals}, {fence}, {next}, {until}, {owner}, {hash}, {closed}, '{{\"n\": 1}}')"
        ));
    }
    let sql = format!(
        "INSERT INTO pending_work (group_id, quote_id, definition, stage, stage_state, attempt_count, deferral_count, fence, \
         next_attempt_at, lease_until, lease_owner, request_hash, closed_at, payload) VALUES {}",
        rows.join(", ")
    );
    work.server.client.batch_execute(&sql).await.unwrap();
    let hold = "BEGIN; SELECT FROM pending_work WHERE right(quote_id, 1)::int % 2 = 1 FOR KEY SHARE";
    work.server.client.batch_execute(hold).await.unwrap();
    read(work).await
}

async fn read(work: &Work) -> BTreeMap<WorkKey, WorkVersion> {
    let keys: Vec<WorkKey> = (0..ROWS).map(|number| WorkKey::new(["g".to_owned(), format!("q{number:05}")])).collect();
    let reading = work.table().read(&keys).await.unwrap();
    assert_eq!(reading.rows.len(), ROWS);
    reading.rows.into_iter().map(|row| (row.key.clone(), row)).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hash {
    None,
    OfPayload,
    Other,
}

async fn hashes(work: &Work) -> BTreeMap<WorkKey, Hash> {
    let sql = "SELECT group_id, quote_id, request_hash IS NULL, request_hash = sha256(convert_to(payload::text, 'UTF8')) \
               FROM pending_work";
    let rows = work.server.client.query(sql, &[]).await.unwrap();
    let hash = |row: &tokio_postgres::Row| match (row.get(2), row.get(3)) {
        (true, _) => Hash::None,
        (false, Some(true)) => Hash::OfPayload,
        (false, _) => Hash::Other,
    };
    rows.iter().map(|row| (WorkKey::new([row.get::<_, String>(0), row.get(1)]), hash(row))).collect()
}

/// The claim that such a row may be of, now and then with a version that it has no more. A claim leaves a hash.
fn claim(row: &WorkVersion, version: RowVersion, hash: Hash, random: &mut fastrand::Rng) -> Option<Claim> {
    if hash == Hash::None || random.u8(0..4) == 0 {
        return None;
    }
    let RowVersion { xid, place: (page, place), .. } = version;
    let version = match random.u8(0..8) {
        0 => RowVersion { xid: xid - 1, ..version },
        1 => RowVersion { place: (page, place + 1), ..version },
        _ => version,
    };
    Some(Claim {
        key: row.key.clone(),
        stage: row.stage.clone(),
        fence: row.fence,
        attempt: row.attempt_count,
        deferrals: row.deferral_count,
        epoch: row.epoch,
        definition: row.definition.clone(),
        payload: "{\"n\": 1}".into(),
        was_sent: false,
        key_expired: None,
        payload_changed: hash == Hash::Other,
        version: Some(version),
    })
}

async fn versions(work: &Work) -> BTreeMap<WorkKey, RowVersion> {
    let sql = "SELECT group_id, quote_id, xmin::text::int8, (ctid::text::point)[0]::int8, (ctid::text::point)[1]::int8, \
               (extract(epoch FROM updated_at) * 1000000)::int8 FROM pending_work";
    let rows = work.server.client.query(sql, &[]).await.unwrap();
    let version = |row: &tokio_postgres::Row| {
        let number = |column| row.get::<_, i64>(column);
        let place = (u32::try_from(number(3)).unwrap(), u16::try_from(number(4)).unwrap());
        let version = RowVersion { xid: u32::try_from(number(2)).unwrap(), place, written_at: Timestamp(number(5)) };
        (WorkKey::new([row.get::<_, String>(0), row.get(1)]), version)
    };
    rows.iter().map(version).collect()
}

async fn server_now(work: &Work) -> Timestamp {
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8";
    Timestamp(work.server.client.query_one(sql, &[]).await.unwrap().get(0))
}
