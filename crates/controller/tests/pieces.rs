//! Namespaces in several files: striped, and concatenated.

mod common;

use bpfof_controller::{Layout, NamespaceConfig, NamespaceSource, Server, TargetConfig};
use bpfof_host::{Lane, Request, Status};
use bpfof_nvme::tcp::{Digests, data_digest};
use bpfof_nvme::{DsmRange, Rw, Sgl, Sqe, opcode};
use common::raw::Peer;
use common::{call, compile, config, connect, ends, load, memory, random_bytes, run, start};
use fastrand::Rng;
use std::path::{Path, PathBuf};

const NONE: Digests = Digests { header: false, data: false };
const CHUNK: u64 = 8192;

fn pieces(paths: &[PathBuf], size_bytes: Option<u64>, layout: Layout) -> NamespaceConfig {
    let source = NamespaceSource::Pieces { paths: paths.to_vec(), size_bytes, layout };
    NamespaceConfig { source, ..memory(512, 512) }
}

fn make(directory: &Path, sizes: &[u64]) -> Vec<PathBuf> {
    let make = |(index, size): (usize, &u64)| {
        let path = directory.join(format!("piece{index}"));
        let file = std::fs::File::create(&path).expect("created");
        file.set_len(*size).expect("it has room");
        path
    };
    sizes.iter().enumerate().map(make).collect()
}

/// The contents of a namespace, assembled from its files without the target.
fn contents(paths: &[PathBuf], layout: Layout, size: u64) -> Vec<u8> {
    let files: Vec<Vec<u8>> =
        paths.iter().map(|path| std::fs::read(path).expect("a file")).collect();
    let mut whole = Vec::new();
    match layout {
        Layout::Concatenated => files.iter().for_each(|file| whole.extend(file)),
        Layout::Striped { chunk_bytes } => {
            let mut rows =
                files.iter().map(|file| file.chunks(chunk_bytes as usize)).collect::<Vec<_>>();
            while (whole.len() as u64) < size {
                for row in &mut rows {
                    whole.extend(row.next().expect("a whole row"));
                }
            }
        }
    }
    whole.truncate(size as usize);
    whole
}

fn do_one(lane: &mut Lane, request: Request<'_>) {
    lane.submit(0, request).expect("there is room");
    let done = ends(lane);
    assert!(matches!(done[..], [(0, Ok(_))]), "{done:?}");
}

/// Random reads, writes and zeroes across the borders of chunks and files, sometimes many at once,
/// compared with a plain buffer; then the contents of the files, and the same after a restart.
#[test]
fn a_model_of_several_files() {
    let striped = Layout::Striped { chunk_bytes: CHUNK };
    // In a stripe the smallest file counts, in whole chunks; here 12 chunks.
    let cases = [
        (striped, vec![100_000u64, 200_000, 98_304], 3 * 12 * CHUNK),
        (Layout::Concatenated, vec![20_480, 512, 120_832, 98_304], 240_128),
    ];
    for (layout, sizes, size) in cases {
        let directory = tempfile::tempdir().expect("a directory");
        let paths = make(directory.path(), &sizes);
        let namespace = pieces(&paths, None, layout);
        let server = start(vec![namespace.clone()]);
        let (controller, mut lane) = connect(&server, false);
        let info = controller.namespaces()[0];
        assert_eq!(info.size_bytes(), size);
        let mut numbers = Rng::with_seed(size);
        let mut model = vec![0; size as usize];
        for _ in 0..400 {
            change(&mut lane, &mut model, &mut numbers);
        }
        lane.flush(1).expect("flushed");
        // Reads all of it by many reads at once, which end in any order.
        let mut back = vec![0; model.len()];
        lane.read(1, 0, &mut back).expect("read");
        assert!(back == model, "{layout:?} differs from the model");
        drop((controller, lane));
        server.stop();
        assert!(contents(&paths, layout, size) == model, "the files of {layout:?} differ");
        let server = start(vec![namespace]);
        let (controller, mut lane) = connect(&server, false);
        assert_eq!(controller.namespaces()[0].nguid, info.nguid);
        lane.read(1, 0, &mut back).expect("read");
        assert!(back == model, "{layout:?} differs after a restart");
        server.stop();
        // The same files in another order are another namespace.
        let mut reversed = paths.clone();
        reversed.reverse();
        let server = start(vec![pieces(&reversed, None, layout)]);
        assert_ne!(connect(&server, false).0.namespaces()[0].nguid, info.nguid);
    }
}

