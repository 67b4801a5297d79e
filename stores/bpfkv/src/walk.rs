//! The walk of a range: down to the leaf of its first key, then from leaf to leaf.
//!
//! One hop reads all the values of a leaf and the next leaf, exactly as functions/bpfkv_range.bpf.c
//! does, so that comparing the two measures the network and not the plan.

use crate::corrupt::{Corrupt, Defect};
use crate::format::{BLOCK_BYTES, FANOUT, LEVELS_MAX, NO_KEY, NODE_BYTES, Node, Value};
use crate::read_request::ReadRequest;

/// Reads of one hop: the protocol's limit, kept here too so that both plans are the same.
const READS_MAX: usize = 16;
/// The most pages for the values of one hop; one more read is left for the next leaf.
const PAGES_MAX: usize = READS_MAX - 1;
const PAGE_BYTES: u64 = 4096;

/// The state of a walk; see [`Walk::reset`].
// 18 fields, as the walk in functions/bpfkv_range.bpf.c has: both must agree step by step.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Smallest key that may still come, and the last wanted key.
    begin: u64,
    last: u64,
    reads_values: bool,
    /// Nodes that the descent may still visit.
    levels_left: u32,
    /// Whether the first leaf was reached.
    walking: bool,

    /// The reads of this hop: values, then perhaps a node.
    reads: [ReadRequest; READS_MAX],
    read_count: usize,
    value_reads: usize,
    /// Bit i: the bytes of read i have arrived.
    fed: u32,
    /// Slot of the first value in each read of values; one more entry marks the end.
    first_slot: [usize; READS_MAX + 1],
    node: [u8; NODE_BYTES],

    /// Keys of the current leaf that are in the range, and the places of their values.
    keys: [u64; FANOUT],
    value_offsets_bytes: [u64; FANOUT],
    seen: usize,
    asked: usize,
    next_leaf: u64,

    leaves: u64,
    counted: u64,
}

impl Walk {
    /// A finished walk.
    pub(crate) fn new() -> Walk {
        Walk {
            begin: 0,
            last: 0,
            reads_values: false,
            levels_left: LEVELS_MAX,
            walking: false,
            reads: [ReadRequest::default(); READS_MAX],
            read_count: 0,
            value_reads: 0,
            fed: 0,
            first_slot: [0; READS_MAX + 1],
            node: [0; NODE_BYTES],
            keys: [0; FANOUT],
            value_offsets_bytes: [0; FANOUT],
            seen: 0,
            asked: 0,
            next_leaf: 0,
            leaves: 0,
            counted: 0,
        }
    }

    /// Restarts at the node at `start_bytes`, for the keys from the first to the second of
    /// `bounds`.
    pub(crate) fn reset(
        &mut self,
        bounds: Option<(u64, u64)>,
        start_bytes: u64,
        reads_values: bool,
    ) {
        self.reads_values = reads_values;
        self.levels_left = LEVELS_MAX;
        self.walking = false;
        (self.seen, self.asked, self.next_leaf, self.leaves, self.counted) = (0, 0, 0, 0, 0);
        (self.read_count, self.value_reads) = (0, 0);
        if let Some((first, last)) = bounds {
            (self.begin, self.last) = (first, last);
            self.ask_for_node(start_bytes);
        }
    }

    /// The reads of this hop; empty when the walk is done.
    pub(crate) fn reads(&self) -> &[ReadRequest] {
        &self.reads[..self.read_count]
    }

    /// Keys of the current leaf that are in the range.
    pub(crate) fn keys(&self) -> &[u64] {
        &self.keys[..self.seen]
    }

    /// Leaves visited so far.
    pub(crate) fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Keys counted so far, when values are not read.
    pub(crate) fn counted(&self) -> u64 {
        self.counted
    }

    /// Takes the bytes of a read, in any order within the hop. `on_value` gets each value with its
    /// index in [`Walk::keys`]. After the last read of the hop the walk continues.
    ///
    /// # Panics
    /// If that read is not outstanding.
    pub(crate) fn feed(
        &mut self,
        read_index: usize,
        data: &[u8],
        mut on_value: impl FnMut(usize, &Value),
    ) -> Result<(), Corrupt> {
        let bit = 1 << read_index;
        assert!(read_index < self.read_count && self.fed & bit == 0, "no such read is outstanding");
        self.fed |= bit;
        let read = self.reads[read_index];
        let wrong_length = Corrupt::new(read.offset_bytes, Defect::WrongLength);
        if data.len() != read.length_bytes as usize {
            return Err(wrong_length);
        }
        if read_index < self.value_reads {
            for slot in self.first_slot[read_index]..self.first_slot[read_index + 1] {
                let at = (self.value_offsets_bytes[slot] - read.offset_bytes) as usize;
                let value = data.get(at..).and_then(<[u8]>::first_chunk).ok_or(wrong_length)?;
                on_value(slot, value);
            }
        } else {
            self.node.copy_from_slice(data);
        }
        if self.fed.count_ones() as usize == self.read_count { self.go_on() } else { Ok(()) }
    }

