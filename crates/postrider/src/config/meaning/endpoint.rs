//! The meaning of an endpoint: where requests go, and what they present themselves with there.

use crate::config::meaning::{Reader, reason};
use crate::config::place::{At, Place};
use crate::config::secret::Secret;
use crate::config::typed;
use postrider_core::error::Result;
use postrider_delivery::{ClientFiles, Endpoint, TlsFiles};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What requests present themselves with, as it was typed in the table at `path`.
#[derive(Debug, Default)]
pub(super) struct Access {
    pub(super) path: &'static str,
    pub(super) headers: BTreeMap<String, At<Secret>>,
    pub(super) tls: Option<At<typed::Tls>>,
    pub(super) signing_secret: Option<At<Secret>>,
}

/// A credential, or where it stands.
enum Credential {
    Text(String),
    File {
        /// What comes before the file's text.
        before: String,
        path: PathBuf,
    },
}

impl Reader<'_> {
    /// An endpoint with what each request to it carries: its own, and of `default` what it has not itself.
    pub(super) fn endpoint(
        &mut self,
        url: Option<At<Secret>>,
        own: &Access,
        default: &Access,
        place: Place,
    ) -> Option<Endpoint> {
        let path = format!("{}.url", own.path);
        let mut endpoint = self.mandatory(url, place, &path).and_then(|typed| self.url(typed, &path));
        let replaced = |name: &str| own.headers.keys().any(|own| own.eq_ignore_ascii_case(name));
        for (name, value) in default.headers.iter().filter(|(name, _)| !replaced(name)) {
            self.header(&mut endpoint, (default.path, name), value);
        }
        for (name, value) in &own.headers {
            self.header(&mut endpoint, (own.path, name), value);
        }
        self.tls(&mut endpoint, own, default);
        if let Some((path, secret)) = signing_secret(own).or(signing_secret(default)) {
            let path = format!("{path}.signing_secret");
            let credential = self.credential(secret, &path);
            self.apply(&mut endpoint, secret.place, &path, |endpoint| match credential? {
                Credential::Text(text) => Some(endpoint.with_signing_secret(&text)),
                Credential::File { path, .. } => Some(Ok(endpoint.with_signing_secret_file(path))),
            });
        }
        endpoint
    }

    fn url(&mut self, typed: At<Secret>, path: &str) -> Option<Endpoint> {
        let url = self.resolve(typed, path)?;
        match Endpoint::parse(url.value.reveal()) {
            Ok(endpoint) => Some(endpoint),
            Err(error) => {
                self.problems.report(url.place, format!("`{path}` is no URL of an endpoint: {}", reason(&error)));
                None
            }
        }
    }

    fn header(&mut self, endpoint: &mut Option<Endpoint>, (path, name): (&str, &str), value: &At<Secret>) {
        let path = format!("{path}.headers.{}", name.escape_debug());
        let credential = self.credential(value, &path);
        self.apply(endpoint, value.place, &path, |endpoint| match credential? {
            Credential::Text(text) => Some(endpoint.with_header(name, &text)),
            Credential::File { before, path } => Some(endpoint.with_header_file(name, &before, path)),
        });
    }

    fn tls(&mut self, endpoint: &mut Option<Endpoint>, own: &Access, default: &Access) {
        if let Some(typed) = &own.tls {
            let path = format!("{}.tls", own.path);
            let files = self.tls_files(typed, &path);
            self.apply(endpoint, typed.place, &path, |endpoint| files.map(|files| endpoint.with_tls(files)));
        } else if let Some(typed) = &default.tls {
            let files = self.tls_files(typed, &format!("{}.tls", default.path));
            // What is said of all endpoints concerns those that are `https`.
            self.apply(endpoint, typed.place, "", |endpoint| {
                files.filter(|_| endpoint.is_secure()).map(|files| endpoint.with_tls(files))
            });
        }
    }

    fn tls_files(&mut self, typed: &At<typed::Tls>, path: &str) -> Option<TlsFiles> {
        let At { value: tls, place } = typed;
        let mut file = |value: &Option<At<String>>, key: &str| {
            value.clone().and_then(|value| self.name(Some(value), *place, &format!("{path}.{key}")))
        };
        let files = [(&tls.ca, "ca"), (&tls.certificate, "certificate"), (&tls.key, "key")];
        let [authorities, certificate, key] =
            files.map(|(value, key)| file(value, key).map(|name| PathBuf::from(name.value)));
        if tls.certificate.is_some() != tls.key.is_some() {
            self.problems.report(
                *place,
                format!("`{path}.certificate` and `{path}.key` go together, and one of them is missing"),
            );
        }
        if tls.ca.is_none() && tls.certificate.is_none() && tls.key.is_none() {
            self.problems.report(*place, format!("`{path}` names no file"));
        }
        let client = certificate.zip(key).map(|(certificate, key)| ClientFiles { certificate, key });
        Some(TlsFiles { authorities, client })
    }

    /// Changes the endpoint, if there is one, or reports why it cannot be changed so.
    fn apply(
        &mut self,
        endpoint: &mut Option<Endpoint>,
        place: Place,
        path: &str,
        change: impl FnOnce(Endpoint) -> Option<Result<Endpoint>>,
    ) {
        let Some(plain) = endpoint else { return };
        match change(plain.clone()) {
            None => {}
            Some(Ok(changed)) => *plain = changed,
            Some(Err(error)) => {
                self.problems.report(place, format!("`{path}` cannot be used: {}", reason(&error)));
            }
        }
    }

    /// Reads `env:NAME` and `file:PATH`, alone or behind one word, as in `Bearer file:PATH`; anything else is the text itself.
    fn credential(&mut self, typed: &At<Secret>, path: &str) -> Option<Credential> {
        let text = typed.value.reveal();
        let (before, reference) = match text.rsplit_once(' ') {
            Some((word, rest)) if !word.contains(' ') => (format!("{word} "), rest),
            _ => (String::new(), text),
        };
        if let Some(file) = reference.strip_prefix("file:") {
            if file.is_empty() {
                self.problems.report(typed.place, format!("`{path}` names no file behind `file:`"));
                return None;
            }
            return Some(Credential::File { before, path: PathBuf::from(file) });
        }
        if !reference.starts_with("env:") {
            return Some(Credential::Text(text.to_owned()));
        }
        let resolved = self.resolve(At { value: Secret::new(reference), place: typed.place }, path)?;
        Some(Credential::Text(before + resolved.value.reveal()))
    }
}

fn signing_secret(access: &Access) -> Option<(&'static str, &At<Secret>)> {
    access.signing_secret.as_ref().map(|secret| (access.path, secret))
}