fn change(lane: &mut Lane, model: &mut [u8], numbers: &mut Rng) {
    let all_blocks = model.len() as u64 / 512;
    let most = if numbers.u64(..4) == 0 { 200 } else { 40 };
    let blocks = 1 + numbers.u64(..most);
    let offset_bytes = numbers.u64(..all_blocks - blocks + 1) * 512;
    let length = (blocks * 512) as usize;
    let range = offset_bytes as usize..offset_bytes as usize + length;
    let fua = numbers.u64(..4) == 0;
    match numbers.u64(..4) {
        0 => {
            model[range].fill(0);
            let length_bytes = length as u32;
            do_one(lane, Request::WriteZeroes { nsid: 1, offset_bytes, length_bytes, fua });
        }
        1 => {
            let mut back = vec![0; length];
            lane.read(1, offset_bytes, &mut back).expect("read");
            assert!(back == model[range], "{length} bytes at {offset_bytes}");
        }
        _ => {
            let data = random_bytes(numbers, length);
            model[range].copy_from_slice(&data);
            do_one(lane, Request::Write { nsid: 1, offset_bytes, data: &data, fua });
        }
    }
}

/// The device gets the zeroes in parts; with Force Unit Access a flush follows the last part.
#[test]
fn many_zeroes_are_written_in_parts() {
    const MIB: u64 = 1 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    let paths = ["a", "b"].map(|name| directory.path().join(name));
    let server = start(vec![pieces(&paths, Some(20 * MIB), Layout::Concatenated)]);
    let (_controller, mut lane) = connect(&server, false);
    let data = random_bytes(&mut Rng::with_seed(3), 4096);
    // Before and behind the range, in it, and on both sides of the border of its parts.
    let places = [4096, 8192, 16 * MIB, 16 * MIB + 8192, 32 * MIB, 32 * MIB + 8192];
    for fua in [false, true] {
        for offset_bytes in places {
            do_one(&mut lane, Request::Write { nsid: 1, offset_bytes, data: &data, fua: false });
        }
        // 32 MiB, the most that one command can zero.
        let rw = Rw { slba: 8192 / 512, blocks: 1 << 16, fua };
        let sqe = rw.to_sqe(opcode::nvm::WRITE_ZEROES, 1);
        do_one(&mut lane, Request::Raw { sqe, data_out: &[], data_in_max_bytes: 0 });
        for (index, place) in places.into_iter().enumerate() {
            let mut back = vec![1; data.len()];
            lane.read(1, place, &mut back).expect("read");
            let is_kept = index == 0 || index == places.len() - 1;
            let expected = if is_kept { data.clone() } else { vec![0; data.len()] };
            assert!(back == expected, "byte {place}, fua {fua}");
        }
    }
}

/// Compare, Verify and Dataset Management over several files.
#[test]
fn optional_commands_are_split() {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = ["a", "b", "c"].map(|name| directory.path().join(name));
    let striped = Layout::Striped { chunk_bytes: CHUNK };
    let server = start(vec![pieces(&paths, Some(1 << 20), striped)]);
    let (_admin, mut io) = Peer::pair(&server, NONE, 15);
    let data: Vec<u8> = (0..8192u32).map(|at| (at / 3) as u8).collect();
    let rw = |opcode, slba, blocks| Rw { slba, blocks, fua: false }.to_sqe(opcode, 1);
    let with_data = |sqe| Sqe { sgl: Sgl::in_capsule(8192), ..sqe };
    // From the middle of the second file's first chunk into the third's.
    assert_eq!(io.status(with_data(rw(opcode::nvm::WRITE, 24, 16)), &data), Status::SUCCESS);
    assert_eq!(io.status(with_data(rw(opcode::nvm::COMPARE, 24, 16)), &data), Status::SUCCESS);
    let mut other = data.clone();
    other[8191] ^= 1;
    let differs = io.status(with_data(rw(opcode::nvm::COMPARE, 24, 16)), &other);
    assert!(differs.same_code(Status::COMPARE_FAILURE), "{differs}");
    assert_eq!(io.status(rw(opcode::nvm::VERIFY, 0, 256), &[]), Status::SUCCESS);
    // All but its first block is deallocated.
    let range = DsmRange { attributes: 0, blocks: 6000, slba: 25 }.to_bytes();
    let manage = Sqe {
        cdw11: 1 << 2,
        sgl: Sgl::in_capsule(16),
        ..Sqe::new(opcode::nvm::DATASET_MANAGEMENT, 1)
    };
    assert_eq!(io.status(manage, &range), Status::SUCCESS);
    other[..512].copy_from_slice(&data[..512]);
    other[512..].fill(0);
    assert_eq!(io.status(with_data(rw(opcode::nvm::COMPARE, 24, 16)), &other), Status::SUCCESS);
    assert_eq!(io.status(Sqe::new(opcode::nvm::FLUSH, 1), &[]), Status::SUCCESS);
}

