//! The page of each error code.

use postrider_core::error::ErrorKind;

/// How the paragraph begins that says what an error costs.
const COSTS: &str = "**What it costs.**";

/// The page of `kind`, as Markdown.
pub(crate) fn page(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Configuration => include_str!("../../../docs/errors/PR001.md"),
        ErrorKind::Authentication => include_str!("../../../docs/errors/PR002.md"),
        ErrorKind::Privilege => include_str!("../../../docs/errors/PR003.md"),
        ErrorKind::SlotMissing => include_str!("../../../docs/errors/PR004.md"),
        ErrorKind::SlotInUse => include_str!("../../../docs/errors/PR005.md"),
        ErrorKind::SlotLost => include_str!("../../../docs/errors/PR006.md"),
        ErrorKind::SlotForeign => include_str!("../../../docs/errors/PR007.md"),
        ErrorKind::PublicationMissing => include_str!("../../../docs/errors/PR008.md"),
        ErrorKind::WalLevel => include_str!("../../../docs/errors/PR009.md"),
        ErrorKind::Table => include_str!("../../../docs/errors/PR010.md"),
        ErrorKind::Disconnected => include_str!("../../../docs/errors/PR011.md"),
        ErrorKind::Transient => include_str!("../../../docs/errors/PR012.md"),
        ErrorKind::Protocol => include_str!("../../../docs/errors/PR013.md"),
        ErrorKind::JournalForeign => include_str!("../../../docs/errors/PR014.md"),
        ErrorKind::JournalCorrupt => include_str!("../../../docs/errors/PR015.md"),
        ErrorKind::Disk => include_str!("../../../docs/errors/PR016.md"),
        ErrorKind::SinkUnavailable => include_str!("../../../docs/errors/PR017.md"),
        ErrorKind::SinkRefused => include_str!("../../../docs/errors/PR018.md"),
        ErrorKind::Internal => include_str!("../../../docs/errors/PR019.md"),
        ErrorKind::OrderRefused => include_str!("../../../docs/errors/PR020.md"),
    }
}

/// The kind with this code, however it is capitalised.
pub(crate) fn kind_of(code: &str) -> Option<ErrorKind> {
    ErrorKind::ALL.into_iter().find(|kind| kind.code().eq_ignore_ascii_case(code))
}

/// The page's first line without its mark: code and meaning.
pub(crate) fn title(kind: ErrorKind) -> &'static str {
    page(kind).lines().next().unwrap_or_default().trim_start_matches("# ")
}

/// What an error of this kind costs, as its page has it, on one line and without marks.
pub(crate) fn costs(kind: ErrorKind) -> String {
    let (_, costs) = page(kind).split_once(COSTS).unwrap_or_default();
    let (costs, _) = costs.split_once("\n\n").unwrap_or((costs, ""));
    format!("What it costs: {}", costs.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_page_of_its_own_that_says_what_to_type() {
        for kind in ErrorKind::ALL {
            let page = page(kind);
            assert!(page.starts_with(&format!("# {}: ", kind.code())), "{kind:?}");
            assert!(page.contains(COSTS), "{kind:?}");
            assert!(page.contains("**What to type.**"), "{kind:?}");
            assert!(page.contains("\n    "), "{kind:?} shows a command");
            assert_eq!(kind_of(&kind.code().to_lowercase()), Some(kind));
        }
        assert_eq!(kind_of("PR000"), None);
    }

    #[test]
    fn the_costs_are_one_line() {
        for kind in ErrorKind::ALL {
            let costs = costs(kind);
            assert!(costs.ends_with('.') && costs.len() > 25 && !costs.contains(['\n', '*']), "{kind:?}: {costs}");
        }
        assert_eq!(
            costs(ErrorKind::Privilege),
            "What it costs: Nothing is lost. The process ends; the slot, where there is one, keeps the log meanwhile."
        );
    }
}
