//! Settings for running parts, and their cost.

use serde::{Deserialize, Serialize};

/// The cost of queries so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Bytes of files that the stages have processed.
    pub scanned_bytes: u64,
    /// Rows that they have processed.
    pub rows: u64,
    /// Rows that have passed the pushed filter.
    pub passed: u64,
    /// Bytes sent to the target, without headers of TCP and IP.
    pub sent_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
    /// Chains that have ended with an answer.
    pub chains: u64,
    /// Chains of these that ran at the target.
    pub chains_at_target: u64,
    /// Hops of all chains.
    pub hops: u64,
    /// Chains that were run again: a budget was exhausted, or a file had changed.
    pub again: u64,
}

/// Settings for running parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of chains at a time, 1 to 256.
    pub chains: usize,
    /// Whether chains may run on this machine by plain reads if the target cannot run them.
    pub falls_back: bool,
    /// Maximum size of a chain's range in bytes; None: chosen from the part's size.
    pub range_max_bytes: Option<u64>,
    /// Maximum size of a read in bytes; None: as much as a hop can read within its budget.
    pub block_max_bytes: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { chains: 32, falls_back: true, range_max_bytes: None, block_max_bytes: None }
    }
}
