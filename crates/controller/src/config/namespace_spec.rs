//! One namespace, as in `--namespace` and in the file.

use super::error::ConfigError;
use super::listen::no_group;
use super::values::{is_nqn, parse_size, parse_uuid};
use crate::limits::{ANA_GROUP, MAX_ANA_GROUPS, MAX_NSID};
use bpfof_device::Layout;
use std::path::PathBuf;

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Its storage.
    pub source: NamespaceSource,
    /// Logical block size in bytes: 512 or 4096. A drive keeps its own block size.
    pub lba_bytes: u32,
    /// NVMe qualified name of its subsystem, if not the target's.
    pub subsystem: Option<String>,
    /// Namespace id, 1 to 1024; the default is its position in its subsystem.
    pub nsid: Option<u32>,
    /// Its UUID and NGUID, by which hosts recognize one disk behind several targets; the default is derived from its
    /// storage.
    pub uuid: Option<[u8; 16]>,
    /// Its ANA group, 1 to 32: the namespaces of a group become accessible and inaccessible together.
    pub ana_group: u32,
}

/// The storage of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceSource {
    /// Zeroed memory, which is lost when the target stops.
    Memory {
        /// Size in bytes.
        size_bytes: u64,
        /// Time of each operation in µs.
        latency_us: u64,
        /// Maximum operations per second, 0 for no limit.
        iops: u64,
    },
    /// The memory of a file on tmpfs, which other processes may also read and write. The file must not be shortened
    /// while it is served.
    MemoryFile {
        /// Its path.
        path: PathBuf,
        /// Time of each operation in µs.
        latency_us: u64,
        /// Maximum operations per second, 0 for no limit.
        iops: u64,
    },
    /// A file or block device.
    File {
        /// Its path.
        path: PathBuf,
        /// Size in bytes; default: all of it.
        size_bytes: Option<u64>,
    },
    /// Several files or block devices.
    Pieces {
        /// Their paths, two or more, in the order in which they are used.
        paths: Vec<PathBuf>,
        /// Size of each in bytes; default: all of it.
        size_bytes: Option<u64>,
        /// How the blocks are distributed over them.
        layout: Layout,
    },
    /// A namespace of an NVMe drive of this machine, accessed through its character device with NVMe commands.
    Drive {
        /// The device, `/dev/ngXnY`.
        path: PathBuf,
    },
}

impl NamespaceSource {
    /// The files that the storage consists of.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            NamespaceSource::Memory { .. } => &[],
            NamespaceSource::MemoryFile { path, .. }
            | NamespaceSource::File { path, .. }
            | NamespaceSource::Drive { path } => std::slice::from_ref(path),
            NamespaceSource::Pieces { paths, .. } => paths,
        }
    }

    /// The size given for each file, if any.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        match self {
            NamespaceSource::Memory { .. }
            | NamespaceSource::MemoryFile { .. }
            | NamespaceSource::Drive { .. } => None,
            NamespaceSource::File { size_bytes, .. }
            | NamespaceSource::Pieces { size_bytes, .. } => *size_bytes,
        }
    }
}

impl std::str::FromStr for NamespaceConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        NamespaceConfig::parse(text)
            .map_err(|problem| ConfigError::Namespace { text: text.to_owned(), problem })
    }
}

impl NamespaceConfig {
    /// A namespace with logical blocks of `lba_bytes`, and defaults for everything else.
    #[must_use]
    pub fn new(source: NamespaceSource, lba_bytes: u32) -> NamespaceConfig {
        let (subsystem, nsid, uuid) = (None, None, None);
        NamespaceConfig { source, lba_bytes, subsystem, nsid, uuid, ana_group: ANA_GROUP }
    }

