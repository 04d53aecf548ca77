//! libFuzzer on manifests, indexes, configs, names and challenges.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzz::manifest(data));
