//! libFuzzer on records, intents, journals and exits of the state directory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzz::records(data));
