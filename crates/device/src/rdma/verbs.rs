//! Owned wrappers of the verbs' objects: identifiers of the connection manager, event channels, queue pairs with their
//! memory. Each is destroyed when it is dropped, in the order that the libraries require.
#![allow(unsafe_code)]

use super::sys::{self, Library};
use crate::buffer::IoBuffer;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};

/// Maximum connections waiting to be accepted.
const BACKLOG: c_int = 1024;
/// Completions taken with one call.
pub(super) const BATCH: usize = 32;
/// This bit is set in the ids of receives, and clear in those of works.
const RECEIVE: u64 = 1 << 63;
/// How many times a message without an acknowledgement is sent again (InfiniBand 1.4 §9.9.2.1.1).
const RETRIES: u8 = 7;
/// "Infinite": retries until the peer has posted a receive (InfiniBand 1.4 §9.7.5.2.8).
const RETRY_FOR_EVER: u8 = 7;

/// The result of a call that returns 0, or -1 with an errno.
fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The result of a call that returns null with an errno.
fn created<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

/// A channel for events of the connection manager. Reading it does not wait.
#[derive(Debug)]
pub(super) struct Channel {
    raw: NonNull<sys::EventChannel>,
    library: &'static Library,
}

// SAFETY: the libraries lock shared state, and the pointer has one owner.
unsafe impl Send for Channel {}
// SAFETY: as above; a shared reference only allows taking events, which the library locks.
unsafe impl Sync for Channel {}

/// An event of the connection manager.
pub(super) enum Happened {
    /// A peer requests a connection.
    Request(Id, Asked),
    Other {
        /// The address of the identifier that it concerns.
        of: usize,
        kind: c_int,
        status: c_int,
        /// The private data that the peer sent.
        private_data: Vec<u8>,
    },
}

/// The two completion queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Receives,
    Works,
}

/// The parameters of a request.
pub(super) struct Asked {
    pub(super) private_data: Vec<u8>,
    /// RDMA Reads that the peer answers concurrently.
    pub(super) reads: u8,
}

impl Channel {
    pub(super) fn new() -> io::Result<Channel> {
        let library =
            sys::library().map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why))?;
        // SAFETY: the call has no preconditions.
        let raw = created(unsafe { (library.rdma_create_event_channel)() })?;
        let channel = Channel { raw, library };
        rustix::io::ioctl_fionbio(&channel, true)?;
        Ok(channel)
    }

    /// The next event; `None` if there is none.
    pub(super) fn next(&self) -> io::Result<Option<Happened>> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is valid, and the event pointer is written.
        match check(unsafe { (self.library.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut event) })
        {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            other => other?,
        }
        // SAFETY: the event belongs to this thread until it is acknowledged.
        let (kind, status, param, id) = unsafe {
            let event = &*event;
            (event.kind, event.status, event.param, event.id)
        };
        // Other events have no private data: their parameters are of another kind.
        let has_data = matches!(kind, sys::CONNECT_REQUEST | sys::REJECTED | sys::ESTABLISHED);
        let (from, length) = (param.private_data.cast::<u8>(), usize::from(param.private_data_len));
        let private_data = match has_data && !from.is_null() {
            // SAFETY: the data belongs to the event and has this length.
            true => unsafe { std::slice::from_raw_parts(from, length) }.to_vec(),
            false => Vec::new(),
        };
        let happened = if kind == sys::CONNECT_REQUEST {
            // The event's initiator depth says how many reads this end may have outstanding.
            let asked = Asked { private_data, reads: param.initiator_depth };
            created(id).map(|raw| Happened::Request(Id { raw, library: self.library }, asked))
        } else {
            Ok(Happened::Other { of: id.addr(), kind, status, private_data })
        };
        // SAFETY: the event was taken above, and no part of it is used any more.
        unsafe { (self.library.rdma_ack_cm_event)(event) };
        happened.map(Some)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel has the descriptor open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: owners of identifiers on the channel drop these first.
        unsafe { (self.library.rdma_destroy_event_channel)(self.raw.as_ptr()) }
    }
}

