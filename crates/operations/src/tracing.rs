//! Chains as they end, for one client.

use crate::rpc::Notification;
use bpfof_controller::Tracing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How soon the loss of the client is noticed, if no chain ends meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// How long the client may receive nothing.
const SLOW: Duration = Duration::from_secs(5);

/// Sends chains to the client as they end, until it closes its end or receives nothing any more. If it has closed only
/// the end that it sends on, it hears how many chains were dropped since the last one that it was told of.
pub(crate) fn tell(trace: &Tracing, stream: &UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(SLOW))?;
    let mut known = 0;
    while !has_gone(stream)? {
        let Some(chain) = trace.next(LOOK).map_err(io::Error::other)? else { continue };
        known += chain.skipped;
        if !send(stream, &Notification::of("chain", &chain)?)? {
            return Ok(());
        }
    }
    let mut skipped = trace.skipped().saturating_sub(known);
    while trace.next(Duration::ZERO).map_err(io::Error::other)?.is_some() {
        skipped += 1;
    }
    send(stream, &Notification::of("skipped", &json!({ "skipped": skipped }))?).map(drop)
}

/// Returns whether the client is there.
fn send(mut stream: &UnixStream, notification: &Notification) -> io::Result<bool> {
    let line = serde_json::to_string(notification)? + "\n";
    match stream.write_all(line.as_bytes()) {
        // The client may leave at any time.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Whether the client has closed its end. It sends nothing during a trace.
fn has_gone(stream: &UnixStream) -> io::Result<bool> {
    let mut wanted = [PollFd::new(stream, PollFlags::IN | PollFlags::RDHUP)];
    Ok(poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}
