//! Random chains of the functions that are shipped, in the kernel by the module of kernel/ and hop by hop in the
//! interpreter: both give the same ends, answers and hops. Files are good or damaged, arguments and first reads are
//! valid or not. `BPFOF_CHAINS` is the number of chains for each function.
//!
//! The interpreter is slow on an emulated machine. So this program may run on a faster machine first: it writes hashes
//! of the interpreter's results to the folder in `BPFOF_ENDS`. On the machine with the module it reads them from there.

use crate::btree::{self, Tree};
use crate::kernel::{bare_in_the_kernel, chains, counted};
use crate::local::{KEYS, table};
use bpfkv::create::{Extent, write_database};
use bpfof_device::xrp::{HOPS_MAX, XrpChain, XrpDomain, XrpEnd, XrpExtent, XrpFile};
use bpfof_function::abi::{self, context};
use bpfof_function::kernel::slot;
use bpfof_function::{Alone, Arena, Exit, Object, Program, interpret};
use bpfof_host::files::{kernel_domain, load_into_kernel};
use bpfof_structures::block::{self, Kind, Shape};
use bpfof_structures::records::{Column, Compare, Condition, Scan};
use bpfof_structures::{Place, hash, log, records};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Where the damaged copy of a file is on the drive.
const DAMAGED_AT: u64 = 4 << 20;
const BLOCK_BYTES: u64 = 512;
/// `BPFOF_XRP_CALL_UNITS` of kernel/bpfof_xrp.h.
const CALL_UNITS: u64 = 250_000;
/// Budget of a chain. Some chains exhaust it.
const UNITS: u64 = 2_000_000;

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// A chain that is to be run.
struct Request {
    first: Place,
    argument: Vec<u8>,
    scratch_bytes: u32,
}

/// A function, a file that it reads, and requests for it.
struct Case {
    name: &'static str,
    object: Vec<u8>,
    file: Vec<u8>,
    request: Box<dyn Fn(&mut Random) -> Request + Send>,
}

/// A database of BPF-KV in memory, and the number of its keys.
pub(crate) fn database() -> (Vec<u8>, u64) {
    let extent = Extent::part(3, 2).expect("levels").with_numbers();
    let mut file = Vec::new();
    let mut sink = |offset: u64, bytes: &[u8]| -> std::io::Result<()> {
        let end = offset as usize + bytes.len();
        if file.len() < end {
            file.resize(end, 0);
        }
        file[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    };
    write_database(&extent, &mut sink, &mut |_, _| ControlFlow::Continue(())).expect("room");
    (file, extent.keys())
}

fn bpfkv_get() -> Case {
    let (file, keys) = database();
    let request = move |random: &mut Random| Request {
        first: Place { offset_bytes: 0, size_bytes: bpfkv::pushdown::FIRST_READ_BYTES },
        argument: random.below(keys + keys / 8).to_le_bytes().to_vec(),
        scratch_bytes: bpfkv::pushdown::GET_SCRATCH_BYTES,
    };
    Case { name: "bpfkv_get", object: bpfkv::GET_OBJECT.to_vec(), file, request: Box::new(request) }
}

fn bpfkv_range() -> Case {
    let (file, keys) = database();
    let request = move |random: &mut Random| {
        let begin = random.below(keys);
        let mut argument = begin.to_le_bytes().to_vec();
        argument.extend((begin + random.below(300)).to_le_bytes());
        // Exclusive, inclusive, count, summary; or contradictory flags.
        let flags = [0, 1, 2, 3, 4, 5, 6, 8, 9, 12][random.below(10) as usize];
        argument.extend(u32::to_le_bytes(flags));
        argument.extend((random.below(40) as u32).to_le_bytes());
        Request {
            first: Place { offset_bytes: 0, size_bytes: bpfkv::pushdown::FIRST_READ_BYTES },
            argument,
            scratch_bytes: bpfkv::pushdown::RANGE_SCRATCH_BYTES,
        }
    };
    let object = bpfkv::RANGE_OBJECT.to_vec();
    Case { name: "bpfkv_range", object, file, request: Box::new(request) }
}

fn sorted_get() -> Case {
    let (file, root) = table(0);
    let request = move |random: &mut Random| Request {
        first: Place { offset_bytes: root.offset, size_bytes: root.size },
        argument: bpfof_sorted::get_argument(random.below(KEYS + 300), &[root]).expect("a table"),
        scratch_bytes: 4096,
    };
    let object = bpfof_sorted::GET_OBJECT.to_vec();
    Case { name: "sorted_get", object, file, request: Box::new(request) }
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:04}").into_bytes()
}

