//! The interface between a reactor and its environment, and messages to a reactor.

use crate::authenticator::{Authenticated, Authentication};
use crate::controller::Controller;
use crate::executor::Executor;
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
use bpfof_nvme::rdma::{ConnectReject, RejectStatus};
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

/// A reactor's interface to its environment. Connections are named by their index. Each operation that is begun here
/// ends with a call of one of the [`completions`](super::completions).
pub(crate) trait Io {
    /// The time on the reactor's clock.
    fn now_ns(&mut self) -> u64;

    /// Notes work of this many units, so that simulated work takes time.
    fn spend(&mut self, _units: u64) {}

    /// Whether there are events that the next turn takes.
    fn has_news(&mut self) -> bool;

    /// Receives into `buffer[filled..]`.
    fn receive(&mut self, connection: u32, buffer: Vec<u8>, filled: usize);

    /// Sends all of `outgoing` if it owns its bytes, or, with `in_parts`, a part of it; otherwise as much as can be
    /// sent at once.
    fn send(&mut self, connection: u32, outgoing: Box<Outgoing>, in_parts: bool);

    /// Posts works, in this order.
    fn post(&mut self, connection: u32, works: Vec<Work>);

    /// Asks to be told when the next posted work has ended, because the connection waits for it.
    fn tell_next(&mut self, _connection: u32) {}

    /// Begins an operation on a file, or a read of a chain into its arena.
    fn file(&mut self, executor: &mut Executor, operation: FileOperation);

    /// Shuts down one or both directions.
    fn shut(&mut self, connection: u32, half: Shut);

    /// Closes the connection and frees its index.
    fn close(&mut self, connection: u32);

    /// Whether the other end has closed the connection, or it is broken.
    fn has_hung_up(&mut self, connection: u32) -> bool;

    /// How many bytes the peer has taken, in all.
    fn taken_bytes(&mut self, connection: u32) -> u64;

    /// Compiles a function in the background.
    fn load(&mut self, load: Load);

    /// Does the arithmetic of an authentication in the background.
    fn authenticate(&mut self, work: Authentication);

    /// Cancels compilations and calculations of a connection.
    fn cancel(&mut self, serial: u64);

    /// Sends [`Message::Fenced`] to this reactor once all reactors of the target have dropped a [`Fence`].
    fn fence(&mut self, fenced: Vec<Fenced>);

    /// Sends a message to all reactors of the target, including this one.
    fn tell_all(&mut self, message: &dyn Fn() -> Message);
}

/// The transport endpoint of a connection.
#[derive(Debug)]
pub(crate) enum Link {
    Socket(OwnedFd, Option<Box<Secure>>),
    Fabric(Endpoint),
    /// A request that the reactor has not accepted yet.
    Asked(Box<Asked>),
    Rdma(Box<rdma::Endpoint>),
}

impl Link {
    /// Refuses it for lack of room: hosts by RDMA get the status, others see the connection closed.
    pub(crate) fn refuse(self) {
        if let Link::Asked(asked) = self {
            asked.request.reject(&no_resources());
        }
    }
}

/// The answer to a host by RDMA for which there is no room.
pub(super) fn no_resources() -> [u8; ConnectReject::BYTES] {
    ConnectReject { status: RejectStatus::NO_RESOURCES }.to_bytes()
}

/// A connection that a host asks for by RDMA.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request: rdma::Request,
    /// The sizes that follow from the request.
    pub(crate) shape: rdma::Shape,
    /// The queue id that the host asks for.
    pub(crate) qid: u16,
}

/// Shared by the reactors that have not passed it yet: the last to drop it reports that all have. A reactor that has
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

/// Messages to a reactor.
pub(crate) enum Message {
    /// End the I/O queues of this controller, and perhaps its admin queue. The chains of a host that still waits for them
    /// are not cut short.
    EndQueues { controller: Arc<Controller>, and_admin: bool, cuts_chains: bool },
    /// Serve these namespaces from now on and no others; then drop the sender.
    Serve(Arc<[Served]>, Sender<()>),
    /// Namespaces or the discovery log have changed: tell the hosts.
    NamespacesChanged,
    /// States of listeners have changed: take them over, tell the hosts, and drop the sender.
    PathsChanged(Sender<()>),
    /// End all connections of this listener.
    EndListener(u16),
    /// A compilation has ended, successfully or not.
    Loaded(Box<Loaded>),
    /// The arithmetic of an authentication has been done.
    Authenticated(Box<Authenticated>),
    /// Drop this between two operations.
    Fence(Arc<Fence>),
    /// All reactors have dropped the fence of these commands.
    Fenced(Vec<Fenced>),
    /// Answer, to show that the reactor responds.
    Pulse(Sender<()>),
    /// Report the reactor's state and counters.
    Report(Sender<(usize, Part)>),
    /// Report the slowest commands.
    Slowest(Sender<(usize, Vec<CommandRecord>)>),
    /// Begin a trace.
    BeginTrace(Trace),
    /// End a trace.
    EndTrace(u64),
    /// Finish commands in flight that do not wait for others, then end.
    Stop,
}

impl Message {
    /// Ends all queues of a controller whose host waits for nothing any more, or may not.
    pub(crate) fn end(controller: &Arc<Controller>) -> Message {
        let controller = Arc::clone(controller);
        Message::EndQueues { controller, and_admin: true, cuts_chains: true }
    }
}
