//! What a target serves: from command-line options or a TOML file.

use crate::hosts::HostLimits;
use crate::limits::MAX_NSID;
use bpfof_chain::Limits;
use bpfof_device::Layout;
use bpfof_nvme::fabrics::{DISCOVERY_NQN, NQN_MAX_BYTES};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The name a target has unless it is given another.
const DEFAULT_NQN: &str = "nqn.2026-01.io.bpf-of:target";

/// Everything a target needs to start.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where to listen for hosts that only ask what there is, usually port 8009. The discovery
    /// subsystem is reached at `listen` as well.
    pub discovery: Option<SocketAddr>,
    /// NVMe qualified name of the subsystem of namespaces that name none.
    pub nqn: String,
    /// Namespaces; in each subsystem the ids are from 1 in this order, but where one is given.
    pub namespaces: Vec<NamespaceConfig>,
    /// The processors to run a reactor on. Empty: one reactor, not pinned.
    pub cores: Vec<usize>,
    /// Never sleep: for processors that do nothing else.
    pub poll: bool,
    /// How long to look for work before sleeping, in µs, where looking has paid so far.
    pub spin_us: u32,
    /// Budgets of each chain.
    pub limits: Limits,
    /// Memory of the process, in bytes, that of namespaces in memory included. None: that and a quarter
    /// of the machine's.
    pub memory_max_bytes: Option<u64>,
    /// What one host may have, and how long it may be silent.
    pub hosts: HostLimits,
}

impl Default for TargetConfig {
    fn default() -> Self {
        TargetConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 4420)),
            discovery: None,
            nqn: DEFAULT_NQN.to_owned(),
            namespaces: Vec::new(),
            cores: Vec::new(),
            poll: false,
            spin_us: 200,
            limits: Limits::default(),
            memory_max_bytes: None,
            hosts: HostLimits::default(),
        }
    }
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// What it is made of.
    pub source: NamespaceSource,
    /// Logical block size in bytes: 512 or 4096.
    pub lba_bytes: u32,
    /// NVMe qualified name of the subsystem it belongs to, if not the target's.
    pub subsystem: Option<String>,
    /// Namespace id, 1 to 1024; if none is given, its position among those of its subsystem.
    pub nsid: Option<u32>,
}

/// What a namespace is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceSource {
    /// Zeroed memory, gone when the target stops.
    Memory {
        /// Size in bytes.
        size_bytes: u64,
        /// Time of each operation in µs.
        latency_us: u64,
        /// Most operations a second, 0 for no ceiling.
        iops: u64,
    },
    /// The memory of a file on tmpfs, which other processes may read and write, too. It must not be
    /// made shorter while it is served.
    MemoryFile {
        /// Its path.
        path: PathBuf,
        /// Time of each operation in µs.
        latency_us: u64,
        /// Most operations a second, 0 for no ceiling.
        iops: u64,
    },
    /// A file or block device.
    File {
        /// Its path.
        path: PathBuf,
        /// Size in bytes; default all of it.
        size_bytes: Option<u64>,
    },
    /// Several files or block devices.
    Pieces {
        /// Their paths, two or more, in the order in which they are used.
        paths: Vec<PathBuf>,
        /// Size of each in bytes; default all of it.
        size_bytes: Option<u64>,
        /// How the blocks lie in them.
        layout: Layout,
    },
}

impl NamespaceSource {
    /// The files it is made of.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        match self {
            NamespaceSource::Memory { .. } => &[],
            NamespaceSource::MemoryFile { path, .. } | NamespaceSource::File { path, .. } => {
                std::slice::from_ref(path)
            }
            NamespaceSource::Pieces { paths, .. } => paths,
        }
    }

    /// The size that each file is given, if one is.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        match self {
            NamespaceSource::Memory { .. } | NamespaceSource::MemoryFile { .. } => None,
            NamespaceSource::File { size_bytes, .. }
            | NamespaceSource::Pieces { size_bytes, .. } => *size_bytes,
        }
    }
}

