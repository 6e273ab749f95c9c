//! The parameters as they were given: by the string, by a service, by the environment, in this order.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_core::error::Result;

use super::keyword::{self, KEYWORDS};
use super::service;
use super::text::{Pairs, invalid, pairs};

/// Every parameter that somebody gave.
pub(crate) struct Given {
    values: BTreeMap<&'static str, Value>,
}

struct Value {
    text: String,
    /// The parameter's name, or that of the variable it came from.
    label: &'static str,
}

impl Given {
    /// Reads them all, and refuses what is not supported.
    pub(crate) fn gather(address: &str, environment: &BTreeMap<String, String>) -> Result<Given> {
        let mut given = Given { values: BTreeMap::new() };
        given.add(pairs(address)?)?;
        let variable = |name: &str| environment.get(name).filter(|value| !value.is_empty()).cloned();
        let named = given.text("service").map(|(_, name)| name.to_owned()).or_else(|| variable("PGSERVICE"));
        if let Some(service) = named {
            let mut of_service = Given { values: BTreeMap::new() };
            // The first of a repeated key wins in a service.
            of_service.add(service::read(&service, environment)?.into_iter().rev().collect())?;
            for (name, value) in of_service.values {
                given.values.entry(name).or_insert(value);
            }
        }
        for keyword in &KEYWORDS {
            let Some((label, text)) = keyword.variable.and_then(|name| Some((name, variable(name)?))) else { continue };
            if !given.values.contains_key(keyword.name) {
                keyword.check(label, &text)?;
                given.values.insert(keyword.name, Value { text, label });
            }
        }
        given.resolve_old_word();
        Ok(given)
    }

    /// The text of a parameter, and what to call it; an empty one is none.
    pub(crate) fn text(&self, name: &str) -> Option<(&'static str, &str)> {
        let Value { text, label } = self.values.get(name)?;
        (!text.is_empty()).then_some((*label, text.as_str()))
    }

    /// The text alone.
    pub(crate) fn plain(&self, name: &str) -> Option<String> {
        self.text(name).map(|(_, text)| text.to_owned())
    }

    /// Whether it was the string or the service that gave it.
    pub(crate) fn is_in_address(&self, name: &str) -> bool {
        self.text(name).is_some_and(|(label, _)| label == name)
    }

    /// One of some words.
    pub(crate) fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some((label, text)) = self.text(name) else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, meaning)) => Ok(Some(*meaning)),
            None => {
                let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                Err(invalid(format!("`{label}` is an unknown word."), format!("Use one of {}.", known.join(", "))))
            }
        }
    }

    /// A whole number, as libpq reads it.
    pub(crate) fn number(&self, name: &str) -> Result<Option<i32>> {
        let Some((label, text)) = self.text(name) else { return Ok(None) };
        match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(invalid(format!("`{label}` is no whole number."), "Write digits only.")),
        }
    }

    /// A number of units, `default` where it is not given, and `None` for zero or less.
    pub(crate) fn span(&self, name: &str, unit: Duration, default: Duration) -> Result<Option<Duration>> {
        Ok(match self.number(name)? {
            None => Some(default),
            Some(number) => {
                u32::try_from(number).ok().filter(|&number| number > 0).map(|number| unit.saturating_mul(number))
            }
        })
    }

    fn add(&mut self, pairs: Pairs) -> Result<()> {
        for (keyword, text) in pairs {
            keyword.check(keyword.name, &text)?;
            self.values.insert(keyword.name, Value { text, label: keyword.name });
        }
        Ok(())
    }

    /// `requiressl=1` is what `sslmode=require` was called once; it holds where `sslmode` is not given.
    fn resolve_old_word(&mut self) {
        let asks = self.text("requiressl").is_some_and(|(_, text)| text.starts_with('1'));
        if asks && let Some(keyword) = keyword::find("sslmode") {
            self.values.entry(keyword.name).or_insert(Value { text: "require".to_owned(), label: "requiressl" });
        }
    }
}
