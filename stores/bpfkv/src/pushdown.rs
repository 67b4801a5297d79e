//! Arguments and answers of the storage functions, as functions/bpfkv.h lays them out.
//!
//! [`GET_OBJECT`](crate::GET_OBJECT) takes one key. [`RANGE_OBJECT`](crate::RANGE_OBJECT) takes a
//! range and answers with pairs or a summary; if these do not fit an answer, or would take more
//! hops than allowed, the answer says where to continue: [`RangePushdown`] and
//! [`AggregatePushdown`] make the next call from it. Every call states the scratch that it needs,
//! because the target clears all of it.

use crate::corrupt::Defect;
use crate::format::{BLOCK_BYTES, FANOUT, NO_KEY, NODE_BYTES, POINTER_ON_DISK, VALUE_BYTES, Value};
use crate::range::{Aggregate, KeyRange, Summary};

/// Size of the first read of every call, in bytes: a node.
pub const FIRST_READ_BYTES: u32 = NODE_BYTES as u32;
/// Length of the argument of `get`, in bytes.
pub const GET_ARGUMENT_BYTES: usize = 8;
/// Length of the longest answer of `get`, in bytes.
pub const GET_ANSWER_BYTES: usize = 8 + VALUE_BYTES;
/// Scratch that `get` needs, in bytes.
pub const GET_SCRATCH_BYTES: u32 = GET_ANSWER_BYTES as u32;
/// Length of the argument of `range`, in bytes: it fits Pushdown Short.
pub const RANGE_ARGUMENT_BYTES: usize = 24;
/// Largest scratch that `range` can use, in bytes: the largest that bpf-of's targets allow.
pub const RANGE_SCRATCH_BYTES: u32 = 16_384;
/// Most pairs in one answer of `range`, with a scratch of [`RANGE_SCRATCH_BYTES`].
pub const PAIRS_MAX: usize = pairs_in(RANGE_SCRATCH_BYTES);

const HEADER_BYTES: usize = 24;
const PAIR_BYTES: usize = 8 + VALUE_BYTES;
const COUNT_BYTES: usize = 8;
const SUMMARY_BYTES: usize = 40;
/// The state of a walk, at the end of scratch.
const WALK_BYTES: usize = 64;
/// The room in scratch for the values to read of one leaf, for aggregates.
const LEAF_BYTES: usize = FANOUT * VALUE_BYTES;

const FOUND: u64 = 1;
const NOT_FOUND: u64 = 0;

const FLAG_INCLUSIVE_END: u32 = 2;
const FLAG_COUNT: u32 = 4;
const FLAG_SUMMARY: u32 = 8;

/// Abort code for unknown flags, and for too little scratch.
const BAD_REQUEST: u32 = 6;

/// An answer that the storage function cannot have given: another function ran, or the target is
/// broken or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the target's answer is not an answer of BPF-KV's storage function: {0}")]
pub struct BadAnswer(&'static str);

/// Says what an abort of one of the functions means (status *Function Abort* of the protocol).
pub fn describe_abort(code: u32) -> String {
    match Defect::from_abort_code(code) {
        Some(defect) => format!("the storage function met a corrupt BPF-KV node: {defect}"),
        None if code == BAD_REQUEST => {
            "the BPF-KV request has unknown flags or too little scratch".to_owned()
        }
        None => format!("abort code {code} is not defined by BPF-KV"),
    }
}

/// The argument of `get`; `None` if no database can hold the key, so that no call is needed
/// (`u64::MAX` is not a key: it fills the unused slots of nodes).
#[inline]
pub fn get_argument(key: u64) -> Option<[u8; GET_ARGUMENT_BYTES]> {
    (key != NO_KEY).then_some(key.to_le_bytes())
}

/// Decodes an answer of `get`: the value, or `None` if the database does not hold the key.
///
/// # Errors
/// [`BadAnswer`].
#[inline]
pub fn get_answer(answer: &[u8]) -> Result<Option<&Value>, BadAnswer> {
    let (status, value) = split_u64(answer).ok_or(BadAnswer("it is too short"))?;
    match (status, <&Value>::try_from(value)) {
        (FOUND, Ok(value)) => Ok(Some(value)),
        (NOT_FOUND, Err(_)) if value.is_empty() => Ok(None),
        (FOUND | NOT_FOUND, _) => Err(BadAnswer("it has the wrong length")),
        _ => Err(BadAnswer("its status is unknown")),
    }
}

/// One call of `range`. The first read is of [`FIRST_READ_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// File offset of the first read, in bytes.
    pub first_offset_bytes: u64,
    /// The scratch prefix.
    pub argument: [u8; RANGE_ARGUMENT_BYTES],
    /// Longest answer, in bytes.
    pub answer_max_bytes: u32,
    /// Size of scratch, in bytes.
    pub scratch_size_bytes: u32,
}

/// Number of pairs that fit an answer in a scratch of this size, in bytes.
const fn pairs_in(scratch_bytes: u32) -> usize {
    (scratch_bytes as usize).saturating_sub(HEADER_BYTES + WALK_BYTES) / PAIR_BYTES
}

