//! Real hosts and a real target: ordinary I/O, chains, file maps, functions.

mod common;

use bpfkv::pushdown::{
    AggregatePushdown, FIRST_READ_BYTES, GET_ANSWER_BYTES, GET_SCRATCH_BYTES, RangePushdown,
    get_answer, get_argument,
};
use bpfkv::{
    Aggregate, AggregateCursor, Corrupt, GetCursor, KeyRange, Pair, RangeCursor, ReadRequest, Step,
    Summary, Value,
};
use bpfof_controller::{Layout, NamespaceConfig, NamespaceSource, Server, TargetConfig};
use bpfof_function::abi;
use bpfof_host::{
    Controller, Error, Extent, FileMapObject, FileVersion, FunctionId, Lane, Options, PushdownCall,
    Request, RequestError, Status,
};
use bpfof_nvme::vendor_specific::PushdownShort;
use bpfof_nvme::{AdminCommand, features};
use common::{
    WHOLE, call, compile, config, connect, database, file, load, memory, options, random_bytes,
    run, slow_memory, start, until, url,
};
use fastrand::Rng;
use std::time::Duration;

const NAMESPACE_BYTES: u64 = 24 << 20;

/// Each kind of namespace, with and without digests.
fn for_all(test: impl Fn(NamespaceConfig, bool)) {
    let directory = tempfile::tempdir().expect("a directory");
    let in_memory = tempfile::tempdir_in("/dev/shm").expect("a directory on tmpfs");
    for lba_bytes in [512, 4096] {
        for digests in [false, true] {
            test(memory(NAMESPACE_BYTES, lba_bytes), digests);
            let path = directory.path().join(format!("{lba_bytes}-{digests}"));
            test(file(&path, NAMESPACE_BYTES, lba_bytes), digests);
        }
        let path = in_memory.path().join("image");
        let image = std::fs::File::create(&path).and_then(|file| file.set_len(NAMESPACE_BYTES));
        image.expect("room");
        let source = NamespaceSource::MemoryFile { path, latency_us: 3, iops: 0 };
        test(NamespaceConfig { source, ..memory(NAMESPACE_BYTES, lba_bytes) }, lba_bytes == 4096);
        // Three files each, striped by chunks of 4096 bytes, or concatenated.
        let layout = match lba_bytes {
            512 => Layout::Striped { chunk_bytes: 4096 },
            _ => Layout::Concatenated,
        };
        let paths = (0..3).map(|index| directory.path().join(format!("{lba_bytes}-{index}")));
        let size_bytes = Some(NAMESPACE_BYTES / 3);
        let source = NamespaceSource::Pieces { paths: paths.collect(), size_bytes, layout };
        test(NamespaceConfig { source, ..memory(NAMESPACE_BYTES, lba_bytes) }, lba_bytes == 512);
    }
}

/// Reads, writes and zeroes of all sizes, compared with a copy in the test; the contents of a file
/// survive a restart.
#[test]
fn a_namespace_is_a_disk() {
    for_all(|namespace, digests| {
        let server = start(vec![namespace.clone()]);
        let (controller, mut lane) = connect(&server, digests);
        let info = controller.namespaces()[0];
        assert_eq!((info.block_bytes, info.size_bytes()), (namespace.lba_bytes, NAMESPACE_BYTES));
        let mut model = vec![0; NAMESPACE_BYTES as usize];
        let mut numbers = Rng::with_seed(u64::from(namespace.lba_bytes));
        // More than the target requests at a time.
        let large = random_bytes(&mut numbers, 16 << 20);
        lane.write(1, 0, &large).expect("written");
        model[..large.len()].copy_from_slice(&large);
        for _ in 0..60 {
            change(&mut lane, &namespace, &mut model, &mut numbers);
        }
        lane.flush(1).expect("flushed");
        let mut back = vec![0; model.len()];
        lane.read(1, 0, &mut back).expect("read");
        assert!(back == model, "the namespace differs from the model");
        drop((controller, lane));
        server.stop();
        if let NamespaceSource::File { path, .. } | NamespaceSource::MemoryFile { path, .. } =
            &namespace.source
        {
            assert!(std::fs::read(path).expect("a file") == model, "the file differs");
        }
        if !matches!(namespace.source, NamespaceSource::Memory { .. }) {
            let server = start(vec![namespace.clone()]);
            let (controller, mut lane) = connect(&server, digests);
            assert_eq!(controller.namespaces()[0].nguid, info.nguid);
            lane.read(1, 0, &mut back).expect("read");
            assert!(back == model, "the namespace differs after a restart");
        }
    });
}

