//! TLS handshakes, beside the reactors: each on a thread of its own, for as long as Connect may take.

use crate::access::{Handshaken, Reason};
use crate::config::{TargetConfig, TlsMode};
use crate::connection::Endpoints;
use crate::hosts::AddressSlot;
use crate::limits::{CONNECT_TIMEOUT_NS, MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ADDRESS};
use crate::registry::Registry;
use crate::transport::secure::Secure;
use bpfof_tls::ktls::{self, KtlsError};
use bpfof_tls::{HandshakeError, Psk, PskHash, PskStore, Secured};
use std::collections::HashMap;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Stack of a thread, in bytes: the library's handshake takes some tens of KiB.
const STACK_BYTES: usize = 256 << 10;

/// A connection that has been accepted: its socket, where it came from, and its place in the count.
pub(crate) type Accepted = (OwnedFd, Endpoints, AddressSlot);

/// What takes connections whose handshake is over.
pub(crate) type Deliver = Arc<dyn Fn(Accepted, Option<Box<Secure>>) + Send + Sync>;

/// Shakes hands.
pub(crate) struct Handshakes {
    registry: Arc<Registry>,
    store: Arc<dyn PskStore>,
    /// Connections without TLS are refused.
    is_required: bool,
    /// The kernel takes the records, if it can.
    by_kernel: bool,
    running: Arc<Running>,
    deliver: Deliver,
}

/// Handshakes that have begun and not ended, by address.
#[derive(Debug, Default)]
struct Running(Mutex<HashMap<IpAddr, usize>>);

impl Running {
    /// Counts one; false if there are too many.
    fn begin(&self, address: IpAddr) -> bool {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = running.values().sum();
        let its = running.entry(address).or_insert(0);
        let has_room = all < MAX_HANDSHAKES && *its < MAX_HANDSHAKES_OF_ADDRESS;
        *its += usize::from(has_room);
        running.retain(|_, count| *count > 0);
        has_room
    }

    fn end(&self, address: IpAddr) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(its) = running.get_mut(&address) {
            *its -= 1;
        }
        running.retain(|_, count| *count > 0);
    }
}

/// The keys of the rules as they are when a host comes.
struct Keys(Arc<Registry>);

impl PskStore for Keys {
    fn find(&self, identity: &[u8], _binder: PskHash) -> Option<Psk> {
        self.0.rules().psk(std::str::from_utf8(identity).ok()?)
    }
}

impl Handshakes {
    pub(crate) fn new(
        registry: &Arc<Registry>,
        config: &TargetConfig,
        deliver: Deliver,
    ) -> Handshakes {
        Handshakes {
            registry: Arc::clone(registry),
            store: Arc::new(Keys(Arc::clone(registry))),
            is_required: config.tls() == TlsMode::Required,
            by_kernel: config.kernel_tls,
            running: Arc::default(),
            deliver,
        }
    }

    /// Begins a handshake with a host that has just been accepted.
    pub(crate) fn begin(&self, accepted: Accepted) {
        let address = accepted.1.peer.ip();
        if !self.running.begin(address) {
            self.registry.denials.count(Reason::Handshake);
            self.registry.handshakes.count(Handshaken::Refused);
            log::warn!(
                "{address}: refused: it has {MAX_HANDSHAKES_OF_ADDRESS} TLS handshakes, or \
                        all have {MAX_HANDSHAKES}, which are the limits"
            );
            return;
        }
        let handshake = Handshake {
            registry: Arc::clone(&self.registry),
            store: Arc::clone(&self.store),
            is_required: self.is_required,
            by_kernel: self.by_kernel,
            deliver: Arc::clone(&self.deliver),
            counted: Counted { running: Arc::clone(&self.running), address },
        };
        let thread = std::thread::Builder::new().name("handshake".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || handshake.run(accepted)) {
            log::error!("{address}: refused: no thread for its TLS handshake: {error}");
        }
    }
}

/// One that runs, counted as long as this lives.
struct Counted {
    running: Arc<Running>,
    address: IpAddr,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.running.end(self.address);
    }
}

struct Handshake {
    registry: Arc<Registry>,
    store: Arc<dyn PskStore>,
    is_required: bool,
    by_kernel: bool,
    deliver: Deliver,
    counted: Counted,
}

impl Handshake {
    fn run(self, (socket, ends, slot): Accepted) {
        let deadline = Instant::now() + Duration::from_nanos(CONNECT_TIMEOUT_NS);
        let socket = TcpStream::from(socket);
        let outcome = match bpfof_tls::accept(&socket, &self.store, deadline) {
            Ok(secured) => self.secure(&socket, secured).map(Some),
            Err(HandshakeError::NotTls { .. }) if !self.is_required => Ok(None),
            // Who only looks whether somebody listens is no attacker.
            Err(error @ HandshakeError::NothingSent) => {
                return log::debug!("{}: {error}", ends.peer);
            }
            Err(error) => Err(error.to_string()),
        };
        drop(self.counted);
        self.registry.handshakes.count(match &outcome {
            Ok(Some(secure)) if secure.is_by_kernel() => Handshaken::Kernel,
            Ok(Some(_)) => Handshaken::Process,
            Ok(None) => Handshaken::Plain,
            Err(_) => Handshaken::Failed,
        });
        match outcome {
            Ok(secure) => (self.deliver)((socket.into(), ends, slot), secure.map(Box::new)),
            Err(why) => {
                self.registry.denials.count(Reason::Handshake);
                log::warn!("{} refused: {why}", ends.peer);
            }
        }
    }

    /// Hands the keys over to the kernel, or to records of our own.
    fn secure(&self, socket: &TcpStream, secured: Secured) -> Result<Secure, String> {
        let rules = self.registry.rules();
        // Its key may just have been taken away.
        let identity = rules.identity(&secured.identity).cloned();
        let identity = identity.ok_or("its key has been removed from the rules")?;
        let (host, suite) = (identity.host_nqn.clone(), secured.suite.name());
        let taken = self.by_kernel.then(|| ktls::enable(socket.as_fd(), &secured));
        let (how, secure) = match taken {
            Some(Ok(())) => ("by the kernel", Secure::by_kernel(identity)),
            Some(Err(KtlsError::Unavailable(_))) | None => {
                let here = Secure::here(identity, secured).map_err(|error| error.to_string())?;
                ("in this process", here)
            }
            Some(Err(half @ KtlsError::Half(_))) => return Err(half.to_string()),
        };
        log::debug!("{host}: TLS with {suite}, records {how}");
        Ok(secure)
    }
}
