//! Charges ([`bpfof_function::cost`]) against the time of what they pay for: instructions and helpers, each in a
//! function that does nothing else, and the costs of chains beside their functions.
//!
//! Everything is measured where it takes longest: results on which the next step depends, data in the second-level
//! cache, or in no cache where the charge covers that.

mod chains;
pub(super) mod charge;
mod compressed;
mod kernels;
mod maps;

use charge::{Charge, Problem};

/// Charges that are measured together.
pub(super) struct Section {
    name: &'static str,
    measure: fn(&'static str, usize) -> Result<Vec<Charge>, Problem>,
}

impl Section {
    /// The common name of its charges.
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    /// Measures all its charges in this many rounds.
    pub(super) fn measure(&self, rounds: usize) -> Result<Vec<Charge>, Problem> {
        (self.measure)(self.name, rounds)
    }
}

/// All sections.
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
