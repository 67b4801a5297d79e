//! How parts are run, and what that costs.

use serde::{Deserialize, Serialize};

/// What queries cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Bytes of files that the stages have gone through.
    pub scanned_bytes: u64,
    /// Rows they have looked at.
    pub rows: u64,
    /// Rows that have passed the filter that was pushed.
    pub passed: u64,
    /// Bytes sent to the target, without headers of TCP and IP.
    pub sent_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
    /// Chains that have ended with an answer.
    pub chains: u64,
    /// Of these, at the target.
    pub chains_at_target: u64,
    /// Hops of all chains.
    pub hops: u64,
    /// Chains that were run again: a budget was exhausted, or a file had changed.
    pub again: u64,
}

/// How parts are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Chains at a time, 1 to 256.
    pub chains: usize,
    /// Whether chains may run here by plain reads if the target cannot run them.
    pub falls_back: bool,
    /// Bytes of a chain's range at most; None: as the part's size suggests.
    pub range_max_bytes: Option<u64>,
    /// Bytes of a read at most; None: as much as a hop can read and its budget allows.
    pub block_max_bytes: Option<u32>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { chains: 32, falls_back: true, range_max_bytes: None, block_max_bytes: None }
    }
}
