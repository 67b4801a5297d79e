//! Requests and results.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// A query at the target.
    Query(Query),
    /// Load the stages for records, a filter and a fold, even if the target keeps them.
    Load,
    /// Read a file plainly, in pieces of 128 KiB.
    Plain {
        /// The file.
        path: PathBuf,
        /// Number of reads in flight.
        depth: usize,
        /// How to process the data.
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
    /// The form of its stages.
    pub form: Form,
    /// Number of chains at a time.
    pub chains: usize,
    /// Maximum size of a read in bytes; None: the query's own choice.
    pub block_max_bytes: Option<u32>,
}

/// How records are filtered and folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// The shipped stages, which continue in each other by tail calls.
    Stages,
    /// Source and filter as one function, which continues in the fold.
    Selected,
    /// One function.
    Fused,
    /// A function that reads as the others do, but processes no data.
    Read,
}

/// The processing of data that was read by plain reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Plain {
    /// None.
    Discard,
    /// Filters and folds records with `zone i32` at 8 and `amount i32` at 12, by compiled code: `zone >= 10 AND amount
    /// < below`.
    Filter {
        /// The upper bound of amounts, exclusive.
        below: i32,
    },
    /// Runs the fused stages of this query over the data, as checked machine code, as a target would.
    Stages(Query),
    /// Writes the data to this pipe, in order.
    Pipe(PathBuf),
}

/// A result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Told {
    /// The worker is connected, and the target has the stages. This is sent once, before all other results.
    Ready,
    /// The request has succeeded.
    Done {
        /// Wall time in ns.
        wall_ns: u64,
        /// Processor time of the process, in ns.
        cpu_ns: u64,
        /// All other costs.
        cost: Cost,
    },
    /// The request has failed, with this message.
    Failed(String),
}

/// The cost of a request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Bytes of the file that were processed.
    pub scanned_bytes: u64,
    /// Bytes sent to the target and received from it, without headers of TCP and IP.
    pub network_bytes: u64,
    /// Rows that passed the filter.
    pub passed: u64,
    /// Hops of all chains.
    pub hops: u64,
    /// The answer as JSON, an array of objects; empty for answers that stream.
    pub answer: String,
}
