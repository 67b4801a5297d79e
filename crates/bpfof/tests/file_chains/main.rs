//! Chains over real files on mounted ext4 and XFS: lookups in sorted tables, by all executors, while files stay the
//! same and while they change.

#[path = "../disk/mod.rs"]
mod disk;
mod set;
#[path = "../wait/mod.rs"]
mod wait;

use bpfof_host::files::{
    Executor, FileMaps, FirstRead, NamespaceDevice, Policy, PushdownReader, ReadError, ReadInfo,
    ReadPushdown, StorageFunction,
};
use bpfof_host::{Controller, FileVersion, Options, PushdownCall, Status, TargetUrl};
use bpfof_sorted::{Lookup, Root, get_argument};
use disk::{Disk, KINDS, output, run};
use set::{PATIENCE, PATIENT, Set, table, table_of, value};
use std::fs::{self, File, OpenOptions};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use wait::{is_soon, within};

#[test]
fn the_executors_agree() {
    for (kind, disk) in Disk::of_each_kind() {
        let mut set = Set::new(&disk, 9, PATIENT);
        assert!(set.mapped(), "{kind}: {:?}", set.files[0].refusal());
        assert!(set.leased(), "{kind}");
        let plain = Policy { local: false, ..PATIENT };
        let mut here =
            [(PATIENT, Executor::Local), (plain, Executor::FallBack)].map(|(policy, executor)| {
                let reader = PushdownReader::new(&FileMaps::local(), policy);
                (reader.expect("no target"), executor)
            });
        for key in (0..4100).step_by(7) {
            let info = set.expect(key, 0);
            assert_eq!((info.executor, info.stale), (Executor::Target, 0), "{kind} {key}");
            // Chains in this process read the disk for each hop, with its latency: so only some keys.
            for (reader, executor) in here.iter_mut().filter(|_| key.is_multiple_of(35)) {
                let mut scratch = get_argument(key, &set.roots).expect("9 tables");
                let first = set.first_read();
                let found = reader.read_pushdown(&set.files, first, &set.function, &mut scratch);
                let found = found.expect("succeeds");
                let expected = ReadInfo { executor: *executor, ..info };
                assert_eq!(found, expected, "{kind} {key}");
                assert_eq!(scratch, set.get(key).expect("succeeds").0);
            }
        }
        // Errors are the same too.
        let outside = FirstRead { offset_bytes: 1 << 40, ..set.first_read() };
        let [(local, _), (plain, _)] = &mut here;
        for reader in [&mut set.reader, local, plain] {
            let mut scratch = get_argument(1, &set.roots).expect("9 tables");
            let error = reader
                .read_pushdown(&set.files, outside, &set.function, &mut scratch)
                .expect_err("outside");
            let ReadError::Command(error) = error else { panic!("{error}") };
            assert!(error.status.same_code(Status::READ_OUTSIDE_FILE), "{error}");
        }
    }
}

#[test]
fn many_chains_at_once_complete_with_their_tags() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let mut set = Set::new(&disk, 4, PATIENT);
    assert!(set.mapped());
    // More chains than the lane holds.
    let keys: Vec<u64> = (0..500).collect();
    for key in &keys {
        let scratch = get_argument(*key, &set.roots).expect("4 tables");
        let call = ReadPushdown {
            files: &set.files,
            first_read: set.first_read(),
            function: &set.function,
            scratch: &scratch,
            scratch_size_bytes: 1024,
            answer_max_bytes: 1024,
        };
        set.reader.submit(*key, &call).expect("makes sense");
    }
    let mut seen = vec![0; keys.len()];
    while set.reader.in_flight() > 0 {
        set.reader.wait(PATIENCE, &mut |completion| {
            let (answer, info) = completion.result.expect("succeeds");
            let found = matches!(Lookup::parse(answer), Some(Lookup::Found(..)));
            let key = completion.tag;
            assert_eq!(found, (2..6).any(|divisor| key.is_multiple_of(divisor)), "{key}");
            assert_eq!(info.executor, Executor::Target);
            seen[key as usize] += 1;
        });
    }
    assert!(seen.iter().all(|&times| times == 1));
}

