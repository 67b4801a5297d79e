//! Sorted tables in files, and lookups in them.

use crate::disk::Disk;
use crate::wait::is_soon;
use bpfof_host::Controller;
use bpfof_host::files::{
    FileMaps, FileRead, FirstRead, NamespaceDevice, Policy, PushdownFile, PushdownReader,
    ReadEntry, ReadError, ReadInfo, ReadPushdownMany, StorageFunction,
};
use bpfof_sorted::{GET_OBJECT, Lookup, Root, Shape, TableWriter, get_argument};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Waits for maps, so that chains run at the target whenever they can.
pub(crate) const PATIENT: Policy =
    Policy { retries: 5, patience: Duration::from_secs(2), fall_back: true, local: true };

pub(crate) fn value(table: u64, key: u64, generation: u64) -> Vec<u8> {
    let mut value = format!("table {table} key {key} generation {generation} ").into_bytes();
    value.resize(100 + key as usize % 50, b'.');
    value
}

/// Table `table` has the keys that are multiples of `table + 2`.
pub(crate) fn table(table: u64, generation: u64) -> (Vec<u8>, Root) {
    table_of(table, generation, 3000)
}

pub(crate) fn table_of(table: u64, generation: u64, data_block_bytes: usize) -> (Vec<u8>, Root) {
    let mut writer = TableWriter::new(Shape { data_block_bytes, fanout: 8 });
    for key in (0..4000_u64).filter(|key| key.is_multiple_of(table + 2)) {
        writer.add(key, Some(&value(table, key, generation))).expect("in order");
    }
    writer.finish()
}

/// The files of a set of tables, and a reader to look up keys in them.
pub(crate) struct Set {
    pub(crate) maps: FileMaps,
    pub(crate) reader: PushdownReader,
    pub(crate) function: StorageFunction,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) files: Vec<PushdownFile>,
    pub(crate) roots: Vec<Root>,
    /// Whether files are named by their paths, without open descriptors.
    pub(crate) by_path: bool,
}

impl Set {
    pub(crate) fn new(disk: &Disk, tables: u64, policy: Policy) -> Set {
        Set::of(disk, disk.connect(), tables, policy)
    }

    /// The same with files that are named by their paths.
    pub(crate) fn by_path(disk: &Disk, tables: u64, policy: Policy) -> Set {
        let mut set = Set::new(disk, 0, policy);
        set.by_path = true;
        set.make(disk, tables);
        set
    }

    pub(crate) fn of(disk: &Disk, controller: Controller, tables: u64, policy: Policy) -> Set {
        let device = NamespaceDevice::new(disk.image()).expect("an image");
        let maps = FileMaps::new(controller, 1, device).expect("a target");
        let reader = PushdownReader::new(&maps, policy).expect("a lane");
        let function = maps.load_function(GET_OBJECT, 0).expect("good");
        let (paths, files, roots) = (Vec::new(), Vec::new(), Vec::new());
        let mut set = Set { maps, reader, function, paths, files, roots, by_path: false };
        set.make(disk, tables);
        set
    }

    pub(crate) fn make(&mut self, disk: &Disk, tables: u64) {
        for index in 0..tables {
            let path = disk.mount().join(format!("table-{index}"));
            let (bytes, root) = table(index, 0);
            fs::write(&path, bytes).expect("written");
            self.add(path, root);
        }
    }

    pub(crate) fn add(&mut self, path: PathBuf, root: Root) {
        self.files.push(match self.by_path {
            true => self.maps.add_path(path.clone()),
            false => self.maps.open(&path).expect("opens"),
        });
        self.paths.push(path);
        self.roots.push(root);
    }

    pub(crate) fn mapped(&self) -> bool {
        self.files.iter().all(|file| self.maps.wait_mapped(file, PATIENCE))
    }

    /// Whether leases guard all files. Programs that other tests start inherit this process's open
    /// files for a moment.
    pub(crate) fn leased(&self) -> bool {
        is_soon(PATIENCE, || self.files.iter().all(PushdownFile::is_leased))
    }

    pub(crate) fn first_read(&self) -> FirstRead {
        FirstRead { file: 0, offset_bytes: self.roots[0].offset, size_bytes: self.roots[0].size }
    }

