//! Named sets of parameters in `pg_service.conf` (manual, "The Connection Service File").

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use postrider_core::error::Result;

use super::keyword;
use super::text::{Pairs, invalid};

/// Where the server's packages look, where PGSYSCONFDIR names nothing else.
const SYSTEM_DIRECTORIES: [&str; 2] = ["/etc/postgresql-common", "/etc"];

/// The parameters of a service, from the user's file or else the system's; the first of a repeated key wins.
///
/// # Errors
/// `Configuration` where no file has the service, or a line of it cannot be read.
pub(crate) fn read(service: &str, environment: &BTreeMap<String, String>) -> Result<Pairs> {
    let mut searched = Vec::new();
    for (path, must_exist) in files(environment) {
        match fs::read_to_string(&path) {
            Ok(text) => {
                if let Some(pairs) = section(&text, service, &path)? {
                    return Ok(pairs);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !must_exist => {}
            Err(error) => {
                let detail = format!("The service file {} cannot be read.", path.display());
                return Err(invalid(detail, "Correct PGSERVICEFILE, or let us read the file.").with_source(error));
            }
        }
        searched.push(path.display().to_string());
    }
    let detail = format!("No service file has this service; looked into {}.", searched.join(", "));
    Err(invalid(detail, "Write the section [name] with lines key=value, or give the parameters themselves."))
}

/// The files in the order in which they are searched, and whether a missing one is an error.
fn files(environment: &BTreeMap<String, String>) -> Vec<(PathBuf, bool)> {
    let variable = |name: &str| environment.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut files = Vec::new();
    match (variable("PGSERVICEFILE"), variable("HOME")) {
        (Some(path), _) => files.push((path, true)),
        (None, Some(home)) => files.push((home.join(".pg_service.conf"), false)),
        (None, None) => {}
    }
    let system =
        variable("PGSYSCONFDIR").map_or_else(|| SYSTEM_DIRECTORIES.map(PathBuf::from).to_vec(), |dir| vec![dir]);
    files.extend(system.into_iter().map(|dir| (dir.join("pg_service.conf"), false)));
    files
}

fn section(text: &str, service: &str, path: &Path) -> Result<Option<Pairs>> {
    let mut found: Option<Pairs> = None;
    let mut is_inside = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            is_inside = name.strip_suffix(']').is_some_and(|name| name == service);
            found = is_inside.then(Pairs::new);
            continue;
        }
        let Some(pairs) = found.as_mut().filter(|_| is_inside) else { continue };
        let here = || format!("Line {} of the service file {}", number.saturating_add(1), path.display());
        let (name, value) = line.split_once('=').ok_or_else(|| {
            invalid(
                format!("{} is not of the form key=value.", here()),
                "An LDAP look-up is not supported: give the parameters themselves.",
            )
        })?;
        let keyword = keyword::find(name).filter(|keyword| keyword.name != "service").ok_or_else(|| {
            invalid(
                format!("{} has a key that is no connection parameter.", here()),
                "docs/connections.md names them all.",
            )
        })?;
        pairs.push((keyword, value.to_owned()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_found_in_its_section_only() {
        let text = "# ours\n[other]\nhost=a\n\n[quoting]\n host=db\nport=6000\nuser=me = you\n[next]\nhost=c\n";
        let read = |service: &str| section(text, service, Path::new("f")).map_err(|error| error.report());
        let names = |pairs: Option<Pairs>| {
            pairs.map(|pairs| pairs.into_iter().map(|(key, value)| (key.name, value)).collect::<Vec<_>>())
        };
        let wanted =
            [("host", "db"), ("port", "6000"), ("user", "me = you")].map(|(key, value)| (key, value.to_owned()));
        assert_eq!(read("quoting").map(names), Ok(Some(wanted.to_vec())));
        assert_eq!(read("nowhere").map(names), Ok(None));
        for wrong in ["[s]\nldap://x\n", "[s]\nnonsense=hush\n", "[s]\nservice=t\n"] {
            let error = section(wrong, "s", Path::new("f")).map(|_| ()).expect_err(wrong);
            assert!(
                error.report().contains("Line 2 of the service file f") && !error.report().contains("hush"),
                "{}",
                error.report()
            );
        }
    }
}