    fn parse(text: &str) -> Result<NamespaceConfig, String> {
        let (kind, options) = text.split_once(':').unwrap_or((text, ""));
        let (mut size, mut lba, mut latency_us, mut iops) = (None, 512, 0, 0);
        let (mut subsystem, mut nsid) = (None, None);
        let (mut uuid, mut ana_group) = (None, u64::from(ANA_GROUP));
        let (mut paths, mut chunk_bytes) = (Vec::new(), DEFAULT_CHUNK_BYTES);
        let mut seen = Vec::new();
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').ok_or(format!("{option:?} has no value"))?;
            if seen.contains(&key) && !matches!((kind, key), ("stripe" | "concat", "path")) {
                return Err(format!("{key}= is given twice"));
            }
            seen.push(key);
            let number = || value.parse::<u64>().map_err(|_| format!("{option:?} is not a number"));
            match (kind, key) {
                ("nvme", "size" | "lba") => {
                    return Err(format!("{key}= cannot be given for a drive, which has its own"));
                }
                (_, "size") => size = Some(parse_size(value)?),
                (_, "lba") => lba = number()?,
                (_, "nqn") => subsystem = Some(value.to_owned()),
                (_, "nsid") => nsid = Some(number()?),
                (_, "uuid") => uuid = Some(parse_uuid(value)?),
                (_, "anagrpid") => ana_group = number()?,
                ("file" | "stripe" | "concat" | "nvme", "path") | ("mem", "file")
                    if value.is_empty() =>
                {
                    return Err(format!("{key} is missing"));
                }
                ("file" | "nvme", "path") | ("mem", "file") => paths = vec![PathBuf::from(value)],
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
                (Some(_), Some(_)) => {
                    return Err(
                        "size= cannot be given with file=: the file determines the size".to_owned()
                    );
                }
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
            "nvme" => NamespaceSource::Drive { path: paths.pop().ok_or("path is missing")? },
            other => return Err(format!("unknown kind {other:?}")),
        };
        if !(1..=u64::from(MAX_ANA_GROUPS)).contains(&ana_group) {
            return Err(no_group(ana_group));
        }
        let checked = NamespaceConfig::check(source, lba, subsystem, nsid)?;
        Ok(NamespaceConfig { uuid, ana_group: ana_group as u32, ..checked })
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
            // An hour, and the resolution of the nanosecond clock.
            if latency_us > 3_600_000_000 || iops > 1_000_000_000 {
                return Err("latency_us may be at most 3600000000, iops at most 1000000000".into());
            }
        }
        if let Some(nsid) = nsid.filter(|nsid| !(1..=u64::from(MAX_NSID)).contains(nsid)) {
            return Err(format!("nsid={nsid} is not 1 to {MAX_NSID}"));
        }
        let nsid = nsid.map(|nsid| nsid as u32);
        Ok(NamespaceConfig { subsystem, nsid, ..NamespaceConfig::new(source, lba as u32) })
    }
}

/// Maximum files of a namespace.
const MAX_PIECES: usize = 64;
/// The default chunk of a striped namespace.
const DEFAULT_CHUNK_BYTES: u64 = 64 << 10;
/// At least a logical block and a memory page, so that a transfer has at most 33 parts.
const MIN_CHUNK_BYTES: u64 = 4096;
/// A larger chunk would make it a concatenation rather than a stripe.
const MAX_CHUNK_BYTES: u64 = 1 << 30;

