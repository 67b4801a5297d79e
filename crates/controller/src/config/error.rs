//! What can be wrong with a configuration.

use crate::limits::{MAX_LISTENERS, MAX_NSID};
use std::net::SocketAddr;
use std::path::PathBuf;

/// What is wrong with a configuration, and where.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A namespace option.
    #[error(
        "namespace {text:?}: {problem}; write mem:size=1GiB[,latency_us=3][,iops=N], mem:file=FILE[,latency_us=3][,iops=N], file:path=FILE[,size=…], stripe:path=FILE,path=FILE[,chunk=64KiB][,size=…], concat:path=FILE,path=FILE[,size=…] or nvme:path=/dev/ngXnY, each with [,lba=512][,nqn=NAME][,nsid=1][,uuid=UUID][,anagrpid=1]"
    )]
    Namespace {
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The file's contents; the message names line and column.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// Line, column and reason.
        message: String,
    },
    /// No chain could ever run.
    #[error("{0} is 0, so nothing could be pushed down: it must be 1 or more")]
    NoChains(&'static str),
    /// Two reactors that never sleep would take each other's time.
    #[error("cores has {0} twice, and with poll a processor has room for one reactor")]
    SameCore(usize),
    /// Too little memory beside that of the namespaces.
    #[error(
        "memory-max is {given_bytes} bytes, of which namespaces in memory take {namespace_bytes}: \
         it must be {needed_bytes} bytes or more"
    )]
    Memory {
        /// What is configured.
        given_bytes: u64,
        /// What the namespaces take of it.
        namespace_bytes: u64,
        /// The least that would do.
        needed_bytes: u64,
    },
    /// Namespaces in memory that the machine has not.
    #[error(
        "mem:size=: namespaces in memory have {size_bytes} bytes together, and the machine, or its control \
         group, {machine_bytes}: make them smaller, serve files, or give --overcommit-memory if most of them \
         stays unwritten"
    )]
    NamespaceMemory {
        /// What is configured.
        size_bytes: u64,
        /// What there is.
        machine_bytes: u64,
    },
    /// No connection could ever be made.
    #[error("{0} is 0, so nobody could connect: it must be 1 or more")]
    NoConnections(&'static str),
    /// Other machines reach the target, and nothing says who may.
    #[error(
        "{0} is reached by other machines, and no [[host]] rule says who may connect: write rules in \
         the --config file (docs/security.md), or allow-any-host = true (--allow-any-host) if everybody \
         on that network may read and write everything"
    )]
    AnyHost(SocketAddr),
    /// A rule that makes no sense.
    #[error("the [[host]] rule of {nqn:?}: {why}")]
    Rule {
        /// The host that it names.
        nqn: String,
        /// What is wrong.
        why: String,
    },
    /// No namespace at all.
    #[error("no namespace to serve; give --namespace mem:size=1GiB or file:path=FILE")]
    NoNamespace,
    /// Two namespaces of a subsystem have one id.
    #[error(
        "{nqn} has two namespaces with id {nsid}: one without nsid= has its position as its id; give each an nsid= of its own"
    )]
    SameId {
        /// The subsystem.
        nqn: String,
        /// The id.
        nsid: u32,
    },
    /// Namespaces without an id of their own beyond what there can be.
    #[error("{nqn} has more than {MAX_NSID} namespaces")]
    TooMany {
        /// The subsystem.
        nqn: String,
    },
    /// Nowhere to listen, or at too many addresses.
    #[error("listen has {0} addresses: it has 1 to {MAX_LISTENERS}")]
    Listeners(usize),
    /// Two listeners at one address.
    #[error("listen has {0} twice")]
    SameAddress(SocketAddr),
    /// A listener whose connections TLS cannot protect.
    #[error(
        "{0} listens for RDMA, which has no TLS, and tls is \"required\"; listen for TCP only, or set tls to \"allowed\""
    )]
    RdmaWithoutTls(SocketAddr),
    /// Two listeners with one number.
    #[error(
        "listen has the id {0} twice: one without id= has its position as its id; give each an id= of its own"
    )]
    SamePortId(u16),
    /// Two namespaces with one UUID.
    #[error(
        "two namespaces have the uuid of {nqn} namespace {nsid}: hosts would take them for one disk"
    )]
    SameUuid {
        /// The subsystem of one of them.
        nqn: String,
        /// The id of one of them.
        nsid: u32,
    },
    /// Two namespaces in one file.
    #[error("{0} is in two places of the configuration; a file has one namespace")]
    SameFile(PathBuf),
    /// A setting that differs from that of the running target.
    #[error("{0} cannot change while the target runs; restart it for that")]
    Fixed(&'static str),
    /// Not an NVMe qualified name.
    #[error(
        "{0:?} is not an NVMe qualified name; write nqn.YYYY-MM.reverse.domain:name, at most 223 bytes"
    )]
    Nqn(String),
}
