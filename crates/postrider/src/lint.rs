//! What is no mistake in a configuration, and still may not be meant: `check` tells it.

use crate::config::{Declared, Effect, Mode, Span, Work};
use postrider_core::stage::{StageClass, StagePolicy, Step};
use std::time::Duration;

/// One thing to tell of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lint {
    pub(crate) step: Step,
    pub(crate) severity: Severity,
    pub(crate) sentence: String,
    pub(crate) hint: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    /// It may cost something that nobody wants.
    Warning,
    /// It is good to know.
    Note,
}

/// A stage, with all that is said of it.
struct Stage<'a> {
    work: &'a Work,
    step: &'a Step,
    policy: &'a StagePolicy,
    declared: &'a Declared,
}

impl Stage<'_> {
    /// Whether its receiver gets requests from here.
    fn is_called(&self) -> bool {
        self.work.mode == Mode::Execute && !self.policy.by_others
    }
}

/// What a rule finds: how much it matters, the sentence, and what to do.
type Found = Option<(Severity, String, String)>;

/// The rules. Each looks at one stage.
const RULES: [fn(&Stage<'_>) -> Found; 6] = [
    unreachable,
    irreversible_before_the_end,
    external_beside_other_work,
    external_in_the_rows_transaction,
    keys_kept_nobody_knows_how_long,
    keys_kept_shorter_than_asked_for,
];

/// All that there is to tell, stage by stage.
pub(crate) fn lints(work: &Work) -> Vec<Lint> {
    let nothing = Declared::default();
    let mut lints = Vec::new();
    for (step, policy) in work.definitions.steps() {
        let declared = work.declared.get(&step).unwrap_or(&nothing);
        let stage = Stage { work, step: &step, policy, declared };
        let found = RULES.iter().filter_map(|rule| rule(&stage));
        lints.extend(found.map(|(severity, sentence, hint)| Lint { step: step.clone(), severity, sentence, hint }));
    }
    lints
}

/// Rows of earlier definitions are where they are; nobody inserts any more.
fn unreachable(stage: &Stage<'_>) -> Found {
    let (definitions, name) = (&stage.work.definitions, &stage.step.stage);
    let is_reached = |(step, policy): (Step, &StagePolicy)| {
        step.definition == stage.step.definition && policy.next_stages().any(|next| next == name)
    };
    if stage.step.definition != *definitions.current() || stage.declared.is_entry || definitions.steps().any(is_reached)
    {
        return None;
    }
    let sentence = "No stage leads to it, and it is not the first: no row comes to it unless one is inserted there.";
    let hint = "Name it as `next` of a stage, or say `entry = true` if rows begin in it.";
    Some((Severity::Warning, sentence.to_owned(), hint.to_owned()))
}

fn irreversible_before_the_end(stage: &Stage<'_>) -> Found {
    let after: Vec<&str> = stage.policy.next_stages().map(|next| next.as_str()).collect();
    if after.is_empty() || !stage.declared.effects.contains(&Effect::Irreversible) {
        return None;
    }
    let sentence = format!(
        "What it does cannot be taken back, and it is not the last: a workflow that fails behind it, in {}, stays half done.",
        after.join(" or ")
    );
    let hint = "Put what can fail before it.".to_owned();
    Some((Severity::Warning, sentence, hint))
}

fn external_beside_other_work(stage: &Stage<'_>) -> Found {
    let effects = &stage.declared.effects;
    if !(effects.contains(&Effect::External) && effects.contains(&Effect::Database)) {
        return None;
    }
    let sentence = "It calls somebody else and writes to a database: where the one is done and the other is not, a repeat cannot tell.";
    let hint = "Give the external call a stage of its own.";
    Some((Severity::Warning, sentence.to_owned(), hint.to_owned()))
}

fn external_in_the_rows_transaction(stage: &Stage<'_>) -> Found {
    if stage.policy.class != StageClass::SameTx || !stage.declared.effects.contains(&Effect::External) {
        return None;
    }
    let sentence = "Its class is \"same_tx\", and it calls somebody else: that is not undone where its transaction is rolled back.";
    let hint = "Give the external call a stage of its own, of another class.";
    Some((Severity::Warning, sentence.to_owned(), hint.to_owned()))
}

fn keys_kept_nobody_knows_how_long(stage: &Stage<'_>) -> Found {
    let is_said = stage.work.key_retention.contains_key(stage.step);
    if stage.policy.class != StageClass::Keyed || !stage.is_called() || is_said {
        return None;
    }
    let sentence =
        "Nothing says how long its receiver keeps an idempotency key: a row is asked for again however late.";
    Some((Severity::Note, sentence.to_owned(), "Add `key_retention = \"…\"` to the stage.".to_owned()))
}

fn keys_kept_shorter_than_asked_for(stage: &Stage<'_>) -> Found {
    let kept = *stage.work.key_retention.get(stage.step)?;
    let asked = longest(stage.policy);
    if asked <= kept || !stage.is_called() {
        return None;
    }
    let sentence = format!(
        "Its attempts can take {}, and its receiver keeps a key for {}: a late one is not made, and its row is parked (KEY_EXPIRED).",
        Span(asked),
        Span(kept)
    );
    let hint = "Lower `attempts`, `timeout` or `backoff`, or have the receiver keep its keys longer.".to_owned();
    Some((Severity::Warning, sentence, hint))
}

/// From the first attempt to the start of the last, as long as nobody puts one off.
fn longest(policy: &StagePolicy) -> Duration {
    let (mut sum, mut failures) = (Duration::ZERO, 1);
    let mut left = policy.attempt_limit.saturating_sub(1);
    while left > 0 && policy.backoff.pause(failures) < policy.backoff.max {
        sum = sum.saturating_add(policy.timeout).saturating_add(policy.backoff.pause(failures));
        failures += 1;
        left -= 1;
    }
    sum.saturating_add(policy.timeout.saturating_add(policy.backoff.max).saturating_mul(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::understand;
    use expect_test::{Expect, expect};
    use std::collections::BTreeMap;

    fn check(stages: &[&str], expected: Expect) {
        check_with("", stages, expected);
    }

    fn check_with(work: &str, stages: &[&str], expected: Expect) {
        let stages = stages.iter().map(|stage| format!("[[work.stage]]\nurl = \"http://core/\"\n{stage}\n"));
        let text = format!(
            "[source]\nurl = \"postgres://u@h/d\"\n[journal]\ndir = \"d\"\n[work]\ntable = \"w\"\n{work}{}",
            stages.collect::<String>()
        );
        let configuration = understand(&text, &BTreeMap::new()).expect("a configuration");
        let lints = lints(&configuration.work.expect("a work table"));
        let line = |lint: &Lint| format!("{:?} {}: {} {}", lint.severity, lint.step.stage, lint.sentence, lint.hint);
        expected.assert_eq(&lints.iter().map(line).collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn what_can_be_meant_is_not_told() {
        let quiet = [
            "name = \"A\"\nclass = \"natural\"\nnext = [\"B\", \"C\"]\neffects = \"database\"",
            "name = \"B\"\nclass = \"keyed\"\nkey_retention = \"1d\"\nnext = \"C\"\neffects = \"external\"",
            "name = \"C\"\nclass = \"natural\"\neffects = [\"external\", \"irreversible\"]",
            "name = \"URGENT\"\nclass = \"natural\"\nnext = \"C\"\nentry = true",
            "name = \"THEIRS\"\nclass = \"keyed\"\nnext = \"C\"\nentry = true\nby_others = true",
        ];
        check(&quiet, expect![[""]]);
    }

    #[test]
    fn where_rows_are_only_observed_nothing_is_said_of_keys_that_nobody_sends() {
        let stages = [
            "name = \"A\"\nclass = \"keyed\"\nnext = \"B\"",
            "name = \"B\"\nclass = \"keyed\"\nkey_retention = \"10m\"\nattempts = 3\nbackoff = { first = \"4m\", max = \"8m\" }",
        ];
        check_with("mode = \"observe\"\n", &stages, expect![[""]]);
    }

    #[test]
    fn each_rule_finds_its_stage() {
        let stages = [
            "name = \"A\"\nclass = \"natural\"\nnext = [\"B\", \"D\"]\neffects = \"irreversible\"",
            "name = \"B\"\nclass = \"keyed\"\neffects = [\"external\", \"database\"]",
            "name = \"C\"\nclass = \"keyed\"\nkey_retention = \"10m\"\nattempts = 3\nbackoff = { first = \"4m\", max = \"8m\" }",
            "name = \"D\"\nclass = \"same_tx\"\neffects = \"external\"",
        ];
        check(
            &stages,
            expect![[r#"
            Warning A: What it does cannot be taken back, and it is not the last: a workflow that fails behind it, in B or D, stays half done. Put what can fail before it.
            Warning B: It calls somebody else and writes to a database: where the one is done and the other is not, a repeat cannot tell. Give the external call a stage of its own.
            Note B: Nothing says how long its receiver keeps an idempotency key: a row is asked for again however late. Add `key_retention = "…"` to the stage.
            Warning C: No stage leads to it, and it is not the first: no row comes to it unless one is inserted there. Name it as `next` of a stage, or say `entry = true` if rows begin in it.
            Warning C: Its attempts can take 13m, and its receiver keeps a key for 10m: a late one is not made, and its row is parked (KEY_EXPIRED). Lower `attempts`, `timeout` or `backoff`, or have the receiver keep its keys longer.
            Warning D: Its class is "same_tx", and it calls somebody else: that is not undone where its transaction is rolled back. Give the external call a stage of its own, of another class."#]],
        );
    }
}