/// One call makes few and short commands, by vectors; and its chains complete even if the connection is lost meanwhile.
#[test]
fn many_by_one_call_answer_as_one_by_one() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let mut set = Set::new(&disk, 4, PATIENT);
    assert!(set.mapped());
    let keys: Vec<u64> = (0..700).map(|place| place * 7 % 5000).collect();
    let before = set.reader.traffic().0;
    let singly: Vec<_> = keys.iter().map(|key| set.get(*key).expect("succeeds")).collect();
    let sent_singly = set.reader.traffic().0 - before;
    set.submit_many(&keys);
    let many = set.wait_many(keys.len());
    let sent_together = set.reader.traffic().0 - before - sent_singly;
    assert!(many.iter().all(|(_, info)| info.executor == Executor::Target));
    assert!(many == singly);
    assert!(sent_together * 2 < sent_singly, "{sent_together} and {sent_singly} bytes");
    set.submit_many(&keys);
    disk.stop_target();
    let cut = set.wait_many(keys.len());
    assert!(cut.iter().any(|(_, info)| info.executor == Executor::FallBack));
    let answers = |ends: &[(Vec<u8>, ReadInfo)]| ends.iter().map(|end| end.0.clone()).collect();
    let [cut, singly]: [Vec<Vec<u8>>; 2] = [answers(&cut), answers(&singly)];
    assert!(cut == singly);
}

/// Leaves free space in single blocks only.
fn scatter_free_space(disk: &Disk) {
    let ballast = disk.mount().join("ballast");
    let path = ballast.to_str().expect("UTF-8");
    for (step, unit) in [(1_u64 << 20, "1M"), (4096, "4K")] {
        let fill = |at: u64| output("fallocate", &["-o", &at.to_string(), "-l", unit, path]);
        let mut at = fs::metadata(&ballast).map_or(0, |found| found.len());
        while fill(at).status.success() {
            at += step;
        }
    }
    for block in 0..400 {
        let at = (block * 8192).to_string();
        run("fallocate", &["--punch-hole", "-o", &at, "-l", "4096", path]);
    }
    // Blocks are free once the journal says so.
    run("sync", &["-f", path]);
}

/// Writes files block by block in turn, each block to the disk before the next, so that no file has two adjacent blocks
/// if the file system has the choice.
fn write_in_turn(files: &[(PathBuf, Vec<u8>)]) {
    let open = |path| File::create_new(path).expect("created");
    let open: Vec<File> = files.iter().map(|(path, _)| open(path)).collect();
    let blocks = files.iter().map(|(_, bytes)| bytes.len().div_ceil(4096)).max();
    for block in 0..blocks.expect("files") {
        for (file, (_, bytes)) in open.iter().zip(files) {
            let from = (block * 4096).min(bytes.len());
            let to = (from + 4096).min(bytes.len());
            file.write_all_at(&bytes[from..to], from as u64).expect("written");
            file.sync_data().expect("synced");
        }
    }
}

#[test]
fn blocks_that_straddle_scattered_extents_are_read_at_the_target() {
    // By default XFS preallocates more than is written.
    for ((kind, size_bytes), options) in KINDS.into_iter().zip(["rw", "rw,allocsize=4096"]) {
        let Some(disk) = Disk::mounted(kind, size_bytes, options) else { return };
        if kind == "ext4" {
            scatter_free_space(&disk);
        }
        // Most blocks of 3,000 bytes cross a boundary of 4 KiB, which is one of extents; those of
        // 20,000 and 30,000 cross several.
        let tables = [3000, 20_000, 30_000].into_iter().enumerate().map(|(index, block_bytes)| {
            let (bytes, root) = table_of(index as u64, 0, block_bytes);
            ((disk.mount().join(format!("table-{index}")), bytes), root)
        });
        let (mut files, roots): (Vec<_>, Vec<_>) = tables.unzip();
        // This file also separates the blocks beyond the end of the shorter files.
        let longest = files.iter().map(|(_, bytes)| bytes.len()).max().expect("3 tables");
        files.push((disk.mount().join("between"), vec![0; longest]));
        write_in_turn(&files);
        let mut set = Set::new(&disk, 0, PATIENT);
        for ((path, _), root) in files.into_iter().zip(roots) {
            set.add(path, root);
        }
        assert!(set.mapped(), "{kind}: {:?}", set.files[0].refusal());
        let device = NamespaceDevice::new(disk.image()).expect("an image");
        let info = disk.connect().namespaces()[0];
        for file in &set.files {
            let layout =
                bpfof_host::files::file_layout(&file.file().expect("open"), &device, &info)
                    .expect("maps");
            let blocks = layout.length_bytes() / 4096;
            assert!(layout.extents().len() as u64 > blocks * 3 / 4, "{kind}: {layout:?}");
        }
        let mut local = PushdownReader::new(&FileMaps::local(), PATIENT).expect("no target");
        for key in (0..2000).step_by(7) {
            let info = set.expect(key, 0);
            assert_eq!((info.executor, info.stale), (Executor::Target, 0), "{kind} {key}");
            let mut scratch = get_argument(key, &set.roots).expect("3 tables");
            let first = set.first_read();
            let here = local.read_pushdown(&set.files, first, &set.function, &mut scratch);
            assert_eq!(here.expect("succeeds").hops, info.hops, "{kind} {key}");
            assert_eq!(scratch, set.get(key).expect("succeeds").0, "{kind} {key}");
        }
        let bytes: u64 =
            set.paths.iter().map(|path| fs::metadata(path).expect("a file").len()).sum();
        let received = set.expect_plain();
        assert!(
            received > bytes.min(3 * 300_000),
            "{kind}: {received} bytes came over the network"
        );
    }
}

