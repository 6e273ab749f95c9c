//! Where the password of a connection comes from: the options, a password file, or a command that prints it.

use std::fmt;
use std::path::PathBuf;

use postrider_core::error::{Error, ErrorKind, Result};

use crate::options::{ConnectOptions, Endpoint};
pub(crate) use command::PasswordCommand;

mod command;
mod file;

/// A text that prints as `…`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Vec<u8>);

/// What to ask for the password when a connection is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PasswordSource {
    /// By the address, or by the environment.
    Given {
        password: Secret,
        in_address: bool,
    },
    /// The file is read at each connect, so that it may change.
    File(PathBuf),
    /// The command is run at each connect: what it prints may live for minutes only.
    Command(PasswordCommand),
    /// The command has just printed this.
    Fetched(Secret),
    Nowhere,
}

impl Secret {
    pub(crate) fn new(text: impl Into<Vec<u8>>) -> Secret {
        Secret(text.into())
    }

    /// The bytes themselves, for the one place that needs them.
    pub(crate) fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl PasswordSource {
    /// Runs the command, if there is one.
    ///
    /// # Errors
    /// `Configuration` where it cannot be started, `Transient` where it failed.
    pub(crate) async fn fetched(&self) -> Result<PasswordSource> {
        match self {
            PasswordSource::Command(command) => command.run().await.map(PasswordSource::Fetched),
            other => Ok(other.clone()),
        }
    }

    /// The password for one place. Whoever opens a connection has fetched it before, if a command gives it.
    pub(crate) fn look_up(&self, options: &ConnectOptions, endpoint: &Endpoint) -> Option<Secret> {
        match self {
            PasswordSource::Given { password, .. } | PasswordSource::Fetched(password) => Some(password.clone()),
            PasswordSource::File(path) => file::look_up(path, &file::Wanted::of(options, endpoint)),
            PasswordSource::Command(_) | PasswordSource::Nowhere => None,
        }
    }

    /// The error for a server that wants a password where there is none.
    pub(crate) fn missing(&self) -> Error {
        let error = Error::new(ErrorKind::Authentication, "the server wants a password and none is given");
        match self {
            PasswordSource::File(path) => error
                .with_detail(format!(
                    "The password file {} has no line for this host, port, database and user.",
                    path.display()
                ))
                .with_hint("Write a line host:port:database:user:password into it, mode 0600; or set PGPASSWORD."),
            _ => error.with_hint("Put it into a password file, into PGPASSWORD, or into the address."),
        }
    }

    /// A refused login as whoever meets it must take it. The next password of a command may be a good one, so that it is worth another try.
    pub(crate) fn judge_refusal(&self, refusal: Error) -> Error {
        match self {
            _ if refusal.kind() != ErrorKind::Authentication => refusal,
            // The default file need not exist where no password is wanted.
            PasswordSource::File(path) if path.exists() => {
                let detail = refusal.detail().map_or_else(String::new, |detail| format!("{detail} "));
                refusal.with_detail(format!("{detail}The password file is {}.", path.display()))
            }
            PasswordSource::Fetched(_) => {
                let error = Error::new(ErrorKind::Transient, "the server refuses what the password command printed")
                    .with_hint("The command is run again for each try. Check user and command; what it prints must be the password alone.");
                match refusal.detail() {
                    Some(detail) => error.with_detail(detail),
                    None => error.with_detail(format!("It says: {}.", refusal.message())),
                }
            }
            _ => refusal,
        }
    }
}