/// An identifier of the connection manager: a listener, or one end of a connection. Dropping the identifier of a
/// request rejects the request.
#[derive(Debug)]
pub(super) struct Id {
    raw: NonNull<sys::CmId>,
    library: &'static Library,
}

// SAFETY: as for `Channel`.
unsafe impl Send for Id {}
// SAFETY: with a shared reference only addresses are read, which do not change.
unsafe impl Sync for Id {}

impl Id {
    /// Whether an event that concerns the identifier at this address is about this one.
    pub(super) fn is(&self, address: usize) -> bool {
        self.raw.addr().get() == address
    }

    /// A new, unbound identifier. Its events arrive on the channel, which must outlive it.
    pub(super) fn new(channel: &Channel) -> io::Result<Id> {
        let mut raw = ptr::null_mut();
        let library = channel.library;
        // SAFETY: the channel is valid, and the pointer is written.
        check(unsafe {
            (library.rdma_create_id)(
                channel.raw.as_ptr(),
                &raw mut raw,
                ptr::null_mut(),
                sys::PS_TCP,
            )
        })?;
        Ok(Id { raw: created(raw)?, library })
    }

    /// Finds the card that reaches an address, within the timeout; an event reports the result.
    pub(super) fn resolve_address(
        &mut self,
        address: SocketAddr,
        timeout_ms: c_int,
    ) -> io::Result<()> {
        let address = socket2::SockAddr::from(address);
        let to = address.as_ptr().cast();
        // SAFETY: the address has the length that its family says, and is copied.
        check(unsafe {
            (self.library.rdma_resolve_addr)(self.raw.as_ptr(), ptr::null(), to, timeout_ms)
        })
    }

    /// Finds a route to the resolved address, within the timeout; an event reports the result.
    pub(super) fn resolve_route(&mut self, timeout_ms: c_int) -> io::Result<()> {
        // SAFETY: the identifier is valid.
        check(unsafe { (self.library.rdma_resolve_route)(self.raw.as_ptr(), timeout_ms) })
    }

    /// Listens at an address. Requests arrive on the channel, which must outlive the identifier.
    pub(super) fn listen(channel: &Channel, address: SocketAddr) -> io::Result<Id> {
        let (library, id) = (channel.library, Id::new(channel)?);
        let address = socket2::SockAddr::from(address);
        // SAFETY: the address has the length that its family says.
        check(unsafe { (library.rdma_bind_addr)(id.raw.as_ptr(), address.as_ptr().cast()) })?;
        // SAFETY: it is bound.
        check(unsafe { (library.rdma_listen)(id.raw.as_ptr(), BACKLOG) })?;
        Ok(id)
    }

    /// The addresses of this end and of the peer.
    pub(super) fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: the identifier is valid, and its addresses do not change.
        let id = unsafe { self.raw.as_ref() };
        Some((address(&id.source)?, address(&id.destination)?))
    }

    /// The address of this end.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        // SAFETY: as in `addresses`.
        address(&unsafe { self.raw.as_ref() }.source)
    }

    /// Moves the identifier to another channel, where its events will arrive.
    pub(super) fn migrate(&mut self, channel: &Channel) -> io::Result<()> {
        // SAFETY: both are valid; all events of the identifier have been acknowledged.
        check(unsafe { (self.library.rdma_migrate_id)(self.raw.as_ptr(), channel.raw.as_ptr()) })
    }

    /// Rejects the request, with at most 148 bytes of private data.
    pub(super) fn reject(&mut self, private_data: &[u8]) -> io::Result<()> {
        debug_assert!(private_data.len() <= 148, "a rejection has room for 148 bytes");
        let (data, length) = (private_data.as_ptr().cast(), private_data.len() as u8);
        // SAFETY: the library copies this many bytes.
        check(unsafe { (self.library.rdma_reject)(self.raw.as_ptr(), data, length) })
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: it has one owner, its queue pair is gone, and all of its events are acknowledged.
        unsafe { (self.library.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

/// The address in a `struct sockaddr_storage`.
fn address(storage: &[u8; 128]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes([storage[0], storage[1]]);
    let port = u16::from_be_bytes([storage[2], storage[3]]);
    match i32::from(family) {
        libc::AF_INET => {
            let ip: &[u8; 4] = storage[4..].first_chunk()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(*ip)), port))
        }
        libc::AF_INET6 => {
            let ip: &[u8; 16] = storage[8..].first_chunk()?;
            let scope = u32::from_ne_bytes(*storage[24..].first_chunk()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(*ip), port, 0, scope).into())
        }
        _ => None,
    }
}

