//! The meaning of what is said of a stage for `check` alone.

use crate::config::meaning::Reader;
use crate::config::place::At;
use crate::config::table::Names;
use std::collections::BTreeSet;

/// What a team says of a stage, and no executor acts on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Declared {
    /// Rows begin in it.
    pub(crate) is_entry: bool,
    pub(crate) effects: BTreeSet<Effect>,
}

/// What a stage's receiver does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Effect {
    /// It writes to its own database.
    Database,
    /// It calls somebody else.
    External,
    /// It cannot be taken back.
    Irreversible,
}

impl Reader<'_> {
    pub(super) fn declared(&mut self, is_first: bool, entry: Option<At<bool>>, effects: Option<At<Names>>) -> Declared {
        let words = effects.map(|effects| effects.value.0).unwrap_or_default();
        let effects = words.iter().filter_map(|word| self.effect(word)).collect();
        Declared { is_entry: entry.map_or(is_first, |entry| entry.value), effects }
    }

    fn effect(&mut self, word: &At<String>) -> Option<Effect> {
        match word.value.as_str() {
            "database" => Some(Effect::Database),
            "external" => Some(Effect::External),
            "irreversible" => Some(Effect::Irreversible),
            _ => {
                self.word(word, "work.stage.effects", &["database", "external", "irreversible"], &[]);
                None
            }
        }
    }
}
