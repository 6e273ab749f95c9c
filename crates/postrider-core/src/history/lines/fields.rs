//! The fields of one JSON object, each taken once, so that what is left over is known.

use crate::position::Lsn;
use crate::work::WorkKey;
use serde_json::{Map, Value};

/// What is wrong with a line, and the cure.
#[derive(Debug)]
pub(super) struct Problem {
    pub problem: String,
    pub cure: String,
}

impl Problem {
    pub(super) fn new(problem: impl Into<String>, cure: impl Into<String>) -> Problem {
        Problem { problem: problem.into(), cure: cure.into() }
    }
}

#[derive(Debug)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn of(line: &str) -> Result<Fields, Problem> {
        let value = serde_json::from_str(line).map_err(|error| {
            let problem = format!("it is no JSON at column {}", error.column());
            Problem::new(problem, "Each line is one JSON object. Where the file's last line was cut, delete it.")
        })?;
        Fields::of_value(value)
    }

    fn of_value(value: Value) -> Result<Fields, Problem> {
        match value {
            Value::Object(map) => Ok(Fields(map)),
            other => Err(Problem::new(format!("{other} is no object"), "Each line is one JSON object.")),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// No field is left over.
    pub(super) fn end(self) -> Result<(), Problem> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => {
                Err(Problem::new(format!("the field {name} has no meaning here"), "Leave it out, or correct its name."))
            }
        }
    }

    pub(super) fn text(&mut self, name: &str) -> Result<String, Problem> {
        match self.take(name)? {
            Value::String(text) => Ok(text),
            other => Err(wrong(name, &other, "a text")),
        }
    }

    /// `None` where it is missing or null.
    pub(super) fn text_or_none(&mut self, name: &str) -> Result<Option<String>, Problem> {
        if self.has(name) {
            return self.text(name).map(Some);
        }
        self.0.remove(name);
        Ok(None)
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, Problem> {
        let value = self.take(name)?;
        value.as_bool().ok_or_else(|| wrong(name, &value, "true or false"))
    }

    pub(super) fn flag_or_false(&mut self, name: &str) -> Result<bool, Problem> {
        if self.0.contains_key(name) { self.flag(name) } else { Ok(false) }
    }

    pub(super) fn count(&mut self, name: &str) -> Result<u32, Problem> {
        let value = self.take(name)?;
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
        count.ok_or_else(|| wrong(name, &value, "a whole number from 0"))
    }

    pub(super) fn count_or_zero(&mut self, name: &str) -> Result<u32, Problem> {
        if self.0.contains_key(name) { self.count(name) } else { Ok(0) }
    }

    pub(super) fn signed(&mut self, name: &str) -> Result<i64, Problem> {
        let value = self.take(name)?;
        value.as_i64().ok_or_else(|| wrong(name, &value, "a whole number"))
    }

    pub(super) fn signed_or_zero(&mut self, name: &str) -> Result<i64, Problem> {
        if self.0.contains_key(name) { self.signed(name) } else { Ok(0) }
    }

    pub(super) fn lsn(&mut self, name: &str) -> Result<Lsn, Problem> {
        let value = self.take(name)?;
        lsn(name, &value)
    }

    pub(super) fn lsns(&mut self, name: &str) -> Result<Vec<(String, Lsn)>, Problem> {
        let Fields(map) = Fields::of_value(self.take(name)?)?;
        map.into_iter().map(|(name, value)| lsn(&name, &value).map(|lsn| (name, lsn))).collect()
    }

    pub(super) fn key(&mut self, name: &str) -> Result<WorkKey, Problem> {
        let parts = self.texts(name)?;
        if parts.is_empty() {
            return Err(Problem::new(format!("{name} is empty"), "Give the texts of the key's columns."));
        }
        Ok(WorkKey::new(parts))
    }

    pub(super) fn texts(&mut self, name: &str) -> Result<Vec<String>, Problem> {
        let text = |value| match value {
            Value::String(text) => Ok(text),
            other => Err(wrong(name, &other, "a list of texts")),
        };
        self.list(name, "a list of texts")?.into_iter().map(text).collect()
    }

    pub(super) fn objects(&mut self, name: &str) -> Result<Vec<Fields>, Problem> {
        self.list(name, "a list of objects")?.into_iter().map(Fields::of_value).collect()
    }

    pub(super) fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Result<T, Problem> {
        let text = self.text(name)?;
        words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            Problem::new(format!("{name} is {text}"), format!("It is one of {}.", names(&words)))
        })
    }

    fn list(&mut self, name: &str, what: &str) -> Result<Vec<Value>, Problem> {
        match self.take(name)? {
            Value::Array(values) => Ok(values),
            other => Err(wrong(name, &other, what)),
        }
    }

    fn take(&mut self, name: &str) -> Result<Value, Problem> {
        self.0.remove(name).ok_or_else(|| {
            Problem::new(
                format!("the field {name} is missing"),
                "docs/history-format.md has the fields of each record.",
            )
        })
    }
}

fn lsn(name: &str, value: &Value) -> Result<Lsn, Problem> {
    let parsed = value.as_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| wrong(name, value, "a position as the server writes it, as in \"0/16B3748\""))
}

fn wrong(name: &str, value: &Value, right: &str) -> Problem {
    Problem::new(format!("{name} is {value}"), format!("It is {right}."))
}

/// Names in a sentence.
pub(super) fn names(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
