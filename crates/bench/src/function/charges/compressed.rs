//! Compressed blocks to decompress: ordinary data, and data that takes the longest for its size.

use super::charge::{Problem, Random};
use super::kernels::{Case, Outcome, Request};
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, InBuffer, OutBuffer};

/// Bytes of a result.
const RESULT_BYTES: usize = 16 << 10;
/// Approximate bytes of a result made of small pieces, which cost more.
const PIECES_BYTES: usize = 4 << 10;
/// Bytes of each Zstandard block where a frame has several.
const ZSTD_BLOCK_BYTES: usize = 2 << 10;
/// The numbers of the formats, from bpfof.h.
const SNAPPY: u64 = 1;
const LZ4: u64 = 4;
const ZSTD: u64 = 7;

/// A case of the decompressing kernel, with a result of this many bytes.
fn case(name: &str, format: u64, block: Vec<u8>, bytes: usize) -> Case {
    let request = Request {
        operand: format,
        length: block.len() as u64,
        room: bytes as u64,
        ..Request::default()
    };
    let outcome = Outcome::Sum(bytes as u64);
    Case { block, outcome, ..Case::new(name, "decompress", 1, request) }
}

/// Compresses data with a level of Zstandard.
fn zstd(data: &[u8], level: i32) -> Result<Vec<u8>, String> {
    let mut frame = vec![0; zstd_safe::compress_bound(data.len())];
    let length =
        zstd_safe::compress(&mut frame[..], data, level).map_err(zstd_safe::get_error_name)?;
    frame.truncate(length);
    Ok(frame)
}

/// The same in blocks of [`ZSTD_BLOCK_BYTES`].
fn zstd_in_blocks(data: &[u8]) -> Result<Vec<u8>, String> {
    let mut frame = vec![0; 2 * data.len()];
    let mut context = CCtx::create();
    let mut output = OutBuffer::around(&mut frame[..]);
    let count = data.len().div_ceil(ZSTD_BLOCK_BYTES);
    for (index, block) in data.chunks(ZSTD_BLOCK_BYTES).enumerate() {
        let end = match index + 1 == count {
            true => ZSTD_EndDirective::ZSTD_e_end,
            false => ZSTD_EndDirective::ZSTD_e_flush,
        };
        let mut input = InBuffer::around(block);
        let left = context.compress_stream2(&mut output, &mut input, end);
        match left.map_err(zstd_safe::get_error_name)? {
            0 => {}
            left => return Err(format!("zstd has no room for {left} bytes")),
        }
    }
    let length = output.pos();
    frame.truncate(length);
    Ok(frame)
}

/// Words, some of them frequent, as in text.
fn text() -> Vec<u8> {
    let mut random = Random(3);
    let words: Vec<Vec<u8>> = (0..600)
        .map(|_| (0..2 + random.below(8)).map(|_| b'a' + random.below(26) as u8).collect())
        .collect();
    let mut text = Vec::new();
    while text.len() < RESULT_BYTES {
        let some = random.below(words.len() as u64) + 1;
        text.extend_from_slice(&words[random.below(some) as usize]);
        text.push(b' ');
    }
    text.truncate(RESULT_BYTES);
    text
}

/// Pieces of four bytes, chosen from a few, so that each four bytes become a copy.
fn fours() -> Vec<u8> {
    let mut random = Random(4);
    let words: Vec<[u8; 4]> =
        (0..256).map(|_| (random.below(1 << 32) as u32).to_le_bytes()).collect();
    let mut data = Vec::new();
    while data.len() < RESULT_BYTES {
        data.extend(words[random.below(words.len() as u64) as usize]);
    }
    data
}

/// A Snappy block that is built piece by piece; the first is a literal.
struct Snappy {
    pieces: Vec<u8>,
    bytes: usize,
}

impl Snappy {
    fn new() -> Snappy {
        let mut snappy = Snappy { pieces: Vec::new(), bytes: 0 };
        for _ in 0..16 {
            snappy.literal();
        }
        snappy
    }

    /// A literal byte.
    fn literal(&mut self) {
        self.pieces.extend([0, b'x']);
        self.bytes += 1;
    }

    /// A byte from `distance` bytes ago.
    fn copy(&mut self, distance: u8) {
        self.pieces.extend([0b10, distance, 0]);
        self.bytes += 1;
    }

    /// Four bytes from there, in a shorter encoding.
    fn copy_four(&mut self, distance: u8) {
        self.pieces.extend([0b01, distance]);
        self.bytes += 4;
    }

    /// A case of the block, with its length in front.
    fn case(self, name: &str) -> Case {
        let (low, high) = (self.bytes as u8 | 128, (self.bytes >> 7) as u8);
        case(name, SNAPPY, [&[low, high][..], &self.pieces].concat(), self.bytes)
    }
}

