//! Lanes that one process hands to another: the socket by SCM_RIGHTS, and beside it a few bytes with the parameters
//! that were negotiated on the connection.
//!
//! ```text
//! bytes    field, little-endian
//! 0        version of this layout, 1
//! 1        digests: bit 0 header, bit 1 data
//! 2        CPDA of the target
//! 3        reserved, 0
//! 4..6     queue identifier
//! 6..8     requests in flight
//! 8..12    in-capsule data, in bytes
//! 12..16   most data of one command, in bytes
//! 16..20   MAXH2CDATA of the target, in bytes
//! 20..22   TLS cipher suite, 0 without TLS: then the rest is 0
//! 22..24   reserved, 0
//! 24..76   for records that this host seals: key (32, a shorter one padded with 0), initialization
//!          vector (12), number of the next record (8)
//! 76..128  the same for records that the target seals
//! ```

use crate::association::TRANSFER_MAX_BYTES;
use crate::queue::Queue;
use crate::requests::{IN_CAPSULE_MAX_BYTES, InitiatorConfig, SLOTS_MAX};
use crate::transport::Port;
use crate::transport::tcp::{Keys, Takeover, TcpPort};
use crate::{Error, Lane, Options};
use bpfof_nvme::tcp::{Digests, IcResp};
use bpfof_tls::{IV_BYTES, KEY_RECORDS_MAX, Suite, TrafficKey};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Length of [`HandedLane::state`], in bytes.
const STATE_BYTES: usize = 128;
/// Largest state of a lane in this version or a later one, in bytes.
pub const STATE_MAX_BYTES: usize = 512;

const VERSION: u8 = 1;
/// Longest key of a cipher suite, in bytes.
const KEY_BYTES: usize = 32;
/// The last queue identifier (NVMe Base 2.0 §5.4).
const QID_MAX: u16 = 0xFFFE;

/// A lane on its way to another process, which takes it over with [`Lane::adopt`].
///
/// Dropping it closes the connection.
pub struct HandedLane {
    /// The connection: for SCM_RIGHTS.
    pub socket: OwnedFd,
    state: Zeroizing<[u8; STATE_BYTES]>,
}

impl HandedLane {
    /// The state that the other process needs besides the socket, at most [`STATE_MAX_BYTES`] long. With TLS it
    /// contains the keys of the connection: anyone who reads it can decrypt the traffic. It is overwritten on drop.
    #[must_use]
    pub fn state(&self) -> &[u8] {
        self.state.as_slice()
    }
}

impl fmt::Debug for HandedLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandedLane").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Lane {
    /// Gives away an idle lane of a restricted association ([`Options::pushdown_only`]), to be [adopted](Self::adopt)
    /// by a process that must not get more rights than the lane has. The lane works as long as its association. Its
    /// queue identifier is not used again.
    ///
    /// # Errors
    /// [`Error::LaneBusy`] and [`Error::HandOver`]: requests are in flight, received bytes are unread, the association
    /// is not restricted, or the lane is not a TCP connection; [`Error::Lost`]. The connection is then closed.
    pub fn hand_over(mut self) -> Result<HandedLane, Error> {
        self.require_idle()?;
        if !self.is_restricted() {
            return Err(Error::HandOver(
                "its association is not restricted, so the receiver would get all of this host's \
                 rights",
            ));
        }
        let (socket, takeover) = self.take_connection()?;
        let state = Agreed { qid: self.qid(), config: self.config().clone(), takeover }.encode();
        Ok(HandedLane { socket, state })
    }

    /// Takes over a lane that another process has [handed over](Self::hand_over). The lane cannot be reconnected. It
    /// knows no namespaces, so that it takes chains and no other requests. Its timeouts and its waiting are those of
    /// [`Options::default`].
    ///
    /// # Errors
    /// [`Error::NoLane`]: a socket that is not a TCP connection, or an invalid state.
    pub fn adopt(socket: OwnedFd, state: &[u8]) -> Result<Lane, Error> {
        Self::adopt_with(socket, state, &Options::default())
    }

    /// The same with the timeouts and the waiting of `options`.
    pub(crate) fn adopt_with(
        socket: OwnedFd,
        state: &[u8],
        options: &Options,
    ) -> Result<Lane, Error> {
        let Agreed { qid, config, takeover } = Agreed::decode(state)?;
        let port = Port::Tcp(Box::new(TcpPort::adopt(socket, config, takeover)?));
        Ok(Lane::adopted(Queue::over(port, options, options.command_timeout), qid))
    }
}

/// The negotiated parameters of a lane.
pub(crate) struct Agreed {
    qid: u16,
    pub(crate) config: InitiatorConfig,
    pub(crate) takeover: Takeover,
}

impl Agreed {
    pub(crate) fn encode(&self) -> Zeroizing<[u8; STATE_BYTES]> {
        let Self { qid, config, takeover: Takeover { opened, keys } } = self;
        let mut state = Zeroizing::new([0; STATE_BYTES]);
        let mut out = Writer { rest: state.as_mut_slice() };
        out.put(&[VERSION, opened.digests.bits(), opened.cpda, 0]);
        out.put(&qid.to_le_bytes());
        out.put(&config.depth.to_le_bytes());
        out.put(&config.in_capsule_bytes.to_le_bytes());
        out.put(&config.max_transfer_bytes.to_le_bytes());
        out.put(&opened.maxh2cdata_bytes.to_le_bytes());
        if let Some(Keys { write, read }) = keys {
            out.put(&write.suite().number().to_le_bytes());
            out.put(&[0, 0]);
            for key in [write, read] {
                let mut padded = Zeroizing::new([0; KEY_BYTES]);
                if let Some(place) = padded.get_mut(..key.key().len()) {
                    place.copy_from_slice(key.key());
                }
                out.put(padded.as_slice());
                out.put(key.iv());
                out.put(&key.sequence().to_le_bytes());
            }
        }
        state
    }

