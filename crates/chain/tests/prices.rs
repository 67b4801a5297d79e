//! The cost of chains apart from what their functions pay.

mod assembly;

use assembly::{CHAIN, EXIT, function, slot};
use bpfof_chain::{
    ChainError, DeviceRead, Engine, Extent, FileMap, FileVersion, Function, Limits, Progress,
    Start, Tables, WHOLE_NAMESPACE,
};
use bpfof_function::abi;

const NAMESPACE_BYTES: u64 = 1 << 20;
/// A file of one-block extents in descending order in the namespace, so that none follows its predecessor there; its
/// last block is not mapped.
const FRAGMENTED: u32 = 2;
const BLOCK: u64 = 512;
const FRAGMENTED_BYTES: u64 = 256 * BLOCK;
/// The expected prices in units.
const START: u64 = 150;
const HOP: u64 = 120;
const CALL: u64 = 80;
const PIECE: u64 = 300;

/// The first hop requests 16 reads of 4 KiB. The first call in the second hop ends the chain.
fn fan_out() -> Function {
    const SIZE: i32 = (abi::MAX_HOP_BYTES / abi::MAX_READS) as i32;
    let mut code = vec![
        slot(0x61, 2, 1, 36, 0), // r2 = ctx->hop
        slot(0x15, 2, 0, 3, 0),  // if r2 == 0 goto ask
        slot(0x62, 1, 0, 52, 1), // ctx->done = 1
        slot(0xb7, 0, 0, 0, 0),
        EXIT,
        slot(0x62, 1, 0, 48, abi::MAX_READS as i32), // ask: ctx->reads = 16
    ];
    let sizes = (0..abi::MAX_READS).map(|read| slot(0x62, 1, 0, 192 + 4 * read as i16, SIZE));
    code.extend(sizes);
    code.extend([slot(0xb7, 0, 0, 0, 0), EXIT]);
    function(1, &code)
}

fn tables() -> Tables {
    let blocks = FRAGMENTED_BYTES / BLOCK;
    let extents = (0..blocks - 1).map(|block| Extent {
        file_offset: block * BLOCK,
        device_offset: (blocks - block) * BLOCK,
        length: BLOCK,
    });
    let map = FileMap::new(1, 1, FRAGMENTED_BYTES, extents.collect(), NAMESPACE_BYTES, 512);
    let whole = FileMap::whole_namespace(1, NAMESPACE_BYTES);
    Tables::new(vec![whole])
        .with_function(fan_out())
        .with_map(FRAGMENTED, map.expect("it is a map"))
}

/// Starts a chain that reads `size` bytes of a file at an offset.
fn start(
    engine: &mut Engine,
    tables: &Tables,
    file: u32,
    (offset, size): (u64, u32),
) -> Result<Vec<DeviceRead>, ChainError> {
    let mut reads = Vec::new();
    let files = &[FileVersion { id: file, version: 1 }];
    let start = Start { files, first_offset_bytes: offset, first_size_bytes: size, ..CHAIN };
    let chain = engine.start(&start, tables, |read| reads.push(read))?;
    assert!(reads.iter().all(|read| read.chain == chain));
    Ok(reads)
}

/// The price of starting such a chain.
const STARTED: u64 = START + 64 / 16;

#[test]
fn all_blocks_of_a_hop_are_paid_for() {
    let (tables, mut engine) = (tables(), Engine::new(Limits::default()));
    let first = start(&mut engine, &tables, WHOLE_NAMESPACE, (0, 1024)).expect("it starts");
    assert_eq!(engine.take_spent(), STARTED);
    let chain = first[0].chain;
    let mut reads = Vec::new();
    let progress = engine.completed(chain, true, &tables, |read| reads.push(read));
    assert_eq!((progress, reads.len()), (Progress::Reads, abi::MAX_READS));
    let asked = engine.usage(chain).units;
    assert_eq!(engine.take_spent(), HOP + 1024 / 2 + CALL + asked);
    let progress = reads.iter().fold(Progress::Rest, |_, read| {
        engine.completed(read.chain, true, &tables, |_| unreachable!("it ends"))
    });
    assert!(matches!(progress, Progress::Done(Ok(_))), "{progress:?}");
    let called = engine.usage(chain).units - asked;
    let copied = abi::MAX_HOP_BYTES as u64 / 2;
    assert_eq!(
        engine.take_spent(),
        HOP + copied + CALL + called,
        "one call, and all that was read"
    );
    engine.release(chain);
}

/// A read for a chain that is no longer wanted is still charged.
#[test]
fn blocks_of_a_failed_hop_are_paid_for() {
    let (tables, mut engine) = (tables(), Engine::new(Limits::default()));
    let first = start(&mut engine, &tables, WHOLE_NAMESPACE, (0, 4096)).expect("it starts");
    engine.take_spent();
    let progress = engine.completed(first[0].chain, false, &tables, |_| ());
    assert_eq!(progress, Progress::Done(Err((ChainError::Device, 0))));
    assert_eq!(engine.take_spent(), HOP + 4096 / 2);
}

#[test]
fn pieces_of_a_read_are_paid_for() {
    let (tables, mut engine) = (tables(), Engine::new(Limits::default()));
    for (size, pieces) in [(512, 1), (1024, 2), (65_536, 128)] {
        engine.take_spent();
        let reads = start(&mut engine, &tables, FRAGMENTED, (512, size)).expect("it starts");
        assert_eq!(reads.len() as u64, pieces);
        assert_eq!(engine.take_spent(), STARTED + (pieces - 1) * PIECE, "{size} bytes");
        for read in &reads {
            let _ = engine.completed(read.chain, false, &tables, |_| ());
        }
        engine.release(reads[0].chain);
    }
    // All pieces are looked up and charged, although the last block is not mapped.
    engine.take_spent();
    let last = start(&mut engine, &tables, FRAGMENTED, (FRAGMENTED_BYTES - 65_536, 65_536));
    assert_eq!(last, Err(ChainError::OutsideFile(0)));
    assert_eq!(engine.take_spent(), STARTED + 126 * PIECE);
}