/// What is wrong with a configuration, and where.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A namespace option.
    #[error(
        "namespace {text:?}: {problem}; write mem:size=1GiB[,latency_us=3][,iops=N], mem:file=FILE[,latency_us=3][,iops=N], file:path=FILE[,size=…], stripe:path=FILE,path=FILE[,chunk=64KiB][,size=…] or concat:path=FILE,path=FILE[,size=…], each with [,lba=512][,nqn=NAME][,nsid=1]"
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
    #[error("max-chains is 0, so nothing could be pushed down: it must be 1 or more")]
    NoChains,
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
    /// No connection could ever be made.
    #[error("{0} is 0, so nobody could connect: it must be 1 or more")]
    NoConnections(&'static str),
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

/// Parses an IP address with a port.
///
/// # Errors
/// What it should look like.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let example = "127.0.0.1:4420 or [::1]:4420";
    text.parse().map_err(|_| {
        format!("{text:?} is no IP address with a port (up to 65535); write it as {example}")
    })
}

/// The same in a file.
fn address<'de, D: Deserializer<'de>>(form: D) -> Result<Option<SocketAddr>, D::Error> {
    parse_address(&String::deserialize(form)?).map(Some).map_err(D::Error::custom)
}

/// A size in a file: a number of bytes, or a text as on the command line.
fn size<'de, D: Deserializer<'de>>(form: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Bytes(u64),
        Text(String),
    }
    match Form::deserialize(form)? {
        Form::Bytes(bytes) => Ok(Some(bytes)),
        Form::Text(text) => parse_size(&text).map(Some).map_err(D::Error::custom),
    }
}

/// Parses a size in bytes with an optional suffix: K, M, G, T (or KiB, MiB, …: powers of 1024).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let no_size = || format!("{text:?} is not a size");
    // A number of Rust's may have a sign.
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(no_size());
    }
    let factor = match &text[digits.len()..] {
        "" | "B" => 1,
        "K" | "KiB" | "k" => 1u64 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        other => return Err(format!("unknown unit {other:?} in {text:?} (use K, M, G, T)")),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(no_size)
}

impl std::str::FromStr for NamespaceConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        NamespaceConfig::parse(text)
            .map_err(|problem| ConfigError::Namespace { text: text.to_owned(), problem })
    }
}