/// One write or write zeroes of a random range.
fn change(lane: &mut Lane, namespace: &NamespaceConfig, model: &mut [u8], numbers: &mut Rng) {
    let block = u64::from(namespace.lba_bytes);
    let most = if numbers.u64(..4) == 0 { 32 } else { 4 };
    let blocks = 1 + numbers.u64(..most);
    let offset_bytes = numbers.u64(..NAMESPACE_BYTES / block - blocks) * block;
    let length = (blocks * block) as usize;
    let range = offset_bytes as usize..offset_bytes as usize + length;
    let fua = numbers.u64(..4) == 0;
    let data = random_bytes(numbers, length);
    let request = if numbers.u64(..3) == 0 {
        model[range].fill(0);
        Request::WriteZeroes { nsid: 1, offset_bytes, length_bytes: length as u32, fua }
    } else {
        model[range].copy_from_slice(&data);
        Request::Write { nsid: 1, offset_bytes, data: &data, fua }
    };
    lane.submit(1, request).expect("there is room");
    let mut ended = 0;
    while ended == 0 {
        let done = &mut |completion: bpfof_host::Completion<'_>| {
            completion.result.expect("it succeeds");
        };
        ended = lane.wait(Duration::from_secs(5), done).expect("connected");
    }
}

/// BPF-KV over a lane, with plain reads and with pushdown.
struct Store<'a> {
    lane: &'a mut Lane,
    get: FunctionId,
    range: FunctionId,
    files: &'a [FileVersion],
}

