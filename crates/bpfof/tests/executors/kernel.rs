//! Chains that the kernel runs, one at a time, if the module of kernel/ is loaded: without it the same chains run in
//! user space. `BPFOF_CHAINS` is their number. interop/passthrough.py runs these tests.

use crate::local::{KEYS, Store, table, value};
use crate::passthrough::{Nvme, bare, mounted};
use crate::shipped::database;
use crate::stop::StopAtEnd;
use crate::{PATIENCE, PATIENT};
use bpfkv::create::{Extent, write_database};
use bpfkv::format::value_number;
use bpfkv::pushdown::{FIRST_READ_BYTES, GET_SCRATCH_BYTES, get_answer, get_argument};
use bpfof_device::xrp::{XrpChain, XrpDomain, XrpEnd, XrpExtent, XrpFile, XrpFunction};
use bpfof_function::kernel::slot;
use bpfof_function::{Object, Program};
use bpfof_host::files::{FirstRead, PushdownReader, kernel_domain, load_into_kernel};
use bpfof_sorted::Lookup;
use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) fn chains() -> u64 {
    std::env::var("BPFOF_CHAINS").ok().and_then(|count| count.parse().ok()).unwrap_or(2000)
}

/// A counter of the module, such as the number of chains that the kernel has run.
pub(crate) fn counted(name: &str) -> u64 {
    let text = std::fs::read_to_string("/sys/kernel/debug/bpfof_xrp/counters").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

pub(crate) fn has_module() -> bool {
    Path::new("/dev/bpfof-xrp").exists()
}

/// A namespace without a file system, for whose drive the module is loaded.
pub(crate) fn bare_in_the_kernel() -> Nvme {
    assert!(has_module(), "the module of kernel/ is not loaded");
    bare()
}

/// Every value of a BPF-KV database on the file system of the drive is the right one.
#[test]
#[ignore = "interop/passthrough.py runs it on an NVMe drive"]
fn gets_of_bpf_kv_in_the_kernel() {
    let (nvme, mount) = mounted();
    let nvme = nvme.maps();
    let folder = tempfile::tempdir_in(mount).expect("a folder");
    let path = folder.path().join("database");
    let extent = Extent::full(3).expect("a level").with_numbers();
    let file = OpenOptions::new().write(true).create_new(true).open(&path).expect("opens");
    let mut sink = |offset, bytes: &[u8]| file.write_all_at(bytes, offset);
    write_database(&extent, &mut sink, &mut |_, _| ControlFlow::Continue(())).expect("room");
    drop(file);
    let function = nvme.load_function(bpfkv::GET_OBJECT, 0).expect("good");
    let mut reader = PushdownReader::new(&nvme, PATIENT).expect("a reader");
    let files = [nvme.open(&path).expect("opens")];
    assert!(nvme.wait_mapped(&files[0], PATIENCE), "{:?}", files[0].refusal());
    let before = counted("chains");
    let first = FirstRead { file: 0, offset_bytes: 0, size_bytes: FIRST_READ_BYTES };
    for number in 0..chains() {
        let key = number.wrapping_mul(7_919) % extent.keys();
        let mut scratch = vec![0; GET_SCRATCH_BYTES as usize];
        let argument = get_argument(key).expect("a key");
        scratch[..argument.len()].copy_from_slice(&argument);
        let info = reader.read_pushdown(&files, first, &function, &mut scratch).expect("succeeds");
        let found = get_answer(&scratch).expect("an answer").expect("found");
        assert_eq!(found, &value_number(key), "key {key}");
        assert_eq!(info.hops, 4);
    }
    if has_module() {
        assert!(counted("chains") - before >= chains(), "chains have run elsewhere");
    }
}

/// Whether the file is truncated before the table is written, so that it gets other blocks. Lookups may fail meanwhile.
fn is_cut(generation: u64) -> bool {
    generation.is_multiple_of(3)
}

/// Lookups in a table that is rewritten again and again, in place and in other blocks: each answer is of a generation
/// that was current between the call and the answer.
#[test]
#[ignore = "interop/passthrough.py runs it on an NVMe drive"]
fn races_with_a_writer_in_the_kernel() {
    let (nvme, mount) = mounted();
    let folder = tempfile::tempdir_in(mount).expect("a folder");
    let mut store = Store::over(nvme.maps(), folder, PATIENT);
    let path = store.files[0].path().to_owned();
    // Generations of one digit, so that all tables have the same layout.
    let tables: Vec<Vec<u8>> = (0..10).map(|generation| table(generation).0).collect();
    let (begun, ended, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let generations = || ended.load(Ordering::SeqCst);
    let (mut lookups, mut wrong, mut failed, before) = (0, 0, 0, counted("chains"));
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            let writer = OpenOptions::new().write(true).open(path).expect("opens");
            for number in 1.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                begun.store(number, Ordering::SeqCst);
                if is_cut(number) {
                    writer.set_len(0).expect("cut");
                }
                writer.write_all_at(&tables[(number % 10) as usize], 0).expect("room");
                ended.store(number, Ordering::SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(number % 20));
            }
        });
        for number in (0..).take_while(|number| *number < chains() || generations() < 12) {
            lookups += 1;
            let key = number * 13 % KEYS;
            let from = generations();
            let found = store.get(key);
            let to = begun.load(Ordering::SeqCst);
            let Ok((answer, _)) = found else {
                assert!((from + 1..=to).any(is_cut), "{:?}", found.map(drop));
                failed += 1;
                continue;
            };
            let is_right = (from..=to).any(|generation| {
                let expected = value(key, generation % 10);
                Lookup::parse(&answer) == Some(Lookup::Found(0, &expected))
            });
            wrong += u64::from(!is_right);
        }
    });
    let (generations, in_kernel) = (generations(), counted("chains") - before);
    println!(
        "{generations} generations, {lookups} lookups, {in_kernel} chains in the kernel, {failed} failed, {wrong} wrong"
    );
    assert_eq!(wrong, 0);
    assert!(in_kernel > 10 || !has_module(), "{in_kernel} chains have run in the kernel");
}

