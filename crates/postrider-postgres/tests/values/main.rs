//! Values as real servers send them, against what the same servers say of them.
//!
//! Every test runs on every supported version. What it reads comes over the replication protocol, through the same
//! assembler and decoder as in the product; what is right is asked of the server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

#[macro_use]
#[path = "../versions/macros.rs"]
mod macros;

mod cases;
mod catalogue;
mod database;
mod generated;
mod oracle;

on_every_version!(
    cases::t_01_numeric_specials,
    cases::t_02_infinity_before_christ_and_far_dates,
    cases::t_04_midnight_at_the_end_and_leap_seconds,
    cases::t_06_intervals,
    cases::t_08_arrays,
    cases::t_09_enums_changing_under_way,
    cases::t_11_composites,
    cases::t_13_other_built_in_types_and_extensions,
    cases::t_14_json_and_jsonb,
    cases::t_15_settings_of_the_database_do_not_leak,
    cases::t_16_padding_and_empty_text,
    cases::t_17_bytea,
    cases::domains_are_the_type_below_them,
    cases::ranges_and_multiranges,
    cases::untouched_columns_are_marked_or_filled,
    cases::every_server_encoding_arrives_as_utf8,
    catalogue::the_built_in_types_are_those_of_the_server,
    generated::generated_values_are_what_the_server_says
);
