//! How to connect and how to wait.

use crate::credentials::Credentials;
use crate::transport::Connector;
use std::fmt::Write;
use std::sync::OnceLock;
use std::time::Duration;

/// Settings of a [`Controller`](crate::Controller) and its lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// NQN by which the target knows this host. By default made from the default `host_id`.
    pub host_nqn: String,
    /// Identifier of this host. By default random, the same within a process.
    pub host_id: [u8; 16],
    /// Requests that a lane may have in flight, 1 to 4095; the target may allow fewer.
    pub queue_depth: u16,
    /// Protect PDU headers by a CRC32C.
    pub header_digest: bool,
    /// Protect PDU data by a CRC32C.
    pub data_digest: bool,
    /// Longest time to open a connection: its handshakes, Connect and authentication together.
    pub connect_timeout: Duration,
    /// Longest time from sending a request to its completion. A request that takes longer ends
    /// its lane.
    pub command_timeout: Duration,
    /// How long a target that receives nothing keeps the association, in whole ms (NVMe Base 2.0 §3.9). A thread of the
    /// controller sends a Keep Alive every half of it, so that an association lasts as long as the process runs,
    /// whatever the program does. 0 is no timer and no thread: a target may then give up a silent host at any time, or
    /// refuse it from the beginning. A target without such a timer gets no Keep Alives. If more than ten minutes are
    /// refused, it is ten minutes.
    pub keep_alive: Duration,
    /// Replaces `keep_alive` for an address with several portals, at least 100 ms: how long a target that receives
    /// nothing keeps the association, and at most how long this host waits for a silent target. Requests are then sent
    /// again on another path; writes only after twice that time and a second, when the first target can no longer carry
    /// them out (docs/failover.md).
    pub path_timeout: Duration,
    /// Whether a thread sends the Keep Alives, whatever the program does. Otherwise the program must call
    /// [`Controller::keep_alive`](crate::Controller::keep_alive), and the target ends the association if the program
    /// hangs.
    pub keep_alive_thread: bool,
    /// Make a restricted association: its lanes accept chains over mapped files and nothing else, so that they can be
    /// [handed over](crate::Lane::hand_over) to processes with no further rights, and the target completes a change of
    /// a file map only when no chain uses the old map any more. It ends when its admin queue has sent nothing for
    /// `keep_alive`, which must be 1 to 10 s, whatever its lanes send (docs/protocol.md, Queue Restriction).
    pub pushdown_only: bool,
    /// Never sleep while waiting. For threads that have a core of their own.
    pub poll: bool,
    /// How long to spin before sleeping, in µs, if spinning has paid off so far.
    pub spin_us: u32,
    /// The credentials of this host. Those that a [`TargetUrl`](crate::TargetUrl) names take precedence.
    pub credentials: Credentials,
    /// Connects to a target in this process instead of over TCP. Then only the subsystem of the address counts, and
    /// digests have no effect.
    pub connector: Option<Connector>,
}

/// Default for requests in flight: as on a Linux host.
const QUEUE_DEPTH: u16 = 128;
/// Default for keep-alive: the association survives if the process is stopped for a minute, and an idle process wakes
/// up once a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(120);
/// Default for paths: the keep-alive timeout of a Linux host.
const PATH_TIMEOUT: Duration = Duration::from_secs(5);

impl Default for Options {
    fn default() -> Self {
        let host_id = process_host_id();
        Self {
            host_nqn: uuid_nqn(&host_id),
            host_id,
            queue_depth: QUEUE_DEPTH,
            header_digest: false,
            data_digest: false,
            connect_timeout: Duration::from_secs(5),
            command_timeout: Duration::from_secs(30),
            keep_alive: KEEP_ALIVE,
            path_timeout: PATH_TIMEOUT,
            keep_alive_thread: true,
            pushdown_only: false,
            poll: false,
            spin_us: 200,
            credentials: Credentials::default(),
            connector: None,
        }
    }
}

impl Options {
    /// The defaults for the host with this identifier and the NQN made from it. Several processes that act as one host
    /// use the same identifier, for instance to access each other's function maps
    /// ([`Controller::host_maps`](crate::Controller::host_maps)).
    #[must_use]
    pub fn for_host(host_id: [u8; 16]) -> Self {
        Self { host_nqn: uuid_nqn(&host_id), host_id, ..Self::default() }
    }
}

/// A UUID of this process: random (version 4) and drawn once, with the process id in it, so that a forked process has
/// another one. Without a source of randomness, only the process id makes it unique.
fn process_host_id() -> [u8; 16] {
    static DRAWN: OnceLock<[u8; 16]> = OnceLock::new();
    let drawn = DRAWN.get_or_init(|| {
        let mut drawn = [0; 16];
        // On failure it stays 0.
        let _ = getrandom::fill(&mut drawn);
        drawn
    });
    let mut id = u128::from_be_bytes(*drawn) ^ u128::from(std::process::id());
    id = id & !(0xF << 76) | 0x4 << 76;
    id = id & !(0x3 << 62) | 0x2 << 62;
    id.to_be_bytes()
}

/// The NQN of a host that has only a UUID (NVMe Base 2.0 §4.5).
fn uuid_nqn(id: &[u8; 16]) -> String {
    let mut nqn = String::from("nqn.2014-08.org.nvmexpress:uuid:");
    for (index, byte) in id.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            nqn.push('-');
        }
        // Writing to a String cannot fail.
        let _ = write!(nqn, "{byte:02x}");
    }
    nqn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_stable_and_well_formed() {
        let options = Options::default();
        assert_eq!(options, Options::default());
        assert_eq!(options.host_nqn.len(), "nqn.2014-08.org.nvmexpress:uuid:".len() + 36);
        let nqn = uuid_nqn(&std::array::from_fn(|index| index as u8));
        assert!(nqn.ends_with(":00010203-0405-0607-0809-0a0b0c0d0e0f"), "{nqn}");
    }
}
