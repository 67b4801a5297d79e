//! What everything is charged ([`bpfof_function::cost`]) against what it takes: instructions and
//! helpers, each by a function that does nothing else, and what chains cost beside their functions.
//!
//! Everything is measured where it takes longest: results that the next step waits for, data in the
//! second-level cache, or in none where that is what is paid for.

mod chains;
mod compressed;
mod kernels;
mod maps;

use bpfof_function::cost::UNIT_PS;
use serde::Serialize;

/// How many times what it is charged something may take at the most.
pub(super) const UNDERCHARGE_MAX: f64 = 2.0;
/// ns that a round of one measurement takes at least.
const ROUND_NS: f64 = 1_000_000.0;
/// The functions.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/charges.bpf.o"));

type Problem = Box<dyn std::error::Error>;

/// One thing that is charged for; medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Charge {
    /// What it belongs to.
    #[serde(skip)]
    pub(super) section: &'static str,
    pub(super) name: String,
    /// ns that it takes.
    pub(super) clock_ns: f64,
    /// ns that it pays for.
    pub(super) charged_ns: f64,
    /// The first by the second: above 1 it pays too little.
    pub(super) undercharge: f64,
}

impl Charge {
    fn new(section: &'static str, name: &str, clock_ns: f64, units: f64) -> Charge {
        let charged_ns = units * UNIT_PS as f64 / 1000.0;
        let undercharge = clock_ns / charged_ns;
        Charge { section, name: name.to_owned(), clock_ns, charged_ns, undercharge }
    }
}

/// What pays for the smallest part of what it takes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Undercharged {
    pub(super) name: String,
    pub(super) undercharge: f64,
}

impl Undercharged {
    /// Of these, if there are any.
    pub(super) fn most(charges: &[Charge]) -> Option<Undercharged> {
        let most = charges.iter().max_by(|a, b| a.undercharge.total_cmp(&b.undercharge))?;
        Some(Undercharged { name: most.name.clone(), undercharge: most.undercharge })
    }
}

/// Charges that are measured together.
pub(super) struct Section {
    name: &'static str,
    measure: fn(&'static str, usize) -> Result<Vec<Charge>, Problem>,
}

impl Section {
    /// Measures all of them in so many rounds.
    pub(super) fn measure(&self, rounds: usize) -> Result<Vec<Charge>, Problem> {
        (self.measure)(self.name, rounds)
    }
}

/// All of them.
pub(super) static SECTIONS: [Section; 8] = [
    Section {
        name: "Instructions",
        measure: |section, rounds| kernels::measure(section, &kernels::instructions(), rounds),
    },
    Section {
        name: "Memory",
        measure: |section, rounds| kernels::measure(section, &kernels::memory(), rounds),
    },
    Section {
        name: "Helpers on bytes",
        measure: |section, rounds| kernels::measure(section, &kernels::bytes(), rounds),
    },
    Section {
        name: "Numbers in text",
        measure: |section, rounds| kernels::measure(section, &kernels::numbers(), rounds),
    },
    Section {
        name: "Doubles and the workspace",
        measure: |section, rounds| kernels::measure(section, &kernels::doubles(), rounds),
    },
    Section {
        name: "Decompression",
        measure: |section, rounds| kernels::measure(section, &compressed::cases()?, rounds),
    },
    Section { name: "Maps", measure: maps::measure },
    Section { name: "Chains", measure: chains::measure },
];

/// Random numbers, the same ones each time.
struct Random(u64);

impl Random {
    /// A number below this one, not 0.
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charge_that_is_the_most_too_little_is_found() {
        assert!(Undercharged::most(&[]).is_none());
        let charges = [("a", 1.0, 10.0), ("b", 3.0, 5.0), ("c", 1.0, 6.0)]
            .map(|(name, clock_ns, units)| Charge::new("Section", name, clock_ns, units));
        assert_eq!(charges.each_ref().map(|charge| charge.charged_ns), [2.0, 1.0, 1.2]);
        let most = Undercharged::most(&charges).expect("one of them");
        assert_eq!((most.name.as_str(), most.undercharge), ("b", 3.0));
    }
}