fn hash_get() -> Case {
    let model: BTreeMap<_, _> =
        (0..600).map(|number| (key(number), vec![number as u8; number as usize % 90])).collect();
    let table = hash::Table::new(400, 12, &model).expect("it fits");
    let layout = table.layout;
    let request = move |random: &mut Random| {
        let key = key(random.below(700));
        let get = hash::Get { layout, key: &key };
        Request { first: get.first(), argument: get.argument(), scratch_bytes: 1024 }
    };
    let object = hash::GET_OBJECT.to_vec();
    Case { name: "hash_get", object, file: table.bytes, request: Box::new(request) }
}

fn log_walk() -> Case {
    let (mut file, mut places) = (Vec::new(), Vec::new());
    let mut lists = [None; 8];
    for number in 0..400 {
        let value = vec![number as u8; (number as usize * 7) % 1500];
        let value = (number % 13 != 0).then_some(&value[..]);
        let list = &mut lists[number as usize % 8];
        places.push(log::append(&mut file, list, &key(number), value).expect("short"));
    }
    let request = move |random: &mut Random| {
        let newest = places[random.below(places.len() as u64) as usize];
        let key = key(random.below(400));
        let walk = log::Walk { key: &key, records_max: random.below(60) as u32 };
        Request { first: newest, argument: walk.argument(), scratch_bytes: 2048 }
    };
    let object = log::WALK_OBJECT.to_vec();
    Case { name: "log_walk", object, file, request: Box::new(request) }
}

fn filter_reduce() -> Case {
    let mut random = Random(77);
    let file: Vec<u8> = (0..30_000).map(|_| random.next() as u8).collect();
    let end_bytes = file.len() as u64;
    let request = move |random: &mut Random| {
        let column = |random: &mut Random| match random.below(3) {
            0 => Column::unsigned(random.below(8) as u16, 1),
            1 => Column::signed(random.below(8) as u16, 4),
            _ => Column::unsigned(random.below(8) as u16, 8),
        };
        let conditions = (0..random.below(3))
            .map(|_| Condition::new(column(random), Compare::Less, i128::from(random.next())))
            .collect();
        let record_bytes = [24, 40, 100, 120][random.below(4) as usize];
        let records = random.below(end_bytes / u64::from(record_bytes)).max(1);
        let records_max = random.below(8) as u32;
        let column = Some(column(random));
        let from = end_bytes - records * u64::from(record_bytes);
        let scan = Scan { record_bytes, end_bytes, conditions, column, records_max };
        let first = scan.first(from).expect("records");
        Request { first, argument: scan.argument(), scratch_bytes: 1024 }
    };
    let object = records::FILTER_REDUCE_OBJECT.to_vec();
    Case { name: "filter_reduce", object, file, request: Box::new(request) }
}

/// The object of a function that is part of no library.
fn built(name: &str) -> Vec<u8> {
    let folder = std::env::var("BPFOF_FUNCTIONS").unwrap_or_else(|_| "/functions".to_owned());
    std::fs::read(PathBuf::from(folder).join(format!("{name}.bpf.o"))).expect("it is there")
}

/// A table with two levels of index and several versions of each key.
fn versions() -> block::Table {
    let mut writer =
        block::TableWriter::new(Shape { block_bytes: 500, tagged: true, ..Shape::default() });
    for number in 0..800 {
        for sequence in (1..=number % 4 + 1).rev() {
            let kind =
                [Kind::Value, Kind::Deletion, Kind::Value, Kind::Value][sequence as usize % 4];
            let tag = block::tag(sequence, kind).to_le_bytes();
            let value = vec![sequence as u8; number as usize % 120];
            writer.add(&[&key(number)[..], &tag].concat(), &value).expect("in order");
        }
    }
    writer.finish()
}

