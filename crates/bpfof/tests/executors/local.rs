//! The local executor by itself: files that change, files that it cannot read, many chains.

use crate::disk::skip::skip;
use crate::{PATIENCE, PATIENT, PLAIN, object};
use bpfof_host::Status;
use bpfof_host::files::{
    Executor, FileMaps, FirstRead, Policy, PushdownFile, PushdownReader, ReadError, ReadInfo,
    ReadPushdown, StorageFunction,
};
use bpfof_sorted::{GET_OBJECT, Lookup, Root, Shape, TableWriter, get_argument};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use tempfile::TempDir;

pub(crate) const KEYS: u64 = 3000;

pub(crate) fn value(key: u64, generation: u64) -> Vec<u8> {
    format!("key {key} of generation {generation}").into_bytes()
}

pub(crate) fn table(generation: u64) -> (Vec<u8>, Root) {
    let mut writer = TableWriter::new(Shape { data_block_bytes: 1500, fanout: 5 });
    for key in 0..KEYS {
        writer.add(key, Some(&value(key, generation))).expect("in order");
    }
    writer.finish()
}

/// A table in a file, and a reader of it without a target.
pub(crate) struct Store {
    folder: TempDir,
    pub(crate) maps: FileMaps,
    pub(crate) reader: PushdownReader,
    function: StorageFunction,
    pub(crate) files: [PushdownFile; 1],
    pub(crate) root: Root,
}

impl Store {
    fn new(policy: Policy) -> Store {
        Store::at(tempfile::tempdir().expect("a folder"), policy)
    }

    fn at(folder: TempDir, policy: Policy) -> Store {
        Store::over(FileMaps::local(), folder, policy)
    }

    pub(crate) fn over(maps: FileMaps, folder: TempDir, policy: Policy) -> Store {
        let (bytes, root) = table(0);
        let path = folder.path().join("table");
        fs::write(&path, bytes).expect("room");
        let reader = PushdownReader::new(&maps, policy).expect("no target");
        let function = maps.load_function(GET_OBJECT, 0).expect("good");
        let files = [maps.open(path).expect("opens")];
        Store { folder, maps, reader, function, files, root }
    }

    /// Whether its file system has direct I/O.
    fn is_direct(&self) -> bool {
        bpfof_device::direct_block_bytes(&self.files[0].file().expect("open")).is_some()
    }

    /// Where chains over it run.
    fn executor(&self) -> Executor {
        if self.is_direct() { Executor::Local } else { Executor::FallBack }
    }

    pub(crate) fn submit(&mut self, key: u64) {
        let scratch = get_argument(key, &[self.root]).expect("a table");
        let call = ReadPushdown {
            files: &self.files,
            first_read: first_read(self.root),
            function: &self.function,
            scratch: &scratch,
            scratch_size_bytes: 0,
            answer_max_bytes: 4096,
        };
        self.reader.submit(key, &call).expect("makes sense");
    }

    pub(crate) fn get(&mut self, key: u64) -> Result<(Vec<u8>, ReadInfo), ReadError> {
        let mut scratch = get_argument(key, &[self.root]).expect("a table");
        let first = first_read(self.root);
        let info = self.reader.read_pushdown(&self.files, first, &self.function, &mut scratch)?;
        Ok((scratch, info))
    }

    /// Looks `key` up, expects it of `generation`, and says where the chain ran.
    pub(crate) fn expect(&mut self, key: u64, generation: u64) -> Executor {
        let (answer, info) = self.get(key).expect("succeeds");
        let expected = value(key, generation);
        assert_eq!(Lookup::parse(&answer), Some(Lookup::Found(0, &expected)), "key {key}");
        info.executor
    }
}

fn first_read(root: Root) -> FirstRead {
    FirstRead { file: 0, offset_bytes: root.offset, size_bytes: root.size }
}

/// By the executor over io_uring, if the file system has direct I/O, and over plain reads.
#[test]
fn functions_go_on_in_others_of_the_same_maps() {
    let object = object();
    for policy in [PATIENT, PLAIN] {
        let maps = FileMaps::local();
        let load = |maps: &FileMaps, entry| maps.load_function(&object, entry).expect("good");
        let (onward, landed) = (load(&maps, 1), load(&maps, 2));
        let others = FileMaps::local();
        let stranger = load(&others, 2);
        let mut reader = PushdownReader::new(&maps, policy).expect("no target");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("block");
        fs::write(&path, [0; 4096]).expect("room");
        let files = [maps.open(path).expect("opens")];
        let first = FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 };
        let mut run = |number: u32| {
            let mut scratch = number.to_le_bytes().to_vec();
            let info = reader.read_pushdown(&files, first, &onward, &mut scratch);
            info.map(|_| scratch)
        };
        assert_eq!(run(landed.number()).expect("it is there"), b"here");
        let landed_number = landed.number();
        drop(landed);
        for number in [landed_number, stranger.number(), 0] {
            let error = run(number).expect_err("not there");
            let ReadError::Command(error) = error else { panic!("{error}") };
            assert!(error.status.same_code(Status::FUNCTION_ABORT), "{error}");
            assert_eq!(error.dw0, 7);
        }
    }
}

