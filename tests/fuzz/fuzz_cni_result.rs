//! libFuzzer on what CNI plugins write.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzz::cni_result(data));
