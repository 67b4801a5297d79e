//! Data to be sent in one go: own bytes, interleaved with lent memory that is not copied.
#![allow(unsafe_code)]

use crate::buffer::IoBuffer;
use crate::memory::MemoryNamespace;
use std::sync::Arc;

/// Shorter pieces are copied: that costs less than one more entry for the kernel to process.
const MIN_LENT_BYTES: usize = 2048;
/// Maximum lent pieces. Own bytes may precede each, and the kernel takes 1024 entries (UIO_MAXIOV).
const MAX_LENT: usize = 500;

/// Bytes to be sent on a socket, which may be in several places in memory.
///
/// Lent memory is read when it is sent: a namespace in memory sends its contents at that time. If the socket does not
/// take everything at once, [`copy_rest`](Self::copy_rest) copies the rest.
#[derive(Debug)]
pub struct Outgoing {
    own: Vec<u8>,
    lent: Vec<Lent>,
    lent_bytes: usize,
    /// The namespaces that `lent` refers to.
    memories: Vec<Arc<MemoryNamespace>>,
    /// The memory ranges of the whole data in order, for the kernel.
    places: Vec<libc::iovec>,
    header: libc::msghdr,
}

// SAFETY: the pointers in `places` and `header` point to memory that this structure owns or keeps alive, none of which
// has thread affinity; only the kernel follows them, and `header` sets them anew each time.
unsafe impl Send for Outgoing {}

/// A lent piece, which is sent after the first `after` own bytes.
#[derive(Debug)]
struct Lent {
    after: usize,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// `length` bytes at `offset` of the namespace with index `memory`.
    Memory {
        memory: usize,
        offset: u64,
        length: usize,
    },
    Buffer(IoBuffer),
}

impl Default for Outgoing {
    /// No data.
    fn default() -> Outgoing {
        let header = libc::msghdr {
            msg_name: std::ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: std::ptr::null_mut(),
            msg_iovlen: 0,
            msg_control: std::ptr::null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        };
        Outgoing {
            own: Vec::new(),
            lent: Vec::new(),
            lent_bytes: 0,
            memories: Vec::new(),
            places: Vec::new(),
            header,
        }
    }
}

impl Outgoing {
    /// Number of bytes in all.
    #[inline]
    pub fn len(&self) -> usize {
        self.own.len() + self.lent_bytes
    }

    /// Whether there is no data to send.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The own bytes: bytes appended here follow all data so far, lent pieces included.
    #[inline]
    pub fn own(&mut self) -> &mut Vec<u8> {
        &mut self.own
    }

    /// Adds `length` bytes at `offset` of a namespace. Lends them, and keeps the namespace until they are sent, unless
    /// they are few; copies them without `may_lend`.
    ///
    /// # Panics
    /// If the range leaves the namespace.
    #[inline]
    pub fn add_memory(
        &mut self,
        memory: &Arc<MemoryNamespace>,
        (offset, length): (u64, usize),
        may_lend: bool,
    ) {
        if !may_lend || length < MIN_LENT_BYTES || self.lent.len() >= MAX_LENT {
            return memory.append(offset, length, &mut self.own);
        }
        memory.place(offset, length);
        let known = self.memories.iter().position(|known| Arc::ptr_eq(known, memory));
        let memory = known.unwrap_or_else(|| {
            self.memories.push(Arc::clone(memory));
            self.memories.len() - 1
        });
        self.lend(length, Source::Memory { memory, offset, length });
    }

    /// Adds a buffer. Returns it if its bytes were copied: without `may_lend`, or because they are few or much fewer
    /// than the buffer's capacity.
    #[inline]
    pub fn add_buffer(&mut self, buffer: IoBuffer, may_lend: bool) -> Option<IoBuffer> {
        let is_short = buffer.len() < MIN_LENT_BYTES.max(buffer.capacity() / 2);
        if !may_lend || is_short || self.lent.len() >= MAX_LENT {
            self.own.extend_from_slice(&buffer);
            return Some(buffer);
        }
        self.lend(buffer.len(), Source::Buffer(buffer));
        None
    }