/// More chains than there are arenas; half of them end on another thread than they began on.
#[test]
fn many_chains_at_once() {
    let mut store = Store::new(PATIENT);
    let executor = store.executor();
    (0..1000).for_each(|key| store.submit(key));
    let mut seen = vec![0; 1000];
    let mut wait = move |mut store: Store, until: usize| {
        while store.reader.in_flight() > until {
            store.reader.wait(PATIENCE, &mut |completion| {
                let key = completion.tag;
                let (answer, info) = completion.result.expect("succeeds");
                assert_eq!(Lookup::parse(answer), Some(Lookup::Found(0, &value(key, 0))));
                assert_eq!(info.executor, executor);
                seen[key as usize] += 1;
            });
        }
        (store, seen.clone())
    };
    let (store, _) = wait(store, 500);
    let (_, seen) = std::thread::spawn(move || wait(store, 0)).join().expect("no panic");
    assert!(seen.iter().all(|times| *times == 1));
}

/// Chains see earlier writes even if these are not on the device yet; and a file may grow and
/// shrink.
#[test]
fn files_that_change() {
    let mut store = Store::new(PATIENT);
    let executor = store.executor();
    assert_eq!(store.expect(7, 0), executor);
    let writer = OpenOptions::new().write(true).open(store.files[0].path()).expect("opens");
    for generation in 1..5 {
        // In place: all values have the same length.
        writer.write_all_at(&table(generation).0, 0).expect("room");
        assert_eq!(store.expect(generation * 100, generation), executor);
    }
    // A second table with its own root, after the old end.
    let (bytes, root) = table(5);
    let end = bytes.len() as u64;
    let first = store.root;
    let start = first.offset;
    writer.write_all_at(&bytes[start as usize..], end).expect("room");
    store.root = Root { offset: end, ..root };
    store.expect(9, 4);
    // The new length is known now.
    assert_eq!(store.expect(10, 4), executor);
    writer.set_len(end + 1).expect("cut");
    for _ in 0..2 {
        let error = store.get(9).expect_err("the root is cut off");
        let ReadError::Command(error) = error else { panic!("{error}") };
        assert!(error.status.same_code(Status::READ_OUTSIDE_FILE), "{error}");
    }
    store.root = first;
    assert_eq!(store.expect(11, 4), executor);
}

#[test]
fn the_policy_and_the_file_system_decide() {
    let mut plain = Store::new(PLAIN);
    assert_eq!(plain.expect(3, 0), Executor::FallBack);
    let strict = Policy { fall_back: false, ..PATIENT };
    let mut neither = Store::new(Policy { local: false, ..strict });
    assert!(matches!(neither.get(3), Err(ReadError::Request(_))));
    // Memory has no direct I/O.
    let memory = || tempfile::tempdir_in("/dev/shm");
    let Ok(folder) = memory() else {
        return skip("there is no /dev/shm");
    };
    let mut store = Store::at(folder, PATIENT);
    if store.is_direct() {
        return skip("/dev/shm has direct I/O here");
    }
    assert_eq!(store.expect(3, 0), Executor::FallBack);
    let mut store = Store::at(memory().expect("a folder"), strict);
    let error = store.get(3).expect_err("it cannot be read");
    assert!(error.to_string().contains("direct"), "{error}");
    let mut store = Store::new(strict);
    if store.is_direct() {
        assert_eq!(store.expect(3, 0), Executor::Local);
        // The chain's own error, not one that says that plain reads are forbidden.
        store.root.offset = 1 << 40;
        let error = store.get(3).expect_err("outside");
        assert!(matches!(error, ReadError::Command(_)), "{error}");
    }
}

/// Whether a ring of this process has this file registered.
fn is_registered(name: &str) -> bool {
    let infos = fs::read_dir("/proc/self/fdinfo").expect("there is /proc");
    let infos = infos.flatten().filter_map(|info| fs::read_to_string(info.path()).ok());
    infos.into_iter().any(|text| text.contains("UserFiles") && text.contains(name))
}

/// The executor closes files: the blocks of a deleted file are freed once it has no readers.
#[test]
fn closed_files_are_let_go() {
    let mut store = Store::new(PATIENT);
    if !store.is_direct() {
        return skip("there is no direct I/O here");
    }
    let (old, new) = (store.folder.path().join("table"), store.folder.path().join("other"));
    let name = old.to_str().expect("UTF-8").to_owned();
    assert_eq!(store.expect(1, 0), Executor::Local);
    assert!(is_registered(&name));
    fs::copy(&old, &new).expect("room");
    store.files = [store.maps.open(&new).expect("opens")];
    assert_eq!(store.expect(1, 0), Executor::Local);
    assert!(!is_registered(&name), "the ring holds a file that nobody has open");
    assert!(is_registered(new.to_str().expect("UTF-8")));
}
