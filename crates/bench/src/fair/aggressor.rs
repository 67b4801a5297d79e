//! Hosts that use as much as they can get. Each has a name of its own, different from the victim's, and their threads
//! yield to the victim's: the victim waits for the target, not for this processor.

use crate::assembly;
use bpfof_function::Object;
use bpfof_host::{
    Controller, Error, FileVersion, FirstRead, FirstReads, FunctionId, Lane, Options, PushdownCall,
    PushdownVectorCall, Request, SubmitError, TargetUrl, VectorAnswer, VectorArguments,
};
use clap::ValueEnum;
use socket2::{Domain, Socket, Type};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The aggressors' functions.
const FUNCTIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/aggressor.bpf.o"));
/// Concurrent chains of an analytic application.
const SCANS: usize = 64;
/// Bytes of a hop of a scan.
const SCAN_BYTES: u32 = 56 << 10;
/// Concurrent chains of an application whose functions compute.
const COMPUTING: usize = 128;
/// Concurrent chains whose workspaces are together larger than caches.
const MISSING: usize = 1000;
/// Flooding connections, in three hosts, and chains of each.
const FLOODING: usize = 12;
const FLOOD: usize = 1000;
/// Chains in each command of a flood with vectors, and such commands of each connection.
const VECTOR: u16 = 256;
const VECTORS: usize = 30;
/// Loading hosts, and the size of the objects that they load in turn with functions: bytes that are no function.
const LOADING: usize = 4;
const GARBAGE_BYTES: usize = 1 << 20;
/// Names that one peer uses, and chains of each.
const NAMES: usize = 100;
const NAME_CHAINS: usize = 16;
/// Hosts that do not read answers, connections of each, and reads of each connection.
const SILENT_HOSTS: usize = 8;
const SILENT_LANES: usize = 10;
const SILENT_READS: usize = 1000;
/// Connections that a connection storm keeps open.
const STORM_KEEPS: usize = 500;
/// The victim's address.
const VICTIM: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// How often waiting aggressors check whether they must stop.
const TICK: Duration = Duration::from_millis(20);
/// They yield to all other threads.
const NICE: i32 = 19;

/// The load of other hosts on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Aggressor {
    /// 64 analytic scans: hops of 56 KiB, added up.
    Scans,
    /// 128 chains whose calls multiply as long as a call may.
    Calls,
    /// 128 chains whose calls are loops over helpers.
    Helpers,
    /// 1000 chains whose loads miss the caches.
    Misses,
    /// 12 connections with 1000 concurrent chains each, with next to no work in each hop.
    Chains,
    /// The same connections with 30 concurrent vectors of 256 such chains.
    Vectors,
    /// 100 names of one peer, each with 16 concurrent chains of this kind.
    Names,
    /// 4 hosts that load large functions, and a megabyte of garbage, without end.
    Loads,
    /// 80 connections that request 128 MB each and read none of it.
    Silent,
    /// Connections that are opened and closed without end, with Connect and without, and 500 that stay open.
    Storm,
    /// All of these at once.
    Everything,
}

/// A running aggressor; dropping it stops it.
pub(super) struct Running {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    url: TargetUrl,
    together: bool,
    stop: AtomicBool,
    /// Counts chains that ended, functions that were loaded or refused, and connections.
    operations: AtomicU64,
}

impl Aggressor {
    const EACH: [Aggressor; 10] = [
        Aggressor::Scans,
        Aggressor::Calls,
        Aggressor::Helpers,
        Aggressor::Misses,
        Aggressor::Chains,
        Aggressor::Vectors,
        Aggressor::Names,
        Aggressor::Loads,
        Aggressor::Silent,
        Aggressor::Storm,
    ];

    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Starts the aggressor against a target: from the victim's address if `together`, otherwise from a separate
    /// address for each host.
    pub(super) fn start(
        self,
        url: &TargetUrl,
        together: bool,
    ) -> Result<Running, Box<dyn std::error::Error>> {
        let shared = Shared {
            url: url.clone(),
            together,
            stop: AtomicBool::new(false),
            operations: AtomicU64::new(0),
        };
        let mut running = Running { shared: Arc::new(shared), threads: Vec::new() };
        let each: &[Aggressor] =
            if self == Aggressor::Everything { &Aggressor::EACH } else { &[self] };
        for aggressor in each {
            aggressor.start_threads(&mut running)?;
        }
        Ok(running)
    }

