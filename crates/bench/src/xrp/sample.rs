//! Samples of measurements.

use super::worker::Done;

/// One measurement of one way.
#[derive(Debug)]
pub(super) struct Sample {
    /// Instructions or ns.
    pub(super) spent: u64,
    pub(super) done: Done,
}

impl Sample {
    pub(super) fn each(&self) -> f64 {
        self.spent as f64 / self.done.operations as f64
    }
}

/// The cost of one more read: the slope of a line through these points (reads, cost), by least squares.
pub(super) fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let by = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    by(&|point| (point.0 - x) * (point.1 - y)) / by(&|point| (point.0 - x).powi(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hop_is_what_a_read_more_costs() {
        let points: Vec<(f64, f64)> =
            (1..=10).map(|n| (f64::from(n), 100.0 + 7.0 * f64::from(n))).collect();
        assert!((slope(&points) - 7.0).abs() < 1e-9);
    }
}
