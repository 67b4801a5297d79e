//! Functions with maps over files: a map is at the place where the function runs, so the function
//! may run nowhere else.

mod clang;
mod disk;

use bpfof_host::files::{
    Executor, FileMaps, FirstRead, NamespaceDevice, Policy, PushdownFile, PushdownReader,
    ReadError, StorageFunction,
};
use disk::Disk;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);

/// The example of the documentation: `bpfof/read`, `bpfof/reads`.
fn object() -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("hot_blocks.o");
    clang::compile("../../docs/examples/hot_blocks.bpf.c", &object);
    std::fs::read(object).expect("an object")
}

fn read(
    reader: &mut PushdownReader,
    file: &PushdownFile,
    function: &StorageFunction,
    offset_bytes: u64,
) -> Result<(Vec<u8>, Executor), ReadError> {
    let first = FirstRead { file: 0, offset_bytes, size_bytes: 512 };
    let mut scratch = Vec::new();
    let info = reader.read_pushdown(std::slice::from_ref(file), first, function, &mut scratch)?;
    Ok((scratch, info.executor))
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

/// Without a target, both executors of this process work on the same maps.
#[test]
fn functions_remember_in_this_process() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let path = folder.path().join("file");
    std::fs::write(&path, [7; 8192]).expect("written");
    let object = object();
    let maps = FileMaps::local();
    let [read_block, reads] = [0, 1].map(|index| maps.load_function(&object, index).expect("good"));
    let file = maps.open(&path).expect("opens");
    let plain = Policy { local: false, ..Policy::default() };
    let mut expected = 0;
    for policy in [Policy::default(), plain] {
        let mut reader = PushdownReader::new(&maps, policy).expect("a reader");
        for _ in 0..3 {
            let (answer, _) = read(&mut reader, &file, &read_block, 4096).expect("a chain");
            assert_eq!(answer, [7; 64]);
        }
        expected += 3;
        let (answer, executor) = read(&mut reader, &file, &reads, 4096).expect("a chain");
        assert_eq!(number(&answer), expected, "{executor:?}");
    }
    let map = read_block.local_map("hot_blocks").expect("it is here");
    let value = map.get(&4096u64.to_le_bytes()).expect("it is there").to_vec();
    assert_eq!(number(&value), 6);
    // Another set of files has functions of its own.
    let other = FileMaps::local().load_function(&object, 1).expect("good");
    assert_eq!(other.local_map("hot_blocks").expect("it is here").entries(), 0);
    // A map is freed with the last function that uses it.
    drop((read_block, reads));
    let again = maps.load_function(&object, 1).expect("good");
    let mut reader = PushdownReader::new(&maps, Policy::default()).expect("a reader");
    assert_eq!(number(&read(&mut reader, &file, &again, 4096).expect("a chain").0), 0);
}

/// A function whose maps are at a target must not run in this process.
#[test]
fn functions_that_remember_at_a_target_do_not_fall_back() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let device = NamespaceDevice::new(disk.image()).expect("an image");
    let maps = FileMaps::new(disk.connect(), 1, device).expect("a target");
    let object = object();
    let function = maps.load_function(&object, 0).expect("good");
    assert!(function.local_map("hot_blocks").is_none(), "it is at the target");
    let there = disk.mount().join("there");
    std::fs::write(&there, [5; 8192]).expect("written");
    let there = maps.open(&there).expect("opens");
    assert!(maps.wait_mapped(&there, PATIENCE), "{:?}", there.refusal());
    let mut reader = PushdownReader::new(&maps, Policy::default()).expect("a lane");
    for _ in 0..2 {
        let (answer, executor) = read(&mut reader, &there, &function, 512).expect("a chain");
        assert_eq!((answer, executor), (vec![5; 64], Executor::Target));
    }
    // A file that is not on the namespace has no map there.
    let folder = tempfile::tempdir().expect("a folder");
    let elsewhere = folder.path().join("elsewhere");
    std::fs::write(&elsewhere, [6; 8192]).expect("written");
    let elsewhere = maps.open(&elsewhere).expect("opens");
    let refused = read(&mut reader, &elsewhere, &function, 512).expect_err("not at the target");
    assert!(matches!(&refused, ReadError::Remembers { .. }), "{refused}");
    let words = refused.to_string();
    assert!(words.contains("function read has maps at the target"), "{words}");
    assert!(words.contains("stale file map"), "{words}");
    // A hole has no blocks at the target.
    let sparse = disk.mount().join("sparse");
    std::fs::write(&sparse, [7; 512]).expect("written");
    let file = std::fs::OpenOptions::new().write(true).open(&sparse).expect("opens");
    file.set_len(8192).expect("longer");
    file.sync_all().expect("durable");
    let sparse = maps.open(&sparse).expect("opens");
    assert!(maps.wait_mapped(&sparse, PATIENCE), "{:?}", sparse.refusal());
    let refused = read(&mut reader, &sparse, &function, 4096).expect_err("a hole");
    let words = refused.to_string();
    assert!(words.contains("function read has maps at the target"), "{words}");
    assert!(words.contains("it reads a hole of a file"), "{words}");
    // A reader without a target does not run it either.
    let mut local = PushdownReader::new(&FileMaps::local(), Policy::default()).expect("a reader");
    let refused = read(&mut local, &there, &function, 512).expect_err("not at the target");
    assert!(matches!(&refused, ReadError::Remembers { .. }), "{refused}");
    let counted = maps.with_controller(|controller| {
        let map = controller.map("hot_blocks").expect("it is there");
        controller.map_entries(&map).expect("entries")
    });
    let counted = counted.expect("there is a target");
    let counted: Vec<(u64, u64)> =
        counted.iter().map(|(key, value)| (number(key), number(value))).collect();
    assert_eq!(counted, [(512, 2)]);
}
