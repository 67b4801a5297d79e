//! Chains over files of a mounted file system, at a target in this process that can be cut off.

mod file_world;

use bpfof_host::files::{
    Executor, FileMaps, FirstRead, MapRefusal, Policy, PushdownFile, PushdownReader, ReadEntry,
    ReadError, ReadPushdownMany,
};
use bpfof_host::{Error, Status};
use file_world::{GetError, KEYS, PATIENCE, World, database, until};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

fn is_just_changed(file: &PushdownFile) -> bool {
    file.refusal().is_some_and(|why| matches!(*why, MapRefusal::JustChanged))
}

/// On such inodes, two changes within a second leave the same change time.
#[test]
fn on_inodes_of_128_bytes_a_file_is_mapped_when_its_second_is_over() {
    let Some(world) = World::new(&["-I", "128"]) else { return };
    let path = world.mount().join("db");
    // Without a lease, because the file is open for writing.
    let writer = world.write(&path, 0);
    let file = world.maps.open(&path).expect("opened");
    let mut get = world.reader(Policy::default());
    let mut refused = 0;
    for generation in 1..4_u64 {
        std::thread::sleep(
            Duration::from_secs(1) - Duration::from_nanos(since_epoch().subsec_nanos().into()),
        );
        for change in 0..2 {
            let generation = 2 * generation + change;
            writer.write_all_at(&database(generation), 0).expect("written");
            let (value, info) = get.get(&file, 7).expect("it ends");
            assert_eq!(value, file_world::value(7, generation));
            let _ = world.maps.wait_mapped(&file, Duration::from_millis(50));
            refused += u32::from(is_just_changed(&file));
            assert!(info.executor == Executor::FallBack || !is_just_changed(&file));
        }
        assert!(world.maps.wait_mapped(&file, PATIENCE), "{:?}", file.refusal());
        let changed = writer.metadata().expect("examined");
        assert_eq!(changed.ctime_nsec(), 0);
        assert!(since_epoch().as_secs() as i64 > changed.ctime());
        let (value, info) = get.get(&file, 7).expect("it ends");
        assert_eq!(value, file_world::value(7, 2 * generation + 1));
        assert_eq!(info.executor, Executor::Target);
    }
    assert!(refused > 0, "each second was over at once");
}

/// The kernel reports the error once; afterwards the file looks fine.
#[test]
fn a_file_that_could_not_be_written_is_read_plainly_for_good() {
    // The disk has no room for the blocks that the image's file system writes.
    let Some(mut world) = World::on_full_disk() else { return };
    let path = world.mount().join("db");
    world.fill();
    drop(world.write(&path, 5));
    let file = world.maps.open(&path).expect("opened");
    let mut get = world.reader(Policy::default());
    until("it is refused", || {
        file.refresh();
        file.refusal().is_some_and(|why| matches!(*why, MapRefusal::NotWritten(_)))
    });
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert!(!world.maps.wait_mapped(&file, Duration::from_millis(100)));
        let (value, info) = get.get(&file, 7).expect("it ends");
        assert_eq!((value, info.executor), (file_world::value(7, 5), Executor::FallBack));
    }
    world.empty();
}

/// A leased file with a map.
fn leased(world: &World, name: &str) -> PushdownFile {
    let path = world.mount().join(name);
    drop(world.write(&path, 1));
    let file = world.maps.open(&path).expect("opened");
    assert!(world.maps.wait_mapped(&file, PATIENCE), "{:?}", file.refusal());
    until("it is leased", || file.is_leased());
    file
}

/// Opens the file for writing, which waits for the lease to end. Returns the time that took.
fn open_to_write(file: &PushdownFile) -> Duration {
    let begun = Instant::now();
    drop(OpenOptions::new().write(true).open(file.path()).expect("opened"));
    begun.elapsed()
}

#[test]
fn writers_do_not_wait_for_users_of_the_association() {
    let Some(world) = World::new(&[]) else { return };
    let (file, other) = (leased(&world, "db"), leased(&world, "other"));
    let (begun, has_begun) = channel();
    let (end, ends) = channel::<()>();
    std::thread::scope(|scope| {
        let maps = &world.maps;
        scope.spawn(move || {
            maps.with_controller(|_| {
                begun.send(()).expect("the test waits");
                let _ = ends.recv_timeout(6 * PATIENCE);
            });
        });
        has_begun.recv().expect("it has begun");
        // The keeper needs the association for this.
        drop(other);
        let third = world.mount().join("third");
        drop(world.write(&third, 1));
        let third = maps.open(&third).expect("opened");
        std::thread::sleep(Duration::from_millis(100));
        let waited = open_to_write(&file);
        drop(end);
        assert!(waited < PATIENCE, "{waited:?}");
        assert!(maps.wait_mapped(&third, PATIENCE), "{:?}", third.refusal());
    });
}

#[test]
fn writers_do_not_wait_for_a_silent_target() {
    let Some(world) = World::new(&[]) else { return };
    let file = leased(&world, "db");
    world.hold(true);
    let path = world.mount().join("other");
    drop(world.write(&path, 1));
    let other = world.maps.open(&path).expect("opened");
    std::thread::sleep(Duration::from_millis(100));
    // The file whose map is being sent, too.
    for (which, file) in [("the first", &file), ("the other", &other)] {
        let waited = open_to_write(file);
        assert!(waited < PATIENCE, "{which}: {waited:?}");
    }
    world.hold(false);
    assert!(world.maps.wait_mapped(&other, PATIENCE), "{:?}", other.refusal());
}

