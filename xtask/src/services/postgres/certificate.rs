//! A self-signed certificate for `localhost` and 127.0.0.1, made by openssl.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::account::Account;
use crate::error::{Context, Result};
use crate::process::run;

/// Writes `server.crt` and `server.key` into the data folder, and the certificate for clients into `home`.
pub(super) fn write(account: &Account, home: &Path) -> Result<()> {
    let data = home.join("data");
    let (certificate, key) = (data.join("server.crt"), data.join("server.key"));
    run(Command::new("openssl")
        .args(["req", "-new", "-x509", "-days", "30", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out"])
        .arg(&certificate)
        .arg("-keyout")
        .arg(&key))
    .map_err(|error| error.hint("Install openssl (`apt-get install openssl`)."))?;
    fs::set_permissions(&key, Permissions::from_mode(0o600)).context(|| "cannot close the key file")?;
    account.own(&key)?;
    account.own(&certificate)?;
    fs::copy(&certificate, home.join("server.crt")).context(|| "cannot copy the certificate")?;
    Ok(())
}
