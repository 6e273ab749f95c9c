//! Free ports on loopback.

use std::net::TcpListener;

use crate::error::{Context, Result};

/// A port of 127.0.0.1 that nobody listens on now.
///
/// # Errors
/// When the system has none left.
pub(crate) fn free() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context(|| "cannot find a free port")?;
    Ok(listener.local_addr().context(|| "cannot find a free port")?.port())
}
