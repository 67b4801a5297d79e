//! Chains as they end, for one client.

use crate::rpc::Notification;
use bpfof_controller::Tracing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How soon the loss of the client is noticed, if no chain ends meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// How long the client may receive nothing.
const SLOW: Duration = Duration::from_secs(5);

/// Sends chains to the client as they end, until it closes its end or receives nothing any more.
pub(crate) fn tell(trace: &Tracing, stream: &UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(SLOW))?;
    while !has_gone(stream)? {
        let Some(chain) = trace.next(LOOK).map_err(io::Error::other)? else { continue };
        let line = serde_json::to_string(&Notification::of("chain", &chain)?)? + "\n";
        match (&mut &*stream).write_all(line.as_bytes()) {
            // The client may leave at any time.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}

/// Whether the client has closed its end. It sends nothing during a trace.
fn has_gone(stream: &UnixStream) -> io::Result<bool> {
    let mut wanted = [PollFd::new(stream, PollFlags::IN | PollFlags::RDHUP)];
    Ok(poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}
