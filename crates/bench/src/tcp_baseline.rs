//! The limits of TCP itself on this machine: messages of the size of a request and of its answer, without a protocol. A
//! peer on the target's processor answers all received requests with one send.

use crate::machine;
use crate::measurement::{Run, latencies};
use hdrhistogram::Histogram;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Requests in one send at deep queues: i10's caravan. For queues less than twice as deep it is half the queue, so that
/// both ends have work.
const BATCH: usize = 16;
/// The least number of bytes that a socket buffers, whatever the kernel's settings.
const SOCKET_BYTES: usize = 64 << 10;
/// Bytes one receive can bring in, as in the target and in the host.
const RECEIVE_BYTES: usize = 256 << 10;

/// How the ends wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// By polling.
    Polled,
    /// In the kernel.
    Blocking,
}

/// Bytes that a request and its answer take on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages {
    pub(crate) request_bytes: usize,
    pub(crate) answer_bytes: usize,
}

impl Messages {
    /// The sizes of an operation's messages in this run, with all messages in one direction added up. None if there was
    /// no operation, or if `depth` requests exceed the buffer of a socket whose peer is sending: then both ends would
    /// wait for each other.
    pub(crate) fn of(run: &Run, received_bytes: u64, depth: usize) -> Option<Messages> {
        let each = |bytes: u64| bytes.checked_div(run.operations).map(|each| each.max(1) as usize);
        let request_bytes = each(run.network_bytes - received_bytes)?;
        let fits = request_bytes.saturating_mul(depth) <= SOCKET_BYTES;
        fits.then_some(Messages { request_bytes, answer_bytes: each(received_bytes)? })
    }
}

/// A run's figures.
#[derive(Clone, Debug)]
pub(crate) struct Baseline {
    pub(crate) messages_per_s: f64,
    /// From a request to its answer, in ns; only for single requests.
    pub(crate) latency: Histogram<u64>,
}

/// Sends requests in caravans, up to `depth` requests outstanding, for `time`.
pub(crate) fn measure(
    wait: Wait,
    messages: Messages,
    depth: usize,
    time: Duration,
) -> io::Result<Baseline> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let peer = std::thread::Builder::new().name("baseline".into()).spawn(move || {
        if let Some(processor) = machine::processors().1 {
            machine::pin(processor)?;
        }
        let answers = Answers::new(messages, depth);
        let (stream, _) = listener.accept()?;
        End::new(stream, wait)?.answer(&answers)
    })?;
    let mut end = End::new(TcpStream::connect(address)?, wait)?;
    let baseline = end.ask(messages, depth, time);
    drop(end);
    let peer = peer.join().map_err(|_| io::Error::other("the peer panicked"))?;
    baseline.and_then(|baseline| peer.map(|()| baseline))
}

/// Answers to as many requests as can be outstanding.
struct Answers {
    messages: Messages,
    bytes: Vec<u8>,
}

impl Answers {
    fn new(messages: Messages, depth: usize) -> Answers {
        // Written, because memory never written is one page of zeroes, which is always in the cache.
        Answers { messages, bytes: vec![0xA5; depth * messages.answer_bytes] }
    }
}

/// One end of the connection.
struct End {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl End {
    fn new(stream: TcpStream, wait: Wait) -> io::Result<End> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(wait == Wait::Polled)?;
        Ok(End { stream, buffer: vec![0; RECEIVE_BYTES] })
    }

    /// Receives some bytes; 0 at the end of the stream.
    fn receive(&mut self) -> io::Result<usize> {
        loop {
            match self.stream.read(&mut self.buffer) {
                Err(error) if is_transient(&error) => std::hint::spin_loop(),
                outcome => return outcome,
            }
        }
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if is_transient(&error) => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Answers requests until the other end hangs up.
    fn answer(&mut self, answers: &Answers) -> io::Result<()> {
        let Answers { messages: Messages { request_bytes, answer_bytes }, bytes } = answers;
        let mut received = 0;
        loop {
            match self.receive()? {
                0 => return Ok(()),
                length => received += length,
            }
            let requests = received / request_bytes;
            received %= request_bytes;
            self.send(&bytes[..requests * answer_bytes])?;
        }
    }

    /// Sends one request and waits for its answer, so that the other end is ready.
    fn meet(&mut self, messages: Messages) -> io::Result<()> {
        self.send(&vec![0; messages.request_bytes])?;
        let mut received = 0;
        while received < messages.answer_bytes {
            match self.receive()? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => received += length,
            }
        }
        Ok(())
    }

    fn ask(&mut self, messages: Messages, depth: usize, time: Duration) -> io::Result<Baseline> {
        let Messages { request_bytes, answer_bytes } = messages;
        let batch = (depth / 2).clamp(1, BATCH);
        let requests = vec![0; batch * request_bytes];
        let mut latency = latencies().map_err(io::Error::other)?;
        self.meet(messages)?;
        let (mut outstanding, mut received, mut answered) = (0, 0, 0u64);
        let begun = Instant::now();
        let (mut sent, mut now) = (begun, begun);
        while now - begun < time || outstanding > 0 {
            while outstanding + batch <= depth && now - begun < time {
                self.send(&requests)?;
                outstanding += batch;
                sent = now;
            }
            match self.receive()? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => received += length,
            }
            now = Instant::now();
            let answers = received / answer_bytes;
            received %= answer_bytes;
            outstanding -= answers;
            answered += answers as u64;
            if depth == 1 && answers == 1 {
                latency.saturating_record((now - sent).as_nanos() as u64);
            }
        }
        Ok(Baseline { messages_per_s: answered as f64 / (now - begun).as_secs_f64(), latency })
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