/// Another thread opens the files for writing, and waits in the kernel until the lease is released.
#[test]
fn a_writer_waits_for_the_lease_and_is_not_kept_waiting() {
    for (kind, disk, make) in both_ways() {
        let mut set = make(&disk, 2, PATIENT);
        assert!(set.mapped() && set.leased(), "{kind}");
        set.expect(3, 0);
        // Machines are busy: one of the rounds must be quick.
        let mut quickest = Duration::MAX;
        for generation in 1..6 {
            let mut waited = Duration::ZERO;
            for (index, path) in set.paths.iter().enumerate() {
                let (bytes, _) = table(index as u64, generation);
                let begun = Instant::now();
                let file = OpenOptions::new().write(true).open(path).expect("opens");
                waited += begun.elapsed();
                // The length changes meanwhile, and the data is not written back.
                file.set_len(0).expect("truncated");
                file.write_all_at(&bytes, 0).expect("written");
            }
            set.expect(3, generation);
            quickest = quickest.min(waited);
            assert_eq!(set.expect(2, generation).executor, Executor::Target, "{kind}");
        }
        // The keeper looks by itself once a second only, so the writer has woken it.
        assert!(quickest < Duration::from_millis(500), "{kind}: {quickest:?}");
    }
}

/// A file that is open for writing cannot be leased. Then comparisons of versions protect chains.
#[test]
fn files_that_are_open_for_writing_are_compared() {
    for (kind, disk) in Disk::of_each_kind() {
        let (bytes, _) = table(0, 0);
        let path = disk.mount().join("table-0");
        fs::write(&path, &bytes).expect("written");
        let writer = OpenOptions::new().write(true).open(&path).expect("opens");
        let mut set = Set::new(&disk, 1, PATIENT);
        assert!(set.mapped() && !set.files[0].is_leased(), "{kind}");
        assert_eq!(set.expect(2, 0).executor, Executor::Target, "{kind}");
        let mut stale = 0;
        for generation in 1..6 {
            // In place: the blocks stay the same, and the new data is in the page cache only.
            writer.write_all_at(&table(0, generation).0, 0).expect("written");
            let info = set.expect(2, generation);
            assert_eq!(info.executor, Executor::Target, "{kind}");
            stale += info.stale;
            assert_eq!(set.expect(4, generation).stale, 0, "{kind}");
            // Then to other blocks.
            writer.set_len(0).expect("truncated");
            writer.write_all_at(&table(0, generation).0, 0).expect("written");
            set.expect_plain();
            set.expect(2, generation);
        }
        // Not every time: the keeper may have refreshed the map already.
        assert!(stale > 0, "{kind}");
        // A wait compares as well.
        writer.write_all_at(&table(0, 6).0, 0).expect("written");
        assert!(set.mapped(), "{kind}");
        assert_eq!(set.expect(2, 6).stale, 0, "{kind}");
        // The holes of a file read as zeroes, but only by plain reads.
        writer.set_len(1 << 20).expect("grown");
        let hole = FirstRead { file: 0, offset_bytes: 900_000, size_bytes: 512 };
        let mut scratch = get_argument(1, &set.roots).expect("1 table");
        let error = set
            .reader
            .read_pushdown(&set.files, hole, &set.function, &mut scratch)
            .expect_err("zeroes are no block");
        let ReadError::Command(error) = error else { panic!("{error}") };
        assert!(error.status.same_code(Status::FUNCTION_ABORT), "{error}");
        // A reader that forbids plain reads gets the reason why the target cannot run the chain.
        let policy = Policy { fall_back: false, ..PATIENT };
        let mut strict = PushdownReader::new(&set.maps, policy).expect("a reader");
        let mut scratch = get_argument(1, &set.roots).expect("1 table");
        let error = strict
            .read_pushdown(&set.files, hole, &set.function, &mut scratch)
            .expect_err("only plain reads see zeroes");
        let ReadError::Command(error) = error else { panic!("{error}") };
        assert!(error.status.same_code(Status::READ_OUTSIDE_FILE), "{error}");
        // As soon as the file is not open for writing, it is leased.
        drop(writer);
        set.expect(2, 6);
        assert!(set.leased(), "{kind}");
        set.expect(2, 6);
    }
}

