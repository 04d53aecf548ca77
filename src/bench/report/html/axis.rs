//! Maps measured values to positions on the axes of plots, and chooses round values for their
//! labels.

/// A logarithmic or linear scale that maps values to positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Axis {
    /// Creates a logarithmic scale for the positive `values`, with a margin; None if there are none.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let (low, high) = bounds(values.filter(|value| *value > 0.0))?;
        Some(Self { low: (low / 1.15).ln(), high: (high * 1.15).ln(), from, to, logarithmic: true })
    }

    /// Creates a linear scale from 0 to the largest of `values`.
    pub(super) fn linear(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let (_, high) = bounds(values)?;
        Some(Self { low: 0.0, high: if high > 0.0 { high * 1.08 } else { 1.0 }, from, to, logarithmic: false })
    }

    pub(super) fn place(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.max(f64::MIN_POSITIVE).ln() } else { value };
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }

    /// Returns round values for labels, at most `most`.
    pub(super) fn ticks(&self, most: usize) -> Vec<f64> {
        if !self.logarithmic {
            return self.even_ticks(most);
        }
        let (low, high) = (self.low.exp(), self.high.exp());
        let decades = (-6..=9).map(|power| 10f64.powi(power));
        let fine: Vec<f64> = decades
            .clone()
            .flat_map(|one| [1.0, 2.0, 5.0].map(|step| step * one))
            .filter(|tick| (low..=high).contains(tick))
            .collect();
        if fine.len() <= most {
            return fine;
        }
        let coarse: Vec<f64> = decades.filter(|tick| (low..=high).contains(tick)).collect();
        let every = coarse.len().div_ceil(most.max(1)).max(1);
        coarse.into_iter().step_by(every).collect()
    }

    fn even_ticks(&self, most: usize) -> Vec<f64> {
        let steps = (-6..=9).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)));
        let count = |step: f64| self.high / step;
        let room = f64::from(u32::try_from(most).unwrap_or(u32::MAX));
        let Some(step) = steps.into_iter().find(|step| count(*step) < room) else { return vec![0.0] };
        (0..).map(|n: u32| f64::from(n) * step).take_while(|tick| *tick <= self.high).collect()
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |bounds, value| {
        let (low, high) = bounds.unwrap_or((value, value));
        Some((f64::min(low, value), f64::max(high, value)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_mapped_to_positions_and_ticks_are_round() {
        let scale = Axis::logarithmic([1.0, 100.0].into_iter(), 0.0, 100.0).unwrap();
        assert!((scale.place(10.0) - 50.0).abs() < 0.01);
        assert!(scale.place(1.0) < scale.place(2.0));
        assert_eq!(scale.ticks(8), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(scale.ticks(4), [1.0, 10.0, 100.0]);
        let scale = Axis::linear([3.0, 190.0].into_iter(), 100.0, 0.0).unwrap();
        assert_eq!(scale.ticks(6), [0.0, 50.0, 100.0, 150.0, 200.0]);
        assert_eq!(scale.place(0.0), 100.0);
    }

    #[test]
    fn empty_and_invalid_values_have_no_scale() {
        assert!(Axis::logarithmic([].into_iter(), 0.0, 1.0).is_none());
        assert!(Axis::logarithmic([0.0, -1.0].into_iter(), 0.0, 1.0).is_none());
        assert!(Axis::linear([f64::NAN].into_iter(), 0.0, 1.0).is_none());
        let flat = Axis::linear([0.0].into_iter(), 0.0, 1.0).unwrap();
        assert!(flat.place(0.0).is_finite());
    }
}
