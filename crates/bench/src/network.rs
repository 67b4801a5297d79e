//! `bpfof bench network`: a network between programs of one machine, which delays messages.

use crate::machine;
use bpfof_host::TargetUrl;
use bpfof_terminal::{Outcome, stop_on_signal};
use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::set_current_timer_slack;
use rustix::time::Timespec;
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The most simultaneous connections.
const LINKS_MAX: usize = 512;
/// When one direction of a connection holds this many bytes, no more are read.
const HELD_MAX: usize = 8 << 20;
/// The most bytes read at once.
const CHUNK_BYTES: usize = 256 << 10;
/// How often the relay checks whether it must end.
const LOOK: Duration = Duration::from_millis(100);
/// Longest wait for the connection to the target.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// The options of `bpfof bench network`.
#[derive(Args)]
pub struct NetworkOptions {
    /// The delay that the network adds to a message and its answer together, in µs.
    #[arg(long, value_name = "MICROSECONDS", value_parser = round_trip_us)]
    round_trip_us: u64,
    /// The target to which connections are forwarded: address and port.
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    /// The address to listen at; with port 0 the kernel chooses the port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// End together with the program that started it.
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

/// Parses a round trip on a command line: µs, from 1 to a second.
///
/// # Errors
/// A message for the user.
pub(crate) fn round_trip_us(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(us @ 1..=1_000_000) => Ok(us),
        _ => Err("µs from 1 to 1000000".to_owned()),
    }
}

pub(crate) fn run(options: &NetworkOptions) -> Outcome {
    if options.exit_with_parent {
        set_parent_process_death_signal(Some(Signal::TERM))?;
    }
    let stop = stop_on_signal()?;
    // Each connection takes two descriptors.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    machine::unpin()?;
    // Otherwise sleeps take up to 50 µs too long.
    set_current_timer_slack(NonZeroU64::new(1))?;
    let listen = options.listen;
    let listener =
        TcpListener::bind(listen).map_err(|e| format!("cannot listen at {listen}: {e}"))?;
    println!("{}", listener.local_addr()?);
    let mut relay = Relay::new(listener, options.to, options.round_trip_us)?;
    while !stop.load(Ordering::Relaxed) {
        relay.step()?;
    }
    Ok(())
}

/// Bytes that were received together; empty at the end of the stream.
struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
    sent: usize,
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    held: VecDeque<Chunk>,
    held_bytes: usize,
    /// The sender has ended its stream.
    has_ended: bool,
    /// All data and the end of the stream have been forwarded.
    is_over: bool,
    /// The receiver's socket is full at the moment.
    is_blocked: bool,
}

impl Way {
    fn wants_input(&self) -> bool {
        !self.has_ended && self.held_bytes < HELD_MAX
    }

    /// When the next chunk is due, unless the receiver is blocked.
    fn due(&self) -> Option<Instant> {
        self.held.front().filter(|_| !self.is_blocked).map(|chunk| chunk.due)
    }

    fn take(&mut self, mut from: &TcpStream, buffer: &mut [u8], delay: Duration) -> io::Result<()> {
        let length = match from.read(buffer) {
            Err(error) if is_passing(&error) => return Ok(()),
            read => read?,
        };
        self.has_ended = length == 0;
        self.held_bytes += length;
        let (due, bytes) = (Instant::now() + delay, buffer[..length].to_vec());
        self.held.push_back(Chunk { due, bytes, sent: 0 });
        Ok(())
    }

