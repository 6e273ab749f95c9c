//! Exit codes beside those of [`postrider_core::error::ErrorKind::exit_code`]; they are part of the interface.

/// All is well.
pub(crate) const OK: u8 = 0;

/// `status`: the process does not run, or is not ready.
pub(crate) const NOT_READY: u8 = 1;

/// `verify-history`: the history breaks an invariant.
pub(crate) const VIOLATED: u8 = 1;

/// A second signal ended the process at once, in the shell's manner (128 + SIGINT).
pub(crate) const SECOND_SIGNAL: i32 = 130;

/// The table that `--help` ends with.
pub(crate) const HELP: &str = "\
Exit codes:
  0    done; with `check`: all is well; with `status`: running and ready
  1    `status`: not running, or not ready; `verify-history`: an invariant is broken
  2    the configuration or the command line is wrong
  3    the server: unreachable, or our name, password or rights
  4    the server: slot, publication, wal_level or a table is not as it must be
  5    the journal or the disk; with `journal verify`: something is damaged
  6    the protocol, or a defect of Postrider
  7    an endpoint or a sink
  8    `work`: an order does not fit a row as it is; others of the same call may be done; `stage`: it is paused already, or is not
  130  ended at once by a second signal

`postrider explain CODE` tells about an error, as in `postrider explain PR004`.";
