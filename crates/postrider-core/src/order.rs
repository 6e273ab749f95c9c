//! What a person may order for a work row, and what the order writes. An order never waits for the row's holder: it raises the fence,
//! and the holder's outcome is then stale.

use crate::stage::Next;
use crate::work::{DefinitionName, StageName, StageState, WorkVersion};
use std::collections::{BTreeMap, BTreeSet};

/// An order for one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// A parked row goes on under the same key, with a budget of its own.
    Resume {
        /// The payload was changed on purpose: the hash of what was sent is forgotten.
        accept_changed_payload: bool,
    },
    /// A row that waits for its time is due now.
    Retry,
    /// The stage was done by hand.
    Skip { to: Next },
    /// Nothing more is done.
    Cancel,
    /// A stage is executed again under a new key: the epoch rises.
    Reexecute {
        /// `None`: the row's own.
        stage: Option<StageName>,
    },
    /// A person found out what became of the last request.
    Resolve(Found),
    /// The row goes on under another definition.
    Migrate(Move),
}

/// Where rows go that are moved to another definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    pub to: DefinitionName,
    /// The stages that it has.
    pub stages: BTreeSet<StageName>,
    /// Stages that have another name there.
    pub renamed: BTreeMap<StageName, StageName>,
}

/// What a person found out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The receiver did the work.
    Done { to: Next },
    /// The receiver did nothing: it is asked as if for the first time, under the same key.
    NotDone,
    /// Nobody knows, and the receiver may be asked again under the same key.
    AskAgain,
    /// It cannot be done.
    Failed { reason: String },
}

/// What an order writes; the fence rises by one in any case, the lease and the time it waits for go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ordered {
    /// `None`: the stage stays.
    pub stage: Option<StageName>,
    /// `None`: the definition stays.
    pub definition: Option<DefinitionName>,
    pub state: StageState,
    /// Attempts and deferrals start at zero.
    pub resets_budget: bool,
    /// The epoch rises by one, and with it the key is another.
    pub raises_epoch: bool,
    /// What was sent is forgotten.
    pub forgets_hash: bool,
    pub closes: bool,
    /// What the row waits for, it still waits for.
    pub keeps_time: bool,
    pub reason: Reason,
}

/// What stands in the row afterwards as the reason why it is as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The row is as it was, and so is its reason.
    AsBefore,
    /// What it told of is over.
    Nothing,
    Text(String),
}

/// Why an order does not fit a row as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    Closed,
    /// It is UNKNOWN: that is for `resolve`.
    Unknown,
    /// It is being executed.
    Running,
    /// It is in a state that the order is not for.
    State,
    /// It would go to the stage that it is in.
    SameStage,
    /// It is under that definition already.
    SameDefinition,
    /// The definition that it would go to has no such stage.
    StageGone,
}

