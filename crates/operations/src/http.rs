//! Metrics over HTTP: GET /metrics for Prometheus, GET / for a live page, GET /report and /slow for its data.
//!
//! Each request has a connection, and each connection a thread; their number is limited. A client that takes longer
//! than two seconds is disconnected. When the limit is reached, a new connection replaces one of the address that has
//! the most: its oldest. An IPv6 network of 64 bits counts as one address. One more thread asks the reactors
//! (`questions`).

use crate::names::Names;
use crate::questions::{Answer, Question, Questions};
use crate::{PATIENCE, Reporter, Slowest};
use bpfof_controller::counted_address;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// The most headers of a request.
const MAX_HEADERS: usize = 64;
/// How long a request may take to arrive, and its answer to be sent.
const DEADLINE: Duration = Duration::from_secs(2);

/// How long the client may take to close the connection.
const LINGER: Duration = Duration::from_millis(100);

/// Most connections at a time.
const MAX_CONNECTIONS: usize = 32;

/// The live page, its style sheet and its script.
const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
/// The page's security policy: it loads nothing from other servers, and runs no inline scripts or styles.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The answer to a request whose `Host` may be the name of a foreign web page.
const NO_NAME: &str =
    "the target does not know this host name: use its address, or add the name to metrics-names";

/// The answer to a request.
struct Response {
    status: &'static str,
    content_type: &'static str,
    body: Arc<str>,
}

impl Response {
    fn text(status: &'static str, body: &str) -> Self {
        let body = format!("{body}\n").into();
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }

    fn good(content_type: &'static str, body: &str) -> Self {
        Self { status: "200 OK", content_type, body: body.into() }
    }
}

impl From<Answer> for Response {
    fn from(answer: Answer) -> Self {
        match answer {
            Ok((content_type, body)) => Self { status: "200 OK", content_type, body },
            Err(error) => Self::text("503 Service Unavailable", &error),
        }
    }
}

/// How a request is answered: at once, or after asking the reactors.
enum Reply {
    Response(Response),
    Question(Question),
}

/// A connection that is being answered.
struct Entry {
    number: u64,
    peer: IpAddr,
    stream: TcpStream,
    /// Passes the answer to its thread. The thread ends if this is dropped first.
    to: Sender<Answer>,
}

/// Connections that are being answered, the oldest first, and the number of the last one.
#[derive(Default)]
struct Answering(Mutex<(u64, VecDeque<Entry>)>);

impl Answering {
    fn lock(&self) -> MutexGuard<'_, (u64, VecDeque<Entry>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, and closes another one if there are too many. Returns its number, and the receiver for the
    /// answer of the reactors.
    fn begin(&self, stream: &TcpStream, peer: IpAddr) -> io::Result<(u64, Receiver<Answer>)> {
        let stream = stream.try_clone()?;
        let (to, from) = mpsc::channel();
        let mut all = self.lock();
        all.0 += 1;
        let number = all.0;
        if all.1.len() >= MAX_CONNECTIONS {
            let entries = &mut all.1;
            let of = |peer| entries.iter().filter(|entry| entry.peer == peer).count();
            let busiest = entries.iter().map(|entry| of(entry.peer)).max().unwrap_or(0);
            let longest = entries.iter().position(|entry| of(entry.peer) == busiest);
            if let Some(longest) = longest.and_then(|at| entries.remove(at)) {
                let _ = longest.stream.shutdown(Shutdown::Both);
            }
        }
        all.1.push_back(Entry { number, peer, stream, to });
        Ok((number, from))
    }

    /// Passes an answer to a connection, if it is still there.
    fn tell(&self, number: u64, answer: &Answer) {
        if let Some(entry) = self.lock().1.iter().find(|entry| entry.number == number) {
            let _ = entry.to.send(answer.clone());
        }
    }

    fn end(&self, number: u64) {
        self.lock().1.retain(|entry| entry.number != number);
    }
}

/// Answers HTTP requests for one of these names on a listening socket, on threads of its own. Each thread first calls
/// `aside`, which must keep it out of the way of the threads that serve hosts.
///
/// # Errors
/// Errors of the kernel.
pub fn serve(
    listener: TcpListener,
    sources: (Reporter, Slowest),
    names: Names,
    aside: impl Fn() + Send + Sync + 'static,
) -> io::Result<()> {
    let names = Arc::new(names);
    let answering = Arc::<Answering>::default();
    let all = Arc::clone(&answering);
    let aside = Arc::new(aside);
    let begin = Arc::clone(&aside);
    let tell = move |number, answer: &Answer| all.tell(number, answer);
    let questions = Questions::start(sources, move || begin(), tell)?;
    let serve = move || {
        // The threads that this one starts inherit the effect.
        aside();
        loop {
            if let Err(error) = accept(&listener, &names, &questions, &answering) {
                log::warn!("metrics: {error}");
                // For example, no descriptor is left.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    };
    std::thread::Builder::new().name("metrics".into()).spawn(serve).map(drop)
}

fn accept(
    listener: &TcpListener,
    names: &Arc<Names>,
    questions: &Questions,
    answering: &Arc<Answering>,
) -> io::Result<()> {
    let (stream, peer) = match listener.accept() {
        Err(error) if is_of_peer(&error) => return Ok(()),
        accepted => accepted?,
    };
    let (number, from) = answering.begin(&stream, counted_address(peer.ip()))?;
    let (questions, all) = (questions.clone(), Arc::clone(answering));
    let names = Arc::clone(names);
    let answer = move || {
        let ask = |question| {
            questions.ask(question, number);
            from.recv().map_err(|_| ErrorKind::ConnectionAborted.into())
        };
        match answer(&stream, &names, ask) {
            Err(error) if !is_of_peer(&error) => log::warn!("metrics: {error}"),
            Err(error) => log::debug!("metrics: {error}"),
            Ok(()) => {}
        }
        all.end(number);
    };
    let thread = std::thread::Builder::new().name("metrics-answer".into());
    thread.spawn(answer).map(drop).inspect_err(|_| answering.end(number))
}

fn is_of_peer(error: &io::Error) -> bool {
    use ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut, UnexpectedEof,
        WouldBlock,
    };
    let kinds = [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut];
    kinds.into_iter().chain([UnexpectedEof, WouldBlock]).any(|kind| kind == error.kind())
}

fn answer(
    mut stream: &TcpStream,
    names: &Names,
    ask: impl FnOnce(Question) -> io::Result<Answer>,
) -> io::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    let mut head = Vec::new();
    let (reply, has_body) = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        let length = stream.read(&mut part)?;
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&part[..length]);
        if let Some(reply) = respond(&head, names) {
            break reply;
        }
    };
    let response = match reply {
        Reply::Response(response) => response,
        Reply::Question(question) => ask(question)?.into(),
    };
    let mut text = String::new();
    let _ = write!(
        text,
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         Content-Security-Policy: {POLICY}\r\n\r\n",
        response.status,
        response.content_type,
        response.body.len()
    );
    // The body is not copied: it is large, and many connections may send the same one.
    let body = if has_body { &*response.body } else { "" };
    write_until(stream, [text.as_bytes(), body.as_bytes()], deadline + PATIENCE)?;
    // If a part of the request is unread at the close, the kernel resets the connection, and the client loses the
    // answer.
    stream.shutdown(Shutdown::Write)?;
    let end = Instant::now() + LINGER;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        if !stream.read(&mut [0; 1024]).is_ok_and(|length| length > 0) {
            return Ok(());
        }
    }
}