/// Memory that the network card reads and writes.
#[derive(Debug)]
struct Region {
    mr: NonNull<sys::Mr>,
    /// Its address; the field `memory` owns it.
    start: NonNull<u8>,
    length: usize,
    library: &'static Library,
    memory: ManuallyDrop<IoBuffer>,
}

impl Region {
    /// Registers memory for use by this end only, or also by the peer with the key.
    fn new(
        library: &'static Library,
        pd: NonNull<sys::Pd>,
        length: usize,
        is_shared: bool,
    ) -> io::Result<Region> {
        let access = sys::ACCESS_LOCAL_WRITE | if is_shared { sys::ACCESS_REMOTE } else { 0 };
        let mut memory = IoBuffer::new(length);
        let start = NonNull::from(&mut memory[..]).cast::<u8>();
        // SAFETY: the memory has this length, and outlives the registration.
        let mr = created(unsafe {
            let to = start.as_ptr().cast();
            (library.ibv_reg_mr)(pd.as_ptr(), to, length, access)
        })?;
        Ok(Region { mr, start, length, library, memory: ManuallyDrop::new(memory) })
    }

    /// The scatter/gather entry for a part of the region.
    fn part(&self, offset: usize, length: usize) -> sys::Sge {
        assert!(offset + length <= self.length, "the part is within the memory");
        let address = self.start.as_ptr().addr() as u64 + offset as u64;
        // SAFETY: the registration is valid.
        let lkey = unsafe { self.mr.as_ref() }.lkey;
        sys::Sge { address, length: length as u32, lkey }
    }

    /// Writes to a part that the card is not using.
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.length, "the part is within the memory");
        // SAFETY: the part is within the memory, to which there is no other reference.
        unsafe {
            let to = self.start.as_ptr().add(offset);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Reads a part that the card is not using.
    fn read(&self, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= self.length, "the part is within the memory");
        // SAFETY: as in `write`.
        unsafe {
            let from = self.start.as_ptr().add(offset);
            ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the queue pair that used the region is gone.
        let error = unsafe { (self.library.ibv_dereg_mr)(self.mr.as_ptr()) };
        // If this fails, the card may still write to the memory: leak it.
        if error == 0 {
            // SAFETY: it is dropped only here.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// The size of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) receives: u32,
    /// Bytes of each receive.
    pub(super) receive_bytes: usize,
    /// Maximum works posted at a time.
    pub(super) works: u32,
    /// Memory for these works, in bytes.
    pub(super) work_bytes: usize,
    /// Memory that the peer reads and writes by its key, in bytes; 0 is none.
    pub(super) shared_bytes: usize,
}

/// The operation of a work on its part of the memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Does {
    Send,
    Write { address: u64, key: u32 },
    Read { address: u64, key: u32 },
}

/// A work to be posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posting {
    /// Returned with the completion.
    pub(super) number: u64,
    pub(super) does: Does,
    pub(super) offset: usize,
    pub(super) length: usize,
    /// Whether its completion, which covers all works before it, is reported.
    pub(super) is_signaled: bool,
}

/// A completion: success, or an error in words.
#[derive(Debug)]
pub(super) enum Ended {
    /// This receive has a message of this many bytes.
    Receive(u32, Result<usize, String>),
    /// This work has ended, and those before it.
    Work(u64, Result<(), String>),
}

