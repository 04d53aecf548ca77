//! libFuzzer on the output of CNI plugins.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzz::cni_result(data));