fn write_until(mut stream: &TcpStream, parts: [&[u8]; 2], deadline: Instant) -> io::Result<()> {
    let mut parts = parts.map(IoSlice::new);
    let mut left = &mut parts[..];
    // Skips empty parts at the front.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        let time = deadline.saturating_duration_since(Instant::now());
        if time.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(time))?;
        match stream.write_vectored(left)? {
            0 => return Err(ErrorKind::BrokenPipe.into()),
            written => IoSlice::advance_slices(&mut left, written),
        }
    }
    Ok(())
}

/// The answer to a request, and whether to send its body; none while the head of the request is incomplete.
fn respond(head: &[u8], names: &Names) -> Option<(Reply, bool)> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let refused = |status, why: &str| Some((Reply::Response(Response::text(status, why)), true));
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if head.len() < MAX_HEAD_BYTES => return None,
        Ok(httparse::Status::Partial) => {
            return refused("431 Request Header Fields Too Large", "the request is too long");
        }
        Err(error) => return refused("400 Bad Request", &error.to_string()),
    }
    let mut hosts =
        request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let is_ours = |host: &str| names.are_asked_for(host.trim());
    if !hosts.all(|header| std::str::from_utf8(header.value).is_ok_and(is_ours)) {
        return refused("421 Misdirected Request", NO_NAME);
    }
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    match request.method {
        Some("GET") => Some((resource(path), true)),
        Some("HEAD") => Some((resource(path), false)),
        _ => refused("405 Method Not Allowed", "only GET and HEAD"),
    }
}

fn resource(path: &str) -> Reply {
    Reply::Response(match path {
        "/" => Response::good("text/html; charset=utf-8", PAGE),
        "/page.css" => Response::good("text/css; charset=utf-8", STYLE),
        "/page.js" => Response::good("text/javascript; charset=utf-8", SCRIPT),
        "/metrics" => return Reply::Question(Question::Metrics),
        "/report" => return Reply::Question(Question::Report),
        "/slow" => return Reply::Question(Question::Slow),
        _ => Response::text("404 Not Found", "there are /, /metrics, /report and /slow"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The status line of the answer, if no reactor answered.
    fn status(head: &[u8]) -> Option<&'static str> {
        respond(head, &Names::default()).map(|(reply, _)| match reply {
            Reply::Response(response) => response.status,
            Reply::Question(_) => Response::from(Err("no answer".to_owned())).status,
        })
    }

    #[test]
    fn a_target_that_does_not_answer_is_told_of() {
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\n\r\n"), Some("503 Service Unavailable"));
        assert_eq!(status(b"GET /slow HTTP/1.1\r\n\r\n"), Some("503 Service Unavailable"));
        assert_eq!(status(b"GET /?x=1 HTTP/1.0\r\n\r\n"), Some("200 OK"));
        assert_eq!(status(b"GET / HTTP/1.1\r\nHost: x\r\n"), None);
        let misdirected = Some("421 Misdirected Request");
        assert_eq!(status(b"GET / HTTP/1.1\r\nhost: x.example.net\r\n\r\n"), misdirected);
        let both = b"GET /report HTTP/1.1\r\nHost: x\r\nHost: x.example.net\r\n\r\n";
        assert_eq!(status(both), misdirected);
        assert_eq!(status(b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n"), misdirected);
        let many = "A: b\r\n".repeat(MAX_HEADERS + 1);
        let refused = status(format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes());
        assert_eq!(refused, Some("400 Bad Request"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_or_awaited(
            line in proptest::collection::vec(any::<u8>(), 0..200),
            is_begun: bool,
        ) {
            let head = if is_begun { [&b"GET "[..], &line].concat() } else { line };
            let answered = status(&head).is_some();
            // A request that never ends is refused.
            let padded = [&head[..], &vec![b'x'; MAX_HEAD_BYTES]].concat();
            prop_assert!(answered || status(&padded).is_some());
        }
    }
}
