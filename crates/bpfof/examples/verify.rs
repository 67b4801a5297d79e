//! Writes to a namespace of any NVMe/TCP target, reads it back and compares.
//!
//!     cargo run --example verify -- URL [SEED]
//!
//! Two lanes write the first 4 MiB between them, in pieces of one logical block to 128 KiB, 16 at a
//! time, with contents that SEED determines; after a flush each lane reads what the other has written. An ordinary disk
//! is enough: `interop/guest/nvmet` runs this against the kernel's target. The former contents of the 4 MiB are lost.

use bpfof_host::{Controller, Lane, NamespaceInfo, Options, Request, TargetUrl};
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

const SIZE_BYTES: u64 = 4 << 20;
const PIECE_MAX_BYTES: u64 = 128 << 10;
const IN_FLIGHT: usize = 16;

/// Where a piece is, in bytes.
#[derive(Clone, Copy)]
struct Piece {
    offset: u64,
    length: u64,
}

/// SplitMix64.
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// Cuts the range into pieces of random lengths.
fn pieces(seed: u64, namespace: &NamespaceInfo) -> Vec<Piece> {
    let block = u64::from(namespace.block_bytes);
    let end = SIZE_BYTES.min(namespace.size_bytes());
    let mut pieces = Vec::new();
    let mut offset = 0;
    while offset < end {
        let blocks = 1 + mix(seed ^ offset) % (PIECE_MAX_BYTES / block);
        let length = (blocks * block).min(end - offset);
        pieces.push(Piece { offset, length });
        offset += length;
    }
    pieces
}

/// The contents of a piece: each word depends on its offset.
fn contents(seed: u64, piece: Piece) -> Vec<u8> {
    let words = (piece.offset..piece.offset + piece.length).step_by(8);
    words.flat_map(|at| mix(seed.wrapping_mul(31) ^ at).to_le_bytes()).collect()
}

/// Writes the pieces, or reads them and compares.
fn transfer(
    lane: &mut Lane,
    nsid: u32,
    pieces: &[Piece],
    seed: u64,
    writes: bool,
) -> Result<(), Failure> {
    let (mut next, mut wrong) = (0, None);
    while next < pieces.len() || lane.requests_in_flight() > 0 {
        while next < pieces.len() && lane.requests_in_flight() < IN_FLIGHT {
            let Piece { offset, length } = pieces[next];
            let data = if writes { contents(seed, pieces[next]) } else { Vec::new() };
            let request = match writes {
                true => Request::Write { nsid, offset_bytes: offset, data: &data, fua: false },
                false => Request::Read { nsid, offset_bytes: offset, length_bytes: length as u32 },
            };
            lane.submit(next as u64, request)?;
            next += 1;
        }
        lane.wait(Duration::from_secs(1), &mut |completion| {
            let piece = pieces[completion.tag as usize];
            let what = match completion.result {
                Ok(done) if writes || done.data == contents(seed, piece) => return,
                Ok(_) => "other data than was written".to_owned(),
                Err(error) => error.to_string(),
            };
            wrong = Some(format!("{} bytes at {}: {what}", piece.length, piece.offset));
        })?;
    }
    wrong.map_or(Ok(()), |wrong| Err(wrong.into()))
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url: TargetUrl = arguments.next().ok_or("usage: verify URL [SEED]")?.parse()?;
    let seed = arguments.next().map_or(Ok(1), |text| text.parse())?;
    match verify(&url, seed) {
        // The message for people, which scripts compare.
        Err(error) => Err(error.to_string().into()),
        done => done,
    }
}

fn verify(url: &TargetUrl, seed: u64) -> Result<(), Failure> {
    let mut controller = Controller::connect(url, Options::default())?;
    let nsid = url.nsid;
    let namespace = controller.identify_namespace(nsid)?;
    let (mut one, mut other) = (controller.open_lane()?, controller.open_lane()?);
    let all = pieces(seed, &namespace);
    let (front, back) = all.split_at(all.len() / 2);
    transfer(&mut one, nsid, front, seed, true)?;
    transfer(&mut other, nsid, back, seed, true)?;
    one.flush(nsid)?;
    transfer(&mut other, nsid, front, seed, false)?;
    transfer(&mut one, nsid, back, seed, false)?;
    drop((one, other));
    controller.disconnect()?;
    println!("{} pieces are as they were written", all.len());
    Ok(())
}