impl NamespaceConfig {
    fn parse(text: &str) -> Result<NamespaceConfig, String> {
        let (kind, options) = text.split_once(':').unwrap_or((text, ""));
        let (mut size, mut lba, mut latency_us, mut iops) = (None, 512, 0, 0);
        let (mut subsystem, mut nsid) = (None, None);
        let (mut paths, mut chunk_bytes) = (Vec::new(), DEFAULT_CHUNK_BYTES);
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').ok_or(format!("{option:?} has no value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{option:?} is not a number"));
            match (kind, key) {
                (_, "size") => size = Some(parse_size(value)?),
                (_, "lba") => lba = number()?,
                (_, "nqn") => subsystem = Some(value.to_owned()),
                (_, "nsid") => nsid = Some(number()?),
                ("file" | "stripe" | "concat", "path") | ("mem", "file") if value.is_empty() => {
                    return Err(format!("{key} is missing"));
                }
                ("file", "path") | ("mem", "file") => paths = vec![PathBuf::from(value)],
                ("stripe" | "concat", "path") => paths.push(PathBuf::from(value)),
                ("stripe", "chunk") => chunk_bytes = parse_size(value)?,
                ("mem", "latency_us") => latency_us = number()?,
                ("mem", "iops") => iops = number()?,
                _ => return Err(format!("unknown option {key:?} for {kind:?}")),
            }
        }
        let source = match kind {
            "mem" => match (paths.pop(), size) {
                (None, size) => {
                    let size_bytes = size.ok_or("size is missing")?;
                    NamespaceSource::Memory { size_bytes, latency_us, iops }
                }
                (Some(path), None) => NamespaceSource::MemoryFile { path, latency_us, iops },
                (Some(_), Some(_)) => return Err("size= and file=, whose size it has".to_owned()),
            },
            "file" => NamespaceSource::File {
                path: paths.pop().ok_or("path is missing")?,
                size_bytes: size,
            },
            "stripe" => {
                let layout = Layout::Striped { chunk_bytes };
                NamespaceSource::Pieces { paths, size_bytes: size, layout }
            }
            "concat" => {
                let layout = Layout::Concatenated;
                NamespaceSource::Pieces { paths, size_bytes: size, layout }
            }
            other => return Err(format!("unknown kind {other:?}")),
        };
        NamespaceConfig::check(source, lba, subsystem, nsid)
    }

    fn check(
        source: NamespaceSource,
        lba: u64,
        subsystem: Option<String>,
        nsid: Option<u64>,
    ) -> Result<NamespaceConfig, String> {
        if let Some(nqn) = subsystem.as_ref().filter(|nqn| !is_nqn(nqn)) {
            return Err(ConfigError::Nqn(nqn.clone()).to_string());
        }
        if lba != 512 && lba != 4096 {
            return Err(format!("lba={lba} is not 512 or 4096"));
        }
        if let NamespaceSource::Pieces { paths, layout, .. } = &source {
            check_pieces(paths.len(), *layout)?;
        }
        if let NamespaceSource::Memory { size_bytes, .. } = source
            && size_bytes < lba
        {
            return Err(format!("a size of {size_bytes} bytes is less than one block"));
        }
        if let NamespaceSource::Memory { latency_us, iops, .. }
        | NamespaceSource::MemoryFile { latency_us, iops, .. } = source
        {
            // An hour, and the nanosecond clock's resolution.
            if latency_us > 3_600_000_000 || iops > 1_000_000_000 {
                return Err("latency_us is at most 3600000000, iops at most 1000000000".into());
            }
        }
        if let Some(nsid) = nsid.filter(|nsid| !(1..=u64::from(MAX_NSID)).contains(nsid)) {
            return Err(format!("nsid={nsid} is not 1 to {MAX_NSID}"));
        }
        let nsid = nsid.map(|nsid| nsid as u32);
        Ok(NamespaceConfig { source, lba_bytes: lba as u32, subsystem, nsid })
    }
}

/// Most files of a namespace.
const MAX_PIECES: usize = 64;
/// What one file of a stripe gets before it is the next one's turn, unless it is said.
const DEFAULT_CHUNK_BYTES: u64 = 64 << 10;
/// Whole logical blocks and memory pages, and no more parts of one transfer than 33.
const MIN_CHUNK_BYTES: u64 = 4096;
/// Beyond it a stripe is rather a concatenation.
const MAX_CHUNK_BYTES: u64 = 1 << 30;

fn check_pieces(count: usize, layout: Layout) -> Result<(), String> {
    if !(2..=MAX_PIECES).contains(&count) {
        return Err(format!("{count} files; give path= 2 to {MAX_PIECES} times"));
    }
    match layout {
        Layout::Striped { chunk_bytes }
            if !chunk_bytes.is_power_of_two()
                || !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk_bytes) =>
        {
            Err(format!("a chunk of {chunk_bytes} bytes; it is a power of two, 4KiB to 1GiB"))
        }
        _ => Ok(()),
    }
}

/// The file's form. Namespaces are written as on the command line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileForm {
    #[serde(default, deserialize_with = "address")]
    listen: Option<SocketAddr>,
    #[serde(default, deserialize_with = "address")]
    discovery: Option<SocketAddr>,
    nqn: Option<String>,
    #[serde(default)]
    namespaces: Vec<toml::Spanned<String>>,
    cores: Option<Vec<usize>>,
    poll: Option<bool>,
    spin_us: Option<u32>,
    max_hops: Option<u32>,
    max_chain_bytes: Option<u64>,
    max_instructions: Option<u64>,
    max_instructions_per_call: Option<u32>,
    max_chains: Option<usize>,
    #[serde(default, deserialize_with = "size")]
    memory_max: Option<u64>,
    connections_per_address: Option<u32>,
    connections_per_host: Option<u32>,
    associations_per_address: Option<u32>,
    associations_per_host: Option<u32>,
    send_timeout_s: Option<u32>,
    idle_timeout_s: Option<u32>,
}

