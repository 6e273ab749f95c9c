//! Who runs a server. PostgreSQL refuses to run as root, so root hands over to an unprivileged account.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::error::{Context, Error, Result};

/// The user that servers run as: `postgres` or `nobody` when we are root, else ourselves.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    handed_to: Option<Ids>,
}

#[derive(Clone, Debug)]
struct Ids {
    uid: u32,
    gid: u32,
}

impl Account {
    pub(crate) fn of_servers() -> Result<Self> {
        if own_uid()? != 0 {
            return Ok(Self { handed_to: None });
        }
        let passwd = fs::read_to_string("/etc/passwd").context(|| "cannot read /etc/passwd")?;
        let ids = ["postgres", "nobody"].iter().find_map(|name| ids_of(&passwd, name));
        match ids {
            Some(ids) => Ok(Self { handed_to: Some(ids) }),
            None => Err(Error::new("there is no account to run a server as")
                .hint("Create the user `postgres`, or run this command as a user other than root.")),
        }
    }

    /// A command that runs as this account, in a folder it can enter, without what PostgreSQL's clients read.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir("/");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        if let Some(ids) = &self.handed_to {
            command.uid(ids.uid).gid(ids.gid);
        }
        command
    }

    /// Gives a file or folder to this account.
    pub(crate) fn own(&self, path: &Path) -> Result<()> {
        match &self.handed_to {
            None => Ok(()),
            Some(ids) => {
                chown(path, Some(ids.uid), Some(ids.gid)).context(|| format!("cannot hand over {}", path.display()))
            }
        }
    }

    /// Whether servers run as somebody else than we do.
    pub(crate) fn is_other(&self) -> bool {
        self.handed_to.is_some()
    }
}

/// The user id this process acts under.
pub(crate) fn own_uid() -> Result<u32> {
    Ok(fs::metadata("/proc/self").context(|| "cannot read /proc/self")?.uid())
}

fn ids_of(passwd: &str, name: &str) -> Option<Ids> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Ids { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_by_the_exact_name() {
        let passwd = "root:x:0:0::/root:/bin/sh\npostgres2:x:7:8::/:\npostgres:x:101:104:a,,,:/v:/bin/bash\n";
        let ids = ids_of(passwd, "postgres").unwrap();
        assert_eq!((ids.uid, ids.gid), (101, 104));
        assert!(ids_of(passwd, "nobody").is_none());
    }
}
