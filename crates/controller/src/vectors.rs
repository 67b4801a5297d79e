//! The vectors of chains of a connection (docs/protocol.md, Pushdown Vector): their requests, which of their chains
//! have begun, and the answers so far.

use crate::refusal::Reply;
use bpfof_chain::{FileVersion, Start};
use bpfof_device::IoBuffer;
use bpfof_function::abi::MAX_READS;
use bpfof_nvme::Status;
use bpfof_nvme::vendor_specific::{PushdownVectorRequest, VectorChains, VectorRecord};
use std::collections::VecDeque;

/// Places that an idle connection keeps.
const KEPT: usize = 16;

/// One command.
#[derive(Debug)]
pub(crate) struct Vector {
    /// The slot of the command.
    pub(crate) slot: u16,
    namespace: u32,
    unit_bytes: u32,
    function: u32,
    files: [FileVersion; MAX_READS],
    file_count: usize,
    scratch_bytes: u32,
    answer_max_bytes: u32,
    /// The chains that have not begun.
    chains: VectorChains,
    /// Room for the answer, `used` bytes of which are taken, and behind it the request.
    buffer: IoBuffer,
    room: usize,
    used: usize,
    /// Chains that have not ended.
    left: u16,
    failed: u16,
    is_forgotten: bool,
}

impl Vector {
    /// Bytes of memory of a vector, besides its buffer.
    pub(crate) const BYTES: usize = size_of::<Vector>() + size_of::<u32>();

    /// A vector whose request is in `bytes`. `buffer` has room for the answer, and behind it for a copy of these.
    pub(crate) fn new(
        slot: u16,
        (namespace, unit_bytes): (u32, u32),
        (request, bytes): (&PushdownVectorRequest<'_>, &[u8]),
        mut buffer: IoBuffer,
    ) -> Vector {
        let header = request.header();
        let room = header.room_bytes as usize;
        buffer[room..].copy_from_slice(bytes);
        let mut files = [FileVersion::default(); MAX_READS];
        for (to, from) in files.iter_mut().zip(request.files()) {
            *to = FileVersion { id: from.id, version: from.version };
        }
        Vector {
            slot,
            namespace,
            unit_bytes,
            function: header.function,
            files,
            file_count: header.files.into(),
            scratch_bytes: header.effective_scratch_bytes(),
            answer_max_bytes: header.answer_max_bytes,
            chains: request.chains(),
            buffer,
            room,
            used: usize::from(header.chains) * VectorRecord::BYTES,
            left: header.chains,
            failed: 0,
            is_forgotten: false,
        }
    }

    /// The next chain that has not begun: its index and its start parameters.
    #[inline]
    pub(crate) fn next(&mut self, owner: u64) -> Option<(u16, Start<'_>)> {
        let index = self.chains.index();
        let chain = self.chains.next(&self.buffer[self.room..])?;
        let start = Start {
            owner,
            namespace: self.namespace,
            unit_bytes: self.unit_bytes,
            function: self.function,
            files: &self.files[..self.file_count],
            first_file: chain.first.file.into(),
            first_offset_bytes: chain.first.offset_bytes,
            first_size_bytes: chain.first.size_bytes,
            argument: chain.argument,
            scratch_bytes: self.scratch_bytes,
            answer_max_bytes: self.answer_max_bytes,
        };
        Some((index, start))
    }

    /// A chain has succeeded with this answer. Its record says so, or that the vector had no room left for the answer.
    #[inline]
    pub(crate) fn succeeded(&mut self, chain: u16, hops: u32, answer: &[u8]) {
        let (begin, length) = (self.used, answer.len() as u32);
        let Some(place) = self.buffer[..self.room].get_mut(begin..begin + answer.len()) else {
            return self
                .failed(chain, Reply { status: Status::VECTOR_FULL, dw0: length, dw1: hops });
        };
        place.copy_from_slice(answer);
        self.used += answer.len();
        let (status, answer_at) = (Status::SUCCESS, begin as u32);
        self.record(chain, VectorRecord { status, dw0: hops, dw1: length, answer_at });
    }

    /// A chain has failed; `reply` is the reply of a Pushdown command for it.
    pub(crate) fn failed(&mut self, chain: u16, reply: Reply) {
        let Reply { status, dw0, dw1 } = reply;
        self.failed += 1;
        self.record(chain, VectorRecord { status, dw0, dw1, answer_at: 0 });
    }

    #[inline]
    fn record(&mut self, chain: u16, record: VectorRecord) {
        let at = usize::from(chain) * VectorRecord::BYTES;
        self.buffer[at..at + VectorRecord::BYTES].copy_from_slice(&record.to_bytes());
        self.left -= 1;
    }

    /// Gives up a chain because the connection closes. A host that gets this answer sends the chain again elsewhere.
    fn give_up(&mut self, chain: u16) {
        self.failed(chain, Status::COMMAND_INTERRUPTED.into());
    }

    /// Gives up the chains that have not begun, with a record for each if the host may still get the answer.
    fn give_up_unstarted(&mut self, is_heard: bool) {
        let begin = self.chains.index();
        let count = self.chains.left();
        self.chains.skip_all();
        if is_heard && self.left > count {
            return (begin..begin + count).for_each(|chain| self.give_up(chain));
        }
        self.left -= count;
        self.is_forgotten |= count > 0;
    }

    /// Whether its answer, which lacks records, is not sent any more.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.is_forgotten
    }

