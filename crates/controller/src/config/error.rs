//! Errors in a configuration.

use crate::limits::{MAX_LISTENERS, MAX_NSID};
use std::net::SocketAddr;
use std::path::PathBuf;

/// An error in a configuration, and where it is.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A namespace option.
    #[error(
        "namespace {text:?}: {problem}; write mem:size=1GiB[,latency_us=3][,iops=N], mem:file=FILE[,latency_us=3][,iops=N], file:path=FILE[,size=…], stripe:path=FILE,path=FILE[,chunk=64KiB][,size=…], concat:path=FILE,path=FILE[,size=…] or nvme:path=/dev/ngXnY, each with [,lba=512][,nqn=NAME][,nsid=1][,uuid=UUID][,anagrpid=1]"
    )]
    Namespace {
        /// The given text.
        text: String,
        /// The problem.
        problem: String,
    },
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The file's contents are invalid; the message names line and column.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// Line, column and reason.
        message: String,
    },
    /// A limit with which no host could connect, or nothing could be pushed down.
    #[error("{0} is 0: it must be 1 or more")]
    Zero(&'static str),
    /// Two reactors that never sleep would compete for one processor.
    #[error("cores has {0} twice, but with poll a processor has room for only one reactor")]
    SameCore(usize),
    /// Too little memory besides that of the namespaces.
    #[error(
        "memory-max is {given_bytes} bytes, of which namespaces in memory take {namespace_bytes}: \
         it must be {needed_bytes} bytes or more"
    )]
    Memory {
        /// The configured limit.
        given_bytes: u64,
        /// The part of it that namespaces take.
        namespace_bytes: u64,
        /// The minimum.
        needed_bytes: u64,
    },
    /// Namespaces in memory are larger than the machine's memory.
    #[error(
        "mem:size=: namespaces in memory have {size_bytes} bytes together, but the machine or its \
         control group has {machine_bytes}: make them smaller, serve files, or give \
         --overcommit-memory if most of their blocks stay unwritten"
    )]
    NamespaceMemory {
        /// Their total size.
        size_bytes: u64,
        /// The machine's memory.
        machine_bytes: u64,
    },
    /// Other machines reach the target, and no rule says which may connect.
    #[error(
        "{0} is reachable from other machines, but there are no [[host]] rules: write rules in the \
         --config file (docs/security.md), or allow-any-host = true (--allow-any-host) if every \
         host on that network may read and write everything"
    )]
    AnyHost(SocketAddr),
    /// A rule that is invalid.
    #[error("the [[host]] rule of {nqn:?}: {why}")]
    Rule {
        /// The host that the rule names.
        nqn: String,
        /// The problem.
        why: String,
    },
    /// No namespace at all.
    #[error("no namespace to serve; give --namespace mem:size=1GiB or file:path=FILE")]
    NoNamespace,
    /// Two namespaces of a subsystem have one id.
    #[error(
        "{nqn} has two namespaces with id {nsid}: a namespace without nsid= gets its position as \
         its id; give each its own nsid="
    )]
    SameId {
        /// The subsystem.
        nqn: String,
        /// The id.
        nsid: u32,
    },
    /// A subsystem has more namespaces than there are ids.
    #[error("{nqn} has more than {MAX_NSID} namespaces")]
    TooMany {
        /// The subsystem.
        nqn: String,
    },
    /// No address to listen on, or too many.
    #[error("listen has {0} addresses, not 1 to {MAX_LISTENERS}")]
    Listeners(usize),
    /// Two listeners at one address.
    #[error("listen has {0} twice")]
    SameAddress(SocketAddr),
    /// A listener whose connections TLS cannot protect.
    #[error(
        "{0} listens for RDMA, which has no TLS, but tls is \"required\"; listen only for TCP, or \
         set tls to \"allowed\""
    )]
    RdmaWithoutTls(SocketAddr),
    /// Two listeners with the same id.
    #[error(
        "listen has the id {0} twice: an address without id= gets its position as its id; give \
         each its own id="
    )]
    SamePortId(u16),
    /// Two namespaces with one UUID.
    #[error(
        "two namespaces have the uuid of {nqn} namespace {nsid}: hosts would treat them as one \
         disk"
    )]
    SameUuid {
        /// The subsystem of one of them.
        nqn: String,
        /// The id of one of them.
        nsid: u32,
    },
    /// Two namespaces in one file.
    #[error("{0} is configured twice; a file can serve only one namespace")]
    SameFile(PathBuf),
    /// A setting differs from the running target's and cannot change.
    #[error("{0} cannot change while the target runs; restart the target")]
    Fixed(&'static str),
    /// Not an NVMe qualified name.
    #[error(
        "{0:?} is not an NVMe qualified name; write nqn.YYYY-MM.reverse.domain:name, at most 223 bytes"
    )]
    Nqn(String),
}
