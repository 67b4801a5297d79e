//! What is asked and told.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is to be done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// A query at the target.
    Query(Query),
    /// Load the stages of records, a filter and a fold, as if the target kept none.
    Load,
    /// Read a file plainly, in pieces of 128 KiB.
    Plain {
        /// The file.
        path: PathBuf,
        /// Reads in flight.
        depth: usize,
        /// What becomes of what was read.
        plain: Plain,
    },
}

/// A query.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Query {
    /// One SELECT.
    pub sql: String,
    /// The fields of records.
    pub schema: Option<String>,
    /// What its stages are.
    pub form: Form,
    /// Chains at a time.
    pub chains: usize,
    /// Bytes of a read at most; None: what the query takes by itself.
    pub block_max_bytes: Option<u32>,
}

/// How records are filtered and folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// The stages that ship, which go on in each other by tail calls.
    Stages,
    /// Source and filter as one function, which goes on in the fold.
    Selected,
    /// One function.
    Fused,
    /// A function that reads as the others do, and looks at nothing.
    Read,
}

/// What becomes of what was read plainly.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Plain {
    /// Nothing.
    Discard,
    /// Records with `zone i32` at 8 and `amount i32` at 12 are filtered and folded, by compiled code:
    /// `zone >= 10 AND amount < below`.
    Filter {
        /// What amounts must be below.
        below: i32,
    },
    /// The fused stages of this query go through it, as checked machine code, as they would at the target.
    Stages(Query),
    /// It goes to this pipe, in order.
    Pipe(PathBuf),
}

/// What became of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Told {
    /// The worker is connected, and the target has the stages: it is told once, before all else.
    Ready,
    /// It is done.
    Done {
        /// How long it took, in ns.
        wall_ns: u64,
        /// Processor time of the process, in ns.
        cpu_ns: u64,
        /// What else it came to.
        cost: Cost,
    },
    /// It failed, in words.
    Failed(String),
}

/// What work came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes of the file that were gone through.
    pub scanned_bytes: u64,
    /// Bytes sent to the target and received from it, without headers of TCP and IP.
    pub network_bytes: u64,
    /// Rows that passed the filter.
    pub passed: u64,
    /// Hops of all chains.
    pub hops: u64,
    /// The answer as JSON, an array of objects; of answers that stream nothing.
    pub answer: String,
}