fn block_get() -> Case {
    let table = versions();
    let (root, index_levels) = (table.root, table.index_levels);
    let request = move |random: &mut Random| {
        let key = key(random.below(900));
        let newest_tag = Some(random.below(6) << 8 | 0xff);
        let get = block::Get { key: &key, newest_tag, index_levels };
        Request { first: root, argument: get.argument(), scratch_bytes: 1024 }
    };
    let object = block::GET_OBJECT.to_vec();
    Case { name: "block_get", object, file: table.bytes, request: Box::new(request) }
}

/// The same blocks, which are those of RocksDB's tables too; struct sst_get_request of functions/sst_get.h.
fn sst_get() -> Case {
    let table = versions();
    let (root, levels) = (table.root, table.index_levels);
    let request = move |random: &mut Random| {
        let key = key(random.below(900));
        let mut argument = (random.below(6) << 8 | 0xff).to_le_bytes().to_vec();
        argument.extend((key.len() as u32).to_le_bytes());
        // One table, the first; no operands.
        argument.extend([1, 0, 0, 0]);
        argument.extend([0; 8]);
        argument.extend(root.offset_bytes.to_le_bytes());
        argument.extend((root.size_bytes - block::TRAILER_BYTES as u32).to_le_bytes());
        // CRC-32C
        argument.extend([levels as u8, 0, 1, 0]);
        argument.extend([0; 8]);
        argument.extend(key);
        Request { first: root, argument, scratch_bytes: 2048 }
    };
    Case {
        name: "sst_get",
        object: built("sst_get"),
        file: table.bytes,
        request: Box::new(request),
    }
}

fn wt_get() -> Case {
    let rows: Vec<_> = (0..900)
        .map(|number| (key(2 * number), vec![number as u8; number as usize % 200]))
        .collect();
    let Tree { file, root } = Tree::new(&rows);
    let request = move |random: &mut Random| {
        let key = key(random.below(1900));
        let flags = u8::from(random.one_in(8));
        let following_bytes = if random.one_in(8) { random.below(9000) as u32 } else { 0 };
        Request {
            first: Place { offset_bytes: root.0, size_bytes: root.1 },
            argument: btree::argument(&key, flags, following_bytes),
            scratch_bytes: 8192,
        }
    };
    Case { name: "wt_get", object: built("wt_get"), file, request: Box::new(request) }
}

/// How a chain ended, without the reason why user space must continue it.
#[derive(Debug, Hash, PartialEq, Eq)]
enum End {
    Done { hops: u32, answer: Vec<u8> },
    Continue { hops: u32, units: u64, scratch: Vec<u8> },
    Restart,
}

/// Runs the hops of a chain in the interpreter, by the rules of the module: kernel/chain.c.
struct Oracle<'a> {
    program: &'a Program,
    file: &'a [u8],
    arena: Arena,
    units: u64,
}

impl Oracle<'_> {
    /// The blocks of a read, and the bytes before it in them; None if user space must do the read.
    fn place(&self, (file, offset, size): (u32, u64, u32)) -> Option<(std::ops::Range<u64>, u64)> {
        let end = offset.checked_add(u64::from(size))?;
        if size == 0 || file > 0 || end > self.file.len() as u64 {
            return None;
        }
        let first = offset / BLOCK_BYTES * BLOCK_BYTES;
        let end = end.next_multiple_of(BLOCK_BYTES);
        (end - first <= abi::MAX_HOP_BYTES as u64).then_some((first..end, offset - first))
    }

    fn run(&mut self, request: &Request) -> End {
        self.arena.begin_chain(&request.argument, request.scratch_bytes as usize);
        let mut read = (0, request.first.offset_bytes, request.first.size_bytes);
        let Some(mut place) = self.place(read) else { return End::Restart };
        for hop in 0.. {
            let (blocks, skip) = place;
            let (from, to) = (blocks.start as usize, (blocks.end as usize).min(self.file.len()));
            let data = self.arena.data_mut(0..(blocks.end - blocks.start) as usize);
            data[..to - from].copy_from_slice(&self.file[from..to]);
            let granted = self.units.min(CALL_UNITS);
            let mut budget = granted as i64;
            self.arena.begin_hop(hop);
            let data = skip as usize..skip as usize + read.2 as usize;
            let limit = self.arena.begin_call(data, read.1, 0, 0);
            match interpret(self.program, &mut self.arena, limit, &mut budget, &mut Alone) {
                Ok(Exit::Return(0)) => {}
                _ => return End::Restart,
            }
            self.units -= granted - budget as u64;
            let hops = hop + 1;
            if self.arena.context_u32(context::DONE) != 0 {
                let length = self.arena.context_u32(context::OUT_LEN);
                if length > request.scratch_bytes {
                    return End::Restart;
                }
                let answer = self.arena.scratch()[..length as usize].to_vec();
                return End::Done { hops, answer };
            }
            read = (
                self.arena.context_u32(context::NEXT_FILE),
                self.arena.context_u64(context::NEXT_OFFSET),
                self.arena.context_u32(context::NEXT_SIZE),
            );
            let is_one = self.arena.context_u32(context::READS) == 1 && hops < HOPS_MAX;
            match self.place(read).filter(|_| is_one) {
                Some(found) => place = found,
                None => {
                    let scratch = self.arena.scratch().to_vec();
                    return End::Continue { hops, units: self.units, scratch };
                }
            }
        }
        unreachable!("a chain has an end")
    }
}