/// Files beyond the former end of the namespace get maps once it has grown.
#[test]
fn a_namespace_may_grow() {
    let Some(disk) = Disk::new("ext4", 64 << 20) else { return };
    let mut set = Set::new(&disk, 0, PATIENT);
    let size_bytes = 128 << 20;
    disk.grow(size_bytes);
    // A file beyond the end is refused if it is still so at the second look.
    within(PATIENCE, "the target serves all of it", || {
        disk.ctl(0, &["namespaces"])[0]["size_bytes"] == size_bytes
    });
    let path = disk.mount().join("large");
    fs::write(&path, vec![1; 80 << 20]).expect("there is room now");
    set.files.push(set.maps.open(&path).expect("opens"));
    assert!(set.mapped(), "{:?}", set.files[0].refusal());
}

/// A write changes the file's timestamps when it begins. A map made during the write is right, but the rest of the
/// write is in the page cache only when the file is leased.
#[test]
fn a_file_is_leased_with_what_a_long_write_left_in_memory() {
    const LENGTH: usize = 24 << 20;
    for (kind, disk) in Disk::of_each_kind() {
        let mut set = Set::new(&disk, 0, PATIENT);
        let path = disk.mount().join("long");
        fs::write(&path, vec![0; LENGTH]).expect("written");
        set.files.push(set.maps.open(&path).expect("opens"));
        let mut leased_soon = 0;
        for generation in 1..=16 {
            assert!(set.mapped() && set.leased(), "{kind}");
            let bytes = vec![generation; LENGTH];
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let writer = OpenOptions::new().write(true).open(&path).expect("opens");
                    writer.write_all_at(&bytes, 0).expect("written");
                });
                within(PATIENCE, &format!("{kind}: it is mapped"), || {
                    set.byte_at(0).0 == generation && set.mapped()
                });
            });
            // It is never leased if the map is older than the write: the next read will find that out. On a slow disk
            // it takes longer, because the keeper first writes the rest back.
            let is_slow = generation > 8 && leased_soon == 0;
            let patience = if is_slow { PATIENCE } else { Duration::from_millis(100) };
            let leased = is_soon(patience, || set.files[0].is_leased());
            let (byte, at_target) = set.byte_at(LENGTH - 1);
            assert_eq!(byte, generation, "{kind}, {leased}");
            assert!(at_target || !leased, "{kind}");
            leased_soon += u32::from(leased);
        }
        println!("{kind}: {leased_soon} of 16 rounds leased at once");
        assert!(leased_soon > 0, "{kind}: the lease was never there in time");
    }
}

/// Two descriptors of one open file share its lease, and only one owner would be told of its end. So the holder of a
/// duplicate takes no lease, and does not end the other's.
#[test]
fn duplicates_of_a_descriptor_are_compared() {
    for (kind, disk) in Disk::of_each_kind() {
        let path = disk.mount().join("table-0");
        fs::write(&path, table(0, 0).0).expect("written");
        let opened = fs::File::open(&path).expect("opens");
        let duplicate = opened.try_clone().expect("duplicated");
        let (mut owner, mut other) = (Set::new(&disk, 0, PATIENT), Set::new(&disk, 0, PATIENT));
        owner.files.push(owner.maps.add(opened, path.clone()));
        assert!(owner.mapped() && owner.leased(), "{kind}");
        other.files.push(other.maps.add_duplicate(duplicate, path.clone()));
        assert!(other.mapped() && !other.files[0].is_leased(), "{kind}");
        for generation in 1..6 {
            fs::write(&path, vec![generation; 64 << 10]).expect("written");
            for set in [&mut owner, &mut other] {
                within(PATIENCE, &format!("{kind}: the change is read"), || {
                    set.byte_at(0).0 == generation
                });
            }
            assert!(owner.mapped() && owner.leased(), "{kind}");
            assert!(other.mapped() && !other.files[0].is_leased(), "{kind}");
        }
    }
}

