//! TLS handshakes, outside the reactors: each on a thread of its own, for at most the time that Connect may take.

use crate::access::{HandshakeKey, Handshaken, Reason, Rules};
use crate::command_log::StrangersLog;
use crate::config::{TargetConfig, TlsMode};
use crate::connection::Endpoints;
use crate::hosts::AddressSlot;
use crate::limits::{CONNECT_TIMEOUT_NS, MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ADDRESS};
use crate::registry::Registry;
use crate::transport::secure::Secure;
use crate::worker::step_aside;
use bpfof_tls::{HandshakeError, Psk, PskHash, PskStore, Secured, ktls};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Stack of a thread, in bytes: the library's handshake takes some tens of KiB.
const STACK_BYTES: usize = 256 << 10;
/// A handshake that takes longer is ended first if there are too many: most take some milliseconds.
const SLOW: Duration = Duration::from_secs(1);

/// An accepted connection: its socket, its endpoints, and its place in the count of its address.
pub(crate) type Accepted = (OwnedFd, Endpoints, AddressSlot);

/// The callback that takes connections after their handshake.
pub(crate) type Deliver = Arc<dyn Fn(Accepted, Option<Box<Secure>>) + Send + Sync>;

/// Performs handshakes.
pub(crate) struct Handshakes {
    registry: Arc<Registry>,
    /// Connections without TLS are refused.
    is_required: bool,
    /// The kernel seals the records, if it can.
    by_kernel: bool,
    /// The processors of the reactors.
    cores: Arc<[usize]>,
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
    /// Handshakes in progress by address, the oldest first.
    of_address: HashMap<IpAddr, VecDeque<One>>,
    /// Number of handshakes that have a thread, including those that were ended for others.
    threads: usize,
}

#[derive(Debug)]
struct One {
    number: u64,
    since: Instant,
    socket: Arc<TcpStream>,
}

impl Begun {
    fn count(&self) -> usize {
        self.of_address.values().map(VecDeque::len).sum()
    }

    /// The address whose oldest handshake must end for another one of `address`, if there are too many: `address`
    /// itself if it is at its own limit; at the limit of all, the address with the oldest handshake, if that is slow;
    /// else the address with most handshakes, and of several the one whose oldest began first.
    fn gives_way(&self, address: IpAddr, now: Instant) -> Option<IpAddr> {
        let its = self.of_address.get(&address).map_or(0, VecDeque::len);
        if its >= MAX_HANDSHAKES_OF_ADDRESS {
            return Some(address);
        }
        if self.count() < MAX_HANDSHAKES {
            return None;
        }
        let firsts =
            || self.of_address.iter().filter_map(|(at, all)| Some((at, all.front()?, all.len())));
        let oldest = firsts().min_by_key(|(_, first, _)| first.number);
        let slow = oldest.filter(|(_, first, _)| now.saturating_duration_since(first.since) > SLOW);
        let most = || firsts().max_by_key(|(_, first, count)| (*count, Reverse(first.number)));
        slow.or_else(most).map(|(address, ..)| *address)
    }
}

impl Running {
    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a handshake and returns its number; none if too many threads of ended handshakes still run. Peers that
    /// only begin handshakes do not lock out others: if there are too many, a slow one, or one of the address with
    /// most, is ended.
    fn begin(&self, address: IpAddr, socket: &Arc<TcpStream>, now: Instant) -> Option<u64> {
        let mut begun = self.begun();
        if begun.threads >= 2 * MAX_HANDSHAKES {
            return None;
        }
        if let Some(gives_way) = begun.gives_way(address, now)
            && let Some(its) = begun.of_address.get_mut(&gives_way)
            && let Some(goes) = its.pop_front()
        {
            // Its thread sees the shutdown and ends.
            let _ = goes.socket.shutdown(Shutdown::Both);
        }
        begun.threads += 1;
        begun.last_number += 1;
        let number = begun.last_number;
        let one = One { number, since: now, socket: Arc::clone(socket) };
        begun.of_address.entry(address).or_default().push_back(one);
        begun.of_address.retain(|_, its| !its.is_empty());
        Some(number)
    }

    fn end(&self, address: IpAddr, number: u64) {
        let mut begun = self.begun();
        begun.threads -= 1;
        if let Some(its) = begun.of_address.get_mut(&address) {
            its.retain(|other| other.number != number);
            if its.is_empty() {
                begun.of_address.remove(&address);
            }
        }
    }