    /// Whether all of its chains have ended.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// The reply and the answer of the command, all of whose chains have ended.
    pub(crate) fn answer(self) -> (Reply, IoBuffer) {
        let Vector { mut buffer, used, failed, .. } = self;
        buffer.set_len(used);
        let reply = Reply { status: Status::SUCCESS, dw0: failed.into(), dw1: used as u32 };
        (reply, buffer)
    }

    /// Its buffer.
    pub(crate) fn into_buffer(self) -> IoBuffer {
        self.buffer
    }
}

/// The vectors of a connection, each named by its place.
#[derive(Debug, Default)]
pub(crate) struct Vectors {
    places: Vec<Option<Vector>>,
    free: Vec<u32>,
    /// Vectors with chains that have not begun, in the order in which they came.
    unstarted: VecDeque<u32>,
    /// Chains that are in an arena.
    pub(crate) running: u32,
}

impl Vectors {
    /// Whether there are chains that have not begun.
    #[inline]
    pub(crate) fn has_unstarted(&self) -> bool {
        !self.unstarted.is_empty()
    }

    /// The place of the vector whose chain is to begin next.
    #[inline]
    pub(crate) fn next_unstarted(&self) -> Option<u32> {
        self.unstarted.front().copied()
    }

    /// A place for a vector. It must be [put](Self::put) there.
    pub(crate) fn reserve(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        })
    }

    /// Puts a vector into its place. Its chains begin after those of others.
    pub(crate) fn put(&mut self, place: u32, vector: Vector) {
        self.places[place as usize] = Some(vector);
        self.unstarted.push_back(place);
    }

    /// The next chain to begin, of the vector that comes first: see [`Vector::next`].
    #[inline]
    pub(crate) fn next(&mut self, owner: u64) -> Option<(u16, u16, Start<'_>)> {
        let place = *self.unstarted.front()?;
        let vector = self.places[place as usize].as_mut()?;
        if vector.chains.left() == 1 {
            self.unstarted.pop_front();
        }
        let slot = vector.slot;
        vector.next(owner).map(|(index, start)| (slot, index, start))
    }

    /// The vector in a place.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub(crate) fn get(&mut self, place: u32) -> &mut Vector {
        self.places[place as usize].as_mut().expect("the vector stays while its command has a slot")
    }

    /// Takes a vector out.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn take(&mut self, place: u32) -> Vector {
        self.free.push(place);
        let vector = self.places[place as usize].take();
        vector.expect("the vector stays while its command has a slot")
    }

    /// Gives back memory from a busy time, if there is no vector.
    pub(crate) fn shrink(&mut self) {
        if self.free.len() == self.places.len() && self.places.len() > KEPT {
            self.places.clear();
            self.free.clear();
            self.places.shrink_to(KEPT);
            self.free.shrink_to(KEPT);
            self.unstarted.shrink_to(KEPT);
        }
    }

    /// Gives up a chain that rests.
    pub(crate) fn give_up_resting(&mut self, place: u32, chain: u16) {
        self.get(place).give_up(chain);
    }

    /// Gives up all chains that have not begun. Removes and returns the vectors that are over then; the host may still
    /// get the answers of the others.
    pub(crate) fn give_up(&mut self, is_heard: bool) -> Vec<Vector> {
        self.unstarted.clear();
        let mut over = Vec::new();
        for place in 0..self.places.len() {
            let Some(vector) = self.places[place].as_mut() else { continue };
            vector.give_up_unstarted(is_heard);
            if vector.is_over() {
                over.extend(self.places[place].take());
                self.free.push(place as u32);
            }
        }
        over
    }
}
