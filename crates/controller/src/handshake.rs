//! TLS handshakes, beside the reactors: each on a thread of its own, for as long as Connect may take.

use crate::access::{Handshaken, Reason};
use crate::command_log::StrangersLog;
use crate::config::{TargetConfig, TlsMode};
use crate::connection::Endpoints;
use crate::hosts::AddressSlot;
use crate::limits::{CONNECT_TIMEOUT_NS, MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ADDRESS};
use crate::registry::Registry;
use crate::transport::secure::Secure;
use bpfof_tls::ktls::{self, KtlsError};
use bpfof_tls::{HandshakeError, Psk, PskHash, PskStore, Secured};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    log: Arc<StrangersLog>,
    deliver: Deliver,
}

/// Handshakes that have begun and not ended.
#[derive(Debug, Default)]
struct Running(Mutex<Begun>);

#[derive(Debug, Default)]
struct Begun {
    last_number: u64,
    /// By address the number of each that goes on, and its socket, the oldest first.
    of_address: HashMap<IpAddr, VecDeque<(u64, Arc<TcpStream>)>>,
    /// All that have a thread, also those that had to go.
    threads: usize,
}

impl Begun {
    fn count(&self) -> usize {
        self.of_address.values().map(VecDeque::len).sum()
    }

    /// The address that has to give one up for another of `address`, if there are too many: the one with
    /// most, and of those with as many the one whose first has begun before.
    fn greediest(&self, address: IpAddr) -> Option<IpAddr> {
        let its = self.of_address.get(&address).map_or(0, VecDeque::len);
        if its >= MAX_HANDSHAKES_OF_ADDRESS {
            return Some(address);
        }
        if self.count() < MAX_HANDSHAKES {
            return None;
        }
        let key = |all: &VecDeque<(u64, _)>| (all.len(), Reverse(all.front().map(|first| first.0)));
        let greediest = self.of_address.iter().max_by_key(|(_, all)| key(all));
        greediest.map(|(address, _)| *address)
    }
}

impl Running {
    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one, and gives its number; none if threads have not ended yet that had to. Whoever only begins
    /// handshakes keeps nobody out: if there are too many, one of those who have most is given up.
    fn begin(&self, address: IpAddr, socket: &Arc<TcpStream>) -> Option<u64> {
        let mut begun = self.begun();
        if begun.threads >= 2 * MAX_HANDSHAKES {
            return None;
        }
        if let Some(greediest) = begun.greediest(address)
            && let Some(its) = begun.of_address.get_mut(&greediest)
            && let Some((_, goes)) = its.pop_front()
        {
            // Its thread sees that, and ends.
            let _ = goes.shutdown(Shutdown::Both);
        }
        begun.threads += 1;
        begun.last_number += 1;
        let number = begun.last_number;
        begun.of_address.entry(address).or_default().push_back((number, Arc::clone(socket)));
        begun.of_address.retain(|_, its| !its.is_empty());
        Some(number)
    }

    fn end(&self, address: IpAddr, number: u64) {
        let mut begun = self.begun();
        begun.threads -= 1;
        if let Some(its) = begun.of_address.get_mut(&address) {
            its.retain(|(other, _)| *other != number);
            if its.is_empty() {
                begun.of_address.remove(&address);
            }
        }
    }

    /// Whether it had to go for another.
    fn had_to_go(&self, address: IpAddr, number: u64) -> bool {
        let begun = self.begun();
        let its = begun.of_address.get(&address);
        !its.is_some_and(|its| its.iter().any(|(other, _)| *other == number))
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
            log: Arc::default(),
            deliver,
        }
    }

    /// Begins a handshake with a host that has just been accepted.
    pub(crate) fn begin(&self, (socket, ends, slot): Accepted) {
        let address = ends.peer.ip();
        let socket = Arc::new(TcpStream::from(socket));
        let Some(number) = self.running.begin(address, &socket) else {
            self.registry.denials.count(Reason::Handshake);
            self.registry.handshakes.count(Handshaken::Refused);
            let what = "refused: as many TLS handshakes as may be have had to go and not ended";
            self.log.warn(address, format_args!("{what}"));
            return;
        };
        let handshake = Handshake {
            registry: Arc::clone(&self.registry),
            store: Arc::clone(&self.store),
            is_required: self.is_required,
            by_kernel: self.by_kernel,
            deliver: Arc::clone(&self.deliver),
            log: Arc::clone(&self.log),
            counted: Counted { running: Arc::clone(&self.running), address, number },
        };
        let thread = std::thread::Builder::new().name("handshake".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || handshake.run(socket, ends, slot)) {
            log::error!("{address}: refused: no thread for its TLS handshake: {error}");
        }
    }
}