impl Order {
    /// The verb as it is typed.
    pub fn verb(&self) -> &'static str {
        match self {
            Order::Resume { .. } => "resume",
            Order::Retry => "retry",
            Order::Skip { .. } => "skip",
            Order::Cancel => "cancel",
            Order::Reexecute { .. } => "reexecute",
            Order::Resolve(Found::Done { .. }) => "resolve done",
            Order::Resolve(Found::NotDone) => "resolve not-done",
            Order::Resolve(Found::AskAgain) => "resolve ask-again",
            Order::Resolve(Found::Failed { .. }) => "resolve failed",
            Order::Migrate(_) => "migrate",
        }
    }

    /// The order as it could be typed for a row that is under this definition: what the verb alone does not tell, and the row does not afterwards.
    pub fn typed(&self, from: Option<&DefinitionName>) -> String {
        match self {
            Order::Resume { accept_changed_payload: true } => format!("{} --accept-changed-payload", self.verb()),
            Order::Migrate(Move { to, renamed, .. }) => {
                let from = from.map(|from| format!(" --definition {from}")).unwrap_or_default();
                let renamed: String = renamed.iter().map(|(old, new)| format!(" --rename {old}={new}")).collect();
                format!("{}{from} --to {to}{renamed}", self.verb())
            }
            _ => self.verb().to_owned(),
        }
    }

    /// Whether the key of a row that has another name for its stage afterwards would be another.
    pub fn renames(&self) -> bool {
        matches!(self, Order::Migrate(Move { renamed, .. }) if !renamed.is_empty())
    }

    /// Whether a request that may have been answered before leaves again under the same key.
    pub fn asks_again(&self) -> bool {
        matches!(self, Order::Resume { .. } | Order::Retry | Order::Resolve(Found::AskAgain))
    }

    /// What the order writes into a row that is as `version` says.
    pub fn judge(&self, version: &WorkVersion) -> Result<Ordered, Unfit> {
        if version.closed {
            return Err(Unfit::Closed);
        }
        let again = Ordered {
            stage: None,
            definition: None,
            state: StageState::Pending,
            resets_budget: true,
            raises_epoch: false,
            forgets_hash: false,
            closes: false,
            keeps_time: false,
            reason: Reason::Nothing,
        };
        match self {
            Order::Resume { accept_changed_payload } => match version.state {
                StageState::NonResumable => Ok(Ordered { forgets_hash: *accept_changed_payload, ..again }),
                StageState::Unknown => Err(Unfit::Unknown),
                StageState::Running => Err(Unfit::Running),
                _ => Err(Unfit::State),
            },
            Order::Retry => match version.state {
                state @ StageState::Retry => Ok(Ordered { state, ..hastened(again) }),
                StageState::Pending if version.next_attempt_at.is_some() => Ok(hastened(again)),
                StageState::Running => Err(Unfit::Running),
                _ => Err(Unfit::State),
            },
            Order::Skip { to } => go_on(to, version, again),
            Order::Cancel => Ok(Ordered { state: StageState::Cancelled, resets_budget: false, closes: true, ..again }),
            Order::Reexecute { stage } => match version.state {
                StageState::Running => Err(Unfit::Running),
                _ => Ok(Ordered { stage: stage.clone(), raises_epoch: true, forgets_hash: true, ..again }),
            },
            Order::Resolve(found) => match version.state {
                StageState::Unknown | StageState::NonResumable => resolve(found, version, again),
                StageState::Running => Err(Unfit::Running),
                _ => Err(Unfit::State),
            },
            Order::Migrate(order) => order.judge(version, again),
        }
    }
}

impl Move {
    /// The row stays as it is, but for its definition, and its stage where that has another name there.
    fn judge(&self, version: &WorkVersion, again: Ordered) -> Result<Ordered, Unfit> {
        let stage = self.renamed.get(&version.stage);
        if version.state == StageState::Running {
            Err(Unfit::Running)
        } else if version.definition.as_ref() == Some(&self.to) {
            Err(Unfit::SameDefinition)
        } else if !self.stages.contains(stage.unwrap_or(&version.stage)) {
            Err(Unfit::StageGone)
        } else {
            let stage = stage.filter(|stage| **stage != version.stage).cloned();
            let definition = Some(self.to.clone());
            let (state, reason) = (version.state, Reason::AsBefore);
            Ok(Ordered { stage, definition, state, resets_budget: false, keeps_time: true, reason, ..again })
        }
    }
}

/// The row waits for the same thing, only no longer for its time.
fn hastened(again: Ordered) -> Ordered {
    Ordered { resets_budget: false, reason: Reason::AsBefore, ..again }
}

fn resolve(found: &Found, version: &WorkVersion, again: Ordered) -> Result<Ordered, Unfit> {
    match found {
        Found::Done { to } => go_on(to, version, again),
        Found::NotDone | Found::AskAgain => Ok(again),
        Found::Failed { reason } => Ok(Ordered {
            state: StageState::NonResumable,
            resets_budget: false,
            reason: Reason::Text(format!("RESOLVED AS FAILED: {reason}")),
            ..again
        }),
    }
}