/// An LZ4 block that is built piece by piece.
struct Lz4 {
    pieces: Vec<u8>,
    bytes: usize,
}

impl Lz4 {
    fn new() -> Lz4 {
        let mut lz4 = Lz4 { pieces: Vec::new(), bytes: 0 };
        lz4.copy(8, 4, 1);
        lz4
    }

    /// So many literal bytes, up to 14, and 4 to 18 bytes from `distance` bytes ago.
    fn copy(&mut self, literals: u8, length: u8, distance: u8) {
        self.pieces.push(literals << 4 | (length - 4));
        self.pieces.extend((0..literals).map(|index| b'a' + index));
        self.pieces.extend([distance, 0]);
        self.bytes += usize::from(literals) + usize::from(length);
    }

    /// A case of the block, with the required end of only literals.
    fn case(mut self, name: &str) -> Case {
        self.pieces.push(12 << 4);
        self.pieces.extend([b'z'; 12]);
        case(name, LZ4, self.pieces, self.bytes + 12)
    }
}

/// A case of a Snappy block of these pieces.
fn snappy(name: &str, mut piece: impl FnMut(&mut Snappy)) -> Case {
    let mut block = Snappy::new();
    while block.bytes < PIECES_BYTES {
        piece(&mut block);
    }
    block.case(&format!("snappy, {name}"))
}

/// A case of an LZ4 block of these pieces.
fn lz4(name: &str, mut piece: impl FnMut(&mut Lz4)) -> Case {
    let mut block = Lz4::new();
    while block.bytes < PIECES_BYTES {
        piece(&mut block);
    }
    block.case(&format!("lz4, {name}"))
}

/// Handmade blocks of the smallest possible pieces.
fn pieces() -> Vec<Case> {
    let mut random = Random(5);
    let mut any = |end: u64| random.below(end) as u8;
    vec![
        snappy("literals of a byte", Snappy::literal),
        snappy("copies of a byte, 1 byte back", |block| block.copy(1)),
        snappy("copies of 4 bytes, 1 byte back", |block| block.copy_four(1)),
        snappy("literals and copies at random", |block| match any(3) {
            0 => block.literal(),
            1 => block.copy(1 + any(16)),
            _ => block.copy_four(1 + any(16)),
        }),
        lz4("copies of 4 bytes, 1 byte back", |block| block.copy(0, 4, 1)),
        lz4("copies of 18 bytes, 1 byte back", |block| block.copy(0, 18, 1)),
        lz4("literals and copies at random", |block| {
            block.copy(any(3), 4 + any(15), 1 + any(12));
        }),
    ]
}

/// Ordinary data in all formats, and data that takes long.
pub(super) fn cases() -> Result<Vec<Case>, Problem> {
    let mut random = Random(6);
    let noise: Vec<u8> = (0..RESULT_BYTES).map(|_| random.below(256) as u8).collect();
    let mut cases = Vec::new();
    for (about, data) in [
        ("text", text()),
        ("random bytes", noise),
        ("a run of one byte", vec![b'x'; RESULT_BYTES]),
        ("a run of two bytes in turn", b"xy".repeat(RESULT_BYTES / 2)),
    ] {
        let blocks = [
            ("snappy", SNAPPY, snap::raw::Encoder::new().compress_vec(&data)?),
            ("lz4", LZ4, lz4_flex::block::compress(&data)),
            ("zstd", ZSTD, zstd(&data, 3)?),
        ];
        for (name, format, block) in blocks {
            cases.push(case(&format!("{name}, {about}"), format, block, data.len()));
        }
    }
    cases.extend(pieces());
    let fours = fours();
    cases.push(case("zstd, copies of 4 bytes", ZSTD, zstd(&fours, 19)?, fours.len()));
    let text = text();
    cases.push(case("zstd, text in blocks of 2 KiB", ZSTD, zstd_in_blocks(&text)?, text.len()));
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::super::charge::OBJECT;
    use super::super::kernels::check;
    use super::*;
    use bpfof_function::{Object, OwnMaps};

    #[test]
    fn every_block_is_decompressed_to_what_it_was_made_of() {
        let object = Object::parse(OBJECT).expect("parses");
        for case in cases().expect("compresses") {
            check(&case, &object, &OwnMaps::default);
        }
    }

    #[test]
    fn blocks_that_are_made_by_hand_are_good_ones() {
        for case in pieces() {
            let bytes = case.request.room as usize;
            let decompressed = match case.request.operand {
                SNAPPY => snap::raw::Decoder::new().decompress_vec(&case.block).ok(),
                _ => lz4_flex::block::decompress(&case.block, bytes).ok(),
            };
            assert_eq!(decompressed.map(|data| data.len()), Some(bytes), "{}", case.name);
        }
    }
}