/// A connection's queue pair with its completion queues, memory and identifier.
#[derive(Debug)]
pub(super) struct QueuePair {
    library: &'static Library,
    id: Id,
    /// The channel of `id`, which is dropped before it.
    channel: Channel,
    qp: Option<NonNull<sys::Qp>>,
    parts: Parts,
    size: Size,
    requests: Vec<(sys::SendWr, sys::Sge)>,
    /// Buffer for polled completions.
    ended: Vec<sys::Wc>,
}

/// The components of a queue pair, as far as they have been created.
#[derive(Debug, Default)]
struct Parts {
    pd: Option<NonNull<sys::Pd>>,
    completions: Option<NonNull<sys::CompChannel>>,
    /// Separate queues for receives and works, so that each can be waited for without the other.
    received: Option<NonNull<sys::Cq>>,
    worked: Option<NonNull<sys::Cq>>,
    receives: Option<Region>,
    works: Option<Region>,
    shared: Option<Region>,
}

// SAFETY: all pointers have this one owner, and the libraries are used from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Creates the queue pair for a request, with all receives posted; events of the connection arrive on `channel`. If
    /// that fails, rejects the request with `refusal`.
    pub(super) fn new(
        id: Id,
        channel: Channel,
        size: Size,
        refusal: &[u8],
    ) -> io::Result<QueuePair> {
        let mut queue = QueuePair::of(id, channel, size);
        let QueuePair { id, channel, .. } = &mut queue;
        let created = id.migrate(channel).and_then(|()| queue.create());
        if created.is_err() {
            queue.reject(refusal);
        }
        created.map(|()| queue)
    }

    /// Creates a queue pair to connect with, with all receives posted, for an identifier on `channel` whose route is
    /// resolved.
    pub(super) fn to_connect(id: Id, channel: Channel, size: Size) -> io::Result<QueuePair> {
        let mut queue = QueuePair::of(id, channel, size);
        queue.create().map(|()| queue)
    }

    fn of(id: Id, channel: Channel, size: Size) -> QueuePair {
        QueuePair {
            library: channel.library,
            id,
            channel,
            qp: None,
            parts: Parts::default(),
            size,
            requests: Vec::new(),
            ended: vec![sys::Wc::default(); BATCH],
        }
    }

    fn create(&mut self) -> io::Result<()> {
        let QueuePair { library, id, size, .. } = self;
        // SAFETY: the identifier is valid; that of a request has a device.
        let context = created(unsafe { id.raw.as_ref() }.verbs)?.as_ptr();
        let parts = &mut self.parts;
        // SAFETY: the device's context is valid as long as the identifier.
        let pd = created(unsafe { (library.ibv_alloc_pd)(context) })?;
        parts.pd = Some(pd);
        let receive_bytes = size.receives as usize * size.receive_bytes;
        parts.receives = Some(Region::new(library, pd, receive_bytes, false)?);
        parts.works = Some(Region::new(library, pd, size.work_bytes, false)?);
        if size.shared_bytes > 0 {
            parts.shared = Some(Region::new(library, pd, size.shared_bytes, true)?);
        }
        // SAFETY: as above.
        let completions = created(unsafe { (library.ibv_create_comp_channel)(context) })?;
        parts.completions = Some(completions);
        // SAFETY: the channel has the descriptor open.
        let fd = unsafe { BorrowedFd::borrow_raw(completions.as_ref().fd) };
        rustix::io::ioctl_fionbio(fd, true)?;
        let queue = |entries: u32| {
            let (entries, channel) = (entries as c_int, completions.as_ptr());
            // SAFETY: the context and the channel live longer than the queue.
            created(unsafe {
                (library.ibv_create_cq)(context, entries, ptr::null_mut(), channel, 0)
            })
        };
        let received = queue(size.receives)?;
        parts.received = Some(received);
        let worked = queue(size.works)?;
        parts.worked = Some(worked);
        let mut attributes = sys::QpInitAttr {
            context: ptr::null_mut(),
            send_cq: worked.as_ptr(),
            recv_cq: received.as_ptr(),
            srq: ptr::null_mut(),
            max_send_wr: size.works,
            max_recv_wr: size.receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
            kind: sys::QPT_RC,
            signals_all: 0,
        };
        // SAFETY: everything that the attributes refer to outlives the queue pair.
        check(unsafe {
            (library.rdma_create_qp)(id.raw.as_ptr(), pd.as_ptr(), &raw mut attributes)
        })?;
        // SAFETY: the identifier is valid, and has a queue pair now.
        self.qp = Some(created(unsafe { id.raw.as_ref() }.qp)?);
        (0..self.size.receives).try_for_each(|slot| self.post_receive(slot))
    }

    /// Accepts the request. Allows as many outstanding RDMA Reads as both cards support.
    pub(super) fn accept(&mut self, private_data: &[u8]) -> io::Result<()> {
        let mut param = sys::ConnParam {
            private_data: private_data.as_ptr().cast::<c_void>(),
            private_data_len: private_data.len() as u8,
            responder_resources: 0,
            initiator_depth: sys::MAX_INITIATOR_DEPTH,
            flow_control: 0,
            // Only used by the connecting end.
            retry_count: 0,
            rnr_retry_count: RETRY_FOR_EVER,
            srq: 0,
            qp_num: 0,
        };
        // SAFETY: the library copies the private data.
        check(unsafe { (self.library.rdma_accept)(self.id.raw.as_ptr(), &raw mut param) })
    }

    /// Requests a connection, with at most 56 bytes of private data; an event reports the result. Lets the peer have as
    /// many RDMA Reads outstanding as this end's card answers.
    pub(super) fn connect(&mut self, private_data: &[u8]) -> io::Result<()> {
        debug_assert!(private_data.len() <= 56, "a connection request has room for 56 bytes");
        let mut param = sys::ConnParam {
            private_data: private_data.as_ptr().cast::<c_void>(),
            private_data_len: private_data.len() as u8,
            responder_resources: sys::MAX_RESPONDER_RESOURCES,
            // This end posts no RDMA Reads.
            initiator_depth: 0,
            flow_control: 0,
            retry_count: RETRIES,
            rnr_retry_count: RETRY_FOR_EVER,
            srq: 0,
            qp_num: 0,
        };
        // SAFETY: the library copies the private data.
        check(unsafe { (self.library.rdma_connect)(self.id.raw.as_ptr(), &raw mut param) })
    }

    /// Ends the connection: all posted receives and works end with errors.
    pub(super) fn disconnect(&mut self) {
        // SAFETY: the identifier is valid. The call fails if the peer disconnected first, which does not matter: the
        // queue pair is in its error state then.
        unsafe { (self.library.rdma_disconnect)(self.id.raw.as_ptr()) };
    }

    /// The channel for events of the connection.
    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Readable when there is a completion since [`notify`](Self::notify).
    pub(super) fn completions(&self) -> BorrowedFd<'_> {
        let channel = self.parts.completions.expect("it was made with the queue pair");
        // SAFETY: the channel has the descriptor open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(channel.as_ref().fd) }
    }

    /// Makes [`completions`](Self::completions) readable, once, when the next completion arrives in this queue.
    pub(super) fn notify(&mut self, of: Of) -> io::Result<()> {
        let cq = self.cq(of);
        // SAFETY: the queue and its context are valid.
        let result = unsafe {
            let context = &*cq.as_ref().context;
            (context.ops.req_notify_cq)(cq.as_ptr(), 0)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result.abs())) }
    }

    /// Takes a notification from [`completions`](Self::completions) without waiting: each [`notify`](Self::notify)
    /// causes at most one.
    pub(super) fn take_notification(&mut self) -> Option<Of> {
        let completions = self.parts.completions.expect("it was made with the queue pair");
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is valid; both results are written.
        let result = unsafe {
            let channel = completions.as_ptr();
            (self.library.ibv_get_cq_event)(channel, &raw mut cq, &raw mut context)
        };
        if result != 0 {
            return None;
        }
        // SAFETY: the notification came from this queue, which is valid.
        unsafe { (self.library.ibv_ack_cq_events)(cq, 1) }
        Some(if cq == self.cq(Of::Receives).as_ptr() { Of::Receives } else { Of::Works })
    }

    fn cq(&self, of: Of) -> NonNull<sys::Cq> {
        let cq = match of {
            Of::Receives => self.parts.received,
            Of::Works => self.parts.worked,
        };
        cq.expect("it was made with the queue pair")
    }

    /// Takes at most [`BATCH`] completions.
    pub(super) fn poll(&mut self, of: Of, mut take: impl FnMut(Ended)) -> usize {
        let cq = self.cq(of);
        // SAFETY: the queue and its context are valid; at most `BATCH` completions are written.
        let count = unsafe {
            let context = &*cq.as_ref().context;
            (context.ops.poll_cq)(cq.as_ptr(), BATCH as c_int, self.ended.as_mut_ptr())
        };
        let count = usize::try_from(count).unwrap_or(0).min(BATCH);
        for wc in &self.ended[..count] {
            let outcome = match wc.status {
                0 => Ok(()),
                status => Err(status_words(status, wc.vendor_error)),
            };
            take(match wc.id & RECEIVE {
                0 => Ended::Work(wc.id, outcome),
                _ => Ended::Receive(wc.id as u32, outcome.map(|()| wc.length as usize)),
            });
        }
        count
    }

    /// Posts a receive.
    pub(super) fn post_receive(&mut self, slot: u32) -> io::Result<()> {
        let region = self.parts.receives.as_ref().expect("it was made with the queue pair");
        let bytes = self.size.receive_bytes;
        let mut part = region.part(slot as usize * bytes, bytes);
        let id = RECEIVE | u64::from(slot);
        let mut request =
            sys::RecvWr { id, next: ptr::null_mut(), sge: &raw mut part, sge_count: 1 };
        let (qp, mut bad) = (self.qp(), ptr::null_mut());
        // SAFETY: the queue pair and its context are valid; the request is read before this returns.
        let result = unsafe {
            let context = &*qp.as_ref().context;
            (context.ops.post_recv)(qp.as_ptr(), &raw mut request, &raw mut bad)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result.abs())) }
    }

    /// Copies the message out of a receive that has ended and has not been posted again.
    pub(super) fn received(&self, slot: u32, to: &mut [u8]) {
        let region = self.parts.receives.as_ref().expect("it was made with the queue pair");
        region.read(slot as usize * self.size.receive_bytes, to);
    }

    /// Writes to the memory of works that are not posted.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.parts.works.as_mut().expect("it was made with the queue pair").write(offset, bytes);
    }

    /// Reads the memory of works that have ended.
    pub(super) fn read(&self, offset: usize, to: &mut [u8]) {
        self.parts.works.as_ref().expect("it was made with the queue pair").read(offset, to);
    }

    fn shared(&self) -> &Region {
        self.parts.shared.as_ref().expect("the queue pair was made with shared memory")
    }

    /// The address of the memory that the peer reads and writes, and its key.
    pub(super) fn shared_address(&self) -> (u64, u32) {
        let region = self.shared();
        // SAFETY: the registration is valid.
        let key = unsafe { region.mr.as_ref() }.rkey;
        (region.start.as_ptr().addr() as u64, key)
    }

    /// Writes to a part of the shared memory that the peer has not been told about.
    pub(super) fn write_shared(&mut self, offset: usize, bytes: &[u8]) {
        self.parts
            .shared
            .as_mut()
            .expect("the queue pair was made with shared memory")
            .write(offset, bytes);
    }

    /// Reads a part of the shared memory. The result may be torn if the peer writes to it at the same time.
    pub(super) fn read_shared(&self, offset: usize, to: &mut [u8]) {
        self.shared().read(offset, to);
    }

    /// Posts works with one call.
    pub(super) fn post(&mut self, postings: &[Posting]) -> io::Result<()> {
        let region = self.parts.works.as_ref().expect("it was made with the queue pair");
        self.requests.clear();
        self.requests.extend(postings.iter().map(|posting| request(posting, region)));
        // The vector does not grow from here on, so its elements do not move.
        let first = self.requests.as_mut_ptr();
        for index in 0..self.requests.len() {
            // SAFETY: both elements are in the vector; the second is only used if it exists.
            unsafe {
                let (request, part) = &mut *first.add(index);
                request.sge = part;
                if index + 1 < postings.len() {
                    request.next = &raw mut (*first.add(index + 1)).0;
                }
            }
        }
        if postings.is_empty() {
            return Ok(());
        }
        let (qp, mut bad) = (self.qp(), ptr::null_mut());
        // SAFETY: the queue pair and its context are valid; the requests are read before this returns.
        let result = unsafe {
            let context = &*qp.as_ref().context;
            (context.ops.post_send)(qp.as_ptr(), &raw mut (*first).0, &raw mut bad)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result.abs())) }
    }

    fn qp(&self) -> NonNull<sys::Qp> {
        self.qp.expect("it was made with the rest")
    }

    /// Rejects the request.
    pub(super) fn reject(&mut self, private_data: &[u8]) {
        self.destroy();
        // If this fails the peer gets no answer, and times out.
        let _ = self.id.reject(private_data);
    }

    /// Destroys the queue pair and then its components, in order.
    fn destroy(&mut self) {
        let library = self.library;
        if self.qp.take().is_some() {
            // SAFETY: it belongs to this identifier, and nothing uses it any more.
            unsafe { (library.rdma_destroy_qp)(self.id.raw.as_ptr()) }
        }
        let Parts { pd, completions, received, worked, receives, works, shared } =
            std::mem::take(&mut self.parts);
        // SAFETY: each is destroyed once, after its users; all notifications have been acknowledged.
        unsafe {
            for cq in [received, worked].into_iter().flatten() {
                (library.ibv_destroy_cq)(cq.as_ptr());
            }
            if let Some(completions) = completions {
                (library.ibv_destroy_comp_channel)(completions.as_ptr());
            }
            drop((receives, works, shared));
            if let Some(pd) = pd {
                (library.ibv_dealloc_pd)(pd.as_ptr());
            }
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // The fields are dropped afterwards, in their order.
        self.destroy();
    }
}

