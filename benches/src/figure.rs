//! What a bench prints: both figures, their ratio, and whether it is what was aimed for.

use serde_json::{Map, Value, json};

use crate::machine;
use crate::measure::median;

/// One figure of both sides, over all runs.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) case: String,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) ours: Vec<f64>,
    pub(crate) other_name: &'static str,
    pub(crate) other: Vec<f64>,
    pub(crate) goal: Option<Goal>,
    /// Further members of the JSON object.
    pub(crate) extra: Map<String, Value>,
}

/// Which figure is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    More,
    Less,
}

/// What a figure is to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// The ratio is at least this.
    Ratio(f64),
    /// Our own figure is at most this, in the figure's unit.
    AtMost(f64),
    /// Our own figure is at least this, in the figure's unit.
    AtLeast(f64),
}

/// Whether a figure is what was aimed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Met,
    Missed,
    /// So few runs tell nothing.
    TooFewRuns,
}

/// The bench's name, what holds for all of its figures, and how they are printed.
#[derive(Debug)]
pub(crate) struct Report {
    bench: &'static str,
    json: bool,
    settings: String,
}

/// The machine's speed drifts from run to run: the median of fewer is chance.
const LEAST_RUNS: usize = 5;

impl Figure {
    /// How many times better the median of ours is.
    pub(crate) fn ratio(&self) -> f64 {
        let (ours, other) = (median(&self.ours), median(&self.other));
        match self.better {
            Better::More => ours / other,
            Better::Less => other / ours,
        }
    }

    /// Of a figure that has a goal.
    fn verdict(&self) -> Option<Verdict> {
        let met = match self.goal? {
            Goal::Ratio(least) => self.ratio() >= least,
            Goal::AtMost(most) => median(&self.ours) <= most,
            Goal::AtLeast(least) => median(&self.ours) >= least,
        };
        Some(if self.ours.len().min(self.other.len()) < LEAST_RUNS {
            Verdict::TooFewRuns
        } else if met {
            Verdict::Met
        } else {
            Verdict::Missed
        })
    }
}

impl Report {
    /// Prints the machine and the settings.
    pub(crate) fn begin(bench: &'static str, json: bool, settings: String) -> Self {
        eprintln!("machine   {}", machine::line());
        eprintln!("settings  {settings}");
        Self { bench, json, settings }
    }

    /// Prints the figures: a table, and with `--json` one object a line on stdout with the table on stderr.
    pub(crate) fn finish(&self, figures: &[Figure]) {
        let mut table = format!(
            "{:<10} {:<24} {:<14} {:>12} {:>12}  {:<28} {:>7}  goal\n",
            "bench", "case", "unit", "ours", "other", "other is", "ratio"
        );
        for figure in figures {
            let goal = match (figure.goal, figure.verdict()) {
                (Some(Goal::Ratio(least)), Some(verdict)) => format!("ratio ≥ {least:.2}: {}", said(verdict)),
                (Some(Goal::AtMost(most)), Some(verdict)) => format!("≤ {most}: {}", said(verdict)),
                (Some(Goal::AtLeast(least)), Some(verdict)) => format!("≥ {least}: {}", said(verdict)),
                _ => "–".into(),
            };
            table.push_str(&format!(
                "{:<10} {:<24} {:<14} {:>12} {:>12}  {:<28} {:>7.2}  {goal}\n",
                self.bench,
                figure.case,
                figure.unit,
                short(median(&figure.ours)),
                short(median(&figure.other)),
                figure.other_name,
                figure.ratio(),
            ));
        }
        if self.json {
            eprint!("{table}");
            for figure in figures {
                println!("{}", self.object(figure));
            }
        } else {
            println!("machine   {}\nsettings  {}\n\n{table}", machine::line(), self.settings);
        }
    }