/// A range read by as many calls as necessary: one for each [`PAIRS_MAX`] pairs.
#[derive(Debug)]
pub struct RangePushdown {
    calls: Calls,
    /// Most pairs in one answer.
    pairs_max: usize,
}

impl RangePushdown {
    /// Starts at the node at `start_bytes` of the file: 0 for the root, or the offset returned by
    /// [`Cache::start_of_range`](crate::Cache::start_of_range). A call takes at most `hops_max`
    /// hops (0: as many as it needs); a target that allows fewer than 11 may not suffice for deep
    /// trees.
    pub fn new(range: &KeyRange, start_bytes: u64, hops_max: u32) -> RangePushdown {
        RangePushdown { calls: Calls::new(range, start_bytes, 0, hops_max), pairs_max: PAIRS_MAX }
    }

    /// The same with calls that need at most this much scratch, in bytes, for targets that allow
    /// less than [`RANGE_SCRATCH_BYTES`]. It must have room for one pair (160 bytes), as it does at
    /// every target.
    pub fn with_scratch_limit(mut self, scratch_bytes: u32) -> RangePushdown {
        self.pairs_max = pairs_in(scratch_bytes).clamp(1, PAIRS_MAX);
        self
    }

    /// The call to make, `None` when the range is finished.
    pub fn call(&self) -> Option<Call> {
        // Keys are distinct, so a short range needs little.
        let keys = (self.calls.last - self.calls.begin).saturating_add(1);
        let pairs = usize::try_from(keys).map_or(self.pairs_max, |keys| keys.min(self.pairs_max));
        let answer_bytes = HEADER_BYTES + pairs * PAIR_BYTES;
        self.calls.call(answer_bytes, answer_bytes + WALK_BYTES)
    }

    /// Takes the answer to that call and returns its pairs.
    ///
    /// # Errors
    /// [`BadAnswer`].
    pub fn answer<'a>(&mut self, answer: &'a [u8]) -> Result<Pairs<'a>, BadAnswer> {
        let (header, rest) = Header::parse(answer)?;
        let wrong_length = BadAnswer("it has the wrong length");
        let pairs = header.pairs as usize;
        if pairs > PAIRS_MAX || rest.len() != pairs * PAIR_BYTES {
            return Err(wrong_length);
        }
        let (values, keys) = rest.split_at_checked(pairs * VALUE_BYTES).ok_or(wrong_length)?;
        let (values, keys) = (values.as_chunks().0, keys.as_chunks().0);
        let mut begin = self.calls.begin;
        for key in keys {
            let key = u64::from_le_bytes(*key);
            if key < begin || key > self.calls.last {
                return Err(BadAnswer("its keys do not ascend or are not in the range"));
            }
            begin = key + 1;
        }
        self.calls.advance(&header, begin)?;
        Ok(Pairs { pairs: keys.iter().zip(values) })
    }
}