/// A process with the descriptor of a domain but without privileges can run chains on the files that are set there, and
/// nothing else.
#[test]
#[ignore = "interop/passthrough.py runs it on an NVMe drive"]
fn without_rights_chains_run_in_the_kernel_over_a_whole_namespace() {
    let nvme = bare_in_the_kernel();
    let extent = Extent::full(2).expect("a level").with_numbers();
    let drive = OpenOptions::new().write(true).open(&nvme.block).expect("opens");
    let mut sink = |offset, bytes: &[u8]| drive.write_all_at(bytes, offset);
    write_database(&extent, &mut sink, &mut |_, _| ControlFlow::Continue(())).expect("room");
    drive.sync_all().expect("synced");
    let object = Object::parse(bpfkv::GET_OBJECT).expect("good");
    let program = &object.entries()[0].program;
    let mut domain = kernel_domain(&nvme.block).expect("the module takes the drive");
    let number = load_into_kernel(&mut domain, program).expect("verified");
    let length = 8 << 20;
    let all = [XrpExtent { file_offset: 0, device_offset: 0, length }];
    domain.set_file(3, 1, length, &all).expect("a map");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let nobody = rustix::thread::Uid::from_raw(65_534);
            // Changes the user of this thread only, which loses its capabilities.
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root");
            let denied = std::io::ErrorKind::PermissionDenied;
            assert_eq!(std::fs::File::open(&nvme.block).expect_err("a drive").kind(), denied);
            assert!(kernel_domain(&nvme.block).is_err());
            assert_eq!(domain.set_file(3, 2, length, &all).expect_err("a map").kind(), denied);
            for number_of_key in 0..extent.keys() {
                let ended = get_at(&mut domain, program, (number, 3), number_of_key);
                let answer = slot::scratch(domain.slot(), ended as usize);
                let found = get_answer(answer).expect("an answer").expect("found");
                assert_eq!(found, &value_number(number_of_key));
            }
            // A file that is not set, and a function that does not exist.
            for (number, file) in [(number, 4), (number + 1, 3)] {
                let files = [XrpFile::new(file, 1)];
                assert!(!matches!(domain.run(&chain(number, &files)), Ok(XrpEnd::Done { .. })));
            }
        });
    });
}