    pub(crate) fn decode(state: &[u8]) -> Result<Self, Error> {
        let mut from = Reader { rest: state };
        let [version, digests, cpda, reserved] = from.take()?;
        if version != VERSION {
            return Err(Error::NoLane(
                "its state has the layout of another version of this library",
            ));
        }
        let qid = u16::from_le_bytes(from.take()?);
        let depth = u16::from_le_bytes(from.take()?);
        let in_capsule_bytes = u32::from_le_bytes(from.take()?);
        let max_transfer_bytes = u32::from_le_bytes(from.take()?);
        let maxh2cdata_bytes = u32::from_le_bytes(from.take()?);
        let suite = u16::from_le_bytes(from.take()?);
        let reserved = u16::from_le_bytes(from.take()?) | u16::from(reserved);
        let keys = from.keys(suite)?;
        let digests_known = Digests::from_bits(digests);
        let is_good = reserved == 0
            && digests_known.bits() == digests
            && (1..=QID_MAX).contains(&qid)
            && (1..=SLOTS_MAX).contains(&depth)
            && in_capsule_bytes <= IN_CAPSULE_MAX_BYTES
            && (1..=TRANSFER_MAX_BYTES).contains(&max_transfer_bytes)
            && from.rest.is_empty();
        if !is_good {
            return Err(Error::NoLane("its state is invalid"));
        }
        let config = InitiatorConfig {
            admin: false,
            digests: digests_known,
            depth,
            in_capsule_bytes,
            max_transfer_bytes,
            namespaces: Arc::new([]),
        };
        // The remaining fields are checked like those of an ICResp from a target.
        let opened = IcResp { digests: digests_known, cpda, maxh2cdata_bytes, ..IcResp::default() };
        Ok(Self { qid, config, takeover: Takeover { opened, keys } })
    }
}

/// Writes fields one after the other.
struct Writer<'a> {
    rest: &'a mut [u8],
}

impl Writer<'_> {
    fn put(&mut self, field: &[u8]) {
        if let Some((place, rest)) =
            std::mem::take(&mut self.rest).split_at_mut_checked(field.len())
        {
            place.copy_from_slice(field);
            self.rest = rest;
        }
    }
}

/// Takes fields off the front.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take_ref().copied()
    }

    /// Takes a field without copying it, because it may be secret.
    fn take_ref<const N: usize>(&mut self) -> Result<&'a [u8; N], Error> {
        let short = Error::NoLane("its state is too short");
        let (field, rest) = self.rest.split_first_chunk().ok_or(short)?;
        self.rest = rest;
        Ok(field)
    }

    /// The keys of a connection with this cipher suite; `None` for 0.
    fn keys(&mut self, suite: u16) -> Result<Option<Keys>, Error> {
        if suite == 0 {
            let zeroes: [u8; STATE_BYTES - 24] = self.take()?;
            let is_zero = zeroes == [0; STATE_BYTES - 24];
            return is_zero
                .then_some(None)
                .ok_or(Error::NoLane("it has TLS keys but no cipher suite"));
        }
        let suite =
            Suite::from_number(suite).ok_or(Error::NoLane("its cipher suite is unknown"))?;
        let keys = Keys { write: self.key(suite)?, read: self.key(suite)? };
        // A lane with a worn key is not handed over.
        match keys.write.sequence().max(keys.read.sequence()) < KEY_RECORDS_MAX {
            true => Ok(Some(keys)),
            false => Err(Error::NoLane("its TLS key has reached its usage limit")),
        }
    }

    fn key(&mut self, suite: Suite) -> Result<TrafficKey, Error> {
        let wrong = Error::NoLane("a TLS key does not fit its cipher suite");
        let padded: &[u8; KEY_BYTES] = self.take_ref()?;
        let iv: &[u8; IV_BYTES] = self.take_ref()?;
        let sequence = u64::from_le_bytes(self.take()?);
        let Some((key, padding)) = padded.split_at_checked(suite.key_bytes()) else {
            return Err(wrong);
        };
        let is_padded = padding.iter().all(|byte| *byte == 0);
        let key = TrafficKey::from_parts(suite, key, iv, sequence).filter(|_| is_padded);
        key.ok_or(wrong)
    }
}

/// The state of queue 3 with 128 requests of at most 128 KiB, up to 8 KiB of which go in the capsule.
#[cfg(test)]
pub(crate) fn example_state() -> [u8; STATE_BYTES] {
    let mut state = [0; STATE_BYTES];
    let fields = [1, 0, 0, 0, 3, 0, 128, 0, 0, 0x20, 0, 0, 0, 0, 2, 0, 0, 0x10];
    state[..fields.len()].copy_from_slice(&fields);
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    #[test]
    fn an_adopted_lane_waits_as_its_options_say() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let adopt = |options: &Options| {
            let address = listener.local_addr().expect("an address");
            let socket = TcpStream::connect(address).expect("it listens");
            Lane::adopt_with(socket.into(), &example_state(), options).expect("a lane").waiting()
        };
        let options = Options { poll: true, spin_us: 7, ..Options::default() };
        assert_eq!(adopt(&options), (Duration::from_micros(7), true));
        assert_eq!(adopt(&Options::default()), (Duration::from_micros(200), false));
    }
}
