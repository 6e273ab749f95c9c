//! The meaning of the work table's own names: its columns, its words for the states, and what it does without.

use crate::config::meaning::Reader;
use crate::config::meaning::work::Mode;
use crate::config::place::{At, Place};
use crate::config::table::{Names, suggest};
use crate::config::typed;
use postrider_core::route::WorkMapping;
use postrider_core::work::{SameWord, StageState, StateWords};
use postrider_postgres::refused_columns;
use std::collections::BTreeMap;
use std::sync::Arc;

const PATH: &str = "work.columns";

/// Columns that the table is said to lack, with the places that say so.
type Lacking = Vec<(&'static str, Place)>;

impl Reader<'_> {
    /// `schema` and `table` are empty where their name was reported; the rest is read all the same, so that all problems come at once.
    pub(super) fn mapping(
        &mut self,
        (schema, table): (String, String),
        typed: typed::WorkColumns,
        states: Option<At<BTreeMap<String, At<Names>>>>,
        mode: Mode,
    ) -> WorkMapping {
        let mut lacking = Lacking::new();
        let mut optional = |typed, name| optional_column(typed, name, &mut lacking);
        let mapping = WorkMapping {
            schema,
            table,
            attempt_count: optional(typed.attempt_count, "attempt_count"),
            deferral_count: optional(typed.deferral_count, "deferral_count"),
            fence: optional(typed.fence, "fence"),
            epoch: optional(typed.epoch, "epoch"),
            next_attempt_at: optional(typed.next_attempt_at, "next_attempt_at"),
            lease_until: optional(typed.lease_until, "lease_until"),
            lease_owner: optional(typed.lease_owner, "lease_owner"),
            closed_at: optional(typed.closed_at, "closed_at"),
            definition: optional(typed.definition, "definition"),
            request_hash: optional(typed.request_hash, "request_hash"),
            payload: optional(typed.payload, "payload"),
            last_error: optional(typed.last_error, "last_error"),
            updated_at: optional(typed.updated_at, "updated_at"),
            key: self.key_columns(typed.key),
            stage: self.column(typed.stage, PATH, "stage"),
            stage_state: self.column(typed.stage_state, PATH, "stage_state"),
            states: Arc::new(self.states(states)),
        };
        if mode == Mode::Execute {
            self.refuse_lacking(&mapping, &lacking);
        }
        mapping
    }

    /// Which of the key's columns names a row's group.
    pub(super) fn fair_by(&mut self, typed: Option<At<String>>, key: &[String]) -> Option<usize> {
        let Some(column) = typed else { return (key.len() > 1).then_some(0) };
        let part = key.iter().position(|name| *name == column.value);
        if part.is_none() && !column.value.is_empty() {
            let names: Vec<&str> = key.iter().map(String::as_str).collect();
            let hint = suggest(&column.value, &names);
            let message =
                format!("`work.fair_by` names no column of `work.columns.key`, \"{}\"", column.value.escape_debug());
            self.problems.report_with_hint(column.place, message, hint);
        }
        part
    }

    fn key_columns(&mut self, typed: Option<At<Vec<At<String>>>>) -> Vec<String> {
        let Some(At { value: columns, place }) = typed else {
            return vec!["group_id".to_owned(), "quote_id".to_owned()];
        };
        if columns.is_empty() {
            self.problems.report(place, "`work.columns.key` is empty");
        }
        columns
            .into_iter()
            .filter_map(|column| self.name(Some(column), place, "work.columns.key"))
            .map(|column| column.value)
            .collect()
    }

    /// The table's own words, each for one state.
    fn states(&mut self, typed: Option<At<BTreeMap<String, At<Names>>>>) -> StateWords {
        let Some(At { value: typed, place }) = typed else { return StateWords::default() };
        let (mut own, mut places) = (BTreeMap::new(), BTreeMap::new());
        for (name, At { value: Names(words), place }) in typed {
            let Ok(state) = name.parse::<StageState>() else {
                let known = StageState::ALL.map(StageState::as_str);
                let message = format!("unknown state `{}` in `work.states`", name.escape_debug());
                self.problems.report_with_hint(place, message, suggest(&name, &known));
                continue;
            };
            let empty = words.iter().find(|word| word.value.is_empty()).map(|word| word.place);
            if let Some(place) = empty.or_else(|| words.is_empty().then_some(place)) {
                self.problems.report(place, format!("`work.states.{name}` is empty"));
                continue;
            }
            for word in &words {
                let last = places.entry(word.value.clone()).or_insert(word.place);
                *last = word.place.max(*last);
            }
            own.insert(state, words.into_iter().map(|word| word.value).collect());
        }
        StateWords::new(&own).unwrap_or_else(|same| {
            let place = places.get(&same.word).copied().unwrap_or(place);
            self.refuse_same_word(&same, place);
            StateWords::default()
        })
    }

    fn refuse_same_word(&mut self, SameWord { word, states: [one, other] }: &SameWord, place: Place) {
        let (word, state) = (word.escape_debug(), one.as_str());
        if one == other {
            let message = format!("`work.states.{state}` has the word \"{word}\" twice");
            return self.problems.report_with_hint(
                place,
                message,
                "once is enough: of several words the first is written",
            );
        }
        self.problems.report_with_hint(
            place,
            format!("`work.states` has the word \"{word}\" for {state} and for {}", other.as_str()),
            "each word is one state's; a state that is not named here has ours",
        );
    }

    fn refuse_lacking(&mut self, mapping: &WorkMapping, lacking: &Lacking) {
        for (name, why, cure) in refused_columns(mapping) {
            let place = lacking.iter().find(|(column, _)| *column == name).map_or(Place::FILE, |(_, place)| *place);
            let why = why.trim_end_matches('.');
            self.problems.report_with_hint(place, format!("`{PATH}.{name}` is empty. {why}"), cure);
        }
    }
}

/// A column's name: the typed one, or that of the key; an empty one says that there is no such column.
fn optional_column(typed: Option<At<String>>, name: &'static str, lacking: &mut Lacking) -> Option<String> {
    match typed {
        None => Some(name.to_owned()),
        Some(column) if column.value.is_empty() => {
            lacking.push((name, column.place));
            None
        }
        Some(column) => Some(column.value),
    }
}
