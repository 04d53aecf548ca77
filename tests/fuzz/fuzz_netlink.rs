//! libFuzzer on netlink messages of the kernel.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzz::netlink(data));
