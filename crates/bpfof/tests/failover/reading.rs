//! Lookups in a table file by chains at a target.

use crate::disk::Disk;
use crate::wait::until;
use bpfof_host::files::{
    Executor, FileMaps, FirstRead, NamespaceDevice, Policy, PushdownFile, PushdownReader,
    StorageFunction,
};
use bpfof_host::{Controller, Options, PathState, TargetUrl};
use bpfof_sorted::{GET_OBJECT, Lookup, Root, Shape, TableWriter, get_argument};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) const KEYS: u64 = 2000;
/// Waits for maps, so that chains run at a target whenever they can.
const PATIENT: Policy =
    Policy { retries: 5, patience: Duration::from_secs(2), fall_back: true, local: true };

fn value(key: u64, generation: u64) -> Vec<u8> {
    format!("key {key} generation {generation}").into_bytes()
}

pub(crate) struct Reading {
    pub(crate) maps: Arc<FileMaps>,
    path: PathBuf,
    reader: PushdownReader,
    function: StorageFunction,
    file: [PushdownFile; 1],
    root: Root,
    generation: u64,
}

impl Reading {
    pub(crate) fn new(disk: &Disk, url: &TargetUrl) -> Reading {
        Reading::by(disk, url, 0)
    }

    /// The same with at most `lanes_max` shared lanes; 0 for lanes of each reader's own.
    pub(crate) fn by(disk: &Disk, url: &TargetUrl, lanes_max: usize) -> Reading {
        let controller = Controller::connect(url, Options::default()).expect("it connects");
        let device = NamespaceDevice::new(disk.image()).expect("an image");
        let maps = FileMaps::new(controller, url.nsid, device).expect("a target");
        if lanes_max > 0 {
            maps.share_lanes(lanes_max);
        }
        let function = maps.load_function(GET_OBJECT, 0).expect("good");
        let reader = PushdownReader::new(&maps, PATIENT).expect("a lane");
        let path = disk.mount().join("table");
        let root = write(&path, 1);
        let file = [maps.open(&path).expect("opens")];
        assert!(maps.wait_mapped(&file[0], Duration::from_secs(30)), "{:?}", file[0].refusal());
        Reading { maps: Arc::new(maps), path, reader, function, file, root, generation: 1 }
    }

    pub(crate) fn path_state(&self, path: usize) -> PathState {
        self.maps.with_controller(|controller| controller.paths()[path].state).expect("a target")
    }

    pub(crate) fn wait(&mut self, path: usize, state: PathState) {
        until(&format!("path {path} is {state}"), || {
            self.look_up(7);
            self.path_state(path) == state
        });
    }

    /// Looks a key up at a target, and returns how long that took.
    pub(crate) fn look_up(&mut self, key: u64) -> Duration {
        let begun = Instant::now();
        assert_eq!(self.look_up_anywhere(key), Executor::Target);
        begun.elapsed()
    }

    /// Looks a key up, and returns where the chain ran.
    pub(crate) fn look_up_anywhere(&mut self, key: u64) -> Executor {
        let Root { offset, size } = self.root;
        let first = FirstRead { file: 0, offset_bytes: offset, size_bytes: size };
        let mut scratch = get_argument(key, &[self.root]).expect("one table");
        let read = self.reader.read_pushdown(&self.file, first, &self.function, &mut scratch);
        let info = read.expect("it succeeds");
        let expected = value(key, self.generation);
        assert_eq!(Lookup::parse(&scratch), Some(Lookup::Found(0, &expected)), "key {key}");
        info.executor
    }

    /// Looks keys up, and returns the longest time of a lookup.
    pub(crate) fn look_up_many(&mut self) -> Duration {
        (0..500).map(|index| self.look_up(index * 13 % KEYS)).max().unwrap_or_default()
    }

    /// Replaces the file by a new inode with other contents, as databases do.
    pub(crate) fn rewrite(&mut self) {
        self.generation += 1;
        fs::remove_file(&self.path).expect("removed");
        self.root = write(&self.path, self.generation);
        self.file = [self.maps.open(&self.path).expect("opens")];
        assert!(self.maps.wait_mapped(&self.file[0], Duration::from_secs(30)));
    }
}

fn write(path: &Path, generation: u64) -> Root {
    let mut writer = TableWriter::new(Shape { data_block_bytes: 3000, fanout: 8 });
    for key in 0..KEYS {
        writer.add(key, Some(&value(key, generation))).expect("in order");
    }
    let (bytes, root) = writer.finish();
    fs::write(path, bytes).expect("written");
    root
}
