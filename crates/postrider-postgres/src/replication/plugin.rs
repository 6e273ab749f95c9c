//! What we ask of the output plugin: the best that each server version has.
//!
//! | server | protocol version | streaming |
//! |---|---|---|
//! | 14 | 2 | `on` |
//! | 15 | 2, or 3 with prepared transactions | `on` |
//! | 16 and later | 4 | `parallel`: as `on`, and the news of an abort say where and when |
//!
//! Without streaming it is version 1, or 3 with prepared transactions. `messages` is always on, `origin` is left at `any`: what was
//! replicated here from elsewhere is ours as well. Text, not binary.

use postrider_core::error::{Error, ErrorKind, Result};

use crate::quote::quote_identifier;

/// The first version that sends prepared transactions through pgoutput.
const TWO_PHASE_MIN: u32 = 150_000;
const PARALLEL_MIN: u32 = 160_000;

/// What the user wants of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wishes {
    /// Large transactions come while they are in progress.
    pub(crate) streaming: bool,
    /// Prepared transactions come before their verdict. Asked of a slot once, it holds for good.
    pub(crate) two_phase: bool,
}

/// The options of START_REPLICATION.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PluginOptions {
    pub(crate) protocol: u32,
    pub(crate) streaming: Streaming,
    /// The slot is to be marked.
    pub(crate) two_phase: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Streaming {
    Off,
    On,
    Parallel,
}

impl PluginOptions {
    /// What to ask of a server of this version, whose slot may be marked for two-phase commit already.
    ///
    /// # Errors
    /// `Configuration` where the server cannot do what is wished for.
    pub(crate) fn choose(server_version: u32, wishes: Wishes, slot_two_phase: bool) -> Result<PluginOptions> {
        if wishes.two_phase && server_version < TWO_PHASE_MIN {
            return Err(Error::new(ErrorKind::Configuration, "the server cannot send prepared transactions before their verdict")
                .with_detail(format!("Its version is {}; that takes version 15.", server_version / 10_000))
                .with_hint("Take `source.two_phase` out: a prepared transaction is then delivered at its COMMIT PREPARED, like any other."));
        }
        let streaming = match (wishes.streaming, server_version) {
            (false, _) => Streaming::Off,
            (true, ..PARALLEL_MIN) => Streaming::On,
            (true, _) => Streaming::Parallel,
        };
        let prepared = wishes.two_phase || slot_two_phase && server_version >= TWO_PHASE_MIN;
        let protocol = match streaming {
            Streaming::Parallel => 4,
            Streaming::On | Streaming::Off if prepared => 3,
            Streaming::On => 2,
            Streaming::Off => 1,
        };
        Ok(PluginOptions { protocol, streaming, two_phase: wishes.two_phase })
    }

    /// The list between the parentheses. A publication's name is an identifier within a list within a literal.
    pub(crate) fn list(self, publications: &[String]) -> String {
        let quoted = |name: &String| quote_identifier(name).replace('\'', "''");
        let publications = publications.iter().map(quoted).collect::<Vec<_>>().join(",");
        let mut list =
            format!("proto_version '{}', publication_names '{publications}', messages 'true'", self.protocol);
        match self.streaming {
            Streaming::Off => {}
            Streaming::On => list.push_str(", streaming 'on'"),
            Streaming::Parallel => list.push_str(", streaming 'parallel'"),
        }
        if self.two_phase {
            list.push_str(", two_phase 'on'");
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn list(server_version: u32, streaming: bool, two_phase: bool, slot_two_phase: bool) -> String {
        match PluginOptions::choose(server_version, Wishes { streaming, two_phase }, slot_two_phase) {
            Ok(options) => {
                options.list(&["p".to_owned()]).replace(", publication_names '\"p\"', messages 'true'", " …")
            }
            Err(error) => error.report(),
        }
    }

    #[test]
    fn each_version_is_asked_for_the_best_it_has() {
        let mut found = String::new();
        for major in 14..=18 {
            for (streaming, two_phase) in [(true, false), (true, true), (false, false), (false, true)] {
                let options = list(major * 10_000 + 3, streaming, two_phase, false);
                found.push_str(&format!("{major} streaming {streaming}, two-phase {two_phase}: {options}\n"));
            }
        }
        expect![[r#"
            14 streaming true, two-phase false: proto_version '2' …, streaming 'on'
            14 streaming true, two-phase true: PR001 the server cannot send prepared transactions before their verdict. Its version is 14; that takes version 15. Take `source.two_phase` out: a prepared transaction is then delivered at its COMMIT PREPARED, like any other.
            14 streaming false, two-phase false: proto_version '1' …
            14 streaming false, two-phase true: PR001 the server cannot send prepared transactions before their verdict. Its version is 14; that takes version 15. Take `source.two_phase` out: a prepared transaction is then delivered at its COMMIT PREPARED, like any other.
            15 streaming true, two-phase false: proto_version '2' …, streaming 'on'
            15 streaming true, two-phase true: proto_version '3' …, streaming 'on', two_phase 'on'
            15 streaming false, two-phase false: proto_version '1' …
            15 streaming false, two-phase true: proto_version '3' …, two_phase 'on'
            16 streaming true, two-phase false: proto_version '4' …, streaming 'parallel'
            16 streaming true, two-phase true: proto_version '4' …, streaming 'parallel', two_phase 'on'
            16 streaming false, two-phase false: proto_version '1' …
            16 streaming false, two-phase true: proto_version '3' …, two_phase 'on'
            17 streaming true, two-phase false: proto_version '4' …, streaming 'parallel'
            17 streaming true, two-phase true: proto_version '4' …, streaming 'parallel', two_phase 'on'
            17 streaming false, two-phase false: proto_version '1' …
            17 streaming false, two-phase true: proto_version '3' …, two_phase 'on'
            18 streaming true, two-phase false: proto_version '4' …, streaming 'parallel'
            18 streaming true, two-phase true: proto_version '4' …, streaming 'parallel', two_phase 'on'
            18 streaming false, two-phase false: proto_version '1' …
            18 streaming false, two-phase true: proto_version '3' …, two_phase 'on'
        "#]].assert_eq(&found);
    }

    #[test]
    fn a_slot_that_is_marked_sends_what_the_protocol_then_has_words_for() {
        expect![[r#"proto_version '3' …, streaming 'on'"#]].assert_eq(&list(150_003, true, false, true));
        expect![[r#"proto_version '3' …"#]].assert_eq(&list(180_003, false, false, true));
        expect![[r#"proto_version '2' …, streaming 'on'"#]].assert_eq(&list(140_003, true, false, true));
    }

    #[test]
    fn a_publication_is_quoted_once_for_each_layer() {
        let options = PluginOptions { protocol: 1, streaming: Streaming::Off, two_phase: false };
        expect![[r#"proto_version '1', publication_names '"it''s a ""p""","q"', messages 'true'"#]]
            .assert_eq(&options.list(&["it's a \"p\"".to_owned(), "q".to_owned()]));
    }
}