/// The kernel's verifier lets a function write only to its outputs in the hop.
#[test]
#[ignore = "interop/passthrough.py runs it on an NVMe drive"]
fn functions_that_write_elsewhere_are_refused_in_the_kernel_over_a_whole_namespace() {
    let nvme = bare_in_the_kernel();
    let mut domain = kernel_domain(&nvme.block).expect("the module takes the drive");
    // r0 = the hop, or the process (bpf_get_current_task_btf).
    let hop: &[[u8; 8]] = &[[0x79, 0x10, 0, 0, 0, 0, 0, 0]];
    let process: &[[u8; 8]] = &[[0x85, 0, 0, 0, 158, 0, 0, 0]];
    let mut takes = |object: &[[u8; 8]], offset: u8| {
        // r1 = 0; *(u64 *)(r0 + offset) = r1; r0 = 0; exit
        let rest: [[u8; 8]; 4] = [
            [0xb7, 1, 0, 0, 0, 0, 0, 0],
            [0x7b, 0x10, offset, 0, 0, 0, 0, 0],
            [0xb7, 0, 0, 0, 0, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        let instructions = &[object, &rest].concat();
        let function = XrpFunction { instructions, workspace: false, constants: (0, 0) };
        domain.add_function(&function).map(drop).map_err(|error| error.to_string())
    };
    // struct bpfof_xrp_hop of kernel/xrp.h: budget and result are at 16 and 24, memory at 48.
    takes(hop, 16).expect("an output");
    takes(hop, 24).expect("an output");
    for (object, offset) in [(hop, 8), (hop, 48), (process, 16), (process, 24), (process, 32)] {
        let refusal = takes(object, offset).expect_err("it is not for functions");
        // A kernel without tracing gives functions no process.
        let has_none = object == process && refusal.contains("cannot use helper");
        let is_told = refusal.contains("functions may not write at offset");
        assert!(is_told || has_none, "{offset}: {refusal}");
    }
}

/// The offset at which the broken drive of interop/passthrough.py cannot read, in bytes.
const BROKEN_BYTES: u64 = 2 << 20;

/// Gets whose last read fails end with an error, and do not use data that an earlier get has left in memory.
#[test]
#[ignore = "interop/passthrough.py runs it on a broken NVMe drive"]
fn reads_that_fail_end_chains_in_the_kernel_of_a_broken_drive() {
    let nvme = bare_in_the_kernel();
    let (mut file, keys) = database();
    // The file is padded to whole pages: otherwise the kernel would read the rest of the last page, where the drive is
    // broken.
    file.resize(file.len().next_multiple_of(4096), 0);
    let broken = (file.len() - 4096)..(file.len() - 4096 + 512);
    let device_offset = BROKEN_BYTES - broken.start as u64;
    let drive = OpenOptions::new().write(true).open(&nvme.block).expect("opens");
    drive.write_all_at(&file, device_offset).expect("written");
    drive.sync_all().expect("synced");
    let object = Object::parse(bpfkv::GET_OBJECT).expect("good");
    let program = &object.entries()[0].program;
    let mut domain = kernel_domain(&nvme.block).expect("the module takes the drive");
    let function = load_into_kernel(&mut domain, program).expect("verified");
    let length = file.len() as u64;
    domain
        .set_file(0, 1, length, &[XrpExtent { file_offset: 0, device_offset, length }])
        .expect("set");
    let files = [XrpFile::new(0, 1)];
    let (mut failed, before) = (0, counted("user_space_device"));
    for key in 0..keys {
        let value = value_number(key);
        let cannot_be_read = file[broken.clone()].chunks(value.len()).any(|found| found == value);
        let argument = get_argument(key).expect("a key");
        slot::begin_chain(domain.slot(), program, &argument, GET_SCRATCH_BYTES as usize);
        match domain.run(&chain(function, &files)).expect("runs") {
            XrpEnd::Done { length_bytes, .. } if !cannot_be_read => {
                let answer = slot::scratch(domain.slot(), length_bytes as usize);
                assert_eq!(get_answer(answer).expect("an answer").expect("found"), &value);
            }
            XrpEnd::Restart if cannot_be_read => failed += 1,
            end => panic!("key {key}, cannot be read {cannot_be_read}: {end:?}"),
        }
    }
    println!("{keys} gets, {failed} of them of a block that cannot be read");
    assert!(failed > 0, "no key has its value there");
    assert_eq!(counted("user_space_device") - before, failed);
}

fn chain(function: u32, files: &[XrpFile]) -> XrpChain<'_> {
    XrpChain {
        function,
        files,
        first: (0, 0, FIRST_READ_BYTES),
        scratch_bytes: GET_SCRATCH_BYTES,
        answer_max: GET_SCRATCH_BYTES,
        units: 100_000_000,
        bytes: 1 << 20,
    }
}

/// A get by the module: the length of its answer, in bytes.
fn get_at(
    domain: &mut XrpDomain,
    program: &Program,
    (function, file): (u32, u32),
    key: u64,
) -> u32 {
    let argument = get_argument(key).expect("a key");
    slot::begin_chain(domain.slot(), program, &argument, GET_SCRATCH_BYTES as usize);
    let files = [XrpFile::new(file, 1)];
    match domain.run(&chain(function, &files)).expect("runs") {
        XrpEnd::Done { length_bytes, hops: 3 } => length_bytes,
        end => panic!("key {key}: {end:?}"),
    }
}