    /// Forwards due chunks, as far as the receiver takes them.
    fn pass_on(&mut self, mut to: &TcpStream) -> io::Result<()> {
        while let Some(chunk) = self.held.front_mut().filter(|chunk| chunk.due <= Instant::now()) {
            if chunk.bytes.is_empty() {
                self.is_over = true;
                // Fails only if the receiver has already closed the connection.
                let _ = to.shutdown(Shutdown::Write);
            }
            while chunk.sent < chunk.bytes.len() {
                match to.write(&chunk.bytes[chunk.sent..]) {
                    Err(error) if is_passing(&error) => {
                        self.is_blocked = true;
                        return Ok(());
                    }
                    sent => chunk.sent += sent?,
                }
            }
            self.held_bytes -= chunk.sent;
            self.held.pop_front();
        }
        self.is_blocked = false;
        Ok(())
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A connection: `ways[i]` leads from `ends[i]` to the other.
struct Link {
    ends: [TcpStream; 2],
    ways: [Way; 2],
}

impl Link {
    fn new(from: TcpStream, to: SocketAddr) -> io::Result<Link> {
        let ends = [from, TcpStream::connect_timeout(&to, CONNECT_PATIENCE)?];
        for end in &ends {
            end.set_nodelay(true)?;
            end.set_nonblocking(true)?;
        }
        Ok(Link { ends, ways: Default::default() })
    }

    /// The events to wait for at an end.
    fn flags(&self, end: usize) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.ways[end].wants_input());
        flags.set(PollFlags::OUT, self.ways[1 - end].is_blocked);
        flags
    }

    fn due(&self) -> Option<Instant> {
        self.ways.iter().filter_map(Way::due).min()
    }

    fn take(&mut self, end: usize, buffer: &mut [u8], delay: Duration) -> io::Result<()> {
        match self.ways[end].wants_input() {
            true => self.ways[end].take(&self.ends[end], buffer, delay),
            false => Ok(()),
        }
    }

    fn pass_on(&mut self) -> io::Result<()> {
        let [first, second] = &mut self.ways;
        first.pass_on(&self.ends[1])?;
        second.pass_on(&self.ends[0])
    }

    fn is_over(&self) -> bool {
        self.ways.iter().all(|way| way.is_over)
    }
}

/// All connections, driven by one thread.
struct Relay {
    listener: TcpListener,
    to: SocketAddr,
    delay: Duration,
    links: Vec<Link>,
    /// No connection is accepted before, because the last attempt has failed.
    accepts_at: Instant,
    buffer: Vec<u8>,
}

impl Relay {
    fn new(listener: TcpListener, to: SocketAddr, round_trip_us: u64) -> io::Result<Relay> {
        listener.set_nonblocking(true)?;
        let delay = Duration::from_nanos(round_trip_us * 500);
        Ok(Relay {
            listener,
            to,
            delay,
            links: Vec::new(),
            accepts_at: Instant::now(),
            buffer: vec![0; CHUNK_BYTES],
        })
    }

    /// Waits for an event, or for [`LOOK`], and forwards due chunks.
    fn step(&mut self) -> io::Result<()> {
        let ready = self.wait()?;
        let mut broken = vec![false; self.links.len()];
        for (link, end) in ready {
            match self.links.get_mut(link) {
                Some(of) => broken[link] |= of.take(end, &mut self.buffer, self.delay).is_err(),
                None => self.accept(),
            }
        }
        let mut broken = broken.into_iter();
        // A connection that breaks at one end is closed at the other.
        self.links.retain_mut(|link| {
            !broken.next().unwrap_or(false) && link.pass_on().is_ok() && !link.is_over()
        });
        Ok(())
    }

    fn accept(&mut self) {
        let to = self.to;
        match self.listener.accept().and_then(|(from, _)| Link::new(from, to)) {
            Ok(link) => self.links.push(link),
            Err(error) if is_passing(&error) => {}
            Err(error) => {
                eprintln!("no connection to {to}: {error}");
                self.accepts_at = Instant::now() + LOOK;
            }
        }
    }

    /// Waits for input and for due chunks. Returns the ends with events; the listener counts as an end of a link after
    /// the last.
    fn wait(&self) -> io::Result<Vec<(usize, usize)>> {
        let mut of = Vec::new();
        let mut polled = Vec::new();
        for (index, link) in self.links.iter().enumerate() {
            for (end, socket) in link.ends.iter().enumerate() {
                let flags = link.flags(end);
                // Polled without flags, a closed end would report its end again and again.
                if !flags.is_empty() {
                    of.push((index, end));
                    polled.push(PollFd::new(socket, flags));
                }
            }
        }
        if self.links.len() < LINKS_MAX && Instant::now() >= self.accepts_at {
            of.push((self.links.len(), 0));
            polled.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let due = self.links.iter().filter_map(Link::due).min();
        let left = due.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()).min(LOOK));
        let left = Timespec { tv_sec: 0, tv_nsec: left.as_nanos() as _ };
        match poll(&mut polled, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_news = |fd: &PollFd<'_>| fd.revents().intersects(!PollFlags::OUT);
        Ok(of.into_iter().zip(&polled).filter(|(_, fd)| has_news(fd)).map(|(of, _)| of).collect())
    }
}

