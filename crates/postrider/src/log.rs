//! The log: plain lines on standard error.

use postrider_core::error::{Error, ErrorKind, Result};
use tracing_subscriber::EnvFilter;

/// Variable that holds the filter where `--log` is not given.
const VARIABLE: &str = "POSTRIDER_LOG";

/// Starts the log with `filter`, else with the environment's, else with `default`.
pub(crate) fn start(filter: Option<&str>, default: &str) -> Result<()> {
    let from_environment = std::env::var(VARIABLE).ok();
    let directives = filter.or(from_environment.as_deref()).unwrap_or(default);
    let filter = EnvFilter::try_new(directives).map_err(|error| {
        Error::new(ErrorKind::Configuration, "the log filter cannot be read")
            .with_source(error)
            .with_hint("Write a level (`error`, `warn`, `info`, `debug`, `trace`), or `postrider_engine=debug,info`.")
    })?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(true).init();
    Ok(())
}
