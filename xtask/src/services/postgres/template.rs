//! A cluster fresh from `initdb`, made once for each installation and copied for every cluster after that.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::account::Account;
use super::folder::{base, create_dir};
use super::installation::Installation;
use crate::error::{Context, Result};
use crate::process::run;

/// Fills `home` with `data` and `password` by copying the installation's template. Copies share one system identifier.
pub(super) fn copy(installation: &Installation, account: &Account, home: &Path) -> Result<()> {
    let base = base()?;
    let place = installation.bin_dir().to_string_lossy().replace('/', "_");
    let template = base.join(format!("template-{}{place}", installation.version()));
    let lock = File::create(base.join("template.lock")).context(|| "cannot lock the template")?;
    lock.lock().context(|| "cannot lock the template")?;
    if !template.exists() {
        let work = template.with_extension("new");
        // What an interrupted run left behind.
        let _ = fs::remove_dir_all(&work);
        create_dir(&work)?;
        initialize(installation, account, &work, &[])?;
        fs::rename(&work, &template).context(|| "cannot create the template")?;
    }
    drop(lock);
    run(Command::new("cp")
        .args(["-a", "--reflink=auto"])
        .arg(template.join("data"))
        .arg(template.join("password"))
        .arg(home))?;
    Ok(())
}

/// Fills `home` with `data` and `password` by `initdb`.
pub(super) fn initialize(
    installation: &Installation,
    account: &Account,
    home: &Path,
    arguments: &[String],
) -> Result<()> {
    let data = home.join("data");
    create_dir(&data)?;
    fs::set_permissions(&data, Permissions::from_mode(0o700)).context(|| "cannot close the data folder")?;
    account.own(&data)?;
    let password_file = home.join("password");
    fs::write(&password_file, random_password()?).context(|| "cannot write the password")?;
    fs::set_permissions(&password_file, Permissions::from_mode(0o600)).context(|| "cannot close the password file")?;
    account.own(&password_file)?;
    run(account
        .command(installation.tool("initdb"))
        .args(["-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
        .arg(&data)
        .arg("--pwfile")
        .arg(&password_file)
        .args(arguments))?;
    Ok(())
}

fn random_password() -> Result<String> {
    let mut bytes = [0_u8; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context(|| "cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