fn request(posting: &Posting, region: &Region) -> (sys::SendWr, sys::Sge) {
    let (opcode, remote_address, remote_key) = match posting.does {
        Does::Send => (sys::WR_SEND, 0, 0),
        Does::Write { address, key } => (sys::WR_WRITE, address, key),
        Does::Read { address, key } => (sys::WR_READ, address, key),
    };
    let request = sys::SendWr {
        id: posting.number,
        next: ptr::null_mut(),
        sge: ptr::null_mut(),
        sge_count: 1,
        opcode,
        flags: if posting.is_signaled { sys::SEND_SIGNALED } else { 0 },
        _immediate: 0,
        remote_address,
        remote_key,
        _rest: [0; 19],
    };
    (request, region.part(posting.offset, posting.length))
}

/// The description of a completion's status (`enum ibv_wc_status`).
fn status_words(status: c_int, vendor_error: u32) -> String {
    let words = match status {
        1 => "a message is longer than its receive",
        4 => "local protection error: a wrong key, address or length on this side",
        5 => "flushed",
        9 => "the peer reports an invalid request",
        10 => "remote access error: a wrong key, address or length of the peer's memory",
        11 => "the peer has failed",
        12 => "the peer does not answer",
        13 => "the peer posts no receives",
        _ => return format!("status {status} (vendor's {vendor_error:#x})"),
    };
    words.to_owned()
}