    /// Whether a handshake was ended to make room for another.
    fn had_to_go(&self, address: IpAddr, number: u64) -> bool {
        let begun = self.begun();
        let its = begun.of_address.get(&address);
        !its.is_some_and(|its| its.iter().any(|other| other.number == number))
    }
}

/// The keys of the rules as they were when a handshake began.
struct Keys(Arc<Rules>);

impl PskStore for Keys {
    fn find(&self, identity: &[u8], _binder: PskHash) -> Option<Psk> {
        self.0.psk(std::str::from_utf8(identity).ok()?)
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
            is_required: config.tls() == TlsMode::Required,
            by_kernel: config.kernel_tls,
            cores: config.cores.as_slice().into(),
            running: Arc::default(),
            log: Arc::default(),
            deliver,
        }
    }

    /// Begins a handshake with a host that has just been accepted.
    pub(crate) fn begin(&self, (socket, ends, slot): Accepted) {
        let (address, peer) = (ends.counted_address(), ends.peer);
        let socket = Arc::new(TcpStream::from(socket));
        let Some(number) = self.running.begin(address, &socket, Instant::now()) else {
            let what =
                "all threads for TLS handshakes are in use: ended handshakes have not exited yet";
            return self.refuse(peer, format_args!("{what}"));
        };
        let handshake = Handshake {
            registry: Arc::clone(&self.registry),
            is_required: self.is_required,
            by_kernel: self.by_kernel,
            cores: Arc::clone(&self.cores),
            deliver: Arc::clone(&self.deliver),
            log: Arc::clone(&self.log),
            counted: Counted { running: Arc::clone(&self.running), address, number },
        };
        let thread = std::thread::Builder::new().name("handshake".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || handshake.run(socket, ends, slot)) {
            self.refuse(peer, format_args!("cannot start a thread for its TLS handshake: {error}"));
        }
    }

    fn refuse(&self, peer: SocketAddr, why: std::fmt::Arguments<'_>) {
        self.registry.denials.count(Reason::Limit);
        self.registry.handshakes.count(Handshaken::Refused);
        self.log.warn(format_args!("{peer} refused"), why);
    }
}

/// A running handshake, counted as long as this lives.
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
    is_required: bool,
    by_kernel: bool,
    cores: Arc<[usize]>,
    deliver: Deliver,
    log: Arc<StrangersLog>,
    counted: Counted,
}

impl Handshake {
    fn run(self, socket: Arc<TcpStream>, ends: Endpoints, slot: AddressSlot) {
        step_aside(&self.cores);
        let deadline = Instant::now() + Duration::from_nanos(CONNECT_TIMEOUT_NS);
        let rules = self.registry.rules();
        let store: Arc<dyn PskStore> = Arc::new(Keys(Arc::clone(&rules)));
        let outcome = match bpfof_tls::accept(&socket, &store, deadline) {
            Ok(secured) => self.secure(&socket, secured, rules).map(Some),
            Err(HandshakeError::NotTls { .. }) if !self.is_required => Ok(None),
            Err(_) if self.counted.had_to_go() => {
                Err("TLS handshake ended for newer ones: it was slow, or its address had the most"
                    .to_owned())
            }
            // A peer that only checks whether the port is open is no attacker.
            Err(error @ HandshakeError::NothingSent) => {
                return self.log.detail(ends.peer, format_args!("{error}"));
            }
            Err(error) => Err(error.to_string()),
        };
        let had_to_go = self.counted.had_to_go();
        drop(self.counted);
        self.registry.handshakes.count(match &outcome {
            Ok(Some(secure)) if secure.is_sealed_by_kernel() => Handshaken::Kernel,
            Ok(Some(_)) => Handshaken::Process,
            Ok(None) => Handshaken::Plain,
            Err(_) if had_to_go => Handshaken::Refused,
            Err(_) => Handshaken::Failed,
        });
        match outcome {
            Ok(secure) => {
                // This is the only reference, because the handshake is not counted any more.
                let Some(socket) = Arc::into_inner(socket) else { return };
                (self.deliver)((socket.into(), ends, slot), secure.map(Box::new));
            }
            Err(why) => {
                let reason = if had_to_go { Reason::Limit } else { Reason::Handshake };
                self.registry.denials.count(reason);
                self.log.warn(format_args!("{} refused", ends.peer), format_args!("{why}"));
            }
        }
    }