/// Runs the chain in the kernel.
fn in_kernel(
    domain: &mut XrpDomain,
    (program, function, file): (&Program, u32, u32),
    request: &Request,
) -> End {
    let scratch_bytes = request.scratch_bytes as usize;
    slot::begin_chain(domain.slot(), program, &request.argument, scratch_bytes);
    let ended = domain.run(&XrpChain {
        function,
        files: &[XrpFile::new(file, 1)],
        first: (0, request.first.offset_bytes, request.first.size_bytes),
        scratch_bytes: request.scratch_bytes,
        answer_max: request.scratch_bytes,
        units: UNITS,
        bytes: u64::MAX,
    });
    let scratch = |domain: &mut XrpDomain, length| slot::scratch(domain.slot(), length).to_vec();
    match ended.expect("runs") {
        XrpEnd::Done { length_bytes, hops } => {
            End::Done { hops, answer: scratch(domain, length_bytes as usize) }
        }
        XrpEnd::Continue { hops, units, .. } => {
            End::Continue { hops, units, scratch: scratch(domain, scratch_bytes) }
        }
        XrpEnd::Restart => End::Restart,
    }
}

/// Makes the argument or the first read of some chains invalid.
fn disturb(random: &mut Random, request: &mut Request) {
    if random.one_in(4) && !request.argument.is_empty() {
        let at = random.below(request.argument.len() as u64) as usize;
        request.argument[at] ^= 1 << random.below(8);
    }
    if random.one_in(8) {
        let bits = random.below(20);
        request.first.offset_bytes ^= random.below(1 << bits);
    }
    if random.one_in(8) {
        let bits = random.below(17);
        request.first.size_bytes ^= random.below(1 << bits) as u32;
    }
}

/// A file, and a copy that has been damaged.
fn files(case: &Case, random: &mut Random) -> [Vec<u8>; 2] {
    let mut damaged = case.file.clone();
    for _ in 0..damaged.len() / 400 {
        let at = random.below(damaged.len() as u64) as usize;
        damaged[at] ^= 1 << random.below(8);
    }
    [case.file.clone(), damaged]
}