    fn start_threads(self, running: &mut Running) -> std::io::Result<()> {
        let chains = |name, depth, first_bytes, hops| Chains {
            name,
            depth,
            first_bytes,
            hops,
            vector: None,
            names: 1,
        };
        match self {
            Aggressor::Scans => running.chains(chains("scan", SCANS, SCAN_BYTES, 500), 1),
            Aggressor::Calls => running.chains(chains("multiply", COMPUTING, 512, 50), 1),
            Aggressor::Helpers => running.chains(chains("helpers", COMPUTING, 512, 50), 1),
            Aggressor::Misses => running.chains(chains("misses", MISSING, 512, 50), 1),
            Aggressor::Chains => (0..3)
                .try_for_each(|_| running.chains(chains("cheap", FLOOD, 512, 200), FLOODING / 3)),
            Aggressor::Vectors => {
                let vectors = Chains { vector: Some(VECTOR), ..chains("cheap", VECTORS, 512, 200) };
                (0..3).try_for_each(|_| running.chains(vectors, FLOODING / 3))
            }
            Aggressor::Names => {
                let chains = chains("cheap", NAME_CHAINS, 512, 200);
                running.chains(Chains { names: NAMES, ..chains }, 1)
            }
            Aggressor::Loads => {
                (0..LOADING).try_for_each(|_| running.spawn(|shared, host| shared.load(host)))
            }
            Aggressor::Silent => {
                (0..SILENT_HOSTS).try_for_each(|_| running.spawn(|shared, host| shared.ask(host)))
            }
            Aggressor::Storm => {
                running.spawn(|shared, host| shared.knock(host))?;
                running.spawn(|shared, host| shared.come_and_go(host))
            }
            Aggressor::Everything => Ok(()),
        }
    }
}

impl Running {
    /// The number of operations so far.
    pub(super) fn operations(&self) -> u64 {
        self.shared.operations.load(Ordering::Relaxed)
    }

    fn chains(&mut self, chains: Chains, lanes: usize) -> std::io::Result<()> {
        self.spawn(move |shared, host| shared.chains(host, chains, lanes))
    }