fn check_pieces(count: usize, layout: Layout) -> Result<(), String> {
    if !(2..=MAX_PIECES).contains(&count) {
        return Err(format!("give path= 2 to {MAX_PIECES} times, not {count}"));
    }
    match layout {
        Layout::Striped { chunk_bytes }
            if !chunk_bytes.is_power_of_two()
                || !(MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk_bytes) =>
        {
            Err(format!(
                "a chunk of {chunk_bytes} bytes; it must be a power of two from 4KiB to 1GiB"
            ))
        }
        _ => Ok(()),
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
        assert_eq!(memory, NamespaceConfig::new(source, 4096));
        let mapped = parse("mem:file=/x,iops=5,latency_us=3").expect("good").source;
        assert_eq!(mapped.paths(), [PathBuf::from("/x")]);
        let source = NamespaceSource::MemoryFile { path: "/x".into(), latency_us: 3, iops: 5 };
        assert_eq!(mapped, source);
        let file = parse("file:path=/x,size=2M,nqn=nqn.2026-01.org:other,nsid=7").expect("good");
        let source = NamespaceSource::File { path: "/x".into(), size_bytes: Some(2 << 20) };
        let subsystem = Some("nqn.2026-01.org:other".to_owned());
        let plain = NamespaceConfig::new(source, 512);
        assert_eq!(file, NamespaceConfig { subsystem, nsid: Some(7), ..plain });
        let uuid = "6f2d1a3c-8a5e-4b0c-9d57-0a4f6a1e2b3c";
        let shared = parse(&format!("file:path=/x,uuid={uuid},anagrpid=2")).expect("good");
        assert_eq!(shared.uuid.map(|uuid| uuid[0]), Some(0x6f));
        assert_eq!(shared.ana_group, 2);
        let stripe = parse("stripe:path=/b,path=/a,chunk=128K").expect("good").source;
        let layout = Layout::Striped { chunk_bytes: 128 << 10 };
        let paths = vec!["/b".into(), "/a".into()];
        assert_eq!(stripe, NamespaceSource::Pieces { paths, size_bytes: None, layout });
        let concat = parse("concat:path=/b,path=/a,size=1M,lba=4096").expect("good").source;
        assert_eq!((concat.paths().len(), concat.file_bytes()), (2, Some(1 << 20)));
        let drive = parse("nvme:path=/dev/ng0n1,nsid=3").expect("good");
        assert_eq!(drive.source, NamespaceSource::Drive { path: "/dev/ng0n1".into() });
        let many = format!("concat:{}", "path=/a,".repeat(65));
        for (text, reason) in [
            ("mem", "size is missing"),
            ("mem:size=x", "is not a size"),
            ("mem:size=1Q", "unknown unit"),
            ("mem:size=1G,lba=513", "not 512 or 4096"),
            ("mem:size=100", "less than one block"),
            ("mem:size=1G,path=/x", "unknown option"),
            ("mem:file=", "file is missing"),
            ("mem:file=/x,size=1G", "the file determines the size"),
            ("mem:file=/x,latency_us=3600000001", "latency_us may be at most"),
            ("mem:size=99999999999999T", "not a size"),
            ("disk:size=1G", "unknown kind"),
            ("stripe:path=/a", "give path= 2 to 64 times, not 1"),
            ("concat:", "2 to 64 times, not 0"),
            (many.as_str(), "2 to 64 times, not 65"),
            ("stripe:path=/a,path=/b,chunk=5000", "a power of two"),
            ("stripe:path=/a,path=/b,chunk=2K", "4KiB to 1GiB"),
            ("concat:path=/a,path=/b,chunk=64K", "unknown option"),
            ("mem:size=1G,nsid=0", "not 1 to 1024"),
            ("mem:size=1G,nsid=1025", "not 1 to 1024"),
            ("mem:size=1G,anagrpid=0", "1 to 32, not 0"),
            ("mem:size=1G,anagrpid=33", "1 to 32, not 33"),
            ("mem:size=1G,uuid=7", "is not a UUID"),
            ("file:size", "no value"),
            ("file:", "path is missing"),
            ("file:path=", "path is missing"),
            ("file:path=/a,path=/b", "path= is given twice"),
            ("nvme:path=/dev/ng0n1,path=/dev/ng1n1", "path= is given twice"),
            ("mem:size=1G,size=2G", "size= is given twice"),
            ("stripe:path=/a,path=/b,size=1M,size=1M", "size= is given twice"),
            ("mem:size=+1M", "is not a size"),
            ("nvme:", "path is missing"),
            ("nvme:path=/dev/ng0n1,lba=512", "for a drive, which has its own"),
            ("mem:size=1M,nqn=disk", "not an NVMe qualified name"),
            ("mem:size=1M,nqn=nqn.2014-08.org.nvmexpress.discovery", "not an NVMe qualified name"),
        ] {
            let message = parse(text).expect_err(text).to_string();
            assert!(message.contains(reason) && message.contains("write mem:"), "{message}");
        }
    }
}