fn go_on(to: &Next, version: &WorkVersion, again: Ordered) -> Result<Ordered, Unfit> {
    match to {
        Next::Stage(stage) if *stage == version.stage => Err(Unfit::SameStage),
        Next::Stage(stage) => Ok(Ordered { stage: Some(stage.clone()), forgets_hash: true, ..again }),
        Next::End => Ok(Ordered { state: StageState::Done, resets_budget: false, closes: true, ..again }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::WorkKey;

    fn row(state: StageState) -> WorkVersion {
        WorkVersion {
            state,
            attempt_count: 5,
            deferral_count: 1,
            fence: 7,
            closed: matches!(state, StageState::Done | StageState::Cancelled),
            ..WorkVersion::unclaimed(WorkKey::new(["g", "q"]), "PRICING")
        }
    }

    #[test]
    fn each_order_is_for_some_states_and_says_why_not_of_the_others() {
        let to = || Next::Stage(StageName::new("APPROVAL"));
        let orders = [
            Order::Resume { accept_changed_payload: false },
            Order::Retry,
            Order::Skip { to: to() },
            Order::Cancel,
            Order::Reexecute { stage: None },
            Order::Resolve(Found::Done { to: to() }),
        ];
        let states = [
            StageState::Pending,
            StageState::Running,
            StageState::Retry,
            StageState::Unknown,
            StageState::NonResumable,
            StageState::Done,
        ];
        let word = |order: &Order, state| match order.judge(&row(state)) {
            Ok(ordered) => ordered.state.as_str().to_owned(),
            Err(unfit) => format!("{unfit:?}"),
        };
        let line = |order: &Order| {
            let words: Vec<String> = states.into_iter().map(|state| word(order, state)).collect();
            format!("{}: {}", order.verb(), words.join(" "))
        };
        assert_eq!(
            orders.iter().map(line).collect::<Vec<_>>(),
            [
                "resume: State Running State Unknown PENDING Closed",
                "retry: State Running RETRY State State Closed",
                "skip: PENDING PENDING PENDING PENDING PENDING Closed",
                "cancel: CANCELLED CANCELLED CANCELLED CANCELLED CANCELLED Closed",
                "reexecute: PENDING Running PENDING PENDING PENDING Closed",
                "resolve done: State Running State PENDING PENDING Closed",
            ]
        );
        let same = Order::Skip { to: Next::Stage(StageName::new("PRICING")) };
        assert_eq!(same.judge(&row(StageState::Unknown)), Err(Unfit::SameStage));
    }

    #[test]
    fn an_order_is_told_with_what_the_row_does_not_tell_afterwards() {
        let name = StageName::new;
        let renamed = BTreeMap::from([(name("TARIFF"), name("RATING")), (name("CHECK"), name("VETTING"))]);
        let order = Order::Migrate(Move { to: DefinitionName::new("quote@2"), stages: BTreeSet::new(), renamed });
        assert_eq!(order.typed(None), "migrate --to quote@2 --rename CHECK=VETTING --rename TARIFF=RATING");
        assert_eq!(
            order.typed(Some(&DefinitionName::new("quote@1"))),
            "migrate --definition quote@1 --to quote@2 --rename CHECK=VETTING --rename TARIFF=RATING"
        );
        let resume = |accept_changed_payload| Order::Resume { accept_changed_payload }.typed(None);
        assert_eq!([resume(false), resume(true)], ["resume", "resume --accept-changed-payload"]);
    }

    #[test]
    fn only_reexecute_changes_the_key() {
        let parked = row(StageState::NonResumable);
        let raises = |order: Order| order.judge(&parked).map(|ordered| ordered.raises_epoch);
        assert_eq!(raises(Order::Reexecute { stage: None }), Ok(true));
        assert_eq!(raises(Order::Resume { accept_changed_payload: true }), Ok(false));
        assert_eq!(raises(Order::Resolve(Found::AskAgain)), Ok(false));
    }

    #[test]
    fn a_row_moves_to_another_definition_as_it_is_if_that_has_its_stage_under_one_name_or_another() {
        let name = StageName::new;
        let order = Order::Migrate(Move {
            to: DefinitionName::new("quote@2"),
            stages: BTreeSet::from([name("PRICING"), name("RATING")]),
            renamed: BTreeMap::from([(name("TARIFF"), name("RATING"))]),
        });
        let judged = |state, stage: &str, definition: Option<&str>| {
            let definition = definition.map(DefinitionName::new);
            let version = WorkVersion { stage: name(stage), definition, ..row(state) };
            order.judge(&version).map(|ordered| {
                assert!(ordered.keeps_time && !ordered.resets_budget && !ordered.raises_epoch && !ordered.forgets_hash);
                assert_eq!(ordered.reason, Reason::AsBefore);
                assert_eq!(ordered.definition, Some(DefinitionName::new("quote@2")));
                (ordered.state, ordered.stage.map(|stage| stage.to_string()))
            })
        };
        let old = Some("quote@1");
        assert_eq!(judged(StageState::Retry, "PRICING", old), Ok((StageState::Retry, None)));
        assert_eq!(judged(StageState::Unknown, "PRICING", None), Ok((StageState::Unknown, None)));
        let renamed = Ok((StageState::Pending, Some("RATING".to_owned())));
        assert_eq!(judged(StageState::Pending, "TARIFF", old), renamed);
        assert_eq!(judged(StageState::Pending, "APPROVAL", old), Err(Unfit::StageGone));
        assert_eq!(judged(StageState::Pending, "PRICING", Some("quote@2")), Err(Unfit::SameDefinition));
        assert_eq!(judged(StageState::Running, "PRICING", old), Err(Unfit::Running));
        assert_eq!(judged(StageState::Done, "PRICING", old), Err(Unfit::Closed));
    }
}