/// Opening a pipe waits for a writer: the keeper must not, because writers of other files wait for it.
#[test]
fn a_pipe_by_its_path_holds_nothing_up() {
    for (kind, disk) in Disk::of_each_kind() {
        let mut set = Set::new(&disk, 1, PATIENT);
        assert!(set.mapped() && set.leased(), "{kind}");
        let pipe = disk.mount().join("pipe");
        run("mkfifo", &[&pipe]);
        let file = set.maps.add_path(pipe);
        assert!(!set.maps.wait_mapped(&file, PATIENCE), "{kind}");
        let refusal = file.refusal().map(|refusal| refusal.to_string());
        assert_eq!(refusal.as_deref(), Some("not a regular file"), "{kind}");
        let begun = Instant::now();
        OpenOptions::new().write(true).open(&set.paths[0]).expect("opens");
        assert!(begun.elapsed() < PATIENCE, "{kind}: the lease was given back");
        set.expect(2, 0);
    }
}

/// Submits a lookup of key 2, which the target gets only with the next `wait`.
fn submit(set: &mut Set) {
    let scratch = get_argument(2, &set.roots).expect("tables");
    let call = ReadPushdown {
        files: &set.files,
        first_read: set.first_read(),
        function: &set.function,
        scratch: &scratch,
        scratch_size_bytes: 0,
        answer_max_bytes: 4096,
    };
    set.reader.submit(1, &call).expect("makes sense");
}

/// Waits for that lookup. Returns the value, and information about the chain.
fn wait(set: &mut Set) -> (Vec<u8>, ReadInfo) {
    let mut end = None;
    while end.is_none() {
        set.reader.wait(PATIENCE, &mut |completion| {
            let (answer, info) = completion.result.expect("succeeds");
            let Some(Lookup::Found(0, value)) = Lookup::parse(answer) else { panic!("{answer:?}") };
            end = Some((value.to_vec(), info));
        });
    }
    end.expect("ended")
}

/// Algorithm 2: a change after the check before submission is caught by the check after completion.
#[test]
fn a_change_under_a_chain_in_flight_makes_it_stale() {
    for (kind, disk, make) in both_ways() {
        let path = disk.mount().join("table-0");
        fs::write(&path, table(0, 0).0).expect("written");
        let writer = OpenOptions::new().write(true).open(&path).expect("opens");
        let mut set = make(&disk, 1, PATIENT);
        assert!(set.mapped() && !set.files[0].is_leased(), "{kind}");
        for generation in 1..4 {
            submit(&mut set);
            // The file gets other blocks; the old ones may belong to another file.
            writer.set_len(0).expect("cut");
            writer.write_all_at(&table(0, generation).0, 0).expect("written");
            let (found, info) = wait(&mut set);
            assert!(info.stale > 0, "{kind}: {info:?}");
            assert_eq!(found, value(0, 2, generation), "{kind}");
        }
        let keys: Vec<u64> = (0..300).map(|key| key * 2).collect();
        for generation in 4..7 {
            set.submit_many(&keys);
            writer.set_len(0).expect("cut");
            writer.write_all_at(&table(0, generation).0, 0).expect("written");
            for (key, (answer, info)) in keys.iter().zip(set.wait_many(keys.len())) {
                assert!(info.stale > 0, "{kind}: {info:?}");
                let expected = value(0, *key, generation);
                assert_eq!(
                    Lookup::parse(&answer),
                    Some(Lookup::Found(0, &expected)),
                    "{kind} {key}"
                );
            }
        }
    }
}

/// A lease makes a writer wait for the chain, which need not be tried again.
#[test]
fn a_lease_holds_until_chains_in_flight_have_ended() {
    for (kind, disk, make) in both_ways() {
        let mut set = make(&disk, 1, PATIENT);
        assert!(set.mapped() && set.leased(), "{kind}");
        submit(&mut set);
        let path = set.paths[0].clone();
        let writer = std::thread::spawn(move || OpenOptions::new().write(true).open(path));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!writer.is_finished(), "{kind}: the file was opened under a chain");
        let (found, info) = wait(&mut set);
        assert_eq!((info.stale, info.executor), (0, Executor::Target), "{kind}");
        assert_eq!(found, value(0, 2, 0), "{kind}");
        let file = writer.join().expect("no panic").expect("opens");
        file.write_all_at(&table(0, 1).0, 0).expect("written");
        set.expect(2, 1);
    }
}

