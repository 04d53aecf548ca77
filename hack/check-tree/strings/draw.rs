//! Draws strings by a seed: the same seed and strings give the same draw.

use super::UserString;

pub(super) fn draw<'a>(strings: &'a [UserString], count: usize, seed: &str) -> Vec<&'a UserString> {
    // FNV-1a.
    let mut state = seed
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut left: Vec<_> = strings.iter().collect();
    let mut drawn = Vec::new();
    while drawn.len() < count && !left.is_empty() {
        let length = u64::try_from(left.len()).unwrap_or(u64::MAX);
        let position = usize::try_from(next(&mut state) % length).unwrap_or(0);
        drawn.push(left.swap_remove(position));
    }
    drawn
}

/// Returns the next number of the generator SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
