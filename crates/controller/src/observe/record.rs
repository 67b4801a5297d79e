//! Records of commands for operators.

use crate::metrics::Class;
use bpfof_chain::FileRead;
use serde::{Deserialize, Serialize};

/// A read of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRecord {
    /// The file's id; 0 is the namespace itself.
    pub file: u32,
    /// Offset in the file, in bytes.
    pub offset_bytes: u64,
    /// Requested size in bytes.
    pub size_bytes: u32,
}

impl From<&FileRead> for ReadRecord {
    fn from(read: &FileRead) -> Self {
        let FileRead { file, offset_bytes, size_bytes } = *read;
        ReadRecord { file, offset_bytes, size_bytes }
    }
}

/// A hop of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopRecord {
    /// When its reads were requested: time since the command came, in ns.
    pub since_start_ns: u64,
    /// Time until the last of its reads had arrived, in ns.
    pub device_ns: u64,
    /// Time from then until its turn, in ns.
    pub queued_ns: u64,
    /// Time of its calls of the function, in ns, if it was measured.
    pub function_ns: Option<u64>,
    /// Price of these calls, in units of processor time (200 ps): at least their worst-case time.
    pub units: u64,
    /// Its reads, as the function has requested them.
    pub reads: Vec<ReadRecord>,
}

/// A command that has ended, and what it has waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRecord {
    /// The reactor that served it.
    pub reactor: usize,
    /// When it came: time since the target started, in ns.
    pub begun_ns: u64,
    /// How long ago it ended, in ms.
    pub age_ms: u64,
    /// Time until it was answered, in ns.
    pub duration_ns: u64,
    /// Its kind.
    pub class: Class,
    /// Name of the host.
    pub host: String,
    /// Address of the host.
    pub peer: String,
    /// Its queue.
    pub queue: u16,
    /// Name of the subsystem.
    pub subsystem: String,
    /// The namespace.
    pub nsid: u32,
    /// The function of a chain, and its id.
    pub function: Option<(String, u32)>,
    /// Time without an arena, in ns: before a chain began, and while it gave way to others.
    pub arena_ns: u64,
    /// Time until the host had sent the command's data, in ns.
    pub data_ns: u64,
    /// Time in devices, in ns.
    pub device_ns: u64,
    /// Time in functions, in ns: measured for traced chains, otherwise the price that they have paid.
    pub function_ns: u64,
    /// The rest of the duration, in ns: the command waited for its turn among others.
    pub queued_ns: u64,
    /// Time from the answer until the host's side of the connection had room for it, in ns; none if that is not known
    /// (yet).
    pub output_ns: Option<u64>,
    /// Bytes read or written.
    pub bytes: u64,
    /// Hops of a chain.
    pub hop_count: u32,
    /// Price that a chain has paid, in units of processor time (200 ps).
    pub units: u64,
    /// How it ended.
    pub outcome: String,
    /// The first hops of a chain, if they were logged, as those over files and drives always are.
    pub hops: Vec<HopRecord>,
}