impl Store<'_> {
    fn read(&mut self, read: ReadRequest) -> Vec<u8> {
        let start = read.offset_bytes / 4096 * 4096;
        let end = (read.offset_bytes + u64::from(read.length_bytes)).next_multiple_of(4096);
        let mut blocks = vec![0; (end - start) as usize];
        self.lane.read(1, start, &mut blocks).expect("read");
        blocks[(read.offset_bytes - start) as usize..][..read.length_bytes as usize].to_vec()
    }

    fn feed(
        &mut self,
        reads: &[ReadRequest],
        mut feed: impl FnMut(usize, &[u8]) -> Result<(), Corrupt>,
    ) {
        for (index, read) in reads.iter().enumerate() {
            feed(index, &self.read(*read)).expect("no corruption");
        }
    }

    fn plain_get(&mut self, key: u64) -> Option<Value> {
        let mut cursor = GetCursor::new();
        cursor.reset(key, 0);
        loop {
            let reads = match cursor.step() {
                Step::Read(reads) => reads.to_vec(),
                Step::Done(value) => return value.copied(),
            };
            self.feed(&reads, |index, data| cursor.feed(index, data));
        }
    }

    fn plain_range(&mut self, range: &KeyRange) -> Vec<Pair> {
        let mut cursor = RangeCursor::new();
        cursor.reset(range, 0);
        while let Step::Read(reads) = cursor.step() {
            let reads = reads.to_vec();
            self.feed(&reads, |index, data| cursor.feed(index, data));
        }
        cursor.pairs().to_vec()
    }

    fn plain_aggregate(&mut self, range: &KeyRange, aggregate: Aggregate) -> Summary {
        let mut cursor = AggregateCursor::new();
        cursor.reset(range, aggregate, 0);
        loop {
            let reads = match cursor.step() {
                Step::Read(reads) => reads.to_vec(),
                Step::Done(summary) => return summary,
            };
            self.feed(&reads, |index, data| cursor.feed(index, data));
        }
    }

    fn call(
        &mut self,
        function: FunctionId,
        first_offset_bytes: u64,
        scratch: &[u8],
        (answer_max_bytes, scratch_size_bytes): (u32, u32),
    ) -> Vec<u8> {
        let call = PushdownCall {
            files: self.files,
            first_offset_bytes,
            first_size_bytes: FIRST_READ_BYTES,
            scratch_size_bytes,
            answer_max_bytes,
            ..call(function, scratch)
        };
        run(self.lane, &call).expect("it succeeds").0
    }

    fn get(&mut self, key: u64) -> Option<Value> {
        let argument = get_argument(key)?;
        let sizes = (GET_ANSWER_BYTES as u32, GET_SCRATCH_BYTES);
        let answer = self.call(self.get, 0, &argument, sizes);
        get_answer(&answer).expect("an answer").copied()
    }

    fn range(&mut self, range: &KeyRange) -> Vec<Pair> {
        let mut pushdown = RangePushdown::new(range, 0, 0);
        let mut pairs = Vec::new();
        while let Some(call) = pushdown.call() {
            let sizes = (call.answer_max_bytes, call.scratch_size_bytes);
            let answer = self.call(self.range, call.first_offset_bytes, &call.argument, sizes);
            let found = pushdown.answer(&answer).expect("an answer");
            pairs.extend(found.map(|(key, value)| Pair { key, value: *value }));
        }
        pairs
    }

    fn aggregate(&mut self, range: &KeyRange, aggregate: Aggregate) -> Summary {
        let mut pushdown = AggregatePushdown::new(range, aggregate, 0, 0);
        while let Some(call) = pushdown.call() {
            let sizes = (call.answer_max_bytes, call.scratch_size_bytes);
            let answer = self.call(self.range, call.first_offset_bytes, &call.argument, sizes);
            pushdown.answer(&answer).expect("an answer");
        }
        *pushdown.summary()
    }

    /// Pushdown gives the same result as plain reads.
    fn compare(&mut self, keys: u64) {
        let mut numbers = Rng::with_seed(keys);
        let some = [0, 1, 30, 31, keys - 1, keys, keys + 1, u64::MAX - 1, u64::MAX];
        let more: Vec<u64> = (0..60).map(|_| numbers.u64(..keys + 100)).collect();
        for key in some.into_iter().chain(more) {
            let value = self.get(key);
            assert_eq!(value, self.plain_get(key), "key {key}");
            assert_eq!(value.is_some(), key < keys);
        }
        for length in [0, 1, 40, 64, 227, 500] {
            let begin = numbers.u64(..keys);
            let range = KeyRange::new(begin, begin + length).expect("in order");
            for range in [range, range.exclude_begin().include_end()] {
                assert!(self.range(&range) == self.plain_range(&range), "{range:?}");
                for aggregate in [Aggregate::Sum, Aggregate::Count] {
                    let plain = self.plain_aggregate(&range, aggregate);
                    assert_eq!(self.aggregate(&range, aggregate), plain, "{range:?}");
                }
            }
        }
    }
}

fn load_store(controller: &mut Controller) -> (FunctionId, FunctionId) {
    let get = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let range = controller.load_function(bpfkv::RANGE_OBJECT, 0).expect("loaded");
    (get, range)
}

#[test]
fn chains_and_plain_reads_give_the_same_answers() {
    let database = database(3);
    for_all(|namespace, digests| {
        let server = start(vec![namespace]);
        let (mut controller, mut lane) = connect(&server, digests);
        lane.write(1, 0, &database).expect("written");
        let (get, range) = load_store(&mut controller);
        let before = lane.bytes_received();
        Store { lane: &mut lane, get, range, files: WHOLE }.compare(31 * 31 * 31);
        assert!(lane.bytes_received() > before);
        let (_, hops) = run(&mut lane, &call(get, &5u64.to_le_bytes())).expect("found");
        assert_eq!(hops, 4, "three levels and a value");
    });
}

