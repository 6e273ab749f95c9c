//! HTTP header values from text of any kind, and back.

use hyper::HeaderMap;
use hyper::header::{DATE, HeaderName, HeaderValue, RETRY_AFTER};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use std::time::Duration;

pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
pub(crate) const POSTRIDER_ATTEMPT: HeaderName = HeaderName::from_static("postrider-attempt");
pub(crate) const POSTRIDER_DEADLINE: HeaderName = HeaderName::from_static("postrider-deadline");
pub(crate) const POSTRIDER_DEFINITION: HeaderName = HeaderName::from_static("postrider-definition");
pub(crate) const POSTRIDER_FENCE: HeaderName = HeaderName::from_static("postrider-fence");
pub(crate) const POSTRIDER_NEXT: HeaderName = HeaderName::from_static("postrider-next");
pub(crate) const POSTRIDER_OUTCOME: HeaderName = HeaderName::from_static("postrider-outcome");
pub(crate) const POSTRIDER_POSITION: HeaderName = HeaderName::from_static("postrider-position");
pub(crate) const POSTRIDER_STAGE: HeaderName = HeaderName::from_static("postrider-stage");
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
pub(crate) const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
pub(crate) const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");

/// The longest wait that a `Retry-After` may ask for; a longer one is taken as this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What a header value cannot carry: controls, and, as always with this crate, all that is not ASCII.
const UNSENDABLE: &AsciiSet = CONTROLS;
/// What a quoted structured-field string cannot carry as it is (RFC 8941, 3.3.3).
const UNQUOTABLE: &AsciiSet = &CONTROLS.add(b'"').add(b'\\');

/// Text as a header value; what a header cannot carry is percent-encoded.
pub(crate) fn text(text: &str) -> HeaderValue {
    value(&utf8_percent_encode(text, UNSENDABLE).to_string())
}

/// Text as a quoted structured-field string (RFC 8941, 3.3.3); what that cannot carry is percent-encoded.
pub(crate) fn quoted(text: &str) -> HeaderValue {
    value(&format!("\"{}\"", utf8_percent_encode(text, UNQUOTABLE)))
}

/// The text that a header's value stands for: what is percent-encoded is what it was; bytes that are no UTF-8 are replaced.
pub(crate) fn decoded(value: &str) -> String {
    percent_decode_str(value).decode_utf8_lossy().into_owned()
}

/// The value of a header that is there exactly once and is readable; a header given twice says nothing.
pub(crate) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok().map(str::trim),
        _ => None,
    }
}

/// The `Retry-After` header as a span from now (RFC 9110, 10.2.3): seconds as they are, a date relative to the answer's
/// own `Date`, so that no clock of ours takes part. A date without a `Date` says nothing.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let asked = single(headers, &RETRY_AFTER)?;
    if !asked.is_empty() && asked.bytes().all(|b| b.is_ascii_digit()) {
        // Only a number too large for 64 bits fails to parse here.
        return Some(asked.parse().map_or(RETRY_AFTER_MAX, Duration::from_secs).min(RETRY_AFTER_MAX));
    }
    let until = httpdate::parse_http_date(asked).ok()?;
    let from = httpdate::parse_http_date(single(headers, &DATE)?).ok()?;
    Some(until.duration_since(from).unwrap_or(Duration::ZERO).min(RETRY_AFTER_MAX))
}

fn value(visible: &str) -> HeaderValue {
    HeaderValue::from_str(visible).expect("only visible ASCII and spaces are left after encoding")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for &(name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn any_text_becomes_a_header_value() {
        assert_eq!(text("quote@3"), "quote@3");
        assert_eq!(text("a\r\nX-Evil: 1"), "a%0D%0AX-Evil: 1");
        assert_eq!(text("größe"), "gr%C3%B6%C3%9Fe");
        assert_eq!(quoted("g%2F1/q/PRICING/0"), "\"g%2F1/q/PRICING/0\"");
        assert_eq!(quoted("a\"b\\c"), "\"a%22b%5Cc\"");
    }

    #[test]
    fn an_encoded_name_is_read_back() {
        assert_eq!(decoded("REFERRAL"), "REFERRAL");
        assert_eq!(decoded("PR%C3%9CFUNG 2%25"), "PRÜFUNG 2%");
        assert_eq!(decoded("a%FFb"), "a\u{fffd}b");
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let now = ("date", "Tue, 15 Nov 1994 08:12:31 GMT");
        let seconds = |pairs: &[_]| retry_after(&map(pairs)).map(|span| span.as_secs());
        assert_eq!(seconds(&[("retry-after", "120")]), Some(120));
        assert_eq!(seconds(&[("retry-after", "0")]), Some(0));
        assert_eq!(seconds(&[now, ("retry-after", "Tue, 15 Nov 1994 08:13:01 GMT")]), Some(30));
        assert_eq!(seconds(&[now, ("retry-after", "Tuesday, 15-Nov-94 08:13:01 GMT")]), Some(30));
        assert_eq!(seconds(&[now, ("retry-after", "Tue Nov 15 08:13:01 1994")]), Some(30));
        assert_eq!(seconds(&[now, ("retry-after", "Tue, 15 Nov 1994 08:00:00 GMT")]), Some(0));
        assert_eq!(seconds(&[("retry-after", "Tue, 15 Nov 1994 08:13:01 GMT")]), None);
        assert_eq!(seconds(&[("retry-after", "99999999999999999999999")]), Some(RETRY_AFTER_MAX.as_secs()));
        for bad in ["", "-1", "+1", "1.5", "soon"] {
            assert_eq!(seconds(&[now, ("retry-after", bad)]), None, "{bad:?}");
        }
    }

    #[test]
    fn a_header_given_twice_says_nothing() {
        assert_eq!(single(&map(&[("postrider-outcome", " done ")]), &POSTRIDER_OUTCOME), Some("done"));
        assert_eq!(
            single(&map(&[("postrider-outcome", "done"), ("postrider-outcome", "stale")]), &POSTRIDER_OUTCOME),
            None
        );
    }
}
