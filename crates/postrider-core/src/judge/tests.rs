use super::*;
use crate::outcome::NotSent;
use crate::stage::StageClass;
use crate::work::StageName;
use expect_test::{Expect, expect};

fn policy() -> StagePolicy {
    StagePolicy {
        name: StageName::new("PRICING"),
        class: StageClass::Keyed,
        endpoint: "http://core".into(),
        next: vec![Next::End],
        attempt_limit: 5,
        deferral_limit: Some(10),
        timeout: Duration::from_secs(30),
        lease: Duration::from_secs(60),
        backoff: Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) },
        concurrency: 1,
        rate: None,
        serial: false,
        priority: 0,
        by_others: false,
        request_bytes_max: 1 << 20,
    }
}

fn attempt(number: u32) -> Attempt {
    Attempt { number, deferrals: 0, not_sent_in_a_row: 0, random: u64::MAX / 2 }
}

fn answered(status: u16, declared: Option<&str>, retry_after: Option<u64>) -> Outcome {
    let declared = declared.map(|word| Declared::parse(word).expect("a declared outcome"));
    let retry_after = retry_after.map(Duration::from_secs);
    Outcome::Answered(Answer { retry_after, ..Answer::new(status, declared) })
}

fn show(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Done { next } => format!("done, next {}", next.as_str()),
        Verdict::Stale => verdict.as_str().to_owned(),
        Verdict::Retry { after, reason } => format!("retry in {after:?}: {reason}"),
        Verdict::Defer { after, reason, counted } => format!("defer {after:?} counted={counted}: {reason}"),
        Verdict::Park { reason } => format!("park: {reason}"),
        Verdict::Unknown { reason } => format!("unknown: {reason}"),
    }
}

fn check(cases: &[(u16, Option<&str>, Option<u64>)], number: u32, expected: &Expect) {
    let lines: Vec<String> = cases
        .iter()
        .map(|&(status, declared, retry_after)| {
            let verdict = judge(&policy(), attempt(number), &answered(status, declared, retry_after));
            format!("{status} {} → {}\n", declared.unwrap_or("-"), show(&verdict))
        })
        .collect();
    expected.assert_eq(&lines.concat());
}

