//! The three executors: at a target, by io_uring here, over plain reads here. They give the same
//! answers to the same chains.

#[path = "../disk/mod.rs"]
mod disk;
mod local;
mod world;

use bpfof_host::files::{
    Executor, FileMaps, NamespaceDevice, Policy, PushdownFile, PushdownReader, ReadError,
    ReadPushdown, StorageFunction,
};
use disk::{Disk, cannot_mount};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use world::{STATE_BYTES, World, world};

const PATIENCE: Duration = Duration::from_secs(10);
/// Waits for maps, so that chains run at the target whenever they can.
const PATIENT: Policy =
    Policy { retries: 5, patience: Duration::from_secs(2), fall_back: true, local: true };
/// Runs chains over plain reads only.
const PLAIN: Policy = Policy { local: false, ..PATIENT };

/// Compiles follow.bpf.c.
fn object() -> Vec<u8> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("follow.bpf.o");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let status = Command::new(clang)
        .args("-O2 -g -Wall -Wextra -Werror -target bpf -mcpu=v3".split(' '))
        .arg("-I")
        .arg(here.join("../../functions/include"))
        .arg("-c")
        .arg(here.join("tests/executors/follow.bpf.c"))
        .arg("-o")
        .arg(&object)
        .status();
    assert!(status.expect("clang, which make setup installs").success());
    std::fs::read(object).expect("an object")
}

/// How a chain ended: answer and hops, or the words and numbers of the error.
type Ending = Result<(Vec<u8>, u32), String>;

/// One way to run chains.
struct Way {
    maps: FileMaps,
    function: StorageFunction,
    reader: PushdownReader,
}

impl Way {
    fn new(maps: FileMaps, object: &[u8], policy: Policy) -> Way {
        let function = maps.load_function(object, 0).expect("good");
        let reader = PushdownReader::new(&maps, policy).expect("a reader");
        Way { maps, function, reader }
    }

    fn open(&self, paths: &[PathBuf]) -> Vec<PushdownFile> {
        paths.iter().map(|path| self.maps.open(path).expect("opens")).collect()
    }

    /// Runs all chains of a world at once; how each ended, and where those ran that succeeded.
    fn run(&mut self, world: &World, files: &[PushdownFile]) -> (Vec<Ending>, Vec<Executor>) {
        for (tag, (choice, record)) in world.chains.iter().enumerate() {
            let call = ReadPushdown {
                files,
                first_read: world.first_read(*record),
                function: &self.function,
                scratch: &choice.to_le_bytes(),
                // Longer than answers are accepted, so that they can be too long.
                scratch_size_bytes: 1024,
                answer_max_bytes: STATE_BYTES as u32,
            };
            self.reader.submit(tag as u64, &call).expect("makes sense");
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

/// How many chains ended in which way, to see that there was something to compare.
#[derive(Debug, Default)]
struct Tally {
    good: usize,
    failed: usize,
    local: usize,
    target: usize,
}

fn check(
    world: &World,
    folder: &Path,
    ways: &mut [Way],
    tally: &mut Tally,
) -> Result<(), TestCaseError> {
    let paths = world.write(folder).expect("room");
    let mut first: Option<Vec<Ending>> = None;
    for way in ways {
        let files = way.open(&paths);
        if way.maps.has_target() {
            assert!(files.iter().all(|file| way.maps.wait_mapped(file, PATIENCE)));
        }
        let (endings, executors) = way.run(world, &files);
        let ran = |executor| executors.iter().filter(|ran| **ran == executor).count();
        tally.local += ran(Executor::Local);
        tally.target += ran(Executor::Target);
        match &first {
            None => {
                tally.good += endings.iter().filter(|ending| ending.is_ok()).count();
                tally.failed += endings.iter().filter(|ending| ending.is_err()).count();
                if way.maps.has_target() && !world.has_hole() {
                    assert!(executors.iter().all(|executor| *executor == Executor::Target));
                }
                first = Some(endings);
            }
            Some(first) => {
                for (chain, (one, other)) in first.iter().zip(&endings).enumerate() {
                    if one != other {
                        let text = format!("chain {chain}: {one:?} is not {other:?}");
                        return Err(TestCaseError::fail(text));
                    }
                }
            }
        }
    }
    for path in paths {
        std::fs::remove_file(path).expect("it is there");
    }
    Ok(())
}

/// Linked records with fan-out, of many sizes, in several files; and all that can go wrong.
#[test]
fn three_executors_give_the_same_answers() {
    let disk = cannot_mount().is_none().then(|| Disk::new("ext4", 96 << 20));
    let object = object();
    let mut ways = Vec::new();
    if let Some(disk) = &disk {
        let device = NamespaceDevice::new(disk.image()).expect("an image");
        let maps = FileMaps::new(disk.connect(), 1, device).expect("a target");
        ways.push(Way::new(maps, &object, PATIENT));
    }
    ways.push(Way::new(FileMaps::local(), &object, PATIENT));
    ways.push(Way::new(FileMaps::local(), &object, PLAIN));
    let elsewhere = tempfile::tempdir().expect("a folder");
    let folder = disk.as_ref().map_or(elsewhere.path().to_owned(), Disk::mount);
    // The runner takes no closure that changes something.
    let state = RefCell::new((ways, Tally::default()));
    let config = Config { cases: 64, max_shrink_time: 60_000, ..Config::with_source_file(file!()) };
    let outcome = TestRunner::new(config).run(&world(), |world| {
        let (ways, tally) = &mut *state.borrow_mut();
        check(&world, &folder, ways, tally)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let (_, tally) = state.into_inner();
    println!("{tally:?}");
    assert!(tally.good > 100 && tally.failed > 100, "too little to compare: {tally:?}");
    if disk.is_some() {
        assert_eq!(tally.local, tally.good, "chains that were not run by io_uring: {tally:?}");
        assert!(tally.target > tally.good / 2, "{tally:?}");
    }
}
