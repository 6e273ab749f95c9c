#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| postrider_tests::fuzz::journal(bytes));