/// A database whose blocks are scattered in the namespace, read through a file map.
#[test]
fn a_file_in_many_pieces() {
    let database = database(3);
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let (mut controller, mut lane) = connect(&server, true);
    // Pieces of 1 to 40 blocks, from the end of the namespace downwards.
    let mut numbers = Rng::with_seed(3);
    let (mut at, mut device, mut extents) = (0, NAMESPACE_BYTES, Vec::new());
    while at < database.len() as u64 {
        let length_bytes = ((1 + numbers.u64(..40)) * 512).min(database.len() as u64 - at);
        device -= length_bytes + 512 * numbers.u64(..3);
        let piece = &database[at as usize..(at + length_bytes) as usize];
        lane.write(1, device, piece).expect("written");
        extents.push(Extent { file_offset: at, device_offset: device, length_bytes });
        at += length_bytes;
    }
    let length_bytes = database.len() as u64;
    let map = FileMapObject { file: 77, nsid: 1, version: 5, length_bytes, extents };
    controller.set_file_map(&map).expect("set");
    let (get, range) = load_store(&mut controller);
    let files = [FileVersion { id: 77, version: 5 }];
    let mut store = Store { lane: &mut lane, get, range, files: &files };
    for key in [0, 17, 5000, 29_790] {
        let value = store.get(key).expect("found");
        assert_eq!(value, bpfkv::format::value_text(key));
    }
    assert_eq!(store.range(&KeyRange::new(100, 400).expect("in order")).len(), 300);
    assert_eq!(store.get(29_791), None);

    let argument = 5u64.to_le_bytes();
    let mut status = |files: &[FileVersion]| {
        let call = PushdownCall { files, ..call(get, &argument) };
        run(&mut lane, &call).map_err(|error| (error.status, error.dw0, error.dw1))
    };
    let other = FileVersion { id: 0, version: 1 };
    let stale = FileVersion { id: 77, version: 4 };
    assert_eq!(status(&[stale]), Err((Status::STALE_FILE_MAP, 0, 0)));
    assert_eq!(status(&[files[0], other, stale]), Err((Status::STALE_FILE_MAP, 2, 0)));
    let unknown = FileVersion { id: 78, version: 5 };
    assert_eq!(status(&[files[0], unknown]), Err((Status::UNKNOWN_FILE, 1, 0)));
    assert!(status(&[files[0], other]).is_ok());
    controller.set_file_map(&FileMapObject { version: 6, ..map.clone() }).expect("set");
    assert_eq!(status(&files), Err((Status::STALE_FILE_MAP, 0, 0)));
    assert!(status(&[FileVersion { id: 77, version: 6 }]).is_ok());
    // Ranges that the map does not cover are outside the file, also in the middle.
    let holed = FileMapObject { version: 7, extents: map.extents[..1].to_vec(), ..map.clone() };
    controller.set_file_map(&holed).expect("set");
    let outside = status(&[FileVersion { id: 77, version: 7 }]).expect_err("a hole");
    assert_eq!((outside.0, outside.1), (Status::READ_OUTSIDE_FILE, 0));
    controller.remove_file_map(1, 77).expect("removed");
    assert_eq!(status(&files), Err((Status::UNKNOWN_FILE, 0, 0)));
    controller.remove_file_map(1, 77).expect("nothing to remove");
    assert_maps_are_checked(&mut controller, &map);
}

