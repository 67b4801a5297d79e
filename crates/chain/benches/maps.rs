//! The cost of file maps for a chain at the target.
//!
//! `lookup/N`: finds the extent of a byte in a file of N extents, at random offsets that no
//! predictor can guess; XRP's digest took 96 ns (XRP §4.1.3). The offsets are generated in advance,
//! and each lookup depends on the result of the previous one, as in a chain.
//!
//! `version-check/F`: starts and releases a chain over F of 1,000 mapped files, which finds each
//! file and compares its version. F = 1 and F = 16 differ by fifteen files: the time for one file
//! is the difference divided by fifteen. A hop on unchanged tables compares one number for all
//! files.

#[path = "../tests/assembly/mod.rs"]
mod assembly;

use assembly::{CHAIN, EXIT, function, slot};
use bpfof_chain::{Engine, Extent, FileMap, FileVersion, Limits, Progress, Start, Tables};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

const NAMESPACE_BYTES: u64 = 1 << 40;
const BLOCK_BYTES: u64 = 4096;
const LOOKUPS: usize = 1 << 16;
const FILES: u32 = 1000;

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// A file of `count` extents of 1 to 16 blocks, far from each other in the namespace.
fn scattered(count: u64) -> FileMap {
    let mut state = count;
    let mut file_offset = 0;
    let extents = (0..count).map(|index| {
        let length = (1 + random(&mut state) % 16) * BLOCK_BYTES;
        let device_offset = (index * 7919 % count) * 17 * BLOCK_BYTES;
        let extent = Extent { file_offset, device_offset, length };
        file_offset += length;
        extent
    });
    let extents: Vec<Extent> = extents.collect();
    FileMap::new(1, 1, file_offset, extents, NAMESPACE_BYTES, BLOCK_BYTES as u32).expect("valid")
}

fn lookups(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lookup");
    group.throughput(Throughput::Elements(LOOKUPS as u64));
    for count in [1, 10, 100, 1000, 10_000, 100_000] {
        let map = scattered(count);
        let mut state = 1;
        let blocks = map.length_bytes() / BLOCK_BYTES;
        let offsets: Vec<u64> =
            (0..LOOKUPS).map(|_| random(&mut state) % blocks * BLOCK_BYTES).collect();
        group.bench_with_input(BenchmarkId::from_parameter(count), &map, |bencher, map| {
            bencher.iter(|| {
                // The bit is always 0 for whole blocks, but it makes each lookup depend on the one
                // before.
                offsets.iter().fold(0, |bit: u64, offset| {
                    let (at, left) = map.find(offset ^ bit).expect("mapped");
                    (at ^ left) & 1
                })
            });
        });
    }
    group.finish();
}

fn version_checks(criterion: &mut Criterion) {
    // The function is never called: no block is read.
    let nothing = function(1, &[slot(0xb7, 0, 0, 0, 1), EXIT]);
    let mut tables = Tables::new(Vec::new()).with_function(nothing);
    for id in 1..=FILES {
        tables = tables.with_map(id, scattered(10));
    }
    let mut engine = Engine::new(Limits::default());
    let mut group = criterion.benchmark_group("version-check");
    for count in [1, 16] {
        let mut state = 1;
        let requests: Vec<Vec<FileVersion>> = (0..1024)
            .map(|_| {
                let id = |_| (random(&mut state) % u64::from(FILES)) as u32 + 1;
                (0..count).map(id).map(|id| FileVersion { id, version: 1 }).collect()
            })
            .collect();
        let mut next = 0;
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| {
                next = (next + 1) % requests.len();
                let start = Start { files: &requests[next], ..CHAIN };
                let chain = engine.start(&start, &tables, |read| _ = black_box(read));
                let chain = chain.expect("starts");
                // Fails the chain's only read, which ends the chain.
                let ended = engine.completed(chain, false, &tables, |_| ());
                assert!(matches!(ended, Progress::Done(_)));
                engine.release(chain);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, lookups, version_checks);
criterion_main!(benches);
