#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use crate::executor::play::{Play, stage};
use crate::settings::EndpointPolicy;
use postrider_core::rate::Rate;
use std::collections::BTreeMap;
use std::time::Duration;

fn per_second(calls: u32, burst: u32) -> Rate {
    Rate { calls, per: Duration::from_secs(1), burst }
}

#[test]
fn an_endpoint_and_a_stage_see_no_more_calls_than_their_rates_allow_and_get_them_all() {
    let (shared, own) = (per_second(100, 10), per_second(30, 3));
    let policy = EndpointPolicy { rate: Some(shared), concurrency: None };
    let stages =
        vec![stage("A", "http://core", Some(own)), stage("B", "http://core", None), stage("C", "http://else", None)];
    let mut play = Play::new(stages, BTreeMap::from([("http://core".into(), policy)]));
    for name in ["A", "B", "C"] {
        play.submit(name, 300);
    }
    play.run();
    assert_eq!(play.left.len(), 900, "every call leaves");
    play.assert_paced(&["A", "B"], shared);
    play.assert_paced(&["A"], own);
    // What a claim that stands still was promised is kept back for it, so these rates are not always reached; a third of them is.
    assert!(play.took() < Duration::from_secs(30), "300 calls at 30 a second took {:?}", play.took());
}

#[test]
fn an_endpoint_gets_no_more_calls_at_once_than_it_takes_however_many_stages_it_has() {
    let policy = EndpointPolicy { rate: None, concurrency: Some(5) };
    let stages = vec![stage("A", "http://core", None), stage("B", "http://core", None)];
    let mut play = Play::new(stages, BTreeMap::from([("http://core".into(), policy)]));
    play.submit("A", 50);
    play.submit("B", 50);
    play.run();
    assert_eq!((play.left.len(), play.most), (100, 5));
}
