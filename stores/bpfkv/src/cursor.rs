//! Plain reading: cursors request reads and are fed the bytes.
//!
//! ```
//! # use bpfkv::{GetCursor, Step, create::{Extent, write_database}};
//! # use std::ops::ControlFlow;
//! # let extent = Extent::full(2).unwrap();
//! # let mut file = vec![0; extent.layout().file_bytes() as usize];
//! # write_database(&extent, &mut |offset, bytes| {
//! #     file[offset as usize..][..bytes.len()].copy_from_slice(bytes);
//! #     Ok(())
//! # }, &mut |_, _| ControlFlow::Continue(())).unwrap();
//! let mut cursor = GetCursor::new();
//! cursor.reset(42, 0);
//! let value = loop {
//!     let read = match cursor.step() {
//!         Step::Read(reads) => reads[0],
//!         Step::Done(value) => break value,
//!     };
//!     let data = &file[read.offset_bytes as usize..][..read.length_bytes as usize];
//!     cursor.feed(0, data)?;
//! };
//! assert!(value.unwrap().ends_with(b"42\0"));
//! # Ok::<(), bpfkv::Corrupt>(())
//! ```

use crate::corrupt::{Corrupt, Defect};
use crate::format::{BLOCK_BYTES, LEVELS_MAX, NO_KEY, NODE_BYTES, Node, VALUE_BYTES, Value};
use crate::range::{Aggregate, KeyRange, Pair, Summary};
pub use crate::read_request::ReadRequest;
use crate::walk::Walk;

/// A cursor's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a, T> {
    /// These reads, all of them, in parallel if the caller likes. Each is fed once, in any order,
    /// by its index in the slice.
    Read(&'a [ReadRequest]),
    /// No read: this is the result.
    Done(T),
}

/// Looks up one key: one node in each step, then the block with the value.
#[derive(Debug)]
pub struct GetCursor {
    key: u64,
    read: [ReadRequest; 1],
    levels_left: u32,
    state: State,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Node,
    Value { at_bytes: usize },
    Found,
    NotFound,
}

impl Default for GetCursor {
    fn default() -> Self {
        GetCursor::new()
    }
}

impl GetCursor {
    /// A finished cursor without a result: [`GetCursor::reset`] it.
    pub fn new() -> GetCursor {
        GetCursor {
            key: 0,
            read: [ReadRequest::default()],
            levels_left: 0,
            state: State::NotFound,
            value: [0; VALUE_BYTES],
        }
    }

    /// Starts the lookup of `key` at the node at `start_bytes` of the file: 0 for the root, or the
    /// offset returned by [`Cache::start_of_get`](crate::Cache::start_of_get).
    pub fn reset(&mut self, key: u64, start_bytes: u64) {
        self.key = key;
        self.levels_left = LEVELS_MAX;
        self.state = if key == NO_KEY { State::NotFound } else { State::Node };
        self.ask(start_bytes);
    }

    /// The next read, or the value if there is one.
    #[inline]
    pub fn step(&self) -> Step<'_, Option<&Value>> {
        match self.state {
            State::Node | State::Value { .. } => Step::Read(&self.read),
            State::Found => Step::Done(Some(&self.value)),
            State::NotFound => Step::Done(None),
        }
    }

    /// Takes the bytes of the read.
    ///
    /// # Errors
    /// [`Corrupt`]; the cursor must then be reset.
    ///
    /// # Panics
    /// If no read is outstanding or `read_index` is not 0.
    #[inline]
    pub fn feed(&mut self, read_index: usize, data: &[u8]) -> Result<(), Corrupt> {
        assert_eq!(read_index, 0, "no such read is outstanding");
        let offset_bytes = self.read[0].offset_bytes;
        match self.state {
            State::Node => self.meet_node(Node::parse(offset_bytes, data)?),
            State::Value { at_bytes } => {
                let block = <&[u8; BLOCK_BYTES as usize]>::try_from(data)
                    .map_err(|_| Corrupt::new(offset_bytes, Defect::WrongLength))?;
                self.value.copy_from_slice(&block[at_bytes..at_bytes + VALUE_BYTES]);
                self.state = State::Found;
                Ok(())
            }
            State::Found | State::NotFound => panic!("no such read is outstanding"),
        }
    }

    #[inline]
    fn meet_node(&mut self, node: Node<'_>) -> Result<(), Corrupt> {
        if self.levels_left == 0 {
            return Err(node.corrupt(Defect::TooDeep));
        }
        self.levels_left -= 1;
        let Some(slot) = node.upper_bound(self.key).checked_sub(1) else {
            self.state = State::NotFound;
            return Ok(());
        };
        if !node.is_leaf() {
            self.ask(node.child_offset_bytes(slot)?);
        } else if node.key(slot) != self.key {
            self.state = State::NotFound;
        } else {
            let value = node.value_offset_bytes(slot)?;
            self.state = State::Value { at_bytes: (value % BLOCK_BYTES) as usize };
            self.ask(value - value % BLOCK_BYTES);
        }
        Ok(())
    }

    #[inline]
    fn ask(&mut self, offset_bytes: u64) {
        self.read = [ReadRequest { offset_bytes, length_bytes: NODE_BYTES as u32 }];
    }
}

