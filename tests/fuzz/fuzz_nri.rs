//! libFuzzer on the bytes of NRI plugins.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzz::nri(data));
