//! A BPF-KV database in a file, opened for direct reads.

use crate::database::extent_within;
use bpfkv::{GET_OBJECT, Layout, Step, detect};
use bpfof_device::{IoBuffer, direct_block_bytes};
use bpfof_host::files::{FileMaps, PushdownFile, StorageFunction};
use bpfof_kv::create_file;
use bpfof_terminal::{progress, stop_on_signal};
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The written part of a database that is created here: too large for the cache of any drive.
const WRITTEN_MAX_BYTES: u64 = 3 << 30;
/// `O_DIRECT`
const DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits().cast_signed();

/// The database that is measured.
pub(super) struct Database {
    pub(super) maps: FileMaps,
    pub(super) function: StorageFunction,
    /// The file for chains.
    pub(super) files: [PushdownFile; 1],
    /// The file for the other methods.
    pub(super) direct: File,
    /// The unit of direct reads, in bytes.
    pub(super) block_bytes: u32,
    pub(super) layout: Layout,
    /// The keys are 0 to this, exclusive.
    pub(super) keys: u64,
    path: PathBuf,
    /// Set by Ctrl-C and SIGTERM.
    stop: Arc<AtomicBool>,
}

impl Database {
    /// Opens the database in `path`, or creates one of `levels` levels there; without a path, in a file that is removed
    /// with the database.
    pub(super) fn open(path: Option<&Path>, levels: u32) -> Result<Database, Box<dyn Error>> {
        let is_temporary = path.is_none();
        // Unlike /tmp, /var/tmp is never in memory.
        let own = || PathBuf::from(format!("/var/tmp/bpfof-bench-{}.db", std::process::id()));
        let path = path.map_or_else(own, Path::to_owned);
        let stop = stop_on_signal()?;
        let mut made = None;
        if !path.exists() {
            direct_block(&probe(&path)?, &path)?;
            let extent = extent_within(levels, WRITTEN_MAX_BYTES)?;
            let (keys, bytes) = (extent.keys(), extent.written_bytes());
            progress::bytes("writing", bytes, &stop, |progress| {
                create_file(&path, &extent, progress)
            })?;
            eprintln!("{levels} levels, {keys} keys, {bytes} bytes in {}", path.display());
            made = Some(keys);
        }
        let named = |error: io::Error| format!("cannot read {}: {error}", path.display());
        let mut options = OpenOptions::new();
        let file = options.read(true).open(&path).map_err(named)?;
        let block_bytes = direct_block(&file, &path)?;
        let direct = options.custom_flags(DIRECT).open(&path).map_err(named)?;
        if is_temporary {
            // An open file keeps its blocks until the process ends, however it ends.
            std::fs::remove_file(&path).map_err(named)?;
        }
        let maps = FileMaps::local();
        let function = maps.load_function(GET_OBJECT, 0)?;
        let files = [maps.add(file, path.clone())];
        let layout = Layout::new(levels)?;
        let keys = made.unwrap_or(0);
        let mut database =
            Database { maps, function, files, direct, block_bytes, layout, keys, path, stop };
        if made.is_none() {
            database.keys = database.find_keys()?;
        }
        Ok(database)
    }

    /// The file's name for output.
    pub(super) fn name(&self) -> impl std::fmt::Display {
        self.path.display()
    }

    /// An error if the user wants to stop.
    pub(super) fn check_stopped(&self) -> Result<(), &'static str> {
        if self.stop.load(Ordering::Relaxed) { Err("stopped") } else { Ok(()) }
    }

    /// The number of keys in a database that already existed, perhaps created in part.
    fn find_keys(&self) -> Result<u64, Box<dyn Error>> {
        use std::io::{Seek, SeekFrom};
        // This works for block devices, whose metadata have no size.
        let bytes = (&self.direct).seek(SeekFrom::End(0))?;
        let mut read = |offset, data: &mut [u8]| self.read(offset, data);
        let detected = detect::detect(bytes, &mut read)
            .map_err(|error| format!("{}: {error}", self.name()))?;
        let (have, levels) = (detected.levels, self.layout.levels());
        if have != levels {
            return Err(format!("the database has {have} levels; give --levels {have}").into());
        }
        if !detected.stock {
            return Err(format!("{}: not as bpfof kv create makes it", self.name()).into());
        }
        let part = self.layout.keys_below(1);
        let mut keys = self.layout.keys();
        while keys > part && !self.has(keys - 1) {
            keys -= part;
        }
        Ok(keys)
    }

    fn has(&self, key: u64) -> bool {
        let mut cursor = bpfkv::GetCursor::new();
        cursor.reset(key, 0);
        loop {
            let read = match cursor.step() {
                Step::Read(reads) => reads[0],
                Step::Done(value) => return value.is_some(),
            };
            let mut data = vec![0; read.length_bytes as usize];
            let read = self.read(read.offset_bytes, &mut data);
            if read.is_err() || cursor.feed(0, &data).is_err() {
                return false;
            }
        }
    }

    /// Reads any range.
    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let (start, length, skip) = self.around(offset, data.len() as u32);
        let mut buffer = IoBuffer::new(length as usize);
        self.direct.read_exact_at(&mut buffer, start)?;
        data.copy_from_slice(&buffer[skip..skip + data.len()]);
        Ok(())
    }

    /// The blocks around a range: offset and length in bytes, and the distance from their beginning to the range in
    /// bytes.
    pub(super) fn around(&self, offset: u64, length: u32) -> (u64, u32, usize) {
        let block = u64::from(self.block_bytes);
        let start = offset / block * block;
        let end = (offset + u64::from(length)).next_multiple_of(block);
        (start, (end - start) as u32, (offset - start) as usize)
    }

    /// Where the path of `key` reaches the last `depth` levels of the tree: the file offset of a node, in bytes. XRP
    /// holds the levels above in memory; here the layout gives the same offset.
    pub(super) fn start(&self, key: u64, depth: u32) -> u64 {
        let level = self.layout.levels() - depth;
        self.layout.node_offset_bytes(level, key / self.layout.keys_below(level))
    }
}

/// An empty file at the place of the future database, removed as soon as it is closed.
fn probe(path: &Path) -> Result<File, String> {
    let named = |error: io::Error| format!("cannot create {}: {error}", path.display());
    let file = File::create_new(path).map_err(named)?;
    std::fs::remove_file(path).map_err(named)?;
    Ok(file)
}

/// The unit of direct reads of a file, in bytes.
fn direct_block(file: &File, path: &Path) -> Result<u32, String> {
    direct_block_bytes(file).ok_or_else(|| {
        format!(
            "{} cannot be read directly, past the page cache: give --file PATH on a file system \
             with direct I/O (ext4, XFS), or a block device with a database on it",
            path.display()
        )
    })
}
