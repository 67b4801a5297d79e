//! Time to seal and to open a record of 64 B, 600 B, 4 KiB and 16 KiB.
//!
//! `seal` takes its plaintext from one place; `gather` takes it from two, a header of 24 bytes and the rest, which are
//! first put together in the send buffer. Opening needs fresh sealed records each time, so they are first copied into
//! the receive buffer: subtract `copy`, the time of that.

use bpfof_tls::{Opener, Sealer, Side, Suite, TrafficKey};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;

const SIZES: [usize; 4] = [64, 600, 4096, 16_384];
/// Records that are opened with one key before starting afresh.
const RECORDS: usize = 256;

fn key(suite: Suite) -> TrafficKey {
    TrafficKey::derive(suite, &vec![7; suite.secret_bytes()], 0).expect("a key")
}

fn seal(criterion: &mut Criterion) {
    for suite in Suite::ALL {
        let mut group = criterion.benchmark_group(format!("seal/{suite}"));
        for size in SIZES {
            let plaintext = vec![0x42; size];
            let mut sealer = Sealer::new(key(suite)).expect("a sealer");
            let mut out = Vec::new();
            group.throughput(Throughput::Bytes(size as u64));
            group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
                bencher.iter(|| {
                    out.clear();
                    sealer.seal([black_box(&plaintext[..])], &mut out).expect("sealed");
                    out.len()
                });
            });
            let (header, rest) = plaintext.split_at(24);
            group.bench_function(BenchmarkId::new("gather", size), |bencher| {
                bencher.iter(|| {
                    out.clear();
                    sealer.seal(black_box([header, rest]), &mut out).expect("sealed");
                    out.len()
                });
            });
        }
    }
}

fn open(criterion: &mut Criterion) {
    for suite in Suite::ALL {
        let mut group = criterion.benchmark_group(format!("open/{suite}"));
        for size in SIZES {
            let plaintext = vec![0x42; size];
            let mut sealer = Sealer::new(key(suite)).expect("a sealer");
            let mut records = Vec::new();
            for _ in 0..RECORDS {
                let mut record = Vec::new();
                sealer.seal([&plaintext[..]], &mut record).expect("sealed");
                records.push(record);
            }
            let mut buffer = records.first().cloned().expect("a record");
            group.throughput(Throughput::Bytes(size as u64));
            let (mut opener, mut at) = (None, RECORDS);
            group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
                bencher.iter(|| {
                    if at == RECORDS {
                        opener = Some(Opener::new(key(suite), Side::Server).expect("an opener"));
                        at = 0;
                    }
                    buffer.copy_from_slice(&records[at]);
                    at += 1;
                    let opener = opener.as_mut().expect("an opener");
                    opener.open(&mut buffer).expect("opened").plaintext_bytes
                });
            });
            group.bench_function(BenchmarkId::new("copy", size), |bencher| {
                let mut at = 0;
                bencher.iter(|| {
                    at = (at + 1) % RECORDS;
                    buffer.copy_from_slice(black_box(&records[at]));
                });
            });
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots();
    targets = seal, open
}
criterion_main!(benches);
