//! Chains over files that only this process writes, in place and past the page cache, on mounted ext4 and XFS.

mod disk;
mod stop;

use bpfof_host::files::{
    Executor, FileMaps, FileRead, FirstRead, NamespaceDevice, Policy, PushdownFile, PushdownReader,
    ReadError, ReadInfo, StorageFunction,
};
use bpfof_nvme::Status;
use bpfof_sorted::{GET_OBJECT, Lookup, Root, Shape, TableWriter, get_argument};
use disk::{Disk, run};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stop::StopAtEnd;

const PATIENCE: Duration = Duration::from_secs(10);
/// Runs chains at the target or not at all.
const STRICT: Policy =
    Policy { retries: 3, patience: Duration::from_secs(2), fall_back: false, local: false };
const BLOCK: usize = 4096;
/// Bytes of a file for one table.
const ROOM: u64 = 256 << 10;

/// A block with the alignment for direct I/O.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

/// Writes whole blocks past the page cache.
fn write(file: &File, bytes: &[u8], offset: u64) {
    let mut block = Aligned([0; BLOCK]);
    for (number, part) in bytes.chunks(BLOCK).enumerate() {
        block.0.fill(0);
        block.0[..part.len()].copy_from_slice(part);
        file.write_all_at(&block.0, offset + (number * BLOCK) as u64).expect("written");
    }
}

fn value(key: u64, generation: u64) -> Vec<u8> {
    format!("key {key} of generation {generation}").into_bytes()
}

fn table(generation: u64) -> (Vec<u8>, Root) {
    let mut writer = TableWriter::new(Shape { data_block_bytes: 1000, fanout: 8 });
    for key in 0..2000 {
        writer.add(key, Some(&value(key, generation))).expect("in order");
    }
    let (bytes, root) = writer.finish();
    assert!(bytes.len() as u64 <= ROOM);
    (bytes, root)
}

struct Fixture {
    disk: Disk,
    maps: FileMaps,
    reader: PushdownReader,
    get: StorageFunction,
    path: PathBuf,
    written: File,
}

impl Fixture {
    fn new(disk: Disk) -> Fixture {
        let device = NamespaceDevice::new(disk.image()).expect("an image");
        let maps = FileMaps::new(disk.connect(), 1, device).expect("a target");
        let reader = PushdownReader::new(&maps, STRICT).expect("a lane");
        let get = maps.load_function(GET_OBJECT, 0).expect("good");
        let path = disk.mount().join("own");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).custom_flags(OFlags::DIRECT.bits() as i32);
        let written = options.open(&path).expect("made");
        Fixture { disk, maps, reader, get, path, written }
    }

    fn add(&self) -> PushdownFile {
        let file = File::open(&self.path).expect("opens");
        let file = self.maps.add_own(file, self.path.clone());
        assert!(self.maps.wait_mapped(&file, PATIENCE), "{:?}", file.refusal());
        file
    }

    /// Runs a chain whose first read is of 512 bytes at this offset, and returns how it ends, whatever it finds.
    fn read_at(
        &mut self,
        file: &PushdownFile,
        root: Root,
        offset_bytes: u64,
    ) -> Result<ReadInfo, ReadError> {
        let first = FirstRead { file: 0, offset_bytes, size_bytes: 512 };
        let mut scratch = get_argument(7, &[root]).expect("one table");
        let files = std::slice::from_ref(file);
        self.reader.read_pushdown(files, first, &self.get, &mut scratch)
    }

    /// Looks a key up by a chain, in the table at byte `at` of the file.
    fn find(
        &mut self,
        file: &PushdownFile,
        (root, at): (Root, u64),
        key: u64,
    ) -> Result<(Vec<u8>, ReadInfo), ReadError> {
        let first = FirstRead { file: 0, offset_bytes: at + root.offset, size_bytes: root.size };
        let mut scratch = get_argument(key, &[root]).expect("one table");
        let files = std::slice::from_ref(file);
        let info = self.reader.read_pushdown(files, first, &self.get, &mut scratch)?;
        Ok(match Lookup::parse(&scratch).expect("an answer") {
            Lookup::Found(_, value) => (value.to_vec(), info),
            other => panic!("{other:?}"),
        })
    }
}

fn punch_and_write(fixture: &Fixture, path: &Path, generation: u64) -> Root {
    let (bytes, root) = table(generation);
    let name = path.to_str().expect("UTF-8");
    run("fallocate", &["--punch-hole", "--offset", "0", "--length", &ROOM.to_string(), name]);
    // Another file's data goes into the blocks that are free now.
    let other = fixture.disk.mount().join(format!("other-{generation}"));
    let other = OpenOptions::new().write(true).create_new(true).open(other).expect("made");
    other.write_all_at(&vec![0xFF; ROOM as usize], 0).expect("written");
    other.sync_all().expect("synced");
    write(&fixture.written, &bytes, 0);
    root
}

#[test]
fn writing_disturbs_no_chain() {
    for (kind, disk) in Disk::of_each_kind() {
        let mut fixture = Fixture::new(disk);
        let (bytes, root) = table(0);
        write(&fixture.written, &bytes, 0);
        write(&fixture.written, &[1; 64 * BLOCK], ROOM);
        let file = fixture.add();
        let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
        let written = fixture.written.try_clone().expect("cloned");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let count = writes.fetch_add(1, Ordering::Relaxed);
                    write(&written, &[count as u8; BLOCK], ROOM + (count % 64) * BLOCK as u64);
                }
            });
            let _stop = StopAtEnd(&stop);
            let (begun, mut chains) = (Instant::now(), 0);
            while chains < 300 || writes.load(Ordering::Relaxed) < 300 {
                let key = chains % 2000;
                let (found, info) = fixture.find(&file, (root, 0), key).expect("it counts");
                assert_eq!(found, value(key, 0), "{kind}");
                assert_eq!((info.executor, info.stale), (Executor::Target, 0), "{kind}");
                chains += 1;
                assert!(begun.elapsed() < PATIENCE * 6, "{kind}: too slow");
            }
        });
        assert!(!file.is_leased());
    }
}

