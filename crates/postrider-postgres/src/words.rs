//! The words of a work table's states, as SQL.

use postrider_core::work::{StageState, StateWords};

use crate::quote::quote_literal;

/// Behind a text of SQL: it is one of the words for these states.
pub(crate) fn one_of(words: &StateWords, states: &[StageState]) -> String {
    compared(words, states, ("=", "IN"))
}

/// Behind a text of SQL: it is none of the words for these states.
pub(crate) fn none_of(words: &StateWords, states: &[StageState]) -> String {
    compared(words, states, ("<>", "NOT IN"))
}

/// The word that is written for the state which `text`, a text of SQL, is a word for; any other text is itself.
pub(crate) fn written(words: &StateWords, text: &str) -> String {
    let further = StageState::ALL.into_iter().flat_map(|state| {
        let written = quote_literal(words.word(state));
        words.words(state).skip(1).map(move |word| format!(" WHEN {} THEN {written}", quote_literal(word)))
    });
    let cases: String = further.collect();
    if cases.is_empty() { text.to_owned() } else { format!("CASE {text}{cases} ELSE {text} END") }
}

/// One word is compared as it is: the server plans that best.
fn compared(words: &StateWords, states: &[StageState], (alone, many): (&str, &str)) -> String {
    let literals: Vec<String> = states.iter().flat_map(|state| words.words(*state)).map(quote_literal).collect();
    match &literals[..] {
        [word] => format!("{alone} {word}"),
        words => format!("{many} ({})", words.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_with_one_word_is_compared_with_it_and_one_with_several_with_all() {
        let own = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let words = [(StageState::Pending, own(&["NEW", "it's"])), (StageState::Done, own(&["OK"]))];
        let words = StateWords::new(&words.into()).expect("words of their own");
        assert_eq!(one_of(&words, &[StageState::Done]), "= 'OK'");
        assert_eq!(none_of(&words, &[StageState::Done]), "<> 'OK'");
        assert_eq!(one_of(&words, &[StageState::Pending]), "IN ('NEW', 'it''s')");
        assert_eq!(none_of(&words, &[StageState::Retry, StageState::Pending]), "NOT IN ('RETRY', 'NEW', 'it''s')");
        assert_eq!(written(&words, "s"), "CASE s WHEN 'it''s' THEN 'NEW' ELSE s END");
        assert_eq!(written(&StateWords::default(), "s"), "s");
    }
}