    fn lend(&mut self, length: usize, source: Source) {
        self.lent_bytes += length;
        self.lent.push(Lent { after: self.own.len(), source });
    }

    /// Removes all data, keeping capacity for at most `keep_bytes` own bytes, and returns its buffers.
    pub fn clear(&mut self, keep_bytes: usize, mut give_back: impl FnMut(IoBuffer)) {
        self.own.clear();
        self.own.shrink_to(keep_bytes);
        self.memories.clear();
        self.lent_bytes = 0;
        for lent in self.lent.drain(..) {
            if let Source::Buffer(buffer) = lent.source {
                give_back(buffer);
            }
        }
    }

    /// Removes the first `sent` bytes, copies the rest to own bytes, and returns its buffers.
    pub fn copy_rest(&mut self, sent: usize, give_back: impl FnMut(IoBuffer)) {
        if self.is_own() {
            self.own.drain(..sent);
            return;
        }
        let bytes = self.to_bytes();
        self.clear(usize::MAX, give_back);
        self.own.extend_from_slice(&bytes[sent..]);
    }

    /// All bytes in one piece, as the peer receives them.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        let mut at = 0;
        for Lent { after, source } in &self.lent {
            bytes.extend_from_slice(&self.own[at..*after]);
            at = *after;
            match source {
                Source::Memory { memory, offset, length } => {
                    self.memories[*memory].append(*offset, *length, &mut bytes);
                }
                Source::Buffer(buffer) => bytes.extend_from_slice(buffer),
            }
        }
        bytes.extend_from_slice(&self.own[at..]);
        bytes
    }

    /// Whether all bytes are own bytes.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.lent.is_empty()
    }

    /// The `msghdr` for sendmsg. It points into `self`, which must be neither moved nor changed while the kernel may
    /// read it.
    pub(crate) fn header(&mut self) -> *const libc::msghdr {
        let own = self.own.as_ptr();
        self.places.clear();
        let mut place = |from: *const u8, length: usize| {
            if length > 0 {
                self.places.push(libc::iovec { iov_base: from.cast_mut().cast(), iov_len: length });
            }
        };
        let mut at = 0;
        for Lent { after, source } in &self.lent {
            place(own.wrapping_add(at), after - at);
            at = *after;
            match source {
                Source::Memory { memory, offset, length } => {
                    place(self.memories[*memory].place(*offset, *length), *length);
                }
                Source::Buffer(buffer) => place(buffer.as_ptr(), buffer.len()),
            }
        }
        place(own.wrapping_add(at), self.own.len() - at);
        self.header.msg_iov = self.places.as_mut_ptr();
        self.header.msg_iovlen = self.places.len() as _;
        &raw const self.header
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Ring};
    use proptest::prelude::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[derive(Clone, Debug)]
    enum Add {
        Own(Vec<u8>),
        /// Offset and length.
        Memory(u64, usize),
        /// A buffer with this many copies of a byte.
        Buffer(usize, u8),
    }

    fn add() -> impl Strategy<Value = Add> {
        let length = || prop_oneof![1..100usize, 2000..2100usize, 4096..=4096usize, 1..40_000usize];
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..100).prop_map(Add::Own),
            (0..60_000u64, length()).prop_map(|(offset, length)| Add::Memory(offset, length)),
            (length(), any::<u8>()).prop_map(|(length, byte)| Add::Buffer(length, byte)),
        ]
    }

    fn namespace() -> Arc<MemoryNamespace> {
        let memory = MemoryNamespace::new(100_000, None).expect("fits");
        memory.write(0, &(0..100_000u32).map(|at| (at % 253) as u8).collect::<Vec<_>>());
        Arc::new(memory)
    }

    /// Sends the data on a socket that may take less than all of it at a time. Returns the bytes that arrived, how many
    /// buffers were returned, and whether a rest had to be copied.
    fn send(ring: &mut Ring, outgoing: Box<Outgoing>) -> (Vec<u8>, usize, bool) {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let length = outgoing.len();
        let reader = std::thread::spawn(move || {
            let mut arrived = vec![0; length];
            theirs.read_exact(&mut arrived).expect("all of it");
            arrived
        });
        let (mut outgoing, mut buffers, mut copied) = (outgoing, 0, false);
        loop {
            let (length, is_own) = (outgoing.len(), outgoing.is_own());
            ring.send(ours.as_raw_fd(), outgoing, false, 7);
            let sent = loop {
                ring.submit(Some(Duration::from_secs(10))).expect("the kernel answers");
                if let Some(completion) = ring.completion() {
                    break completion;
                }
            };
            let Some(Buffer::Outgoing(came_back)) = sent.buffer else { panic!("it comes back") };
            outgoing = came_back;
            if sent.result == length as i32 {
                break;
            }
            assert!(!is_own && sent.result > 0, "{}", sent.result);
            outgoing.copy_rest(sent.result as usize, |_| buffers += 1);
            assert!(outgoing.is_own() && outgoing.len() == length - sent.result as usize);
            copied = true;
        }
        outgoing.clear(0, |_| buffers += 1);
        assert!(outgoing.is_empty() && outgoing.to_bytes().is_empty());
        (reader.join().expect("it arrives"), buffers, copied)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn arrives_in_order(adds in prop::collection::vec((add(), prop::bool::weighted(0.8)), 1..30)) {
            let memories = [namespace(), namespace()];
            let (mut outgoing, mut expected, mut lent) = (Box::<Outgoing>::default(), Vec::new(), 0);
            for (index, (add, may_lend)) in adds.into_iter().enumerate() {
                match add {
                    Add::Own(bytes) => {
                        expected.extend_from_slice(&bytes);
                        outgoing.own().extend_from_slice(&bytes);
                    }
                    Add::Memory(offset, length) => {
                        let memory = &memories[index % 2];
                        memory.append(offset, length, &mut expected);
                        outgoing.add_memory(memory, (offset, length), may_lend);
                    }
                    Add::Buffer(length, byte) => {
                        let mut buffer = IoBuffer::new(length);
                        buffer.fill(byte);
                        expected.extend_from_slice(&buffer);
                        let copied = outgoing.add_buffer(buffer, may_lend).is_some();
                        prop_assert_eq!(copied, !may_lend || length < MIN_LENT_BYTES);
                        lent += usize::from(!copied);
                    }
                }
                prop_assert_eq!(outgoing.len(), expected.len());
            }
            prop_assert!(outgoing.to_bytes() == expected);
            let (arrived, buffers, _) = send(&mut Ring::new(4).expect("a ring"), outgoing);
            prop_assert!(arrived == expected);
            prop_assert_eq!(buffers, lent);
        }
    }

    /// More pieces than the kernel takes at a time.
    #[test]
    fn many_pieces_arrive() {
        let memory = namespace();
        let (mut outgoing, mut expected) = (Box::<Outgoing>::default(), Vec::new());
        for piece in 0..3000u64 {
            outgoing.own().push(piece as u8);
            outgoing.add_memory(&memory, (piece, 4096), true);
            expected.push(piece as u8);
            memory.append(piece, 4096, &mut expected);
        }
        let (arrived, _, copied) = send(&mut Ring::new(4).expect("a ring"), outgoing);
        assert!(arrived == expected);
        assert!(copied, "no socket takes that much at once");
    }

    /// A large buffer is not held for a small piece.
    #[test]
    fn large_buffers_are_reused() {
        let mut buffer = IoBuffer::new(128 << 10);
        buffer.set_len(4096);
        let mut outgoing = Outgoing::default();
        assert!(outgoing.add_buffer(buffer, true).is_some());
        assert!(outgoing.is_own() && outgoing.len() == 4096);
    }

    /// A namespace stays alive after its removal until its lent pieces have been sent.
    #[test]
    fn a_namespace_stays_until_its_pieces_are_sent() {
        let memory = namespace();
        let mut outgoing = Box::<Outgoing>::default();
        outgoing.add_memory(&memory, (5, 5000), true);
        outgoing.add_memory(&memory, (9, 5000), true);
        assert_eq!(Arc::strong_count(&memory), 2, "one hold, however many pieces");
        let expected = outgoing.to_bytes();
        drop(memory);
        assert!(send(&mut Ring::new(4).expect("a ring"), outgoing).0 == expected);
    }
}