    /// Hands the write key to the kernel, or to a sealer of this process. `rules` are the rules as of the handshake's
    /// begin.
    fn secure(
        &self,
        socket: &TcpStream,
        secured: Secured,
        rules: Arc<Rules>,
    ) -> Result<Secure, String> {
        let key = HandshakeKey { psk_identity: secured.identity.clone(), rules };
        // Its key may just have been removed or replaced.
        let identity = key.identity(&self.registry.rules());
        let identity = identity.ok_or("its key has been removed from the rules")?;
        let (host, suite) = (identity.host_nqn.clone(), secured.suite.name());
        let by_kernel = self.by_kernel && ktls::enable(socket.as_fd(), &secured.write).is_ok();
        let secure =
            Secure::new(identity, key, secured, by_kernel).map_err(|error| error.to_string())?;
        let how = if by_kernel { "by the kernel" } else { "in this process" };
        self.log.detail(host, format_args!("TLS with {suite}, records sealed {how}"));
        Ok(secure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    /// A host at this address.
    struct Host(IpAddr);

    impl Host {
        fn new(number: u16) -> Host {
            let [high, low] = number.to_be_bytes();
            Host(Ipv4Addr::new(10, 0, high, low).into())
        }

        fn begin(&self, running: &Running, socket: &Arc<TcpStream>, now: Instant) -> u64 {
            running.begin(self.0, socket, now).expect("its thread has room")
        }
    }

    fn socket() -> Arc<TcpStream> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        Arc::new(TcpStream::connect(address).expect("it listens"))
    }

    #[test]
    fn unfinished_handshakes_do_not_lock_out_others() {
        let (socket, now) = (socket(), Instant::now());
        let running = Running::default();
        let [greedy, other] = [1, 2].map(Host::new);
        let first = other.begin(&running, &socket, now);
        let its = |host: &Host| host.begin(&running, &socket, now);
        let greedys: Vec<u64> = (0..=MAX_HANDSHAKES_OF_ADDRESS).map(|_| its(&greedy)).collect();
        // Beyond the limit of an address it loses its own.
        let gone = |host: &Host, number| running.had_to_go(host.0, number);
        assert!(gone(&greedy, greedys[0]) && !gone(&greedy, greedys[1]) && !gone(&other, first));
        running.end(greedy.0, greedys[0]);
        let many: Vec<Host> = (3..).map(Host::new).take(MAX_HANDSHAKES).collect();
        let room = MAX_HANDSHAKES - MAX_HANDSHAKES_OF_ADDRESS - 1;
        many.iter().take(room).for_each(|host| _ = its(host));
        // Beyond the limit of all, the address with most loses one.
        let newest = its(&many[room]);
        assert!(gone(&greedy, greedys[1]) && !gone(&many[room], newest) && !gone(&other, first));
        assert_eq!(running.begun().count(), MAX_HANDSHAKES);
        // Ended handshakes have threads until these see the shutdown.
        let more = |running: &Running| running.begin(other.0, &socket, now).is_some();
        while running.begun().threads < 2 * MAX_HANDSHAKES {
            assert!(more(&running));
        }
        assert!(!more(&running));
        running.end(greedy.0, greedys[1]);
        assert!(more(&running));
    }

    /// Strangers of as many addresses as there may be handshakes make no progress. A host comes with several handshakes
    /// at once.
    #[test]
    fn slow_handshakes_end_before_those_of_an_address_with_several() {
        let (socket, then) = (socket(), Instant::now());
        let running = Running::default();
        let strangers: Vec<Host> = (2..).map(Host::new).take(MAX_HANDSHAKES).collect();
        let begin = |host: &Host, now| host.begin(&running, &socket, now);
        let theirs: Vec<u64> = strangers.iter().map(|stranger| begin(stranger, then)).collect();
        let (host, now) = (Host::new(1), then + SLOW + Duration::from_millis(1));
        for number in (0..8).map(|_| begin(&host, now)).collect::<Vec<_>>() {
            assert!(!running.had_to_go(host.0, number));
        }
        let gone = |(stranger, number): &(&Host, &u64)| running.had_to_go(stranger.0, **number);
        assert_eq!(strangers.iter().zip(&theirs).take_while(gone).count(), 8);
    }
}
