//! In steady state no command allocates memory, on either side: a host and a target in this process send and serve
//! reads, writes and chains, and every allocation is counted.
#![allow(unsafe_code)]

mod common;

use bpfof_host::{
    FirstRead, FirstReads, Lane, PushdownVectorCall, Request, VectorAnswer, VectorArguments,
};
use common::{NAMESPACE_BYTES, WHOLE, call, compile, connect, file, load, memory, start};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Commands of a round.
const COMMANDS: u64 = 20_000;
const IN_FLIGHT: u64 = 32;
/// Rounds in which buffers may grow to their final size: if data is seldom split, each round may be the first in which
/// one more slot's data is split.
const ROUNDS: u64 = 3 * IN_FLIGHT;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: calls the system's allocator, and counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Keeps requests in flight until `commands` of them have ended, all with success.
fn run(lane: &mut Lane, commands: u64, request: &dyn Fn(u64) -> Request<'static>) {
    let (mut begun, mut ended) = (0, 0);
    while ended < commands {
        while begun < commands && begun - ended < IN_FLIGHT {
            lane.submit(begun, request(begun)).expect("there is room");
            begun += 1;
        }
        lane.wait(Duration::from_secs(10), &mut |completion| {
            assert!(completion.result.is_ok(), "{completion:?}");
            ended += 1;
        })
        .expect("the connection is there");
    }
}

/// Fewest allocations of this process in a round of commands of one kind. A slot's buffer grows when a delivery first
/// splits its data, which can happen to any slot at any time. So several rounds may be needed until every buffer has
/// its size, but there must be one round without an allocation.
fn allocations(lane: &mut Lane, request: &dyn Fn(u64) -> Request<'static>) -> u64 {
    let mut fewest = u64::MAX;
    for _ in 0..ROUNDS {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        run(lane, COMMANDS, request);
        fewest = fewest.min(ALLOCATIONS.load(Ordering::Relaxed) - before);
        if fewest == 0 {
            break;
        }
    }
    fewest
}

fn offset(index: u64, size_bytes: u64) -> u64 {
    index.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (NAMESPACE_BYTES / size_bytes) * size_bytes
}

/// One test, because allocations of the whole process are counted.
#[test]
fn no_command_allocates() {
    static DATA: [u8; 4096] = [7; 4096];
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("image");
    let server = start(vec![memory(NAMESPACE_BYTES, 512), file(&image, NAMESPACE_BYTES, 512)]);
    let (mut controller, mut lane) = connect(&server, false);
    let function = load(&mut controller, &compile("small"), "small");
    for nsid in [1, 2] {
        for length_bytes in [512, 4096] {
            let read = |index| Request::Read {
                nsid,
                offset_bytes: offset(index, length_bytes.into()),
                length_bytes,
            };
            let count = allocations(&mut lane, &read);
            assert_eq!(count, 0, "{COMMANDS} reads of {length_bytes} bytes, namespace {nsid}");
        }
        let write = |index| Request::Write {
            nsid,
            offset_bytes: offset(index, 4096),
            data: &DATA,
            fua: false,
        };
        assert_eq!(allocations(&mut lane, &write), 0, "{COMMANDS} writes, namespace {nsid}");
    }
    let chain = |_| Request::Pushdown(call(function, &[]));
    assert_eq!(allocations(&mut lane, &chain), 0, "{COMMANDS} chains");
    for (nsid, chains) in [(1, 1), (1, 32), (2, 8)] {
        let call: &'static PushdownVectorCall<'static> = Box::leak(Box::new(PushdownVectorCall {
            nsid,
            function: function.0,
            files: WHOLE,
            first: FirstReads::Same(FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 }),
            arguments: VectorArguments::Equal { count: chains, bytes: &[] },
            scratch_size_bytes: 0,
            answer_max_bytes: 64,
            room_bytes: VectorAnswer::room_bytes(chains, 64) as u32,
        }));
        let vector = |_| Request::PushdownVector(call);
        let count = allocations(&mut lane, &vector);
        assert_eq!(count, 0, "{COMMANDS} vectors of {chains} chains, namespace {nsid}");
    }
}