    fn object(&self, figure: &Figure) -> Value {
        let mut object = json!({
            "bench": self.bench,
            "case": figure.case,
            "ours": rounded(median(&figure.ours)),
            "other": rounded(median(&figure.other)),
            "other_name": figure.other_name,
            "unit": figure.unit,
            "ratio": rounded(figure.ratio()),
            "runs": figure.ours.len(),
            "ours_runs": figure.ours.iter().copied().map(rounded).collect::<Vec<_>>(),
            "other_runs": figure.other.iter().copied().map(rounded).collect::<Vec<_>>(),
            "machine": machine::line(),
            "settings": self.settings,
        });
        match figure.goal {
            Some(Goal::Ratio(least)) => object["goal_ratio"] = json!(least),
            Some(Goal::AtMost(most)) => object["goal_at_most"] = json!(most),
            Some(Goal::AtLeast(least)) => object["goal_at_least"] = json!(least),
            None => {}
        }
        if let Some(verdict) = figure.verdict() {
            object["goal_met"] = match verdict {
                Verdict::Met => json!(true),
                Verdict::Missed => json!(false),
                Verdict::TooFewRuns => Value::Null,
            };
        }
        if let Value::Object(members) = &mut object {
            members.extend(figure.extra.clone());
        }
        object
    }
}

fn said(verdict: Verdict) -> String {
    match verdict {
        Verdict::Met => "met".into(),
        Verdict::Missed => "MISSED".into(),
        Verdict::TooFewRuns => format!("it takes {LEAST_RUNS} runs to say"),
    }
}

fn short(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(better: Better, goal: Goal) -> Figure {
        Figure {
            case: "1 row".into(),
            unit: "s",
            better,
            ours: vec![9.0, 2.0, 1.0, 2.0, 2.0],
            other_name: "another",
            other: vec![4.0, 4.0, 5.0, 4.0, 4.0],
            goal: Some(goal),
            extra: Map::new(),
        }
    }

    #[test]
    fn a_ratio_above_one_is_better_whichever_way_the_figure_counts() {
        assert_eq!(figure(Better::Less, Goal::Ratio(2.0)).ratio(), 2.0);
        assert_eq!(figure(Better::More, Goal::Ratio(2.0)).ratio(), 0.5);
    }

    #[test]
    fn a_goal_is_met_at_its_bound_and_missed_beyond() {
        assert_eq!(figure(Better::Less, Goal::Ratio(2.0)).verdict(), Some(Verdict::Met));
        assert_eq!(figure(Better::Less, Goal::Ratio(2.1)).verdict(), Some(Verdict::Missed));
        assert_eq!(figure(Better::Less, Goal::AtMost(2.0)).verdict(), Some(Verdict::Met));
        assert_eq!(figure(Better::Less, Goal::AtMost(1.9)).verdict(), Some(Verdict::Missed));
        assert_eq!(figure(Better::More, Goal::AtLeast(2.0)).verdict(), Some(Verdict::Met));
        assert_eq!(figure(Better::More, Goal::AtLeast(2.1)).verdict(), Some(Verdict::Missed));
    }

    #[test]
    fn fewer_than_five_runs_of_either_side_say_nothing_of_a_goal() {
        for goal in [Goal::Ratio(2.0), Goal::Ratio(2.1), Goal::AtMost(2.0), Goal::AtMost(1.9)] {
            let mut few = figure(Better::Less, goal);
            few.other.pop();
            assert_eq!(few.verdict(), Some(Verdict::TooFewRuns));
            let report = Report { bench: "drain", json: true, settings: "fsync=on".into() };
            assert_eq!(report.object(&few).get("goal_met"), Some(&Value::Null));
        }
    }

    #[test]
    fn the_object_has_the_promised_keys() {
        let report = Report { bench: "drain", json: true, settings: "fsync=on".into() };
        let object = report.object(&figure(Better::Less, Goal::Ratio(2.0)));
        for (key, value) in [
            ("bench", json!("drain")),
            ("case", json!("1 row")),
            ("ours", json!(2.0)),
            ("other", json!(4.0)),
            ("other_name", json!("another")),
            ("unit", json!("s")),
            ("ratio", json!(2.0)),
            ("goal_met", json!(true)),
        ] {
            assert_eq!(object[key], value, "{key}");
        }
    }
}