/// Chains read across the borders of chunks and files, several reads in one hop.
#[test]
fn chains_over_several_files() {
    let object = compile("pieces");
    for layout in [Layout::Striped { chunk_bytes: CHUNK }, Layout::Concatenated] {
        let directory = tempfile::tempdir().expect("a directory");
        let paths = make(directory.path(), &[81_920; 3]);
        let server = start(vec![pieces(&paths, None, layout)]);
        let (mut controller, mut lane) = connect(&server, false);
        let data = random_bytes(&mut Rng::with_seed(5), 3 * 81_920);
        lane.write(1, 0, &data).expect("written");
        let checksum = load(&mut controller, &object, "checksum");
        let mut numbers = Rng::with_seed(9);
        for _ in 0..50 {
            let size = 1 + numbers.u64(..32_768);
            let first_size = 1 + numbers.u64(..65_536);
            let place = |numbers: &mut Rng, size: u64| numbers.u64(..3 * 81_920 - size);
            let first = place(&mut numbers, first_size);
            let next = [place(&mut numbers, size / 2 + 1), place(&mut numbers, size / 2 + 1)];
            let size = size / 2 + 1;
            let mut argument = [next[0].to_le_bytes(), next[1].to_le_bytes()].concat();
            argument.extend((size as u32).to_le_bytes());
            argument.extend([0; 4]);
            let call = bpfof_host::PushdownCall {
                first_offset_bytes: first,
                first_size_bytes: first_size as u32,
                ..call(checksum, &argument)
            };
            // Reads are rounded out to blocks; a hop reads 64 KiB.
            let Ok((answer, hops)) = run(&mut lane, &call) else {
                assert!(first_size > 65_536 - 1024 || size > 32_768 - 1024);
                continue;
            };
            let part = |at: u64, size: u64| &data[at as usize..(at + size) as usize];
            let read = [part(first, first_size), part(next[0], size), part(next[1], size)];
            assert_eq!((hops, &answer[20..24]), (2, &data_digest(&read.concat())[..]));
        }
    }
}

/// A stripe grows when all of its files have grown, a concatenation at its end; with a configured
/// size, as the new configuration says.
#[test]
fn several_files_grow() {
    let directory = tempfile::tempdir().expect("a directory");
    let paths = make(directory.path(), &[65_536; 2]);
    let striped = Layout::Striped { chunk_bytes: CHUNK };
    let base = config(vec![pieces(&paths, None, striped)]);
    let server = Server::start(&base).expect("it starts");
    let (mut controller, mut lane) = connect(&server, false);
    lane.write(1, 0, &[7; 131_072]).expect("written");
    let mut size = || controller.identify_namespace(1).expect("it is there").size_bytes();
    let grow = |index: usize, bytes| {
        let file = std::fs::OpenOptions::new().write(true).open(&paths[index]).expect("a file");
        file.set_len(bytes).expect("it grows");
        server.reload(&base).expect("it is taken over");
    };
    grow(0, 100_000);
    assert_eq!(size(), 131_072);
    grow(1, 100_000);
    assert_eq!(size(), 2 * 98_304);
    let larger = TargetConfig { namespaces: vec![pieces(&paths, Some(1 << 20), striped)], ..base };
    server.reload(&larger).expect("it is taken over");
    assert_eq!(size(), 2 << 20);
    let mut back = vec![0; 131_072];
    lane.read(1, 0, &mut back).expect("read");
    assert!(back.iter().all(|byte| *byte == 7), "nothing has moved");
    let behind = pieces(&paths, None, Layout::Concatenated);
    let error = server.reload(&TargetConfig { namespaces: vec![behind], ..larger.clone() });
    let error = error.expect_err("other contents").to_string();
    assert!(error.contains("with another block size or in another way"), "{error}");
    let tiny = pieces(&paths, Some(4096), striped);
    let error = server.reload(&TargetConfig { namespaces: vec![tiny], ..larger });
    let error = error.expect_err("no whole chunk").to_string();
    assert!(error.contains("less than 8192"), "{error}");
}
