//! A standby: a copy of a running cluster that replays what the cluster streams to it, and can be promoted.

use std::fs;

use super::account::Account;
use super::cluster::{Cluster, append, line};
use super::folder::Folder;
use super::installation::Installation;
use crate::error::{Context, Result};
use crate::process::run;

impl Cluster {
    /// A standby of this cluster on loopback, streaming through the physical slot `slot`, which is made, with
    /// `hot_standby_feedback`. Settings are written to its own `postgresql.conf`.
    ///
    /// # Errors
    /// When the copy cannot be made, or the standby does not start.
    pub fn standby(&self, slot: &str, settings: &[(&str, &str)]) -> Result<Cluster> {
        let folder = Folder::of_this_run()?;
        let account = Account::of_servers()?;
        let home = folder.path().to_path_buf();
        account.own(&home)?;
        let conninfo = format!(
            "host=127.0.0.1 port={} user=postgres password={} dbname=postgres application_name={slot}",
            self.port(),
            self.password()
        );
        let mut copy = account.command(self.installation().tool("pg_basebackup"));
        // Else the tool of a fetched version loads the libpq of the system.
        copy.env("LD_LIBRARY_PATH", libraries(self.installation()));
        copy.arg("-D").arg(home.join("data")).args(["-X", "stream", "-c", "fast", "-C", "-S", slot, "-d", &conninfo]);
        run(&mut copy)?;
        fs::copy(self.home_dir().join("password"), home.join("password")).context(|| "cannot copy the password")?;
        let own =
            [("primary_conninfo", conninfo.as_str()), ("primary_slot_name", slot), ("hot_standby_feedback", "on")];
        let text: String = own.iter().chain(settings).map(|(name, value)| line(name, value)).collect();
        append(&home.join("data/postgresql.conf"), &text)?;
        let signal = home.join("data/standby.signal");
        fs::write(&signal, "").context(|| "cannot mark the copy as a standby")?;
        account.own(&signal)?;
        Cluster::start_copy(self.installation().clone(), account, folder)
    }
}

fn libraries(installation: &Installation) -> std::path::PathBuf {
    installation.bin_dir().parent().map_or_else(Default::default, |prefix| prefix.join("lib"))
}