    pub(crate) fn get(&mut self, key: u64) -> Result<(Vec<u8>, ReadInfo), ReadError> {
        let mut scratch = get_argument(key, &self.roots).expect("1 to 16 tables");
        let first = self.first_read();
        let info = self.reader.read_pushdown(&self.files, first, &self.function, &mut scratch)?;
        Ok((scratch, info))
    }

    /// Submits lookups of keys by one call, with their places as tags.
    pub(crate) fn submit_many(&mut self, keys: &[u64]) {
        let argument = |key: &u64| get_argument(*key, &self.roots).expect("1 to 16 tables");
        let arguments: Vec<_> = keys.iter().map(argument).collect();
        let first_read = self.first_read();
        let entry = |argument| ReadEntry { first_read, scratch: argument };
        let entries: Vec<_> = arguments.iter().map(|argument| entry(argument)).collect();
        let call = ReadPushdownMany {
            files: &self.files,
            function: &self.function,
            entries: &entries,
            scratch_size_bytes: 0,
            answer_max_bytes: 4096,
        };
        self.reader.submit_many(0, &call).expect("makes sense");
    }

    /// Waits for `count` lookups, and returns their results by tag.
    pub(crate) fn wait_many(&mut self, count: usize) -> Vec<(Vec<u8>, ReadInfo)> {
        let mut ends = vec![None; count];
        while self.reader.in_flight() > 0 {
            self.reader.wait(PATIENCE, &mut |completion| {
                let (answer, info) = completion.result.expect("succeeds");
                let before = ends[completion.tag as usize].replace((answer.to_vec(), info));
                assert_eq!(before, None, "{} ended twice", completion.tag);
            });
        }
        ends.into_iter().map(|end| end.expect("ended")).collect()
    }

    /// Reads ranges of all files in one batch, some of them across the ends of files, and compares
    /// them with the files. Returns the bytes that came over the network.
    pub(crate) fn expect_plain(&mut self) -> u64 {
        let ranges = [(0, 1), (1, 4095), (4000, 200), (511, 1), (3, 300_000), (1 << 30, 100)];
        let wanted = self.files.iter().zip(&self.paths).flat_map(|(file, path)| {
            let bytes = fs::read(path).expect("a file");
            let tail = (bytes.len().saturating_sub(50), 100);
            ranges.into_iter().chain([tail]).map(move |(offset, length)| {
                let end = bytes.len().min(offset + length);
                (file, offset, length, bytes[offset.min(end)..end].to_vec())
            })
        });
        let wanted: Vec<_> = wanted.collect();
        let mut room: Vec<Vec<u8>> =
            wanted.iter().map(|(.., length, _)| vec![0; *length]).collect();
        let reads = wanted.iter().zip(&mut room).map(|((file, offset, ..), data)| FileRead {
            file,
            offset_bytes: *offset as u64,
            data,
            read_bytes: usize::MAX,
        });
        let (mut reads, before) = (reads.collect::<Vec<_>>(), self.reader.traffic().1);
        self.reader.read_files(&mut reads).expect("read");
        for (read, (_, offset, length, bytes)) in reads.iter().zip(&wanted) {
            assert_eq!(read.read_bytes, bytes.len(), "{length} bytes at {offset}");
            assert!(read.data[..read.read_bytes] == bytes[..], "{length} bytes at {offset}");
        }
        self.reader.traffic().1 - before
    }

    /// A byte of the first file, read without a function, and whether the target was asked.
    pub(crate) fn byte_at(&mut self, offset: usize) -> (u8, bool) {
        let (file, mut data) = (&self.files[0], [0]);
        let read = FileRead { file, offset_bytes: offset as u64, data: &mut data, read_bytes: 0 };
        let before = self.reader.traffic().1;
        self.reader.read_files(&mut [read]).expect("read");
        (data[0], self.reader.traffic().1 > before)
    }

    /// Looks `key` up, expects it of `generation`, and says where the chain ran.
    pub(crate) fn expect(&mut self, key: u64, generation: u64) -> ReadInfo {
        let (answer, info) = self.get(key).expect("succeeds");
        let tables = self.files.len() as u64;
        let table = (0..tables).find(|table| key < 4000 && key.is_multiple_of(table + 2));
        let value = table.map(|table| value(table, key, generation));
        let expected = match (&value, table) {
            (Some(value), Some(table)) => Lookup::Found(table as u32, value),
            _ => Lookup::NotFound,
        };
        assert_eq!(Lookup::parse(&answer), Some(expected), "key {key}");
        info
    }
}
