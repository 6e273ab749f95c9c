//! An event as JSON, the same in every sink that writes JSON.

use data_encoding::BASE64;
use postrider_core::event::{Event, Payload};
use postrider_core::time::Timestamp;

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// Appends the event as one JSON object with the keys `id`, `position`, `source`, `type`, `key`, `topic`, `time`, `headers`,
/// `payload`, in this order, all always there.
///
/// Headers and a JSON payload stand in it byte for byte as the column has them; a text payload is a JSON string, a binary
/// one `{"base64": "…"}`.
pub fn render(event: &Event, out: &mut Vec<u8>) {
    push_member(out, "{\"id\":", Some(&event.id));
    push_member(out, ",\"position\":", Some(&event.position.to_string()));
    push_member(out, ",\"source\":", Some(&event.source));
    push_member(out, ",\"type\":", event.event_type.as_deref());
    push_member(out, ",\"key\":", event.key.as_deref());
    push_member(out, ",\"topic\":", event.topic.as_deref());
    push_member(out, ",\"time\":", Some(&rfc3339(event.committed_at)));
    out.extend_from_slice(b",\"headers\":");
    out.extend_from_slice(event.headers.as_deref().unwrap_or(b"null"));
    out.extend_from_slice(b",\"payload\":");
    push_payload(out, &event.payload);
    out.push(b'}');
}

/// An instant as RFC 3339 has it, in UTC, with microseconds.
pub fn rfc3339(instant: Timestamp) -> String {
    let micros = instant.0.rem_euclid(MICROS_PER_SECOND);
    let seconds = instant.0.div_euclid(MICROS_PER_SECOND);
    let (year, month, day) = civil(seconds.div_euclid(SECONDS_PER_DAY));
    let of_day = seconds.rem_euclid(SECONDS_PER_DAY);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

fn push_member(out: &mut Vec<u8>, name: &str, value: Option<&str>) {
    out.extend_from_slice(name.as_bytes());
    match value {
        Some(text) => push_string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

fn push_payload(out: &mut Vec<u8>, payload: &Payload) {
    match payload {
        Payload::Null => out.extend_from_slice(b"null"),
        Payload::Json(json) => out.extend_from_slice(json),
        Payload::Text(text) => push_string(out, &String::from_utf8_lossy(text)),
        Payload::Binary(bytes) => {
            out.extend_from_slice(b"{\"base64\":\"");
            out.extend_from_slice(BASE64.encode(bytes).as_bytes());
            out.extend_from_slice(b"\"}");
        }
    }
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string is always JSON and a vector takes every write");
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Counts in years that begin in March,
/// so that the leap day is the last of its year, and in eras of 400 years, which all have the same length.
fn civil(day_count: i64) -> (i64, i64, i64) {
    const DAYS_PER_ERA: i64 = 146_097;
    const DAYS_BEFORE_1970: i64 = 719_468;
    let shifted = day_count + DAYS_BEFORE_1970;
    let era = shifted.div_euclid(DAYS_PER_ERA);
    let day_of_era = shifted.rem_euclid(DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;
    use bytes::Bytes;
    use expect_test::{Expect, expect};
    use postrider_core::position::{Generation, Lsn, Position};

    fn event(payload: Payload) -> Event {
        Event {
            id: "0b\"1".into(),
            position: Position { generation: Generation(1), commit_lsn: Lsn(0x16_B374_D848), ordinal: 3 },
            committed_at: Timestamp(1_700_000_000_123_456),
            source: "public.outbox_event".into(),
            key: Some("q-1".into()),
            event_type: Some("QuotePriced".into()),
            topic: None,
            headers: Some(Bytes::from_static(b"{\"a\": 1}")),
            payload,
        }
    }

    fn check(event: &Event, expected: &Expect) {
        let mut out = Vec::new();
        render(event, &mut out);
        serde_json::from_slice::<serde_json::Value>(&out).unwrap();
        expected.assert_eq(&String::from_utf8(out).unwrap());
    }

    #[test]
    fn json_stands_as_it_is() {
        check(
            &event(Payload::Json(Bytes::from_static(b"{\"n\": 1.00, \"n\": 2}"))),
            &expect![[
                r#"{"id":"0b\"1","position":"1:16/B374D848:3","source":"public.outbox_event","type":"QuotePriced","key":"q-1","topic":null,"time":"2023-11-14T22:13:20.123456Z","headers":{"a": 1},"payload":{"n": 1.00, "n": 2}}"#
            ]],
        );
    }

    #[test]
    fn what_is_not_json_is_wrapped() {
        let bare =
            |payload| Event { key: None, event_type: None, headers: None, topic: Some("t".into()), ..event(payload) };
        check(
            &bare(Payload::Null),
            &expect![[
                r#"{"id":"0b\"1","position":"1:16/B374D848:3","source":"public.outbox_event","type":null,"key":null,"topic":"t","time":"2023-11-14T22:13:20.123456Z","headers":null,"payload":null}"#
            ]],
        );
        check(
            &bare(Payload::Text(Bytes::from_static("a\n\"ü\"\u{1}".as_bytes()))),
            &expect![[
                r#"{"id":"0b\"1","position":"1:16/B374D848:3","source":"public.outbox_event","type":null,"key":null,"topic":"t","time":"2023-11-14T22:13:20.123456Z","headers":null,"payload":"a\n\"ü\"\u0001"}"#
            ]],
        );
        check(
            &bare(Payload::Binary(Bytes::from_static(&[0, 255, 16, 7]))),
            &expect![[
                r#"{"id":"0b\"1","position":"1:16/B374D848:3","source":"public.outbox_event","type":null,"key":null,"topic":"t","time":"2023-11-14T22:13:20.123456Z","headers":null,"payload":{"base64":"AP8QBw=="}}"#
            ]],
        );
    }

    #[test]
    fn instants_are_rendered_in_the_gregorian_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000000Z"),
        ] {
            assert_eq!(rfc3339(Timestamp(seconds * MICROS_PER_SECOND)), text);
        }
        rfc3339(Timestamp(i64::MAX));
        rfc3339(Timestamp(i64::MIN));
    }
}