impl TargetConfig {
    /// Reads a TOML file over the defaults.
    pub fn from_file(path: &Path) -> Result<TargetConfig, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        TargetConfig::from_toml(&text)
            .map_err(|message| ConfigError::File { path: path.to_owned(), message })
    }

    /// Parses TOML over the defaults. The error names line and column.
    pub fn from_toml(text: &str) -> Result<TargetConfig, String> {
        let place = |at: usize| {
            let before = &text[..text.floor_char_boundary(at)];
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
            format!("line {line}, column {column}")
        };
        let form: FileForm = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            format!("{}: {}", place(at), error.message())
        })?;
        let mut config = TargetConfig::default();
        for namespace in form.namespaces {
            let at = namespace.span().start;
            let parsed = namespace.get_ref().parse().map_err(|e| format!("{}: {e}", place(at)))?;
            config.namespaces.push(parsed);
        }
        let limits = &mut config.limits;
        set(&mut limits.hops, form.max_hops);
        set(&mut limits.bytes, form.max_chain_bytes);
        set(&mut limits.instructions, form.max_instructions);
        set(&mut limits.instructions_per_call, form.max_instructions_per_call);
        set(&mut limits.chains, form.max_chains);
        config.memory_max_bytes = form.memory_max;
        let hosts = &mut config.hosts;
        set(&mut hosts.connections_per_address, form.connections_per_address);
        set(&mut hosts.connections_per_host, form.connections_per_host);
        set(&mut hosts.associations_per_address, form.associations_per_address);
        set(&mut hosts.associations_per_host, form.associations_per_host);
        set(&mut hosts.send_timeout_s, form.send_timeout_s);
        set(&mut hosts.idle_timeout_s, form.idle_timeout_s);
        set(&mut config.listen, form.listen);
        config.discovery = form.discovery;
        set(&mut config.nqn, form.nqn);
        set(&mut config.cores, form.cores);
        set(&mut config.poll, form.poll);
        set(&mut config.spin_us, form.spin_us);
        Ok(config)
    }

    /// Checks what can be checked without opening anything.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.namespaces.is_empty() {
            return Err(ConfigError::NoNamespace);
        }
        if self.limits.chains == 0 {
            return Err(ConfigError::NoChains);
        }
        let least_one = [
            ("connections-per-address", self.hosts.connections_per_address),
            ("connections-per-host", self.hosts.connections_per_host),
            ("associations-per-address", self.hosts.associations_per_address),
            ("associations-per-host", self.hosts.associations_per_host),
            ("send-timeout-s", self.hosts.send_timeout_s),
        ];
        if let Some((name, _)) = least_one.into_iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::NoConnections(name));
        }
        let named = self.namespaces.iter().filter_map(|namespace| namespace.subsystem.as_ref());
        match named.chain([&self.nqn]).find(|nqn| !is_nqn(nqn)) {
            Some(nqn) => return Err(ConfigError::Nqn(nqn.clone())),
            None => self.placed()?,
        };
        let mut paths = HashSet::new();
        let mut all = self.namespaces.iter().flat_map(|namespace| namespace.source.paths());
        match all.find(|path| !paths.insert(path.as_path())) {
            Some(path) => Err(ConfigError::SameFile(path.to_owned())),
            None => Ok(()),
        }
    }

    /// The namespaces, each with the name of its subsystem and its id there.
    pub(crate) fn placed(&self) -> Result<Vec<(&str, u32, &NamespaceConfig)>, ConfigError> {
        let mut placed: Vec<(&str, u32, &NamespaceConfig)> = Vec::new();
        for namespace in &self.namespaces {
            let nqn = namespace.subsystem.as_deref().unwrap_or(&self.nqn);
            let before = placed.iter().filter(|(of, ..)| *of == nqn).count() as u32;
            let nsid = namespace.nsid.unwrap_or(before + 1);
            if nsid > MAX_NSID {
                return Err(ConfigError::TooMany { nqn: nqn.to_owned() });
            }
            if placed.iter().any(|(of, taken, _)| (*of, *taken) == (nqn, nsid)) {
                return Err(ConfigError::SameId { nqn: nqn.to_owned(), nsid });
            }
            placed.push((nqn, nsid, namespace));
        }
        Ok(placed)
    }

    /// Checks that a running target can go on with this configuration instead of `running`: only
    /// namespaces may differ.
    pub(crate) fn check_change(&self, running: &TargetConfig) -> Result<(), ConfigError> {
        self.check()?;
        let fixed = [
            ("listen", self.listen == running.listen),
            ("discovery", self.discovery == running.discovery),
            ("cores", self.cores == running.cores),
            ("poll", self.poll == running.poll),
            ("spin-us", self.spin_us == running.spin_us),
            ("a limit (max-…)", self.limits == running.limits),
            ("memory-max", self.memory_max_bytes == running.memory_max_bytes),
            ("a limit of hosts", self.hosts == running.hosts),
        ];
        match fixed.into_iter().find(|(_, is_same)| !is_same) {
            Some((what, _)) => Err(ConfigError::Fixed(what)),
            None => Ok(()),
        }
    }
}

