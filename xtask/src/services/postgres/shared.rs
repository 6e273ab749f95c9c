//! One cluster of each version for many tests of one process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::cluster::Cluster;
use super::installation::find;
use crate::error::Result;

/// A cluster of this version that all share who hold it at the same time; the last one stops it. Each works in a database of its own.
///
/// # Errors
/// When the version cannot be had or does not start.
pub fn shared(major: u32) -> Result<Arc<Cluster>> {
    static SHARED: Mutex<BTreeMap<u32, Weak<Cluster>>> = Mutex::new(BTreeMap::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cluster) = shared.get(&major).and_then(Weak::upgrade) {
        return Ok(cluster);
    }
    let cluster = Cluster::builder(&find(Some(major))?).setting("max_replication_slots", "100").start()?;
    let cluster = Arc::new(cluster);
    shared.insert(major, Arc::downgrade(&cluster));
    Ok(cluster)
}