    /// Starts a thread that repeats some work, as a host of its own. Errors only end a round: the target may disconnect
    /// an aggressor.
    fn spawn(
        &mut self,
        round: impl Fn(&Shared, &Host) -> Result<(), Error> + Send + 'static,
    ) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let number = self.threads.len();
        let mut host_id = [0xa5; 16];
        host_id[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let from = if shared.together { VICTIM } else { Ipv4Addr::new(127, 0, 1, number as u8) };
        let url = TargetUrl { host_traddr: Some(from.into()), ..shared.url.clone() };
        let thread = std::thread::Builder::new().name("aggressor".into());
        self.threads.push(thread.spawn(move || {
            // On Linux niceness is per thread. If this fails, only the figures are worse.
            let _ = rustix::process::setpriority_process(None, NICE);
            let options = Options { queue_depth: 1023, ..Options::for_host(host_id) };
            let host = Host { url, options, from };
            while !shared.is_over() {
                if round(&shared, &host).is_err() {
                    std::thread::sleep(TICK);
                }
            }
        })?);
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Many chains of one function.
#[derive(Clone, Copy)]
struct Chains {
    name: &'static str,
    /// Concurrent chains on each connection.
    depth: usize,
    first_bytes: u32,
    /// Hops after which a chain answers, and another begins.
    hops: u64,
    /// Chains in one command, if it is a vector.
    vector: Option<u16>,
    /// The number of hosts that run them.
    names: usize,
}

/// The identity of an aggressor.
struct Host {
    url: TargetUrl,
    options: Options,
    from: Ipv4Addr,
}

impl Host {
    fn connect(&self) -> Result<Controller, Error> {
        Controller::connect(&self.url, self.options.clone())
    }

    /// Connects with one of its names, and sets up a function and lanes for it.
    fn begin(
        &self,
        name: u64,
        function: &str,
        lanes: usize,
    ) -> Result<(Controller, FunctionId, Vec<Lane>), Error> {
        let mut host_id = self.options.host_id;
        host_id[8..].copy_from_slice(&(name + 1).to_le_bytes());
        let queue_depth = self.options.queue_depth;
        let options = Options { queue_depth, ..Options::for_host(host_id) };
        let mut controller = Controller::connect(&self.url, options)?;
        let function = load(&mut controller, function)?;
        let lanes = (0..lanes).map(|_| controller.open_lane()).collect::<Result<_, _>>()?;
        Ok((controller, function, lanes))
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn did(&self, count: usize) {
        self.operations.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn chains(&self, host: &Host, chains: Chains, lanes: usize) -> Result<(), Error> {
        let (first, function, mut lanes) = host.begin(0, chains.name, lanes)?;
        let mut controllers = vec![first];
        let mut scratch = [0; 16];
        scratch[..8].copy_from_slice(&chains.hops.to_le_bytes());
        let call = PushdownCall {
            nsid: self.url.nsid,
            function: function.0,
            files: &[FileVersion { id: 0, version: 1 }],
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: chains.first_bytes,
            scratch: &scratch,
            scratch_size_bytes: scratch.len() as u32,
            answer_max_bytes: scratch.len() as u32,
        };
        let count = chains.vector.unwrap_or(1);
        let arguments = scratch.repeat(count.into());
        let first = FirstRead { file: 0, offset_bytes: 0, size_bytes: chains.first_bytes };
        let vector = PushdownVectorCall {
            nsid: call.nsid,
            function: call.function,
            files: call.files,
            first: FirstReads::Same(first),
            arguments: VectorArguments::Equal { count, bytes: &arguments },
            scratch_size_bytes: call.scratch_size_bytes,
            answer_max_bytes: call.answer_max_bytes,
            room_bytes: VectorAnswer::room_bytes(count, call.answer_max_bytes) as u32,
        };
        let request = match chains.vector {
            Some(_) => Request::PushdownVector(&vector),
            None => Request::Pushdown(call),
        };
        while !self.is_over() {
            // The function has the same number in each association.
            if controllers.len() < chains.names {
                let (next, _, its) = host.begin(controllers.len() as u64, chains.name, 1)?;
                controllers.push(next);
                lanes.extend(its);
            }
            for lane in &mut lanes {
                while lane.requests_in_flight() < chains.depth && lane.submit(0, request).is_ok() {}
                lane.flush_doorbell()?;
                let mut ended = 0;
                lane.poll(&mut |completion| ended += usize::from(completion.result.is_ok()))?;
                self.did(ended * usize::from(count));
            }
            // Chains are long, so this pause delays none of them. Each poll takes the processor from the victim.
            std::thread::sleep(if chains.first_bytes == SCAN_BYTES { TICK / 4 } else { TICK / 10 });
        }
        Ok(())
    }

    fn load(&self, host: &Host) -> Result<(), Error> {
        let mut controller = host.connect()?;
        let large = assembly::object(&assembly::program(4096));
        let garbage = vec![0x7f; GARBAGE_BYTES];
        while !self.is_over() {
            let function = controller.load_function(&large, 0)?;
            controller.unload_function(function)?;
            match controller.load_function(&garbage, 0) {
                Err(Error::FunctionRejected(_)) => {}
                other => drop(other?),
            }
            self.did(2);
        }
        Ok(())
    }

    /// Requests much data and reads none. A connection that the target has closed is replaced.
    fn ask(&self, host: &Host) -> Result<(), Error> {
        let controller = host.connect()?;
        let mut lanes = Vec::new();
        for _ in 0..SILENT_LANES {
            let mut lane = controller.open_lane()?;
            for tag in 0..SILENT_READS {
                let length_bytes = lane.max_transfer_bytes().min(128 << 10);
                let read = Request::Read { nsid: self.url.nsid, offset_bytes: 0, length_bytes };
                match lane.submit(tag as u64, read) {
                    Ok(()) => {}
                    Err(SubmitError::QueueFull) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            lane.flush_doorbell()?;
            self.did(1);
            lanes.push(lane);
        }
        for _ in 0..500 {
            if self.is_over() {
                break;
            }
            std::thread::sleep(TICK);
        }
        Ok(())
    }

    /// Opens TCP connections without Connect.
    fn knock(&self, host: &Host) -> Result<(), Error> {
        let open = || -> std::io::Result<Socket> {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.bind(&SocketAddr::from((host.from, 0)).into())?;
            // The target's host is an IP address of this machine.
            let target = host.url.host.parse::<IpAddr>().map_err(std::io::Error::other)?;
            socket.connect(&SocketAddr::new(target, host.url.port).into())?;
            // Close by reset: otherwise ports in TIME_WAIT would run out on this side first.
            socket.set_linger(Some(Duration::ZERO))?;
            Ok(socket)
        };
        let mut kept = std::collections::VecDeque::new();
        while !self.is_over() {
            match open() {
                Ok(stream) => {
                    kept.push_back(stream);
                    self.did(1);
                }
                Err(_) => std::thread::sleep(TICK),
            }
            if kept.len() > STORM_KEEPS {
                kept.pop_front();
            }
        }
        Ok(())
    }

    /// Opens and closes whole associations, as many as allowed.
    fn come_and_go(&self, host: &Host) -> Result<(), Error> {
        let mut kept = std::collections::VecDeque::new();
        while !self.is_over() {
            // No keep-alive thread: the storm does not need one.
            let options = Options { keep_alive: Duration::ZERO, ..host.options.clone() };
            kept.push_back(Controller::connect(&host.url, options)?);
            if kept.len() > STORM_KEEPS / 5 {
                kept.pop_front();
            }
            self.did(1);
        }
        Ok(())
    }
}

fn load(controller: &mut Controller, name: &str) -> Result<FunctionId, Error> {
    let entries = Object::parse(FUNCTIONS)
        .map(|object| object.entries().iter().position(|entry| entry.name == name));
    let index = entries.ok().flatten().unwrap_or_default();
    controller.load_function(FUNCTIONS, index as u32)
}
