//! What a reactor needs of the world, and what others ask of it.

use crate::authenticator::{Authenticated, Authentication};
use crate::connection::Endpoints;
use crate::controller::Controller;
use crate::executor::Executor;
use crate::hosts::AddressSlot;
use crate::loader::{Load, Loaded};
use crate::namespace_table::Served;
use crate::observe::record::CommandRecord;
use crate::observe::tracer::Trace;
use crate::operation::{Fenced, FileOperation};
use crate::reporting::Part;
use crate::transport::secure::Secure;
use bpfof_device::Outgoing;
use bpfof_device::fabric::{Endpoint, Work};
use bpfof_device::rdma;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Which half of a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shut {
    /// Nothing more is received; what is being sent still goes out.
    Receive,
    /// Nothing is sent any more either.
    Both,
}

/// What a reactor needs of the world. Connections are named by their index. Whatever is begun here ends
/// with a call of one of the [`completions`](super::completions).
pub(crate) trait Io {
    /// The time on the reactor's clock.
    fn now_ns(&mut self) -> u64;

    /// Work has been done that costs so many units: what is simulated takes its time.
    fn spend(&mut self, _units: u64) {}

    /// Whether something has happened that the next turn takes.
    fn has_news(&mut self) -> bool;

    /// Receives into `buffer[filled..]`.
    fn receive(&mut self, connection: u32, buffer: Vec<u8>, filled: usize);

    /// Sends all of `outgoing` if it is its own, or, with `in_parts`, some of it; else as much as can be
    /// sent at once.
    fn send(&mut self, connection: u32, outgoing: Box<Outgoing>, in_parts: bool);

    /// Posts works, in this order.
    fn post(&mut self, connection: u32, works: Vec<Work>);

    /// Tells when the next of what was posted has ended: the connection waits for it.
    fn tell_next(&mut self, _connection: u32) {}

    /// Begins an operation on a file, or a read of a chain into its arena.
    fn file(&mut self, executor: &mut Executor, operation: FileOperation);

    /// Ends one or both directions.
    fn shut(&mut self, connection: u32, half: Shut);

    /// The connection is over, and its index free.
    fn close(&mut self, connection: u32);

    /// Whether the other end has closed the connection, or it is broken.
    fn has_hung_up(&mut self, connection: u32) -> bool;

    /// How many bytes the peer has taken, in all.
    fn taken_bytes(&mut self, connection: u32) -> u64;

    /// Compiles a function, beside everything else.
    fn load(&mut self, load: Load);

    /// Does the arithmetic of an authentication, beside everything else.
    fn authenticate(&mut self, work: Authentication);

    /// Nobody waits for what a connection has asked to be compiled or calculated.
    fn cancel(&mut self, serial: u64);

    /// Waits until all reactors of the target have passed a turn, and says so by [`Message::Fenced`].
    fn fence(&mut self, fenced: Vec<Fenced>);

    /// Tells all reactors of the target, this one too.
    fn tell_all(&mut self, message: &dyn Fn() -> Message);
}

/// What carries a connection.
#[derive(Debug)]
pub(crate) enum Link {
    Socket(OwnedFd, Option<Box<Secure>>),
    Fabric(Endpoint),
    /// Until the reactor accepts it.
    Asked(Box<Asked>),
    Rdma(Box<rdma::Endpoint>),
}

/// A connection that a host asks for by RDMA.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: rdma::Request,
    /// What of its size the request says.
    pub(crate) shape: rdma::Shape,
    /// The queue that it is to be.
    pub(crate) qid: u16,
}

/// Shared by those who have yet to pass a turn: the last to drop it tells that all have. One that has
/// ended drops it as well.
pub(crate) struct Fence(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Fence {
    /// Calls `all_passed` once.
    pub(crate) fn new(all_passed: impl FnOnce() + Send + Sync + 'static) -> Arc<Fence> {
        Arc::new(Fence(Some(Box::new(all_passed))))
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        if let Some(all_passed) = self.0.take() {
            all_passed();
        }
    }
}

/// What others ask of a reactor.
pub(crate) enum Message {
    /// Serve this connection.
    Adopt(Link, Endpoints, AddressSlot),
    /// End the I/O queues of this controller; with `true` also its admin queue.
    EndQueues(Arc<Controller>, bool),
    /// Serve these namespaces from now on and no others; then drop the sender.
    Serve(Arc<[Served]>, Sender<()>),
    /// Namespaces or the discovery log have changed: tell the hosts.
    NamespacesChanged,
    /// States of listeners have changed: act by them, tell the hosts, and drop the sender.
    PathsChanged(Sender<()>),
    /// End all connections of this listener.
    EndListener(u16),
    /// A function has been compiled, or not.
    Loaded(Box<Loaded>),
    /// The arithmetic of an authentication has been done.
    Authenticated(Box<Authenticated>),
    /// Drop this, between two operations.
    Fence(Arc<Fence>),
    /// All reactors have passed a turn since these commands changed something.
    Fenced(Vec<Fenced>),
    /// Give this sign of life.
    Pulse(Sender<()>),
    /// Tell what there is to tell.
    Report(Sender<(usize, Part)>),
    /// Tell which commands were slowest.
    Slowest(Sender<(usize, Vec<CommandRecord>)>),
    /// Somebody traces.
    BeginTrace(Trace),
    /// Somebody does not trace any more.
    EndTrace(u64),
    /// Finish what is in flight and end.
    Stop,
}
