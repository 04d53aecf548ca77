//! libFuzzer on the unpacking of layers. Needs root.
#![no_main]

use fuzz::mutate::{self, Dice};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

std::thread_local! {
    static GROUND: fuzz::TestEnv = fuzz::TestEnv::default();
}

fuzz_target!(|data: &[u8]| {
    GROUND.with(|env| env.tar(data));
});

// Half of the mutations are ours, half are libFuzzer's, most of them with corrected checksums.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 2 == 0 {
        let changed = mutate::tar(&data[..size], &data[..size], &mut Dice::new(seed.into()));
        let size = changed.len().min(max_size);
        data[..size].copy_from_slice(&changed[..size]);
        return size;
    }
    let size = fuzzer_mutate(data, size, max_size);
    if seed % 32 > 1 {
        mutate::settle(&mut data[..size]);
    }
    size
});