/// NVMe Base 2.0 §4.5: at most 223 bytes, and a date after "nqn.". The discovery subsystem's name is
/// taken.
pub(crate) fn is_nqn(nqn: &str) -> bool {
    let date_at = nqn.strip_prefix("nqn.").map(str::as_bytes);
    let dated = date_at.is_some_and(|rest| rest.len() > 8 && rest[4] == b'-' && rest[7] == b'.');
    nqn.len() <= NQN_MAX_BYTES && dated && nqn != DISCOVERY_NQN
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_parsed_and_bad_ones_explained() {
        let parse = |text: &str| text.parse::<NamespaceConfig>();
        let memory = parse("mem:size=1GiB,lba=4096,latency_us=3,iops=700000").expect("good");
        let source = NamespaceSource::Memory { size_bytes: 1 << 30, latency_us: 3, iops: 700_000 };
        assert_eq!(
            memory,
            NamespaceConfig { source, lba_bytes: 4096, subsystem: None, nsid: None }
        );
        let mapped = parse("mem:file=/x,iops=5,latency_us=3").expect("good").source;
        assert_eq!(mapped.paths(), [PathBuf::from("/x")]);
        let source = NamespaceSource::MemoryFile { path: "/x".into(), latency_us: 3, iops: 5 };
        assert_eq!(mapped, source);
        let file = parse("file:path=/x,size=2M,nqn=nqn.2026-01.org:other,nsid=7").expect("good");
        let source = NamespaceSource::File { path: "/x".into(), size_bytes: Some(2 << 20) };
        let subsystem = Some("nqn.2026-01.org:other".to_owned());
        assert_eq!(file, NamespaceConfig { source, lba_bytes: 512, subsystem, nsid: Some(7) });
        let stripe = parse("stripe:path=/b,path=/a,chunk=128K").expect("good").source;
        let layout = Layout::Striped { chunk_bytes: 128 << 10 };
        let paths = vec!["/b".into(), "/a".into()];
        assert_eq!(stripe, NamespaceSource::Pieces { paths, size_bytes: None, layout });
        let concat = parse("concat:path=/b,path=/a,size=1M,lba=4096").expect("good").source;
        assert_eq!((concat.paths().len(), concat.file_bytes()), (2, Some(1 << 20)));
        for (text, reason) in [
            ("mem", "size is missing"),
            ("mem:size=x", "is not a size"),
            ("mem:size=1Q", "unknown unit"),
            ("mem:size=1G,lba=513", "not 512 or 4096"),
            ("mem:size=100", "less than one block"),
            ("mem:size=1G,path=/x", "unknown option"),
            ("mem:file=", "file is missing"),
            ("mem:file=/x,size=1G", "file=, whose size it has"),
            ("mem:file=/x,latency_us=3600000001", "latency_us is at most"),
            ("mem:size=99999999999999T", "not a size"),
            ("disk:size=1G", "unknown kind"),
            ("stripe:path=/a", "1 files; give path= 2 to 64 times"),
            ("concat:", "0 files"),
            ("stripe:path=/a,path=/b,chunk=5000", "a power of two"),
            ("stripe:path=/a,path=/b,chunk=2K", "4KiB to 1GiB"),
            ("concat:path=/a,path=/b,chunk=64K", "unknown option"),
            ("mem:size=1G,nsid=0", "not 1 to 1024"),
            ("mem:size=1G,nsid=1025", "not 1 to 1024"),
            ("file:size", "no value"),
            ("file:", "path is missing"),
            ("file:path=", "path is missing"),
            ("mem:size=+1M", "is not a size"),
            ("mem:size=1M,nqn=disk", "not an NVMe qualified name"),
            ("mem:size=1M,nqn=nqn.2014-08.org.nvmexpress.discovery", "not an NVMe qualified name"),
        ] {
            let message = parse(text).expect_err(text).to_string();
            assert!(message.contains(reason) && message.contains("write mem:"), "{message}");
        }
    }

    #[test]
    fn files_name_line_and_column() {
        let good = "listen = \"127.0.0.1:9\"\nnamespaces = [\"mem:size=1M\"]\nmax-hops = 5\n";
        let config = TargetConfig::from_toml(good).expect("good");
        assert_eq!((config.listen.port(), config.limits.hops), (9, 5));
        assert!(config.check().is_ok());
        for (text, reason) in [
            ("poll = 3", "line 1, column 8"),
            ("\nnamespaces = [\"mem:size=1M\", \"mem\"]", "line 2, column 30"),
            ("\n\n  colour = 1", "line 3, column 3"),
            ("listen = \"nowhere\"", "line 1, column 10"),
            ("discovery = \"[::1]:99999\"", "line 1, column 13: \"[::1]:99999\" is no IP address"),
        ] {
            let message = TargetConfig::from_toml(text).expect_err(text);
            assert!(message.starts_with(reason), "{message}");
        }
        assert!(matches!(TargetConfig::default().check(), Err(ConfigError::NoNamespace)));
        let with = |specs: &[&str]| {
            let parse = |spec: &&str| format!("mem:size=1M{spec}").parse().expect("valid");
            TargetConfig { namespaces: specs.iter().map(parse).collect(), ..config.clone() }
        };
        let ids = |specs: &[&str]| {
            let config = with(specs);
            let placed = config.placed().map_err(|error| error.to_string())?;
            Ok::<_, String>(placed.iter().map(|(_, nsid, _)| *nsid).collect::<Vec<_>>())
        };
        let other = ",nqn=nqn.2026-01.org:other";
        assert_eq!(ids(&["", ",nsid=9", "", other, ""]), Ok(vec![1, 9, 3, 1, 4]));
        for specs in [["", ",nsid=1"], [",nsid=2", ""], [",nsid=5", ",nsid=5"]] {
            let error = ids(&specs).expect_err("one id twice");
            assert!(error.contains("two namespaces with id"), "{error}");
        }
        assert!(ids(&[""; 1025]).is_err_and(|error| error.contains("more than 1024")));
        let twice =
            ["file:path=/x", "file:path=/x,nsid=7"].map(|spec| spec.parse().expect("valid"));
        let twice = TargetConfig { namespaces: twice.into(), ..config.clone() };
        assert!(matches!(twice.check(), Err(ConfigError::SameFile(_))));
        let polls = TargetConfig { poll: true, ..with(&["", ""]) };
        assert!(matches!(polls.check_change(&config), Err(ConfigError::Fixed("poll"))));
        assert!(with(&["", ""]).check_change(&config).is_ok());
        let nqn = TargetConfig { nqn: "disk".into(), ..config };
        assert!(matches!(nqn.check(), Err(ConfigError::Nqn(_))));
    }
}