/// The next chain, and whether it reads the damaged file.
fn next(case: &Case, random: &mut Random) -> (Request, bool) {
    let mut request = (case.request)(random);
    disturb(random, &mut request);
    (request, random.one_in(4))
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

fn hash(end: &End) -> u64 {
    let mut hasher = DefaultHasher::new();
    end.hash(&mut hasher);
    hasher.finish()
}

/// The file with the hashes of a function's ends.
fn ends_path(case: &Case) -> Option<PathBuf> {
    std::env::var_os("BPFOF_ENDS").map(|folder| PathBuf::from(folder).join(case.name))
}

/// Writes the hashes of the interpreter's results for the chains, in order.
fn write_ends(case: &Case, path: &std::path::Path) {
    let object = Object::parse(&case.object).expect("good");
    let program = &object.entries()[0].program;
    let mut random = Random(SEED);
    let files = files(case, &mut random);
    let mut oracle = Oracle { program, file: &[], arena: Arena::new(), units: 0 };
    let mut hashes = Vec::new();
    for _ in 0..chains() {
        let (request, is_damaged) = next(case, &mut random);
        oracle.file = &files[usize::from(is_damaged)];
        oracle.units = UNITS;
        hashes.extend(hash(&oracle.run(&request)).to_le_bytes());
    }
    std::fs::write(path, hashes).expect("written");
}

fn compare(domain: &mut XrpDomain, case: &Case, drive: &std::fs::File) {
    let object = Object::parse(&case.object).expect("good");
    let program = &object.entries()[0].program;
    let function = load_into_kernel(domain, program).expect("verified");
    let mut random = Random(SEED);
    let files = files(case, &mut random);
    assert!((case.file.len() as u64) < DAMAGED_AT);
    let length = case.file.len() as u64;
    for (number, (file, device_offset)) in (0..).zip(files.iter().zip([0, DAMAGED_AT])) {
        // Functions must not see the padding after the end of the file.
        let mut padded = file.clone();
        padded.resize(file.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        drive.write_all_at(&padded, device_offset).expect("written");
        let extent = XrpExtent { file_offset: 0, device_offset, length: padded.len() as u64 };
        domain.set_file(number, 1, length, &[extent]).expect("a map");
    }
    drive.sync_all().expect("synced");
    let known = ends_path(case).map(|path| std::fs::read(path).expect("written before"));
    let known = known.as_ref().map(|bytes| bytes.as_chunks().0);
    let mut oracle = Oracle { program, file: &[], arena: Arena::new(), units: 0 };
    let (mut done, mut hops, mut helpers) = (0, 0, counted("user_space_helper"));
    for number in 0..chains() {
        let (request, is_damaged) = next(case, &mut random);
        let place = (program, function, u32::from(is_damaged));
        let actual = in_kernel(domain, place, &request);
        let is_known =
            known.is_some_and(|known| u64::from_le_bytes(known[number as usize]) == hash(&actual));
        if actual == End::Restart && !is_known && counted("user_space_helper") > helpers {
            // The function has called a helper that the kernel does not have: user space runs the chain.
            helpers += 1;
            continue;
        }
        if !is_known {
            oracle.file = &files[usize::from(is_damaged)];
            oracle.units = UNITS;
            assert_eq!(actual, oracle.run(&request), "{} {number}", case.name);
            assert!(known.is_none(), "the interpreter did not say that elsewhere");
        }
        if let End::Done { hops: of_chain, .. } = actual {
            done += 1;
            hops += u64::from(of_chain);
        }
    }
    println!("{}: {} chains, {done} answered after {hops} hops, 0 wrong", case.name, chains());
    assert!(done * 4 > chains(), "{}: {done} answers are too few", case.name);
    for number in 0..2 {
        domain.set_file(number, 0, 0, &[]).expect("taken away");
    }
    domain.remove_function(function);
}

fn cases() -> [Case; 9] {
    [
        bpfkv_get(),
        bpfkv_range(),
        sorted_get(),
        hash_get(),
        log_walk(),
        filter_reduce(),
        block_get(),
        sst_get(),
        wt_get(),
    ]
}

#[test]
#[ignore = "interop/passthrough.py runs it on an NVMe drive"]
fn random_chains_of_shipped_functions_in_the_kernel_over_a_whole_namespace() {
    let nvme = bare_in_the_kernel();
    let mut domain = kernel_domain(&nvme.block).expect("the module takes the drive");
    assert_eq!(domain.block_bytes(), BLOCK_BYTES as u32, "it is for drives of 512-byte blocks");
    let drive = OpenOptions::new().write(true).open(&nvme.block).expect("opens");
    for case in &cases() {
        compare(&mut domain, case, &drive);
    }
}

/// Makes the hashes for the test above, on a faster machine.
#[test]
#[ignore = "interop/passthrough.py runs it, and names the folder"]
fn ends_of_random_chains_by_the_interpreter() {
    std::thread::scope(|scope| {
        for case in cases() {
            let path = ends_path(&case).expect("BPFOF_ENDS names a folder");
            scope.spawn(move || write_ends(&case, &path));
        }
    });
}