    /// All reads of the hop have arrived: plans the next hop.
    fn go_on(&mut self) -> Result<(), Corrupt> {
        let node_read = (self.value_reads < self.read_count).then(|| self.reads[self.value_reads]);
        (self.read_count, self.value_reads) = (0, 0);
        if let Some(read) = node_read {
            let bytes = self.node;
            self.meet_node(Node::parse(read.offset_bytes, &bytes)?)
        } else {
            if self.asked < self.seen {
                self.ask();
            }
            Ok(())
        }
    }

    fn meet_node(&mut self, node: Node<'_>) -> Result<(), Corrupt> {
        if self.walking {
            return if node.is_leaf() {
                self.meet_leaf(node, 0)
            } else {
                Err(node.corrupt(Defect::NodeType))
            };
        }
        if self.levels_left == 0 {
            return Err(node.corrupt(Defect::TooDeep));
        }
        self.levels_left -= 1;
        let after = node.upper_bound(self.begin);
        if !node.is_leaf() {
            // A range may begin before the first key.
            self.ask_for_node(node.child_offset_bytes(after.saturating_sub(1))?);
            return Ok(());
        }
        self.walking = true;
        let found = after > 0 && node.key(after - 1) == self.begin;
        self.meet_leaf(node, if found { after - 1 } else { after })
    }

    /// Takes the keys in the range, starting at slot `from`.
    fn meet_leaf(&mut self, leaf: Node<'_>, from: usize) -> Result<(), Corrupt> {
        if leaf.key(0) == NO_KEY {
            return Err(leaf.corrupt(Defect::EmptyNode));
        }
        self.leaves += 1;
        let stop = leaf.upper_bound(self.last);
        (self.seen, self.asked, self.next_leaf) = (0, 0, 0);
        if self.reads_values {
            self.take(leaf, from, stop)?;
        } else {
            self.count(leaf, from, stop)?;
        }
        // Continue unless the last wanted key, or a later one, is here.
        if self.begin <= self.last && (stop == FANOUT || leaf.key(stop) == NO_KEY) {
            self.next_leaf = leaf.next_offset_bytes()?;
        }
        self.ask();
        Ok(())
    }

    fn take(&mut self, leaf: Node<'_>, from: usize, stop: usize) -> Result<(), Corrupt> {
        for slot in from..stop {
            let key = leaf.key(slot);
            if key < self.begin || key == NO_KEY {
                return Err(leaf.corrupt(Defect::KeysNotAscending));
            }
            self.keys[self.seen] = key;
            self.value_offsets_bytes[self.seen] = leaf.value_offset_bytes(slot)?;
            self.seen += 1;
            self.begin = key + 1;
        }
        Ok(())
    }

    /// As `take`, but only counts; relies on the order inside a leaf.
    fn count(&mut self, leaf: Node<'_>, from: usize, stop: usize) -> Result<(), Corrupt> {
        if from >= stop {
            return Ok(());
        }
        let (first, last) = (leaf.key(from), leaf.key(stop - 1));
        if first < self.begin || last < first {
            return Err(leaf.corrupt(Defect::KeysNotAscending));
        }
        self.counted += (stop - from) as u64;
        // The search found that `last` is at most `self.last`, so it is below NO_KEY.
        self.begin = last.saturating_add(1);
        Ok(())
    }

    fn ask_for_node(&mut self, offset_bytes: u64) {
        let length_bytes = NODE_BYTES as u32;
        self.reads[self.read_count] = ReadRequest { offset_bytes, length_bytes };
        self.read_count += 1;
        self.fed = 0;
    }

    /// Requests the blocks of the values from `asked` on, and the next leaf after the last value.
    /// Values in neighbouring blocks share a read.
    fn ask(&mut self) {
        let mut pages = 0;
        let mut reads = 0;
        // The current read; at first a place that no block is in or next to.
        let (mut start, mut end) = (u64::MAX, u64::MAX);
        while self.asked < self.seen {
            let block = self.value_offsets_bytes[self.asked] & !(BLOCK_BYTES - 1);
            if !(start..end).contains(&block) {
                if block != end || block.is_multiple_of(PAGE_BYTES) {
                    if pages == PAGES_MAX {
                        break;
                    }
                    pages += 1;
                }
                if block != end {
                    start = block;
                    self.first_slot[reads] = self.asked;
                    reads += 1;
                }
                end = block + BLOCK_BYTES;
                let length_bytes = (end - start) as u32;
                self.reads[reads - 1] = ReadRequest { offset_bytes: start, length_bytes };
            }
            self.asked += 1;
        }
        self.first_slot[reads] = self.asked;
        (self.read_count, self.value_reads, self.fed) = (reads, reads, 0);
        if self.asked == self.seen && self.next_leaf != 0 {
            self.ask_for_node(self.next_leaf);
        }
    }
}
