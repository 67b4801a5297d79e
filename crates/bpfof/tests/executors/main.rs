//! The three executors: at a target, in this process by io_uring, in this process over plain reads. They give the same
//! answers to the same chains.

mod btree;
#[path = "../clang/mod.rs"]
mod clang;
#[path = "../disk/mod.rs"]
mod disk;
mod kernel;
mod local;
mod passthrough;
mod shipped;
#[path = "../stop/mod.rs"]
mod stop;
mod world;

use bpfof_host::files::{
    Executor, FileMaps, NamespaceDevice, Policy, PushdownFile, PushdownReader, ReadEntry,
    ReadError, ReadPushdownMany, StorageFunction,
};
use disk::Disk;
use passthrough::nvme;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;
use world::{STATE_BYTES, World, world};

const PATIENCE: Duration = Duration::from_secs(10);
/// Waits for maps, so that chains run at the target whenever they can.
const PATIENT: Policy =
    Policy { retries: 5, patience: Duration::from_secs(2), fall_back: true, local: true };
/// Runs chains over plain reads only.
const PLAIN: Policy = Policy { local: false, ..PATIENT };

/// Compiles follow.bpf.c; on a machine without a compiler the object is in a file.
fn object() -> Vec<u8> {
    if let Some(path) = std::env::var_os("BPFOF_FOLLOW_OBJECT") {
        return std::fs::read(path).expect("an object");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("follow.bpf.o");
    clang::compile("tests/executors/follow.bpf.c", &object);
    std::fs::read(object).expect("an object")
}

/// How a chain ended: answer and hops, or the text of the error.
type Ending = Result<(Vec<u8>, u32), String>;

/// One way to run chains.
struct Way {
    maps: FileMaps,
    function: StorageFunction,
    reader: PushdownReader,
    /// Whether files need maps; then only plain reads can read holes.
    has_maps: bool,
    /// Where chains run.
    executor: Executor,
}

impl Way {
    fn mapped(maps: FileMaps, object: &[u8], executor: Executor) -> Way {
        let function = maps.load_function(object, 0).expect("good");
        let reader = PushdownReader::new(&maps, PATIENT).expect("a reader");
        Way { maps, function, reader, has_maps: true, executor }
    }

    fn local(object: &[u8], policy: Policy, executor: Executor) -> Way {
        let maps = FileMaps::local();
        let function = maps.load_function(object, 0).expect("good");
        let reader = PushdownReader::new(&maps, policy).expect("a reader");
        Way { maps, function, reader, has_maps: false, executor }
    }

    fn open(&self, paths: &[PathBuf]) -> Vec<PushdownFile> {
        paths.iter().map(|path| self.maps.open(path).expect("opens")).collect()
    }

    /// Runs all chains of a world at once, each by a call of its own or all by one. Returns how each ended, and where
    /// the successful ones ran.
    fn run(
        &mut self,
        world: &World,
        files: &[PushdownFile],
        calls: Calls,
    ) -> (Vec<Ending>, Vec<Executor>) {
        let arguments: Vec<_> =
            world.chains.iter().map(|(choice, _)| choice.to_le_bytes()).collect();
        let places = world.chains.iter().map(|(_, record)| world.first_read(*record));
        let entries: Vec<_> = places
            .zip(&arguments)
            .map(|(first_read, argument)| ReadEntry { first_read, scratch: argument })
            .collect();
        let call = |entries| ReadPushdownMany {
            files,
            function: &self.function,
            entries,
            // Longer than the longest accepted answer, so that answers can be too long.
            scratch_size_bytes: 1024,
            answer_max_bytes: STATE_BYTES as u32,
        };
        let calls: Vec<_> = match calls {
            Calls::Single => entries.chunks(1).collect(),
            Calls::Many => vec![&entries[..]],
        };
        let mut tag = 0;
        for entries in calls {
            self.reader.submit_many(tag, &call(entries)).expect("makes sense");
            tag += entries.len() as u64;
        }
        let mut endings = vec![None; world.chains.len()];
        let mut executors = Vec::new();
        while self.reader.in_flight() > 0 {
            self.reader.wait(PATIENCE, &mut |completion| {
                let ending = match completion.result {
                    Ok((answer, info)) => {
                        executors.push(info.executor);
                        Ok((answer.to_vec(), info.hops))
                    }
                    Err(ReadError::Command(error)) => Err(format!(
                        "{error} (status {:?}, {:#x}, {:#x})",
                        error.status, error.dw0, error.dw1
                    )),
                    Err(error) => Err(error.to_string()),
                };
                let before = endings[completion.tag as usize].replace(ending);
                assert!(before.is_none(), "chain {} ended twice", completion.tag);
            });
        }
        (endings.into_iter().map(|ending| ending.expect("ended")).collect(), executors)
    }
}

/// How chains are requested.
#[derive(Clone, Copy, Debug)]
enum Calls {
    Single,
    Many,
}

/// Counts of chains by their ends, to check that the comparison was meaningful.
#[derive(Debug, Default)]
struct Tally {
    good: usize,
    failed: usize,
    /// For each way, the chains that ran where they should.
    as_meant: [usize; 4],
}

fn check(
    world: &World,
    folder: &Path,
    ways: &mut [Way],
    tally: &mut Tally,
) -> Result<(), TestCaseError> {
    let paths = world.write(folder).expect("room");
    let mut first: Option<Vec<Ending>> = None;
    for (way, as_meant) in ways.iter_mut().zip(&mut tally.as_meant) {
        let files = way.open(&paths);
        if way.has_maps {
            assert!(files.iter().all(|file| way.maps.wait_mapped(file, PATIENCE)));
        }
        for calls in [Calls::Single, Calls::Many] {
            let (endings, executors) = way.run(world, &files, calls);
            *as_meant += executors.iter().filter(|ran| **ran == way.executor).count();
            tally.good += endings.iter().filter(|ending| ending.is_ok()).count();
            tally.failed += endings.iter().filter(|ending| ending.is_err()).count();
            let first = first.get_or_insert_with(|| endings.clone());
            for (chain, (one, other)) in first.iter().zip(&endings).enumerate() {
                if one != other {
                    let text = format!("chain {chain}, {calls:?}: {one:?} is not {other:?}");
                    return Err(TestCaseError::fail(text));
                }
            }
        }
    }
    for path in paths {
        std::fs::remove_file(path).expect("it is there");
    }
    Ok(())
}

/// Linked records with fan-out, of many sizes, in several files, with all kinds of errors.
#[test]
fn three_executors_give_the_same_answers() {
    let disk = Disk::new("ext4", 96 << 20);
    let object = object();
    let nvme = nvme().filter(|nvme| nvme.mount.is_some());
    let mut ways = Vec::new();
    if let Some(nvme) = &nvme {
        ways.push(Way::mapped(nvme.maps(), &object, Executor::Local));
    }
    if let Some(disk) = &disk {
        let device = NamespaceDevice::new(disk.image()).expect("an image");
        let maps = FileMaps::new(disk.connect(), 1, device).expect("a target");
        ways.push(Way::mapped(maps, &object, Executor::Target));
    }
    ways.push(Way::local(&object, PATIENT, Executor::Local));
    ways.push(Way::local(&object, PLAIN, Executor::FallBack));
    let elsewhere = tempfile::tempdir().expect("a folder");
    let folder = disk.as_ref().map_or(elsewhere.path().to_owned(), Disk::mount);
    let folder = nvme.as_ref().and_then(|nvme| nvme.mount.clone()).unwrap_or(folder);
    // The runner takes only closures that do not mutate.
    let state = RefCell::new((ways, Tally::default()));
    let config = Config { cases: 64, max_shrink_time: 60_000, ..Config::with_source_file(file!()) };
    let outcome = TestRunner::new(config).run(&world(), |world| {
        let (ways, tally) = &mut *state.borrow_mut();
        check(&world, &folder, ways, tally)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let (ways, tally) = state.into_inner();
    println!("{tally:?}");
    let Tally { good, failed, as_meant } = tally;
    let good = good / ways.len();
    assert!(good > 100 && failed > 100, "too little to compare: {good} good, {failed} failed");
    // Other file systems may have no direct I/O.
    let is_disk = disk.is_some() || nvme.is_some();
    for (way, as_meant) in ways.iter().zip(as_meant).filter(|_| is_disk) {
        // Chains that read the hole of a file cannot run where they should.
        let least = if way.has_maps { good * 9 / 10 } else { good };
        assert!(as_meant >= least, "{:?}: {as_meant} of {good} chains", way.executor);
    }
}
