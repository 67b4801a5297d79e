//! Chains over files by two targets of one storage, of which one is killed, stopped, and started again.

mod disk;

use bpfof_host::files::{
    Executor, FileMaps, FirstRead, NamespaceDevice, Policy, PushdownFile, PushdownReader,
    StorageFunction,
};
use bpfof_host::{Controller, Options, PathState, TargetUrl};
use bpfof_sorted::{GET_OBJECT, Lookup, Root, Shape, TableWriter, get_argument};
use disk::{Disk, cannot_mount};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const KEYS: u64 = 2000;
/// Longest pause that a reader may notice while another target works.
const PAUSE_MAX: Duration = Duration::from_secs(1);
const PATH_TIMEOUT: Duration = Duration::from_secs(2);
/// Waits for maps, so that chains run at a target whenever they can.
const PATIENT: Policy =
    Policy { retries: 5, patience: Duration::from_secs(2), fall_back: true, local: true };

fn value(key: u64, generation: u64) -> Vec<u8> {
    format!("key {key} generation {generation}").into_bytes()
}

struct Reading {
    maps: FileMaps,
    reader: PushdownReader,
    function: StorageFunction,
    file: [PushdownFile; 1],
    root: Root,
    generation: u64,
}

impl Reading {
    fn new(disk: &Disk, url: &TargetUrl) -> Reading {
        let options = Options { path_timeout: PATH_TIMEOUT, ..Options::default() };
        let controller = Controller::connect(url, options).expect("it connects");
        let device = NamespaceDevice::new(disk.image()).expect("an image");
        let maps = FileMaps::new(controller, url.nsid, device).expect("a target");
        let function = maps.load_function(GET_OBJECT, 0).expect("good");
        let reader = PushdownReader::new(&maps, PATIENT).expect("a lane");
        let path = disk.mount().join("table");
        let root = write(&path, 1);
        let file = [maps.open(&path).expect("opens")];
        assert!(maps.wait_mapped(&file[0], Duration::from_secs(10)), "{:?}", file[0].refusal());
        Reading { maps, reader, function, file, root, generation: 1 }
    }

    fn path_state(&self, path: usize) -> PathState {
        self.maps.with_controller(|controller| controller.paths()[path].state).expect("a target")
    }

    fn wait(&mut self, path: usize, state: PathState) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.path_state(path) != state {
            assert!(Instant::now() < end, "path {path} is not {state}");
            self.look_up(7);
        }
    }

    /// Looks a key up at a target, and returns how long that took.
    fn look_up(&mut self, key: u64) -> Duration {
        let begun = Instant::now();
        let Root { offset, size } = self.root;
        let first = FirstRead { file: 0, offset_bytes: offset, size_bytes: size };
        let mut scratch = get_argument(key, &[self.root]).expect("one table");
        let read = self.reader.read_pushdown(&self.file, first, &self.function, &mut scratch);
        let info = read.expect("it succeeds");
        assert_eq!(info.executor, Executor::Target);
        let expected = value(key, self.generation);
        assert_eq!(Lookup::parse(&scratch), Some(Lookup::Found(0, &expected)), "key {key}");
        begun.elapsed()
    }

    /// Looks keys up; the longest time that took.
    fn look_up_many(&mut self) -> Duration {
        (0..500).map(|index| self.look_up(index * 13 % KEYS)).max().unwrap_or_default()
    }

    fn rewrite(&mut self, disk: &Disk) {
        self.generation += 1;
        let path = disk.mount().join("table");
        // Another inode, as databases write their files.
        fs::remove_file(&path).expect("removed");
        self.root = write(&path, self.generation);
        self.file = [self.maps.open(&path).expect("opens")];
        assert!(self.maps.wait_mapped(&self.file[0], Duration::from_secs(10)));
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

#[test]
fn readers_of_files_do_not_notice_that_a_target_dies() {
    if cannot_mount().is_some() {
        return;
    }
    let mut disk = Disk::new("ext4", 64 << 20);
    let url = disk.add_path();
    let mut reading = Reading::new(&disk, &url);
    reading.wait(0, PathState::Optimized);
    reading.wait(1, PathState::Optimized);
    reading.look_up_many();
    for round in 0..3 {
        disk.signal(0, Signal::KILL);
        let longest = reading.look_up_many();
        println!("killed, round {round}: longest lookup {longest:?}");
        assert!(longest < PAUSE_MAX, "a lookup of {longest:?}");
        // The other path hears of it when it is back.
        reading.rewrite(&disk);
        reading.look_up_many();
        disk.restart_target();
        reading.wait(0, PathState::Optimized);
        reading.look_up_many();
    }
    // A target that hangs says nothing.
    disk.signal(0, Signal::STOP);
    let longest = reading.look_up_many();
    println!("stopped: longest lookup {longest:?}");
    assert!(longest < PATH_TIMEOUT + PAUSE_MAX, "a lookup of {longest:?}");
    disk.signal(0, Signal::CONT);
    reading.wait(0, PathState::Optimized);
    disk.signal(1, Signal::KILL);
    assert!(reading.look_up_many() < PAUSE_MAX);
    reading.wait(1, PathState::Lost);
}