/// One that runs, counted as long as this lives.
struct Counted {
    running: Arc<Running>,
    address: IpAddr,
    number: u64,
}

impl Counted {
    fn had_to_go(&self) -> bool {
        self.running.had_to_go(self.address, self.number)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.running.end(self.address, self.number);
    }
}

struct Handshake {
    registry: Arc<Registry>,
    store: Arc<dyn PskStore>,
    is_required: bool,
    by_kernel: bool,
    deliver: Deliver,
    log: Arc<StrangersLog>,
    counted: Counted,
}

impl Handshake {
    fn run(self, socket: Arc<TcpStream>, ends: Endpoints, slot: AddressSlot) {
        let deadline = Instant::now() + Duration::from_nanos(CONNECT_TIMEOUT_NS);
        let outcome = match bpfof_tls::accept(&socket, &self.store, deadline) {
            Ok(secured) => self.secure(&socket, secured).map(Some),
            Err(HandshakeError::NotTls { .. }) if !self.is_required => Ok(None),
            Err(_) if self.counted.had_to_go() => {
                Err("others came, and its address had most TLS handshakes".to_owned())
            }
            // Who only looks whether somebody listens is no attacker.
            Err(error @ HandshakeError::NothingSent) => {
                return log::debug!("{}: {error}", ends.peer);
            }
            Err(error) => Err(error.to_string()),
        };
        let had_to_go = self.counted.had_to_go();
        drop(self.counted);
        self.registry.handshakes.count(match &outcome {
            Ok(Some(secure)) if secure.is_by_kernel() => Handshaken::Kernel,
            Ok(Some(_)) => Handshaken::Process,
            Ok(None) => Handshaken::Plain,
            Err(_) if had_to_go => Handshaken::Refused,
            Err(_) => Handshaken::Failed,
        });
        match outcome {
            Ok(secure) => {
                // Nobody else has it since it was counted no more.
                let Some(socket) = Arc::into_inner(socket) else { return };
                (self.deliver)((socket.into(), ends, slot), secure.map(Box::new));
            }
            Err(why) => {
                self.registry.denials.count(Reason::Handshake);
                self.log.warn(format_args!("{} refused", ends.peer), format_args!("{why}"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    /// Of an address.
    struct Host(IpAddr);

    impl Host {
        fn new(number: u16) -> Host {
            let [high, low] = number.to_be_bytes();
            Host(Ipv4Addr::new(10, 0, high, low).into())
        }

        fn begin(&self, running: &Running, socket: &Arc<TcpStream>) -> u64 {
            running.begin(self.0, socket).expect("its thread has room")
        }
    }

    #[test]
    fn who_only_begins_handshakes_keeps_nobody_out() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let socket = Arc::new(TcpStream::connect(address).expect("it listens"));
        let running = Running::default();
        let [greedy, other] = [1, 2].map(Host::new);
        let first = other.begin(&running, &socket);
        let its = |host: &Host| host.begin(&running, &socket);
        let greedys: Vec<u64> = (0..=MAX_HANDSHAKES_OF_ADDRESS).map(|_| its(&greedy)).collect();
        // Beyond its own limit it loses its own.
        let gone = |host: &Host, number| running.had_to_go(host.0, number);
        assert!(gone(&greedy, greedys[0]) && !gone(&greedy, greedys[1]) && !gone(&other, first));
        running.end(greedy.0, greedys[0]);
        let many: Vec<Host> = (3..).map(Host::new).take(MAX_HANDSHAKES).collect();
        let room = MAX_HANDSHAKES - MAX_HANDSHAKES_OF_ADDRESS - 1;
        many.iter().take(room).for_each(|host| _ = its(host));
        // Beyond that of all the one with most does.
        let newest = its(&many[room]);
        assert!(gone(&greedy, greedys[1]) && !gone(&many[room], newest) && !gone(&other, first));
        assert_eq!(running.begun().count(), MAX_HANDSHAKES);
        // Those that had to go have threads until they see it.
        let more = |running: &Running| running.begin(other.0, &socket).is_some();
        while running.begun().threads < 2 * MAX_HANDSHAKES {
            assert!(more(&running));
        }
        assert!(!more(&running));
        running.end(greedy.0, greedys[1]);
        assert!(more(&running));
    }
}