/// A network to a target, as a separate process; dropping it ends the process.
pub(crate) struct ChildNetwork {
    child: Child,
    /// The target's address through the network.
    pub(crate) url: TargetUrl,
}

impl ChildNetwork {
    /// Starts a network with a round trip of this many µs to `target`; None for 0.
    ///
    /// # Errors
    /// A message if it cannot be started.
    pub(crate) fn start(target: &TargetUrl, round_trip_us: u64) -> Result<Option<Self>, String> {
        if round_trip_us == 0 {
            return Ok(None);
        }
        let failed = |error: io::Error| format!("cannot start the network: {error}");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["bench", "network", "--exit-with-parent"]);
        command.args(["--round-trip-us", &round_trip_us.to_string()]);
        command.args(["--to", &format!("{}:{}", target.host, target.port)]);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(failed)?;
        }
        let mut network = ChildNetwork { child, url: target.clone() };
        let address: Option<SocketAddr> = line.trim().parse().ok();
        let address = address.ok_or("the network did not start; its own message is above")?;
        network.url.host = address.ip().to_string();
        network.url.port = address.port();
        Ok(Some(network))
    }
}

impl Drop for ChildNetwork {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    const ROUND_TRIP: Duration = Duration::from_millis(20);
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Runs `client` on a connection through a relay to `server`.
    fn relayed(server: impl FnOnce(TcpStream) + Send, client: impl FnOnce(TcpStream)) {
        let local = || TcpListener::bind("127.0.0.1:0").expect("listens");
        let (target, listener) = (local(), local());
        let address = |listener: &TcpListener| listener.local_addr().expect("an address");
        let (to, at) = (address(&target), address(&listener));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let us = ROUND_TRIP.as_micros() as u64;
                let mut relay = Relay::new(listener, to, us).expect("a relay");
                let begun = Instant::now();
                while !stop.load(Ordering::Relaxed) || !relay.links.is_empty() {
                    assert!(begun.elapsed() < PATIENCE, "a connection does not end");
                    relay.step().expect("runs");
                }
            });
            scope.spawn(move || server(target.accept().expect("a connection").0));
            client(TcpStream::connect(at).expect("connects"));
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn messages_take_a_round_trip_and_the_end_comes_behind_them() {
        let echo = |mut at: TcpStream| {
            let mut all = [0; 3];
            at.read_exact(&mut all).expect("a message");
            at.write_all(&all).expect("sent");
            assert_eq!(at.read(&mut all).expect("its end"), 0);
            at.write_all(b"end").expect("the other way is open");
        };
        relayed(echo, |mut at| {
            let begun = Instant::now();
            at.write_all(b"one").expect("sent");
            let mut back = [0; 3];
            at.read_exact(&mut back).expect("the answer");
            assert_eq!(&back, b"one");
            assert!(begun.elapsed() >= ROUND_TRIP);
            at.shutdown(Shutdown::Write).expect("shut down");
            let mut rest = Vec::new();
            at.read_to_end(&mut rest).expect("the rest");
            assert_eq!(rest, b"end");
        });
    }

    /// More data than the relay and the sockets hold: each end must wait for the other.
    #[test]
    fn nothing_is_lost_of_much() {
        let bytes: Vec<u8> = (0..4 * HELD_MAX as u32).map(|at| (at / 7) as u8).collect();
        let sends = bytes.clone();
        let server = move |mut at: TcpStream| {
            at.write_all(&sends).expect("sent");
        };
        relayed(server, |mut at| {
            thread::sleep(3 * ROUND_TRIP);
            let mut got = Vec::new();
            at.read_to_end(&mut got).expect("all");
            assert!(got == bytes, "{} of {} bytes, or wrong bytes", got.len(), bytes.len());
        });
    }
}