#[test]
fn the_receivers_word_decides() {
    check(
        &[
            (200, Some("done"), None),
            (409, Some("already-done"), None),
            (202, Some("accepted"), None),
            (409, Some("in-progress"), None),
            (503, Some("retry"), None),
            (503, Some("retry"), Some(60)),
            (422, Some("permanent"), None),
            (404, Some("permanent"), None),
            (412, Some("stale"), None),
            (200, Some("unknown"), None),
        ],
        1,
        &expect![[r#"
            200 done → done, next DONE
            409 already-done → done, next DONE
            202 accepted → park: ACCEPTED: the stage is not declared asynchronous (HTTP 202)
            409 in-progress → defer 99.999ms counted=true: IN_PROGRESS (HTTP 409)
            503 retry → retry in 499.999ms: NOT_PROCESSED (HTTP 503)
            503 retry → defer 65.999999s counted=true: NOT_PROCESSED (HTTP 503)
            422 permanent → park: PERMANENT (HTTP 422)
            404 permanent → park: PERMANENT (HTTP 404)
            412 stale → stale
            200 unknown → unknown: UNKNOWN: the receiver says so (HTTP 200)
        "#]],
    );
}

#[test]
fn a_bare_status_may_be_a_proxys() {
    check(
        &[
            (200, None, None),
            (201, None, None),
            (204, None, None),
            (202, None, None),
            (307, None, None),
            (400, None, None),
            (404, None, None),
            (409, None, None),
            (410, None, None),
            (412, None, None),
            (413, None, None),
            (422, None, None),
            (429, None, Some(60)),
            (429, None, None),
            (500, None, None),
            (502, None, None),
            (503, None, None),
            (599, None, None),
            (101, None, None),
            (999, None, None),
        ],
        2,
        &expect![[r#"
            200 - → done, next DONE
            201 - → done, next DONE
            204 - → done, next DONE
            202 - → park: ACCEPTED: the stage is not declared asynchronous (HTTP 202)
            307 - → park: REDIRECTED: never followed, correct the stage's URL (HTTP 307)
            400 - → park: PERMANENT (HTTP 400)
            404 - → retry in 60s: SUSPECT_CONFIGURATION (HTTP 404)
            409 - → defer 99.999ms counted=true: IN_PROGRESS (HTTP 409)
            410 - → park: PERMANENT (HTTP 410)
            412 - → park: PERMANENT (HTTP 412)
            413 - → park: TOO_LARGE (HTTP 413)
            422 - → park: PERMANENT (HTTP 422)
            429 - → defer 65.999999s counted=true: NOT_PROCESSED (HTTP 429)
            429 - → retry in 999.999ms: NOT_PROCESSED (HTTP 429)
            500 - → retry in 999.999ms: UNKNOWN (HTTP 500)
            502 - → retry in 999.999ms: UNKNOWN (HTTP 502)
            503 - → retry in 999.999ms: UNKNOWN (HTTP 503)
            599 - → retry in 999.999ms: UNKNOWN (HTTP 599)
            101 - → retry in 60s: SUSPECT_CONFIGURATION (HTTP 101)
            999 - → retry in 60s: SUSPECT_CONFIGURATION (HTTP 999)
        "#]],
    );
}

#[test]
fn the_answer_names_the_way_on_and_one_that_cannot_be_followed_needs_a_person() {
    let several = ["APPROVAL", "REFERRAL", "DONE"].map(Next::of).to_vec();
    let show_all = |ways: Vec<Next>| -> String {
        let policy = StagePolicy { next: ways, ..policy() };
        let named = [None, Some("REFERRAL"), Some("DONE"), Some("referral"), Some("a\n\"b")];
        let lines = named.map(|named| {
            let next = named.map(str::to_owned);
            let answer = Answer { replayed: true, next, ..Answer::new(200, Some(Declared::Done)) };
            format!("{named:?} → {}\n", show(&judge(&policy, attempt(5), &Outcome::Answered(answer))))
        });
        lines.concat()
    };
    expect![[r#"
        None → park: NEXT_MISSING: the stage is done and has several ways on, and Postrider-Next names none (HTTP 200)
        Some("REFERRAL") → done, next REFERRAL
        Some("DONE") → done, next DONE
        Some("referral") → park: NEXT_UNKNOWN: the stage is done, and Postrider-Next names "referral", which is no way on from it (HTTP 200)
        Some("a\n\"b") → park: NEXT_UNKNOWN: the stage is done, and Postrider-Next names "a\n\"b", which is no way on from it (HTTP 200)
    "#]].assert_eq(&show_all(several));
    expect![[r#"
        None → done, next REFERRAL
        Some("REFERRAL") → done, next REFERRAL
        Some("DONE") → park: NEXT_UNKNOWN: the stage is done, and Postrider-Next names "DONE", which is no way on from it (HTTP 200)
        Some("referral") → park: NEXT_UNKNOWN: the stage is done, and Postrider-Next names "referral", which is no way on from it (HTTP 200)
        Some("a\n\"b") → park: NEXT_UNKNOWN: the stage is done, and Postrider-Next names "a\n\"b", which is no way on from it (HTTP 200)
    "#]].assert_eq(&show_all(vec![Next::of("REFERRAL")]));
}

#[test]
fn the_last_attempt_parks_what_is_known_and_keeps_what_is_not_as_unknown() {
    check(
        &[(500, None, None), (503, Some("retry"), None), (404, None, None), (429, None, Some(1))],
        5,
        &expect![[r#"
            500 - → unknown: AT_LIMIT: UNKNOWN (HTTP 500)
            503 retry → park: ATTEMPTS_USED_UP: NOT_PROCESSED (HTTP 503)
            404 - → park: SUSPECT_CONFIGURATION (HTTP 404)
            429 - → defer 1.099999s counted=true: NOT_PROCESSED (HTTP 429)
        "#]],
    );
}

#[test]
fn what_was_not_sent_never_uses_an_attempt_even_at_the_limit() {
    let at = Attempt { not_sent_in_a_row: 3, ..attempt(5) };
    let verdict = judge(&policy(), at, &Outcome::NotSent(NotSent::Refused));
    expect!["defer 1.999999s counted=false: NOT_SENT: connection refused"].assert_eq(&show(&verdict));
}

#[test]
fn deferrals_have_a_budget_of_their_own() {
    let at = Attempt { deferrals: 10, ..attempt(1) };
    let verdict = judge(&policy(), at, &answered(429, None, Some(1)));
    expect!["park: DEFERRALS_USED_UP: NOT_PROCESSED (HTTP 429)"].assert_eq(&show(&verdict));
    // Where nobody counts them, being put off uses an attempt: a limit must hold.
    let uncounted = StagePolicy { deferral_limit: None, ..policy() };
    let verdict = |number, status| show(&judge(&uncounted, attempt(number), &answered(status, None, Some(1))));
    expect!["retry in 1.099999s: NOT_PROCESSED (HTTP 429)"].assert_eq(&verdict(1, 429));
    expect!["retry in 1.099999s: IN_PROGRESS (HTTP 409)"].assert_eq(&verdict(4, 409));
    expect!["park: ATTEMPTS_USED_UP: NOT_PROCESSED (HTTP 429)"].assert_eq(&verdict(5, 429));
}

#[test]
fn e53_a_herd_that_was_put_off_for_a_minute_comes_back_over_twelve_seconds_and_used_no_attempt() {
    // As far apart as 500 draws of an even generator: multiples of the golden ratio.
    let draws = (1..=500).map(|n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).chain([0, u64::MAX]);
    let mut seconds = std::collections::BTreeMap::new();
    for random in draws {
        let at = Attempt { random, ..attempt(1) };
        let Verdict::Defer { after, counted, .. } = judge(&policy(), at, &answered(429, None, Some(60))) else {
            unreachable!("429 with Retry-After is a deferral")
        };
        assert!(counted && (Duration::from_secs(60)..=Duration::from_secs(72)).contains(&after), "{after:?}");
        *seconds.entry(after.as_secs()).or_insert(0) += 1;
    }
    let crowds: Vec<u32> = (60..72).map(|second| seconds.get(&second).copied().unwrap_or(0)).collect();
    assert!(crowds.iter().all(|crowd| (30..=55).contains(crowd)), "502 workflows over 12 seconds: {crowds:?}");
}

#[test]
fn e52_a_proxys_page_is_never_taken_for_the_receivers_word() {
    let bare = |status| answered(status, None, None);
    for status in [502, 504] {
        let verdict = judge(&policy(), attempt(1), &bare(status));
        assert!(matches!(&verdict, Verdict::Retry { reason, .. } if reason.starts_with("UNKNOWN")), "{verdict:?}");
        let last = judge(&policy(), attempt(5), &bare(status));
        assert!(matches!(&last, Verdict::Unknown { reason } if reason.starts_with("AT_LIMIT: UNKNOWN")), "{last:?}");
    }
    let reasons = [1, 2, 3].map(|number| show(&judge(&policy(), attempt(number), &bare(404))));
    expect![[r#"
        [
            "retry in 60s: SUSPECT_CONFIGURATION (HTTP 404)",
            "retry in 60s: SUSPECT_CONFIGURATION (HTTP 404)",
            "park: SUSPECT_CONFIGURATION (HTTP 404)",
        ]
    "#]]
    .assert_debug_eq(&reasons);
}

#[test]
fn e55_a_redirect_parks_the_row() {
    for status in [301, 302, 303, 307, 308] {
        let verdict = judge(&policy(), attempt(1), &answered(status, None, None));
        assert!(matches!(&verdict, Verdict::Park { reason } if reason.starts_with("REDIRECTED")), "{verdict:?}");
    }
}

#[test]
fn e56_refused_is_not_sent_and_a_reset_behind_the_request_is_unknown() {
    let refused = judge(&policy(), attempt(1), &Outcome::NotSent(NotSent::Refused));
    assert!(matches!(refused, Verdict::Defer { counted: false, .. }), "{refused:?}");
    let reset = judge(&policy(), attempt(1), &Outcome::Lost(Lost::Reset));
    assert!(matches!(&reset, Verdict::Retry { reason, .. } if reason.starts_with("UNKNOWN")), "{reset:?}");
    let last = judge(&policy(), attempt(5), &Outcome::Lost(Lost::Reset));
    assert!(matches!(last, Verdict::Unknown { .. }), "{last:?}");
}

#[test]
fn back_off_doubles_to_its_ceiling_and_never_overflows() {
    let backoff = policy().backoff;
    let ceilings: Vec<u64> = [1, 2, 3, 6, 7, 32, 33, 64, u32::MAX]
        .iter()
        .map(|n| backoff.jittered(*n, u64::MAX).as_secs_f64().round() as u64)
        .collect();
    assert_eq!(ceilings, [1, 2, 4, 32, 60, 60, 60, 60, 60]);
    assert_eq!(backoff.jittered(9, 0), Duration::ZERO);
}

/// The judgement of a row that is still the claim's: its receiver said success and has not moved it on.
#[test]
fn of_a_receiver_that_moves_rows_on_a_success_alone_is_none() {
    let policy = StagePolicy { class: StageClass::SameTx, ..policy() };
    for (status, declared) in [(200, None), (204, Some("done")), (409, Some("already-done"))] {
        let verdict = judge(&policy, attempt(1), &answered(status, declared, None));
        assert!(show(&verdict).starts_with("park: NOT_ADVANCED: "), "{}", show(&verdict));
    }
    let lost = judge(&policy, attempt(1), &Outcome::Lost(Lost::Timeout));
    assert!(matches!(lost, Verdict::Retry { .. }), "a request that comes late finds its fence raised");
}

#[test]
fn e12_a_row_that_rests_names_the_body_of_the_answer_that_put_it_there() {
    let with_body = |status| match answered(status, None, None) {
        Outcome::Answered(answer) => Outcome::Answered(Answer { body_sha256: Some([0xAB; 32]), ..answer }),
        other => other,
    };
    let body = format!("body sha256 {}", "ab".repeat(32));
    let last = judge(&policy(), attempt(5), &with_body(500));
    assert_eq!(show(&last), format!("unknown: AT_LIMIT: UNKNOWN (HTTP 500), {body}"));
    let parked = judge(&policy(), attempt(1), &with_body(422));
    assert_eq!(show(&parked), format!("park: PERMANENT (HTTP 422), {body}"));
    assert!(!show(&judge(&policy(), attempt(1), &with_body(500))).contains("sha256"), "it does not rest yet");
}
