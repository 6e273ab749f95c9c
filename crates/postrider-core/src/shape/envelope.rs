//! The content of a logical message as an event's fields.

use crate::event::Payload;
use bytes::Bytes;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a message says about its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) id: Option<Arc<str>>,
    pub(super) key: Option<Arc<str>>,
    pub(super) event_type: Option<Arc<str>>,
    pub(super) topic: Option<Arc<str>>,
    pub(super) headers: Option<Bytes>,
    pub(super) payload: Payload,
}

impl Envelope {
    /// Reads an envelope, or else takes the whole content for the payload.
    pub(super) fn of(content: &[u8]) -> Envelope {
        Envelope::parse(content).unwrap_or_else(|| Envelope {
            id: None,
            key: None,
            event_type: None,
            topic: None,
            headers: None,
            payload: raw_payload(content),
        })
    }

    fn parse(content: &[u8]) -> Option<Envelope> {
        if !content.trim_ascii_start().starts_with(b"{") {
            return None;
        }
        let mut fields: BTreeMap<String, &RawValue> = serde_json::from_slice(content).ok()?;
        let payload = match fields.remove("payload")?.get() {
            "null" => Payload::Null,
            json => Payload::Json(Bytes::copy_from_slice(json.as_bytes())),
        };
        let envelope = Envelope {
            id: text_field(fields.remove("id"))?,
            key: text_field(fields.remove("key"))?,
            event_type: text_field(fields.remove("type"))?,
            topic: text_field(fields.remove("topic"))?,
            headers: match fields.remove("headers") {
                None => None,
                Some(json) => json_object(json.get())?,
            },
            payload,
        };
        fields.is_empty().then_some(envelope)
    }
}

/// The text of a JSON object; `Some(None)` for `null`, `None` for what is neither.
pub(super) fn json_object(text: &str) -> Option<Option<Bytes>> {
    let json: &RawValue = serde_json::from_str(text).ok()?;
    match json.get() {
        "null" => Some(None),
        object if object.starts_with('{') => Some(Some(Bytes::copy_from_slice(object.as_bytes()))),
        _ => None,
    }
}

/// A string, a number as its text, or null; `None` for anything else.
fn text_field(json: Option<&RawValue>) -> Option<Option<Arc<str>>> {
    let Some(json) = json else { return Some(None) };
    match json.get() {
        "null" => Some(None),
        text if text.starts_with('"') => Some(Some(serde_json::from_str::<String>(text).ok()?.into())),
        number if number.starts_with(|first: char| first == '-' || first.is_ascii_digit()) => Some(Some(number.into())),
        _ => None,
    }
}

fn raw_payload(content: &[u8]) -> Payload {
    let bytes = Bytes::copy_from_slice(content);
    let is_container = matches!(content.trim_ascii_start().first(), Some(b'{' | b'['));
    if is_container && serde_json::from_slice::<&RawValue>(content).is_ok() {
        Payload::Json(bytes)
    } else if std::str::from_utf8(content).is_ok() {
        Payload::Text(bytes)
    } else {
        Payload::Binary(bytes)
    }
}