/// The pairs of an answer, in the order of keys.
#[derive(Clone, Debug)]
pub struct Pairs<'a> {
    pairs: std::iter::Zip<std::slice::Iter<'a, [u8; 8]>, std::slice::Iter<'a, Value>>,
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (u64, &'a Value);

    fn next(&mut self) -> Option<Self::Item> {
        self.pairs.next().map(|(key, value)| (u64::from_le_bytes(*key), value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.pairs.size_hint()
    }
}

impl ExactSizeIterator for Pairs<'_> {}

/// An aggregate over a range: one call, unless it would take too many hops.
#[derive(Debug)]
pub struct AggregatePushdown {
    calls: Calls,
    reads_values: bool,
    summary: Summary,
}

impl AggregatePushdown {
    /// Starts as [`RangePushdown::new`] does.
    pub fn new(
        range: &KeyRange,
        aggregate: Aggregate,
        start_bytes: u64,
        hops_max: u32,
    ) -> AggregatePushdown {
        let reads_values = aggregate.reads_values();
        let flag = if reads_values { FLAG_SUMMARY } else { FLAG_COUNT };
        AggregatePushdown {
            calls: Calls::new(range, start_bytes, flag, hops_max),
            reads_values,
            summary: Summary::default(),
        }
    }

    /// The call to make, `None` when the range is finished.
    pub fn call(&self) -> Option<Call> {
        let (length, leaf) =
            if self.reads_values { (SUMMARY_BYTES, LEAF_BYTES) } else { (COUNT_BYTES, 0) };
        let answer_bytes = HEADER_BYTES + length;
        self.calls.call(answer_bytes, answer_bytes + leaf + WALK_BYTES)
    }

    /// The call has exhausted a budget of the target, after so many hops: the next calls take fewer. Returns false if
    /// they cannot, so that it was not their number.
    pub fn shorten(&mut self, hops: u32) -> bool {
        // A target cannot make the calls shorter by little each time.
        let most = Some(self.calls.hops_max).filter(|most| *most > 0).unwrap_or(u32::MAX);
        let fewer = hops.min(most) / 4 * 3;
        if fewer < HOPS_LEAST {
            return false;
        }
        self.calls.hops_max = fewer;
        true
    }

    /// Takes the answer to that call.
    ///
    /// # Errors
    /// [`BadAnswer`].
    pub fn answer(&mut self, answer: &[u8]) -> Result<(), BadAnswer> {
        let (header, rest) = Header::parse(answer)?;
        let part = if self.reads_values { parse_summary(rest) } else { parse_count(rest) };
        let part = part.ok_or(BadAnswer("it has the wrong length"))?;
        if header.pairs != 0 {
            return Err(BadAnswer("an aggregate has pairs"));
        }
        self.calls.advance(&header, self.calls.begin)?;
        self.summary.merge(&part);
        Ok(())
    }

    /// The aggregates of the answers so far; of the whole range once no call is left.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }
}

/// Fewest hops of a call that gets on in any tree.
const HOPS_LEAST: u32 = 11;

/// The rest of a range.
#[derive(Debug)]
struct Calls {
    begin: u64,
    last: u64,
    flags: u32,
    hops_max: u32,
    /// File offset of the next call's first read, in bytes.
    first_offset_bytes: Option<u64>,
    /// The last call met no key, which happens only before the first key of the range.
    stalled: bool,
}

impl Calls {
    fn new(range: &KeyRange, start_bytes: u64, flags: u32, hops_max: u32) -> Calls {
        let bounds = range.bounds();
        let (begin, last) = bounds.unwrap_or_default();
        Calls {
            begin,
            last,
            flags: flags | FLAG_INCLUSIVE_END,
            hops_max,
            first_offset_bytes: bounds.map(|_| start_bytes),
            stalled: false,
        }
    }

    fn call(&self, answer_bytes: usize, scratch_bytes: usize) -> Option<Call> {
        let mut argument = [0; RANGE_ARGUMENT_BYTES];
        argument[..8].copy_from_slice(&self.begin.to_le_bytes());
        argument[8..16].copy_from_slice(&self.last.to_le_bytes());
        argument[16..20].copy_from_slice(&self.flags.to_le_bytes());
        argument[20..].copy_from_slice(&self.hops_max.to_le_bytes());
        self.first_offset_bytes.map(|first_offset_bytes| Call {
            first_offset_bytes,
            argument,
            answer_max_bytes: answer_bytes as u32,
            scratch_size_bytes: scratch_bytes as u32,
        })
    }

    /// Continues where the answer says; its keys were below `begin`. A target cannot prolong this
    /// for ever: of two calls in a row at least one must get past a key.
    fn advance(&mut self, header: &Header, begin: u64) -> Result<(), BadAnswer> {
        if self.first_offset_bytes.is_none() {
            return Err(BadAnswer("no call was made"));
        }
        if !header.more {
            self.first_offset_bytes = None;
            return Ok(());
        }
        if header.next_leaf & POINTER_ON_DISK != 0 || !header.next_leaf.is_multiple_of(BLOCK_BYTES)
        {
            return Err(BadAnswer("it continues at an invalid node"));
        }
        let stalled = header.next_key == self.begin;
        if !(begin..=self.last).contains(&header.next_key) || (stalled && self.stalled) {
            return Err(BadAnswer("it does not continue within the range"));
        }
        self.stalled = stalled;
        self.begin = header.next_key;
        self.first_offset_bytes = Some(header.next_leaf);
        Ok(())
    }
}

/// `struct bpfkv_range_answer`.
struct Header {
    next_key: u64,
    next_leaf: u64,
    pairs: u32,
    more: bool,
}

impl Header {
    fn parse(answer: &[u8]) -> Result<(Header, &[u8]), BadAnswer> {
        let short = BadAnswer("it is too short");
        let (next_key, rest) = split_u64(answer).ok_or(short)?;
        let (next_leaf, rest) = split_u64(rest).ok_or(short)?;
        let (word, rest) = split_u64(rest).ok_or(short)?;
        let pairs = word as u32;
        let more = match word >> 32 {
            0 if next_leaf == 0 => false,
            1 => true,
            _ => return Err(BadAnswer("its continuation flag is invalid")),
        };
        Ok((Header { next_key, next_leaf, pairs, more }, rest))
    }
}

fn parse_count(bytes: &[u8]) -> Option<Summary> {
    let (count, rest) = split_u64(bytes)?;
    rest.is_empty().then_some(Summary { count, ..Summary::default() })
}

/// `struct bpfkv_summary`.
fn parse_summary(bytes: &[u8]) -> Option<Summary> {
    let (count, rest) = split_u64(bytes)?;
    let (sum_low, rest) = split_u64(rest)?;
    let (sum_high, rest) = split_u64(rest)?;
    let (min, rest) = split_u64(rest)?;
    let (max, rest) = split_u64(rest)?;
    let sum = (u128::from(sum_high) << 64 | u128::from(sum_low)) as i128;
    let min_max = (count != 0).then_some((min as i64, max as i64));
    rest.is_empty().then_some(Summary { count, sum, min_max })
}

#[inline]
fn split_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    bytes.split_first_chunk().map(|(word, rest)| (u64::from_le_bytes(*word), rest))
}
