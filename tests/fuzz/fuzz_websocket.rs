//! libFuzzer on the framing of WebSocket.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzz::websocket(data));