fn assert_maps_are_checked(controller: &mut Controller, map: &FileMapObject) {
    let mut refused = |change: &dyn Fn(&mut FileMapObject)| {
        let mut map = map.clone();
        change(&mut map);
        match controller.set_file_map(&map) {
            Err(Error::Command { source, .. }) => source.status.same_code(Status::INVALID_FIELD),
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(&|map| map.nsid = 2));
    assert!(refused(&|map| map.nsid = 0));
    assert!(refused(&|map| map.file = 0));
    assert!(refused(&|map| map.file = u32::MAX));
    assert!(refused(&|map| map.extents[0].length_bytes += 100));
    assert!(refused(&|map| map.extents[0].device_offset = NAMESPACE_BYTES));
    assert!(refused(&|map| map.extents[1].file_offset = 0));
    assert!(refused(&|map| map.length_bytes = u64::MAX));
}

/// Writes a list of `blocks` blocks that walk follows, the last pointing to `end`.
fn write_list(lane: &mut Lane, blocks: u64, end: u64) {
    for block in 0..blocks {
        let mut bytes = [0; 512];
        let next = if block + 1 == blocks { end } else { (block + 1) * 512 };
        bytes[..8].copy_from_slice(&next.to_le_bytes());
        lane.write(1, block * 512, &bytes).expect("written");
    }
}

#[test]
fn a_map_that_changes_stops_the_chains_on_it() {
    let server = start(vec![slow_memory(1 << 20, 512, 1000)]);
    let (mut controller, mut lane) = connect(&server, false);
    // A cycle: the chain ends only when the map changes.
    write_list(&mut lane, 3, 512);
    let object = compile("hostile");
    let walk = load(&mut controller, &object, "walk");
    let extent = Extent { file_offset: 0, device_offset: 0, length_bytes: 2048 };
    let map = |version| FileMapObject {
        file: 1,
        nsid: 1,
        version,
        length_bytes: 2048,
        extents: vec![extent],
    };
    let chains =
        |controller: &mut Controller| controller.function_report().expect("a report")[0].chains;
    for (version, expected) in [(2, Status::STALE_FILE_MAP), (0, Status::UNKNOWN_FILE)] {
        controller.set_file_map(&map(1)).expect("set");
        let files = [FileVersion { id: 1, version: 1 }];
        let before = chains(&mut controller);
        let call = PushdownCall { files: &files, ..call(walk, &[]) };
        lane.submit(1, Request::Pushdown(call)).expect("submitted");
        lane.flush_doorbell().expect("sent");
        until("the chain has begun", || chains(&mut controller) > before);
        if version == 0 {
            controller.remove_file_map(1, 1).expect("removed");
        } else {
            controller.set_file_map(&map(version)).expect("replaced");
        }
        let mut end = None;
        while end.is_none() {
            lane.wait(Duration::from_secs(5), &mut |completion| {
                end = Some(completion.result.map(|_| ()));
            })
            .expect("connected");
        }
        match end {
            Some(Err(RequestError::Command(error))) => {
                assert_eq!((error.status, error.dw0), (expected, 0));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The command for hosts that use a kernel's passthrough.
#[test]
fn pushdown_short() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let (mut controller, mut lane) = connect(&server, true);
    lane.write(1, 0, &database(2)).expect("written");
    let get = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let mut run = |file: u16, first_blocks: u16, key: u64, max: u32| {
        let mut argument = [0; 24];
        argument[..8].copy_from_slice(&key.to_le_bytes());
        let sqe = PushdownShort { function: get.0, file, first_blocks, argument }.to_sqe(1, max);
        let request = Request::Raw { sqe, data_out: &[], data_in_max_bytes: max };
        lane.submit(1, request).expect("submitted");
        let mut end = None;
        while end.is_none() {
            lane.wait(Duration::from_secs(5), &mut |completion| {
                end = Some(match completion.result {
                    Ok(done) => {
                        let answer = done.data[..done.dw1 as usize].to_vec();
                        Ok((answer, done.dw0, done.dw1))
                    }
                    Err(RequestError::Command(error)) => Err((error.status, error.dw0)),
                    Err(error) => panic!("{error}"),
                });
            })
            .expect("connected");
        }
        end.expect("an end")
    };
    let (answer, hops, length) = run(0, 1, 960, 72).expect("found");
    assert_eq!(get_answer(&answer).expect("an answer"), Some(&bpfkv::format::value_text(960)));
    assert_eq!((hops, length), (3, 72));
    let (answer, hops, length) = run(0, 1, 961, 72).expect("not found");
    assert_eq!((get_answer(&answer), hops, length), (Ok(None), 2, 8));
    assert_eq!(run(0, 1, 960, 71), Err((Status::ANSWER_TOO_LONG, 72)));
    assert_eq!(
        run(0, 0, 960, 72),
        Err((Status::MALFORMED_REQUEST, PushdownShort::FIRST_BLOCKS_AT))
    );
    assert_eq!(run(9, 1, 960, 72), Err((Status::UNKNOWN_FILE, 0)));
    // The command takes any version of the map.
    let extent = Extent { file_offset: 0, device_offset: 0, length_bytes: 1 << 20 };
    let map = FileMapObject {
        file: 9,
        nsid: 1,
        version: 1234,
        length_bytes: 1 << 20,
        extents: vec![extent],
    };
    controller.set_file_map(&map).expect("set");
    assert!(run(9, 1, 960, 72).is_ok());
}

/// Several chains in flight in the same reactor: each has its own variables, initialised at its
/// start.
#[test]
fn variables_belong_to_a_chain() {
    let server = start(vec![memory(1 << 20, 512)]);
    let (mut controller, mut lane) = connect(&server, false);
    let count = load(&mut controller, &compile("global"), "count");
    for _ in 0..3 {
        for tag in 0..8 {
            lane.submit(tag, Request::Pushdown(call(count, &[]))).expect("submitted");
        }
        let mut answers = Vec::new();
        while answers.len() < 8 {
            lane.wait(Duration::from_secs(5), &mut |completion| {
                answers.push(completion.result.expect("an answer").data.to_vec());
            })
            .expect("connected");
        }
        assert_eq!(answers, vec![5u32.to_le_bytes(); 8]);
    }
}

#[test]
fn functions_go_on_in_others_and_leave_traces() {
    let server = start(vec![memory(1 << 20, 512)]);
    let (mut controller, mut lane) = connect(&server, false);
    let object = compile("onward");
    let onward = load(&mut controller, &object, "onward");
    let landed = load(&mut controller, &object, "landed");
    assert_eq!(controller.trace(landed).expect("answered"), [""; 0]);
    // Each hop begins with the function of the request, so the variables of the other function are
    // initialised anew.
    let to = landed.0.to_le_bytes();
    let (answer, hops) = run(&mut lane, &call(onward, &to)).expect("it ends");
    assert_eq!((answer, hops), (101u32.to_le_bytes().to_vec(), 3));
    let (answer, _) = run(&mut lane, &call(landed, &[])).expect("it ends");
    assert_eq!(answer, 103u32.to_le_bytes());
    let error = run(&mut lane, &call(onward, &99u32.to_le_bytes())).expect_err("not there");
    assert_eq!((error.status, error.dw0), (Status::FUNCTION_ABORT, 7));

    let lines = [0, 1, 2, 0, 1, 2].map(|hop| format!("landed in hop {hop}"));
    assert_eq!(controller.trace(landed).expect("answered"), lines);
    assert_eq!(controller.trace(onward).expect("answered"), ["no function? 99"]);
    // Another association cannot see these lines, nor continue in this function.
    let (mut other, mut other_lane) = connect(&server, false);
    assert!(other.trace(landed).is_err());
    let onward = load(&mut other, &object, "onward");
    let error = run(&mut other_lane, &call(onward, &to)).expect_err("not there");
    assert_eq!((error.status, error.dw0), (Status::FUNCTION_ABORT, 7));
    controller.unload_function(landed).expect("unloaded");
    assert!(controller.trace(landed).is_err());
}

/// From memory, the cache lines that a function asks for are read; from files, whole blocks.
#[test]
fn chains_read_in_the_units_of_the_namespace() {
    for_all(|namespace, digests| {
        let server = start(vec![namespace.clone()]);
        let (mut controller, mut lane) = connect(&server, digests);
        lane.write(1, 0, &database(2)).expect("written");
        let get = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
        // Two nodes and a value.
        run(&mut lane, &call(get, &960u64.to_le_bytes())).expect("found");
        let expected = match namespace.source {
            NamespaceSource::Memory { .. } | NamespaceSource::MemoryFile { .. } => 512 + 512 + 64,
            _ => 3 * u64::from(namespace.lba_bytes),
        };
        assert_eq!(controller.function_report().expect("a report")[0].read_bytes, expected);
    });
}

#[test]
fn functions_are_counted_unloaded_and_refused() {
    let server = start(vec![memory(1 << 20, 512)]);
    let (mut controller, mut lane) = connect(&server, false);
    let object = compile("hostile");
    write_list(&mut lane, 5, 0);
    let walk = load(&mut controller, &object, "walk");
    let abort = load(&mut controller, &object, "abort");
    let null = load(&mut controller, &object, "load");
    let fan = load(&mut controller, &object, "fan");
    let (answer, hops) = run(&mut lane, &call(walk, &[])).expect("it ends");
    assert_eq!((answer, hops), (5u64.to_le_bytes().to_vec(), 5));
    let (answer, hops) = run(&mut lane, &call(fan, &[])).expect("it ends");
    assert_eq!((answer, hops), ((1024u64 + 1536 + 2048).to_le_bytes().to_vec(), 2));
    run(&mut lane, &call(walk, &[])).expect("it ends");
    let error = run(&mut lane, &call(abort, &[9, 0, 0, 0])).expect_err("an abort");
    assert_eq!((error.status, error.dw0, error.dw1), (Status::FUNCTION_ABORT, 9, 1));
    let error = run(&mut lane, &call(null, &[])).expect_err("a fault");
    assert_eq!((error.status, error.dw1), (Status::FUNCTION_FAULT, 1));
    let pc = error.dw0;

    let report = controller.function_report().expect("a report");
    let counters: Vec<_> = report
        .iter()
        .map(|entry| {
            let name = entry.name.to_string();
            (name, entry.chains, entry.hops, entry.read_bytes, entry.faults, entry.aborts)
        })
        .collect();
    let expected = [
        ("walk", 2, 10, 5120, 0, 0),
        ("abort", 1, 1, 512, 0, 1),
        ("load", 1, 1, 512, 1, 0),
        ("fan", 1, 2, 17 * 512, 0, 0),
    ];
    let expected = expected.map(|(name, a, b, c, d, e)| (name.to_owned(), a, b, c, d, e));
    assert_eq!(counters, expected);
    assert_eq!((report[2].fault_pc, report[0].fault_pc), (pc, u32::MAX));
    assert!(report.iter().all(|entry| entry.instructions > 1 && entry.native_bytes > 10));
    let words = controller.last_fault(null).expect("answered").expect("it faulted");
    assert!(words.contains("hostile.bpf.c:"), "{words}");
    let data = format!("data {:#x}..{:#x})", abi::DATA, abi::DATA + 512);
    assert!(words.ends_with(&data), "{words}");
    assert_eq!(controller.last_fault(walk).expect("answered"), None);

    controller.unload_function(walk).expect("unloaded");
    let error = run(&mut lane, &call(walk, &[])).expect_err("gone");
    assert_eq!(error.status, Status::UNKNOWN_FUNCTION);
    assert!(controller.unload_function(walk).is_err());
    assert_eq!(controller.function_report().expect("a report").len(), 3);

    let refusals = [
        (compile("too_much"), "static variables and constants take 4096 bytes"),
        (b"\x7fELF no more".to_vec(), "not a readable ELF object"),
        (vec![0; 5000], "not a readable ELF object"),
    ];
    for (object, reason) in refusals {
        let error = controller.load_function(&object, 0).expect_err("refused");
        assert!(matches!(&error, Error::FunctionRejected(why) if why.contains(reason)), "{error}");
    }
    let error = controller.load_function(&object, 99).expect_err("no such entry");
    assert!(error.to_string().contains("number 99 does not exist"), "{error}");
    assert!(controller.load_function(&object, 0).is_ok());
}

#[test]
fn an_association_holds_64_functions() {
    let server = start(vec![memory(1 << 20, 512)]);
    let (mut controller, _lane) = connect(&server, false);
    let limit = controller.pushdown_limits().expect("limits").functions;
    let mut loaded = Vec::new();
    for _ in 0..limit {
        loaded.push(controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded"));
    }
    let too_many = controller.load_function(bpfkv::GET_OBJECT, 0);
    let Err(Error::NoRoomForFunction(why)) = too_many else { panic!("{too_many:?}") };
    assert_eq!(why, "the association has 64 functions; unload one first");
    controller.unload_function(loaded[7]).expect("unloaded");
    assert!(controller.load_function(bpfkv::GET_OBJECT, 0).is_ok());
}

/// A kept function belongs to the target, any other function to its association.
#[test]
fn kept_functions_outlive_their_association() {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let (mut first, mut lane) = connect(&server, false);
    let (mut second, mut other_lane) = connect(&server, false);
    lane.write(1, 0, &database(2)).expect("written");
    let own = first.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let kept = first.install_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    assert_eq!((own.0 >> 31, kept.0 >> 31), (0, 1));
    let key = 7u64.to_le_bytes();
    assert!(run(&mut lane, &call(kept, &key)).is_ok());
    assert!(run(&mut other_lane, &call(kept, &key)).is_ok());
    let error = run(&mut other_lane, &call(own, &key)).expect_err("not its own");
    assert_eq!(error.status, Status::UNKNOWN_FUNCTION);
    drop((lane, first));
    assert!(run(&mut other_lane, &call(kept, &key)).is_ok());
    let (mut third, mut third_lane) = connect(&server, false);
    assert!(run(&mut third_lane, &call(kept, &key)).is_ok());
    assert_eq!(second.function_report().expect("a report")[0].chains, 4);
    third.unload_function(kept).expect("unloaded");
    until("it is gone for all", || run(&mut other_lane, &call(kept, &key)).is_err());
    assert!(run(&mut third_lane, &call(kept, &key)).is_err());
}

/// Lanes of one association on different reactors see the same functions, maps and blocks.
#[test]
fn several_reactors() {
    let cores = if std::thread::available_parallelism().map_or(1, usize::from) > 1 {
        vec![0, 1, 0]
    } else {
        vec![0, 0, 0]
    };
    let config = TargetConfig { cores, ..config(vec![memory(NAMESPACE_BYTES, 512)]) };
    let server = Server::start(&config).expect("it starts");
    let options = Options { data_digest: true, ..options(&server) };
    let mut controller = Controller::connect(&url(&server), options).expect("it connects");
    let mut lanes: Vec<Lane> = (0..6).map(|_| controller.open_lane().expect("a lane")).collect();
    lanes[0].write(1, 0, &database(2)).expect("written");
    let get = controller.load_function(bpfkv::GET_OBJECT, 0).expect("loaded");
    let argument = 77u64.to_le_bytes();
    for lane in &mut lanes {
        until("the function arrives", || run(lane, &call(get, &argument)).is_ok());
    }
    let chains = 6 * 40;
    std::thread::scope(|scope| {
        for lane in &mut lanes {
            scope.spawn(move || {
                for _ in 0..40 {
                    let (answer, _) = run(lane, &call(get, &argument)).expect("found");
                    assert!(get_answer(&answer).expect("an answer").is_some());
                }
            });
        }
    });
    until("all are counted", || {
        controller.function_report().expect("a report")[0].chains >= chains
    });
    // The end of the admin queue ends all queues.
    drop(controller);
    for lane in &mut lanes {
        until("the lane ends", || {
            let _ = lane.poll(&mut |_| ());
            !lane.is_connected()
        });
    }
}

/// The target grants ten minutes at most.
#[test]
fn a_host_that_wants_a_longer_keep_alive_timeout_gets_the_longest() {
    let server = start(vec![memory(1 << 20, 512)]);
    let keep_alive = Duration::from_secs(3600);
    let wants = Options { keep_alive, ..options(&server) };
    let mut controller = Controller::connect(&url(&server), wants).expect("it connects");
    let get = AdminCommand::get_features(features::KEEP_ALIVE_TIMER);
    let (cqe, _) = controller.admin_command(get, &[], 0).expect("a timeout");
    assert_eq!(cqe.dw0, 600_000);
}
