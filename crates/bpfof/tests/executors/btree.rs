//! A B-tree as WiredTiger writes it (functions/wt_get.h), and requests of functions/wt_get.bpf.c.

use bpfof_nvme::tcp::crc32c;

/// Unit of block sizes, in bytes.
const UNIT: usize = 512;
/// Header of a page and of its block.
const HEADER_BYTES: usize = 40;
const INTERNAL: u8 = 6;
const LEAF: u8 = 7;
/// Types of cells.
const ADDRESS_OF_INTERNAL: u8 = 1;
const ADDRESS_OF_LEAF: u8 = 2;
const VALUE: u8 = 8;

/// A number inside a cell.
fn packed(number: u64) -> Vec<u8> {
    match number {
        0..64 => vec![0x80 | number as u8],
        64..8256 => {
            let above = number - 64;
            vec![0xc0 | (above >> 8) as u8, above as u8]
        }
        _ => {
            let bytes = (number - 8256).to_be_bytes();
            let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
            [&[0xe0 | (8 - zeros) as u8], &bytes[zeros..]].concat()
        }
    }
}

/// A key cell, which omits the first bytes if they are those of the key before.
fn key_cell(key: &[u8], before: &[u8]) -> Vec<u8> {
    let same = key.iter().zip(before).take_while(|(a, b)| a == b).count();
    let rest = &key[same..];
    match same {
        0 => [&[(rest.len() << 2 | 1) as u8], rest].concat(),
        _ => [&[(rest.len() << 2 | 2) as u8, same as u8], rest].concat(),
    }
}

fn value_cell(value: &[u8]) -> Vec<u8> {
    match value.len() {
        0..64 => [&[(value.len() << 2 | 3) as u8], value].concat(),
        long => [&[VALUE << 4][..], &packed(long as u64 - 64), value].concat(),
    }
}

/// The file so far.
struct Writer {
    file: Vec<u8>,
}

impl Writer {
    /// Appends a page; its address in a cell of this type.
    fn page(&mut self, kind: u8, entries: u32, cells: &[u8], cell: u8) -> Vec<u8> {
        let memory = HEADER_BYTES + cells.len();
        let mut page = vec![0; memory.next_multiple_of(UNIT)];
        let size = page.len() as u32;
        page[16..20].copy_from_slice(&(memory as u32).to_le_bytes());
        page[20..24].copy_from_slice(&entries.to_le_bytes());
        page[24] = kind;
        page[27] = 1;
        page[28..32].copy_from_slice(&size.to_le_bytes());
        // The checksum covers the whole block.
        page[36] = 1;
        page[HEADER_BYTES..memory].copy_from_slice(cells);
        let checksum = crc32c(&page);
        page[32..36].copy_from_slice(&checksum.to_le_bytes());
        let unit = (self.file.len() / UNIT) as u64;
        self.file.extend(&page);
        let numbers = [unit - 1, u64::from(size) / UNIT as u64, u64::from(checksum)];
        let address = numbers.map(packed).concat();
        [&[cell << 4][..], &packed(address.len() as u64), &address].concat()
    }
}

/// A file, with offset and size of the tree's root in bytes.
pub(crate) struct Tree {
    pub(crate) file: Vec<u8>,
    pub(crate) root: (u64, u32),
}

impl Tree {
    /// A tree of three levels with these rows, in their order.
    pub(crate) fn new(rows: &[(Vec<u8>, Vec<u8>)]) -> Tree {
        let mut writer = Writer { file: vec![0; UNIT] };
        let mut level: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for rows in rows.chunks(12) {
            let mut cells = Vec::new();
            let mut before: &[u8] = &[];
            for (key, value) in rows {
                cells.extend(key_cell(key, before));
                cells.extend(value_cell(value));
                before = key;
            }
            let entries = 2 * rows.len() as u32;
            level.push((rows[0].0.clone(), writer.page(LEAF, entries, &cells, ADDRESS_OF_LEAF)));
        }
        let mut root = 0;
        for fanout in [10, usize::MAX] {
            let below = std::mem::take(&mut level);
            for children in below.chunks(fanout) {
                let cells = children
                    .iter()
                    .flat_map(|(key, address)| [key_cell(key, &[]), address.clone()].concat());
                let cells: Vec<u8> = cells.collect();
                root = writer.file.len();
                let entries = 2 * children.len() as u32;
                let address = writer.page(INTERNAL, entries, &cells, ADDRESS_OF_INTERNAL);
                level.push((children[0].0.clone(), address));
            }
        }
        let size = (writer.file.len() - root) as u32;
        Tree { file: writer.file, root: (root as u64, size) }
    }
}

/// struct wt_get_request, and the key.
pub(crate) fn argument(key: &[u8], flags: u8, following_bytes: u32) -> Vec<u8> {
    let mut argument = (UNIT as u32).to_le_bytes().to_vec();
    argument.extend((key.len() as u16).to_le_bytes());
    argument.extend([flags, 0]);
    // Used bytes and checksum; no checksum, three levels, no reads.
    argument.extend([0; 8]);
    argument.extend([0, 3, 0, 0]);
    argument.extend(following_bytes.to_le_bytes());
    argument.extend(key);
    argument
}
