//! Metrics over HTTP: GET /metrics for Prometheus, GET /report for what the page shows, GET / for the page.
//!
//! One request at a time, and a connection for each. Whoever is slower than two seconds is given up.

use crate::{PATIENCE, Reporter, metrics};
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Longest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// The most headers of a request.
const MAX_HEADERS: usize = 64;
/// How long a request may take to come, and its answer to go.
const DEADLINE: Duration = Duration::from_secs(2);

/// How long the other end may take to close.
const LINGER: Duration = Duration::from_millis(100);

/// The live page.
const PAGE: &str = include_str!("page.html");

/// What a request is answered.
struct Response {
    status: &'static str,
    content_type: &'static str,
    body: String,
}

impl Response {
    fn text(status: &'static str, body: impl Into<String>) -> Self {
        let body = body.into() + "\n";
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }
}

/// Answers who comes to a socket that listens, on a thread of its own.
///
/// # Errors
/// The kernel's.
pub fn serve(listener: TcpListener, report: Reporter) -> io::Result<()> {
    let serve = move || {
        loop {
            let answered = listener.accept().and_then(|(stream, _)| answer(&stream, &report));
            match answered {
                Ok(()) => {}
                Err(error) if is_of_peer(&error) => log::debug!("metrics: {error}"),
                Err(error) => {
                    log::warn!("metrics: {error}");
                    // As when no descriptor is left.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    };
    std::thread::Builder::new().name("metrics".into()).spawn(serve).map(drop)
}

fn is_of_peer(error: &io::Error) -> bool {
    use ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock,
    };
    let kinds =
        [BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof, WouldBlock];
    kinds.contains(&error.kind())
}

fn answer(mut stream: &TcpStream, report: &Reporter) -> io::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    let mut head = Vec::new();
    let (response, has_body) = loop {
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
        if let Some(answer) = respond(&head, report) {
            break answer;
        }
    };
    let mut text = String::new();
    let _ = write!(
        text,
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src \
         'unsafe-inline'; connect-src 'self'\r\n\r\n",
        response.status,
        response.content_type,
        response.body.len()
    );
    if has_body {
        text += &response.body;
    }
    write_until(stream, text.as_bytes(), deadline + PATIENCE)?;
    // What is not read of the request would make the kernel take the answer back.
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(LINGER))?;
    let _ = io::copy(&mut stream.take(MAX_HEAD_BYTES as u64), &mut io::sink());
    Ok(())
}

fn write_until(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes)? {
            0 => return Err(ErrorKind::BrokenPipe.into()),
            written => bytes = &bytes[written..],
        }
    }
    Ok(())
}

/// The answer to a request, and whether its body is sent; none while more of its head is to come.
fn respond(head: &[u8], report: &Reporter) -> Option<(Response, bool)> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let refused = |status, why: &str| Some((Response::text(status, why), true));
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if head.len() < MAX_HEAD_BYTES => return None,
        Ok(httparse::Status::Partial) => {
            return refused("431 Request Header Fields Too Large", "the request is too long");
        }
        Err(error) => return refused("400 Bad Request", &error.to_string()),
    }
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    match request.method {
        Some("GET") => Some((resource(path, report), true)),
        Some("HEAD") => Some((resource(path, report), false)),
        _ => refused("405 Method Not Allowed", "only GET and HEAD"),
    }
}

fn resource(path: &str, report: &Reporter) -> Response {
    let unavailable = |error: String| Response::text("503 Service Unavailable", error);
    match path {
        "/" => {
            let (content_type, body) = ("text/html; charset=utf-8", PAGE.to_owned());
            Response { status: "200 OK", content_type, body }
        }
        "/metrics" => {
            let report = report(PATIENCE).map_err(|error| error.to_string());
            let text = report.and_then(|of| metrics::text(of).map_err(|error| error.to_string()));
            text.map_or_else(unavailable, |body| Response {
                status: "200 OK",
                content_type: metrics::CONTENT_TYPE,
                body,
            })
        }
        "/report" => {
            let report = report(PATIENCE).map_err(|error| error.to_string());
            let text =
                report.and_then(|of| serde_json::to_string(&of).map_err(|error| error.to_string()));
            text.map_or_else(unavailable, |body| Response {
                status: "200 OK",
                content_type: "application/json",
                body,
            })
        }
        _ => Response::text("404 Not Found", "there are /, /metrics and /report"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpfof_controller::NoReport;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn status(head: &[u8]) -> Option<&'static str> {
        let report: Reporter = Arc::new(|_| Err(NoReport(3)));
        respond(head, &report).map(|(response, _)| response.status)
    }

    #[test]
    fn a_target_that_does_not_answer_is_told_of() {
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\n\r\n"), Some("503 Service Unavailable"));
        assert_eq!(status(b"GET /?x=1 HTTP/1.0\r\n\r\n"), Some("200 OK"));
        assert_eq!(status(b"GET / HTTP/1.1\r\nHost: x\r\n"), None);
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
            // Not for ever.
            let padded = [&head[..], &vec![b'x'; MAX_HEAD_BYTES]].concat();
            prop_assert!(answered || status(&padded).is_some());
        }
    }
}