/// Runs one chain for each key together; returns where each ran.
fn many(reader: &mut PushdownReader, world: &World, file: &PushdownFile) -> Vec<Executor> {
    let keys: Vec<[u8; 8]> = (0..KEYS).map(u64::to_le_bytes).collect();
    let first_read = FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 };
    let entries: Vec<_> = keys.iter().map(|key| ReadEntry { first_read, scratch: key }).collect();
    let call = ReadPushdownMany {
        files: std::slice::from_ref(file),
        function: &world.function,
        entries: &entries,
        scratch_size_bytes: 0,
        answer_max_bytes: 128,
    };
    let mut executors = Vec::new();
    reader
        .read_pushdown_many(&call, &mut |completion| {
            let (answer, info) = completion.result.expect("it ends");
            let found = bpfkv::pushdown::get_answer(answer).expect("an answer").copied();
            assert_eq!(found, Some(file_world::value(completion.tag, 1)));
            executors.push(info.executor);
        })
        .expect("it makes sense");
    executors
}

fn refusal(error: &GetError) -> Option<Status> {
    match error {
        GetError(ReadError::Target(Error::Command { source, .. })) => Some(source.status),
        _ => None,
    }
}

#[test]
fn chains_that_the_target_no_longer_runs_fall_back() {
    let Some(mut world) = World::new(&[]) else { return };
    let file = leased(&world, "db");
    let mut get = world.reader(Policy::default());
    let strict = Policy { fall_back: false, ..Policy::default() };
    let mut must = world.reader(strict);
    let mut vectors = PushdownReader::new(&world.maps, Policy::default()).expect("a lane");
    assert_eq!(get.get(&file, 7).expect("it ends").1.executor, Executor::Target);
    assert_eq!(must.get(&file, 7).expect("it ends").1.executor, Executor::Target);
    assert_eq!(many(&mut vectors, &world, &file), [Executor::Target; KEYS as usize]);

    let function = world.function.id().expect("loaded");
    let unloaded = world.maps.with_controller(|controller| controller.unload_function(function));
    unloaded.expect("a target").expect("unloaded");
    let (value, info) = get.get(&file, 7).expect("it ends");
    assert_eq!((value, info.executor), (file_world::value(7, 1), Executor::FallBack));
    let error = must.get(&file, 7).expect_err("the target has it no more");
    assert!(refusal(&error).is_some_and(|status| status.same_code(Status::UNKNOWN_FUNCTION)));
    assert_eq!(many(&mut vectors, &world, &file), [Executor::FallBack; KEYS as usize]);

    // Now the target lacks the namespace, too.
    world.load();
    let mut get = world.reader(Policy::default());
    assert_eq!(get.get(&file, 7).expect("it ends").1.executor, Executor::Target);
    world.remove_namespace();
    let (value, info) = get.get(&file, 7).expect("it ends");
    assert_eq!((value, info.executor), (file_world::value(7, 1), Executor::FallBack));
    assert_eq!(many(&mut vectors, &world, &file), [Executor::FallBack; KEYS as usize]);
}

/// One of the connections is lost, but not the association.
#[test]
fn a_reader_takes_another_shared_lane() {
    let Some(world) = World::new(&[]) else { return };
    world.maps.share_lanes(1);
    let file = leased(&world, "db");
    let [mut finds_out, mut idle] = [(); 2].map(|()| world.reader(Policy::default()));
    for get in [&mut finds_out, &mut idle] {
        assert_eq!(get.get(&file, 7).expect("it ends").1.executor, Executor::Target);
    }
    world.cut_last();
    for get in [&mut finds_out, &mut idle] {
        let mut here = 0;
        let end = Instant::now() + 2 * PATIENCE;
        loop {
            let (value, info) = get.get(&file, 7).expect("it ends");
            assert_eq!(value, file_world::value(7, 1));
            match info.executor {
                Executor::Target if here > 0 => break,
                Executor::FallBack => here += 1,
                _ => {}
            }
            assert!(Instant::now() < end, "it reads plainly for good, {here} chains by now");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(get.reader.is_connected());
    }
}

/// Chains of a reader without a target, over files that differ in length.
#[test]
fn the_fall_back_knows_how_long_files_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let maps = FileMaps::local();
    let function = maps.load_function(bpfkv::GET_OBJECT, 0).expect("good");
    let mut get =
        file_world::Reader::new(&maps, &function, Policy { local: false, ..Policy::default() });
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    std::fs::write(&one, database(1)).expect("written");
    let whole = database(2);
    std::fs::write(&other, &whole[..512]).expect("written");
    let [one, other] = [&one, &other].map(|path| maps.open(path).expect("opened"));
    for _ in 0..3 {
        assert_eq!(get.get(&one, 7).expect("found").0, file_world::value(7, 1));
        let GetError(error) = get.get(&other, 7).expect_err("there is a root and nothing else");
        assert!(
            matches!(error, ReadError::Command(error) if error.status.same_code(Status::READ_OUTSIDE_FILE))
        );
    }
    let mut grown = File::options().append(true).open(other.path()).expect("opened");
    grown.write_all(&whole[512..]).expect("written");
    for _ in 0..3 {
        assert_eq!(get.get(&other, 7).expect("found").0, file_world::value(7, 2));
        assert_eq!(get.get(&one, 7).expect("found").0, file_world::value(7, 1));
    }
}
