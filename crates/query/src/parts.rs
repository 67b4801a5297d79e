//! Files are cut into parts, and parts into the ranges of chains.

use crate::plan::Plan;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What one call of [`Runner::run`](crate::Runner::run) works on: the rows of a file that begin in a
/// range of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes, when the part was made.
    pub file_bytes: u64,
    /// File offset of the range in bytes.
    pub start_bytes: u64,
    /// Where it ends.
    pub end_bytes: u64,
}

/// Cuts files with their sizes into parts of at most `part_max_bytes`, in order.
#[must_use]
pub fn parts(plan: &Plan, files: &[(PathBuf, u64)], part_max_bytes: u64) -> Vec<Part> {
    let _ = (plan, files, part_max_bytes);
    Vec::new()
}
