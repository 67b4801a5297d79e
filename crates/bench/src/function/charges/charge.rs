//! One charge, and definitions that all measurements share.

use bpfof_function::cost::UNIT_PS;
use serde::Serialize;

/// The largest factor by which the time may exceed the charge.
pub(crate) const UNDERCHARGE_MAX: f64 = 2.0;
/// The shortest round of a measurement, in ns.
pub(super) const ROUND_NS: f64 = 1_000_000.0;
/// The measured functions.
pub(super) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/charges.bpf.o"));

pub(super) type Problem = Box<dyn std::error::Error>;

/// One charged operation; medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Charge {
    /// Its section.
    #[serde(skip)]
    pub(crate) section: &'static str,
    pub(crate) name: String,
    /// The time that it takes, in ns.
    pub(crate) clock_ns: f64,
    /// The time that it pays for, in ns.
    pub(crate) charged_ns: f64,
    /// `clock_ns` divided by `charged_ns`: above 1 it pays too little.
    pub(crate) undercharge: f64,
}

impl Charge {
    pub(super) fn new(section: &'static str, name: &str, clock_ns: f64, units: f64) -> Charge {
        let charged_ns = units * UNIT_PS as f64 / 1000.0;
        let undercharge = clock_ns / charged_ns;
        Charge { section, name: name.to_owned(), clock_ns, charged_ns, undercharge }
    }
}

/// The operation that pays for the smallest share of its time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Undercharged {
    pub(crate) name: String,
    pub(crate) undercharge: f64,
}

impl Undercharged {
    /// Finds it among these charges; None if there are none.
    pub(crate) fn most(charges: &[Charge]) -> Option<Undercharged> {
        let most = charges.iter().max_by(|a, b| a.undercharge.total_cmp(&b.undercharge))?;
        Some(Undercharged { name: most.name.clone(), undercharge: most.undercharge })
    }
}

/// Reproducible random numbers.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// A number below `end`, which must not be 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_undercharged_operation_is_found() {
        assert!(Undercharged::most(&[]).is_none());
        let charges = [("a", 1.0, 10.0), ("b", 3.0, 5.0), ("c", 1.0, 6.0)]
            .map(|(name, clock_ns, units)| Charge::new("Section", name, clock_ns, units));
        assert_eq!(charges.each_ref().map(|charge| charge.charged_ns), [2.0, 1.0, 1.2]);
        let most = Undercharged::most(&charges).expect("one of them");
        assert_eq!((most.name.as_str(), most.undercharge), ("b", 3.0));
    }
}