#[test]
fn without_a_map_the_policy_decides() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    // Beside the image, not in it.
    let path = disk.image().with_file_name("beside");
    let (bytes, root) = table(0, 0);
    fs::write(&path, bytes).expect("written");
    let mut set = Set::new(&disk, 0, Policy::default());
    set.add(path.clone(), root);
    assert!(!set.mapped() && set.files[0].refusal().is_some());
    assert_eq!(set.expect(2, 0).executor, Executor::FallBack);
    let mut set = Set::new(&disk, 0, Policy { fall_back: false, ..Policy::default() });
    set.add(path, root);
    assert!(matches!(set.get(2), Err(ReadError::Stale)));
    // A file that another association has mapped: its number means another file here.
    let other = Set::new(&disk, 2, PATIENT);
    let mut set = Set::new(&disk, 1, PATIENT);
    assert!(other.mapped() && set.mapped());
    set.files = other.files[..1].to_vec();
    assert_eq!(set.expect(2, 0).executor, Executor::FallBack);
    let mut set = Set::new(&disk, 1, PATIENT);
    assert!(set.mapped());
    set.function = other.function.clone();
    assert_eq!(set.expect(2, 0).executor, Executor::FallBack);
    // The keeper of its maps is gone.
    let mut set = Set::new(&disk, 1, PATIENT);
    assert!(set.mapped());
    set.maps = FileMaps::local();
    assert_eq!(set.expect(2, 0).executor, Executor::FallBack);
    // A target that is gone.
    let mut set = Set::new(&disk, 1, PATIENT);
    assert!(set.mapped());
    disk.stop_target();
    assert_eq!(set.expect(2, 0).executor, Executor::FallBack);
}

/// Relays connections to a target. Returns the address of the relay, and its host-side ends of the connections. The
/// connections to the target stay open.
fn relay(target: &TargetUrl) -> (TargetUrl, mpsc::Receiver<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    let to = (target.host.clone(), target.port);
    let (ends, received) = mpsc::channel();
    std::thread::spawn(move || {
        for host in listener.incoming() {
            let host = host.expect("a connection");
            let target = TcpStream::connect(&to).expect("a target");
            let copy = |from: &TcpStream, to: &TcpStream| {
                let (mut from, mut to) =
                    (from.try_clone().expect("it is open"), to.try_clone().expect("it is open"));
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            };
            copy(&host, &target);
            copy(&target, &host);
            // Leak the socket, so that the connection to the target stays open.
            std::mem::forget(target);
            let _ = ends.send(host);
        }
    });
    (TargetUrl { port, ..target.clone() }, received)
}

/// An association may end before its lanes: then their maps are no longer kept up to date. The lanes must not count as
/// connected, or the library would not connect again.
#[test]
fn lanes_without_their_association_are_not_connected() {
    let Some(disk) = Disk::new("ext4", 64 << 20) else { return };
    let (url, connections) = relay(&disk.url);
    let controller = Controller::connect(&url, Options::default()).expect("it connects");
    let mut set = Set::of(&disk, controller, 1, PATIENT);
    assert!(set.mapped());
    assert_eq!(set.expect(2, 0).executor, Executor::Target);
    assert!(set.reader.is_connected());
    let admin = connections.recv().expect("the first connection");
    admin.shutdown(Shutdown::Both).expect("it is open");
    let opened = set.maps.with_controller(|controller| controller.open_lane().map(drop));
    assert!(opened.expect("a target").is_err(), "a lane of an association that has ended");
    within(PATIENCE, "somebody notices", || !set.reader.is_connected());
    assert!(!set.maps.is_connected());
    assert_eq!(set.expect(2, 0).executor, Executor::FallBack);
}

