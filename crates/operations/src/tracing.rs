//! Chains as they end, for one client.

use crate::rpc::Notification;
use bpfof_controller::Tracing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How soon it is noticed that the client has gone, if no chain ends meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// How long the client may take nothing.
const SLOW: Duration = Duration::from_secs(5);

/// Tells of chains until the client goes, or takes nothing any more.
pub(crate) fn tell(trace: &Tracing, stream: &UnixStream) -> io::Result<()> {
    stream.set_write_timeout(Some(SLOW))?;
    while !has_gone(stream)? {
        let Some(chain) = trace.next(LOOK).map_err(io::Error::other)? else { continue };
        let line = serde_json::to_string(&Notification::of("chain", &chain)?)? + "\n";
        match (&mut &*stream).write_all(line.as_bytes()) {
            // It goes when it likes.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}

/// Whether the client has closed its end. It has nothing else to say.
fn has_gone(stream: &UnixStream) -> io::Result<bool> {
    let mut wanted = [PollFd::new(stream, PollFlags::IN | PollFlags::RDHUP)];
    Ok(poll(&mut wanted, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}
