#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