/// Maps of a thousand files; those of files that are closed go away.
#[test]
fn maps_come_and_go_with_their_files() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let mut set = Set::new(&disk, 1, PATIENT);
    assert!(set.mapped());
    let call = |maps: &FileMaps, function: &StorageFunction, root: Root, id: u32| {
        let mut lane = maps.with_controller(|c| c.open_lane()).expect("a target").expect("a lane");
        let call = PushdownCall {
            nsid: 1,
            function: function.id().expect("loaded").0,
            files: &[FileVersion { id, version: 1 }],
            first_file: 0,
            first_offset_bytes: root.offset,
            first_size_bytes: root.size,
            scratch: &get_argument(1, &[root]).expect("1 table"),
            scratch_size_bytes: 0,
            answer_max_bytes: 4096,
        };
        lane.pushdown(&call, &mut Vec::new())
    };
    // The first file of an association is number 1.
    call(&set.maps, &set.function, set.roots[0], 1).expect("mapped");
    set.files.clear();
    within(PATIENCE, "the map of a closed file goes", || {
        call(&set.maps, &set.function, set.roots[0], 1).is_err()
    });
    let error = call(&set.maps, &set.function, set.roots[0], 1).expect_err("closed");
    assert!(error.to_string().contains("Unknown File"), "{error}");

    let names: Vec<PathBuf> = (0..1000).map(|i| disk.mount().join(format!("small-{i}"))).collect();
    names.iter().for_each(|path| fs::write(path, [7; 5000]).expect("written"));
    File::open(&names[0]).and_then(|file| file.sync_all()).expect("synced");
    run("sync", &["-f", disk.mount().to_str().expect("UTF-8")]);
    let begun = Instant::now();
    let files: Vec<_> = names.iter().map(|path| set.maps.open(path).expect("opens")).collect();
    assert!(files.iter().all(|file| set.maps.wait_mapped(file, PATIENCE)));
    println!("1,000 files registered in {:?}", begun.elapsed());
    assert!(Path::new(&names[0]).exists() && begun.elapsed() < 6 * PATIENCE);

    // Files that are closed before they are mapped are released too.
    drop(files);
    let files: Vec<_> = names.iter().map(|path| set.maps.open(path).expect("opens")).collect();
    drop(files);
    assert!(are_closed(&disk), "{:?} stays open", open_below(&disk.mount()));
}

/// Whether the keeper closes all files, some of which it has just opened.
fn are_closed(disk: &Disk) -> bool {
    is_soon(PATIENCE, || open_below(&disk.mount()).is_none())
}

/// Files that are named by paths have leases but no open descriptors; after its removal such a file can still be read
/// at the target.
#[test]
fn files_by_path_take_no_descriptors() {
    for (kind, disk) in Disk::of_each_kind() {
        let mut set = Set::by_path(&disk, 14, PATIENT);
        assert!(set.mapped() && set.leased(), "{kind}");
        // On XFS each chain compares the files.
        let may_be_open = kind == "xfs";
        assert!(may_be_open || are_closed(&disk), "{kind}");
        for key in 0..40 {
            assert_eq!(set.expect(key, 0).executor, Executor::Target, "{kind}");
        }
        let gone = set.paths[3].clone();
        fs::remove_file(&gone).expect("removed");
        // A new file at this path is another file.
        fs::write(&gone, table(3, 1).0).expect("written");
        assert_eq!(set.expect(5, 0).executor, Executor::Target, "{kind}");
        let refused = set.files[3].file().map(|_| ()).map_err(|error| error.kind());
        assert!(may_be_open || refused == Err(std::io::ErrorKind::NotFound), "{kind}: {refused:?}");
        assert!(may_be_open || are_closed(&disk), "{kind}");
        drop(set);
        let maps = fs::read_to_string("/proc/self/maps").expect("its maps");
        let mount = disk.mount().display().to_string();
        assert!(!maps.contains(&mount), "{kind}: {maps}");
    }
}

/// How a set of files is made.
type Make = fn(&Disk, u64, Policy) -> Set;

/// Each kind of file system, with files that are open and files that are named by their paths.
fn both_ways() -> impl Iterator<Item = (&'static str, Disk, Make)> {
    let ways: [Make; 2] = [Set::new, Set::by_path];
    let disks = |make: Make| Disk::of_each_kind().map(move |(kind, disk)| (kind, disk, make));
    ways.into_iter().flat_map(disks)
}

/// A file below `folder` that this process has open.
fn open_below(folder: &Path) -> Option<PathBuf> {
    let descriptors = fs::read_dir("/proc/self/fd").expect("they can be listed");
    let mut paths = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    paths.find(|path| path.starts_with(folder))
}