/// Reads the pairs of a range; each step reads all the values of a leaf and the next leaf.
#[derive(Debug)]
pub struct RangeCursor {
    walk: Walk,
    /// The pairs; those of the current leaf are last and perhaps incomplete.
    pairs: Vec<Pair>,
    complete: usize,
}

impl Default for RangeCursor {
    fn default() -> Self {
        RangeCursor::new()
    }
}

impl RangeCursor {
    /// A finished cursor: [`RangeCursor::reset`] it.
    pub fn new() -> RangeCursor {
        RangeCursor { walk: Walk::new(), pairs: Vec::new(), complete: 0 }
    }

    /// Starts a range at the node at `start_bytes` of the file: 0 for the root, or the offset
    /// returned by [`Cache::start_of_range`](crate::Cache::start_of_range). Drops the pairs of the
    /// last range.
    pub fn reset(&mut self, range: &KeyRange, start_bytes: u64) {
        self.walk.reset(range.bounds(), start_bytes, true);
        self.pairs.clear();
        self.complete = 0;
    }

    /// The next reads, or the end. Pairs are in [`RangeCursor::pairs`].
    pub fn step(&self) -> Step<'_, ()> {
        match self.walk.reads() {
            [] => Step::Done(()),
            reads => Step::Read(reads),
        }
    }

    /// Takes the bytes of a read.
    ///
    /// # Errors
    /// [`Corrupt`]; the cursor must then be reset.
    ///
    /// # Panics
    /// If that read is not outstanding.
    pub fn feed(&mut self, read_index: usize, data: &[u8]) -> Result<(), Corrupt> {
        let leaves = self.walk.leaves();
        let current = &mut self.pairs[self.complete..];
        self.walk.feed(read_index, data, |slot, value| current[slot].value = *value)?;
        if self.walk.leaves() > leaves {
            self.complete = self.pairs.len();
            let empty = |&key| Pair { key, value: [0; VALUE_BYTES] };
            self.pairs.extend(self.walk.keys().iter().map(empty));
        }
        if self.walk.reads().is_empty() {
            self.complete = self.pairs.len();
        }
        Ok(())
    }

    /// The complete pairs, in the order of keys.
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs[..self.complete]
    }

    /// Drops the complete pairs, so that a long range needs little memory.
    pub fn clear_pairs(&mut self) {
        self.pairs.drain(..self.complete);
        self.complete = 0;
    }
}

/// Computes the aggregates of a range.
#[derive(Debug)]
pub struct AggregateCursor {
    walk: Walk,
    summary: Summary,
}

impl Default for AggregateCursor {
    fn default() -> Self {
        AggregateCursor::new()
    }
}

impl AggregateCursor {
    /// A finished cursor: [`AggregateCursor::reset`] it.
    pub fn new() -> AggregateCursor {
        AggregateCursor { walk: Walk::new(), summary: Summary::default() }
    }

    /// Starts a range at the node at `start_bytes` of the file, as [`RangeCursor::reset`] does.
    pub fn reset(&mut self, range: &KeyRange, aggregate: Aggregate, start_bytes: u64) {
        self.walk.reset(range.bounds(), start_bytes, aggregate.reads_values());
        self.summary = Summary::default();
    }

    /// The next reads, or the result.
    pub fn step(&self) -> Step<'_, Summary> {
        match self.walk.reads() {
            [] => Step::Done(Summary {
                count: self.summary.count + self.walk.counted(),
                ..self.summary
            }),
            reads => Step::Read(reads),
        }
    }

    /// Takes the bytes of a read.
    ///
    /// # Errors
    /// [`Corrupt`]; the cursor must then be reset.
    ///
    /// # Panics
    /// If that read is not outstanding.
    pub fn feed(&mut self, read_index: usize, data: &[u8]) -> Result<(), Corrupt> {
        let summary = &mut self.summary;
        self.walk.feed(read_index, data, |_, value| summary.add_value(value))
    }
}
