//! Percentiles, medians, and confidence intervals of ratios of medians.

/// Number of bootstrap resamples for an interval.
const RESAMPLES: usize = 2000;
/// Fixed seed, so that the same values always give the same interval.
const SEED: u64 = 0x0063_7269_7370; // "crisp"

/// Returns the smallest of `values` that `percent` of them do not exceed; None if empty.
pub(crate) fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Returns the median; with an even number of values, the mean of the two middle ones.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    middle(&mut values.to_vec())
}

fn middle(values: &mut [f64]) -> Option<f64> {
    let half = values.len() / 2;
    let odd = !values.len().is_multiple_of(2);
    let (below, upper, _) = match values {
        [] => return None,
        values => values.select_nth_unstable_by(half, f64::total_cmp),
    };
    let upper = *upper;
    let lower = if odd { upper } else { below.iter().copied().max_by(f64::total_cmp).unwrap_or(upper) };
    Some(f64::midpoint(lower, upper))
}

/// A ratio of two medians with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Ratio {
    pub(crate) ratio: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Ratio {
    /// Returns the ratio of the medians of `ours` and `theirs`; None if one of them is empty or the divisor is 0.
    ///
    /// The interval is computed by bootstrap: both sides are resampled with replacement many times,
    /// and the interval is the middle 95 % of the resulting ratios.
    pub(crate) fn of(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        let divide = |a: f64, b: f64| (b > 0.0).then(|| a / b);
        let ratio = divide(median(ours)?, median(theirs)?)?;
        let mut dice = Rng(SEED);
        let (mut mine, mut other) = (vec![0.0; ours.len()], vec![0.0; theirs.len()]);
        let mut ratios = Vec::with_capacity(RESAMPLES);
        for _ in 0..RESAMPLES {
            dice.draw(ours, &mut mine);
            dice.draw(theirs, &mut other);
            ratios.extend(divide(middle(&mut mine)?, middle(&mut other)?));
        }
        ratios.sort_unstable_by(f64::total_cmp);
        let at = |share: usize| ratios.get((ratios.len() * share / 1000).min(ratios.len().saturating_sub(1))).copied();
        Some(Self { ratio, low: at(25)?, high: at(975)? })
    }
}

/// Pseudo-random number generator splitmix64.
struct Rng(u64);

impl Rng {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Fills `into` with values drawn from `from` with replacement.
    fn draw(&mut self, from: &[f64], into: &mut [f64]) {
        for slot in into {
            // The high half of the product is below the length, without the bias of a modulo.
            let index = (u128::from(self.roll()) * from.len() as u128) >> 64;
            *slot = usize::try_from(index).ok().and_then(|index| from.get(index)).copied().unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns values that differ from `center` by up to 10 %.
    fn noise(center: f64, count: usize, seed: u64) -> Vec<f64> {
        let mut dice = Rng(seed);
        (0..count).map(|_| center * (0.9 + (dice.roll() >> 11) as f64 / (1u64 << 53) as f64 * 0.2)).collect()
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=11).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50), Some(6.0));
        assert_eq!(percentile(&values, 90), Some(10.0));
        assert_eq!(percentile(&values[..3], 90), Some(11.0));
        assert_eq!(percentile(&[7.0], 99), Some(7.0));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn a_median_is_the_middle_value() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn an_interval_contains_the_true_ratio_and_is_reproducible() {
        let (ours, theirs) = (noise(1.0, 60, 1), noise(8.0, 60, 2));
        let ratio = Ratio::of(&ours, &theirs).unwrap();
        assert!(ratio.low <= 0.125 && 0.125 <= ratio.high, "{ratio:?}");
        assert!(ratio.low <= ratio.ratio && ratio.ratio <= ratio.high, "{ratio:?}");
        assert!(ratio.high / ratio.low < 1.1, "{ratio:?}");
        assert_eq!(Ratio::of(&ours, &theirs), Some(ratio));
    }

    #[test]
    fn fewer_values_give_a_wider_interval() {
        let width = |count| Ratio::of(&noise(1.0, count, 3), &noise(1.0, count, 4)).map(|r| r.high - r.low).unwrap();
        assert!(width(6) > width(200), "{} {}", width(6), width(200));
    }

    #[test]
    fn an_interval_contains_the_true_ratio_in_95_percent_of_cases() {
        let holds = (0..200).filter(|n| {
            let ratio = Ratio::of(&noise(2.0, 30, 1000 + n), &noise(1.0, 30, 5000 + n)).unwrap();
            ratio.low <= 2.0 && 2.0 <= ratio.high
        });
        let count = holds.count();
        assert!(count >= 180, "only {count} of 200");
    }

    #[test]
    fn empty_or_zero_values_have_no_ratio() {
        assert_eq!(Ratio::of(&[], &[1.0]), None);
        assert_eq!(Ratio::of(&[1.0], &[]), None);
        assert_eq!(Ratio::of(&[1.0], &[0.0, 0.0, 0.0]), None);
        let one = Ratio::of(&[2.0], &[4.0]).unwrap();
        assert_eq!((one.ratio, one.low, one.high), (0.5, 0.5, 0.5));
    }
}