#[test]
fn a_file_that_has_grown_keeps_its_map_until_it_has_a_longer_one() {
    for (kind, disk) in Disk::of_each_kind() {
        let mut fixture = Fixture::new(disk);
        let (bytes, root) = table(0);
        write(&fixture.written, &bytes, 0);
        let end = bytes.len().next_multiple_of(BLOCK) as u64;
        let file = fixture.add();
        let (later, last) = table(1);
        // A chain that begins beyond the end of the map waits for the new map.
        write(&fixture.written, &later, end);
        let (found, _) = fixture.find(&file, (root, 0), 7).expect("it counts");
        assert_eq!(found, value(7, 0), "{kind}");
        let mut tail = vec![0; BLOCK];
        let mut reads =
            [FileRead { file: &file, offset_bytes: end, data: &mut tail, read_bytes: 0 }];
        let begun = Instant::now();
        while fixture.reader.read_files(&mut reads).is_err() {
            assert!(begun.elapsed() < PATIENCE, "{kind}: no longer map");
        }
        assert_eq!(reads[0].read_bytes, BLOCK);
        assert_eq!(tail, later[..BLOCK], "{kind}");
        let first = FirstRead { file: 0, offset_bytes: end + last.offset, size_bytes: last.size };
        // The table's pointers count from the beginning of the file, where the other table is.
        let mut scratch = get_argument(7, &[root]).expect("one table");
        let files = std::slice::from_ref(&file);
        let ended = fixture.reader.read_pushdown(files, first, &fixture.get, &mut scratch);
        assert!(ended.is_ok_and(|info| info.executor == Executor::Target), "{kind}");
        // A read beyond the end of the file is an error, and does not wait.
        let ended = fixture.read_at(&file, root, 1 << 30);
        assert!(matches!(ended, Err(ReadError::Command(_))), "{kind}: {ended:?}");
    }
}

/// The last block stays at its place, but the bytes after the new end no longer belong to the file.
#[test]
fn a_file_that_was_cut_within_a_block_has_another_map() {
    for (kind, disk) in Disk::of_each_kind() {
        let mut fixture = Fixture::new(disk);
        let (bytes, root) = table(0);
        write(&fixture.written, &bytes, 0);
        write(&fixture.written, &[1; BLOCK], ROOM);
        let file = fixture.add();
        let is_outside = |ended: &Result<_, ReadError>| {
            let Err(ReadError::Command(error)) = ended else { return false };
            error.status.same_code(Status::READ_OUTSIDE_FILE)
        };
        let last = ROOM + BLOCK as u64 - 512;
        let before = fixture.read_at(&file, root, last);
        assert!(!is_outside(&before), "{kind}: {before:?}");
        fixture.written.set_len(ROOM + 2048).expect("cut");
        let after = fixture.read_at(&file, root, last);
        assert!(is_outside(&after), "{kind}: {after:?}");
        let (found, _) = fixture.find(&file, (root, 0), 7).expect("it counts");
        assert_eq!(found, value(7, 0), "{kind}");
    }
}

#[test]
fn a_hole_that_is_written_is_read_at_the_target() {
    for (kind, disk) in Disk::of_each_kind() {
        let mut fixture = Fixture::new(disk);
        write(&fixture.written, &[1; BLOCK], 2 * ROOM);
        let file = fixture.add();
        let (bytes, root) = table(0);
        let hole = fixture.find(&file, (root, 0), 7);
        assert!(matches!(hole, Err(ReadError::Command(_))), "{kind}: no bytes yet, {hole:?}");
        write(&fixture.written, &bytes, 0);
        let (found, info) = fixture.find(&file, (root, 0), 7).expect("it counts");
        assert_eq!((found, info.executor), (value(7, 0), Executor::Target), "{kind}");
        assert!(info.stale > 0, "{kind}: another map");
        let (_, info) = fixture.find(&file, (root, 0), 8).expect("it counts");
        assert_eq!(info.stale, 0, "{kind}: the map stays");
    }
}

#[test]
fn a_file_that_has_moved_is_noticed() {
    for (kind, disk) in Disk::of_each_kind() {
        let mut fixture = Fixture::new(disk);
        write(&fixture.written, &table(0).0, 0);
        write(&fixture.written, &[1; BLOCK], ROOM);
        let file = fixture.add();
        let mut stale = 0;
        for generation in 1..20 {
            let path = fixture.path.clone();
            let root = punch_and_write(&fixture, &path, generation);
            let key = generation * 97;
            let begun = Instant::now();
            loop {
                assert!(begun.elapsed() < PATIENCE, "{kind}: it never counts again");
                match fixture.find(&file, (root, 0), key) {
                    Ok((found, info)) => {
                        assert_eq!(found, value(key, generation), "{kind}");
                        stale += info.stale;
                        break;
                    }
                    Err(ReadError::Stale) => stale += 1,
                    Err(error) => panic!("{kind}: {error}"),
                }
            }
        }
        assert!(stale > 0, "{kind}: nothing has moved");
    }
}
