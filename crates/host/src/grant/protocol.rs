//! The messages between a client and the grant daemon: encoding, and decoding with every byte checked.
//!
//! A message is one packet of a SOCK_SEQPACKET socket: a kind, and little-endian fields without
//! padding. Descriptors are passed as ancillary data. Each request has one answer, and a client
//! sends the next request only after it has received that. docs/grants.md has the tables.

use bpfof_nvme::is_unprintable;
use std::fmt;
use zeroize::Zeroizing;

/// Version of this protocol, the first field of [`Request::Open`].
pub const PROTOCOL: u16 = 2;
/// Most files of one request, and so most descriptors of one packet.
pub const FILES_PER_REQUEST: usize = 32;
/// Longest packet in bytes, in either direction.
pub const PACKET_MAX_BYTES: usize = 16 << 10;
/// Longest state of a lane in bytes.
pub const LANE_STATE_MAX_BYTES: usize = 512;
/// Longest name of a function in bytes, as in the target's Function Report.
pub const NAME_MAX_BYTES: usize = 64;
/// Longest text of a refusal in bytes.
pub const WHY_MAX_BYTES: usize = 400;

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Opens an association. Must be the first request. If the daemon serves several namespaces, it
    /// comes with a descriptor of any file or directory on the file system in question; otherwise
    /// it needs none.
    Open {
        /// [`PROTOCOL`].
        protocol: u16,
    },
    /// Loads a storage function, with a descriptor of a sealed memfd that holds its ELF object.
    Load {
        /// Which of the object's `bpfof/…` sections is the entry point.
        entry: u32,
        /// SHA-256 digest of the program, as in the target's Function Report.
        digest: [u8; 32],
        /// Its name: the section name after `bpfof/`, of at most [`NAME_MAX_BYTES`].
        name: String,
    },
    /// Requests a connected lane.
    Lane,
    /// Requests grants for files, with one descriptor each.
    Add {
        /// The ids by which chains will name the files: 1 to [`Opened::files_max`], not in use.
        ids: Vec<u32>,
    },
    /// Requests grants again, for files that have lost theirs or were refused.
    Refresh {
        /// Their ids.
        ids: Vec<u32>,
    },
    /// The client no longer needs these files.
    Remove {
        /// Their ids.
        ids: Vec<u32>,
    },
}

/// The daemon's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Open`], with a descriptor of the versions page.
    Opened(Opened),
    /// To [`Request::Load`].
    Loaded {
        /// The function's id at the target, not 0.
        function: u32,
    },
    /// To [`Request::Lane`], with a descriptor of its connection.
    Lane {
        /// The lane's state for [`Lane::adopt`](crate::Lane::adopt), at most [`LANE_STATE_MAX_BYTES`].
        state: Zeroizing<Vec<u8>>,
    },
    /// To [`Request::Add`] and [`Request::Refresh`]: one entry for each file, in order.
    Files(Vec<FileAnswer>),
    /// To [`Request::Remove`].
    Done,
    /// To any request: the whole request is refused.
    Refused(Refusal),
}

/// The association of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Namespace id, not 0.
    pub nsid: u32,
    /// Logical block of the namespace in bytes, a power of two from 512 on.
    pub block_bytes: u32,
    /// Size of the namespace in logical blocks.
    pub blocks: u64,
    /// Largest file id, not 0. The versions page has a word for each id.
    pub files_max: u32,
}

/// The result for one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAnswer {
    /// Its id.
    pub id: u32,
    /// The grant, or why there is none.
    pub result: Result<Grant, Refusal>,
}

/// A file that chains may read, as long as its word in the versions page has this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Version of its map, not 0.
    pub version: u64,
    /// Whether some bytes of the file are in no extent: they read as zeroes, but not at the target.
    pub has_gaps: bool,
}

/// Why a request, or a grant for one file, is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of reason.
    pub cause: Cause,
    /// The reason as text: printable, at most [`WHY_MAX_BYTES`] of UTF-8.
    pub why: String,
}

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident = $code:literal),* $(,)?) => {
        /// The kinds of reasons of a refusal.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Cause {
            $($(#[$doc])* $name,)*
        }

        impl Cause {
            /// All of them.
            pub const ALL: &[Cause] = &[$(Cause::$name),*];

            const fn code(self) -> u8 {
                match self { $(Cause::$name => $code,)* }
            }

            const fn of_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Cause::$name),)* _ => None }
            }
        }
    };
}

causes! {
    /// The descriptor cannot read its file.
    NotReadable = 1,
    /// The file is on no file system that the daemon serves.
    OtherPlace = 2,
    /// It is no regular file.
    NotRegular = 3,
    /// The file is open for writing, or is changing at this moment.
    BeingWritten = 4,
    /// The file system allows changes of the file in spite of a lease, and the file is not immutable.
    NotImmutable = 5,
    /// Its bytes are not at places that a map can name.
    NotMappable = 6,
    /// The file cannot be leased, or the lease break time of this machine is too short.
    NoLease = 7,
    /// The user has reached the daemon's limit per user.
    Quota = 8,
    /// The daemon's configuration forbids it.
    Policy = 9,
    /// The target has refused it, or cannot be reached.
    Target = 10,
    /// The request makes no sense.
    Malformed = 11,
    /// The daemon is stopping, or cannot do it for internal reasons.
    Unavailable = 12,
}

impl Cause {
    /// Whether the same request may succeed a little later.
    #[must_use]
    pub const fn is_passing(self) -> bool {
        matches!(self, Cause::BeingWritten)
    }
}

impl Refusal {
    /// A refusal with any text: it is cut to the maximum length, and unprintable characters are replaced.
    pub fn new(cause: Cause, why: impl fmt::Display) -> Self {
        let mut text = why.to_string().replace(is_unprintable, "?");
        text.truncate(text.floor_char_boundary(WHY_MAX_BYTES));
        Self { cause, why: text }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// A packet that is no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an invalid packet: {0}")]
pub struct BadPacket(pub &'static str);

const OPEN: u8 = 1;
const LOAD: u8 = 2;
const LANE: u8 = 3;
const ADD: u8 = 4;
const REFRESH: u8 = 5;
const REMOVE: u8 = 6;

const OPENED: u8 = 0x81;
const LOADED: u8 = 0x82;
const LANE_IS: u8 = 0x83;
const FILES: u8 = 0x84;
const DONE: u8 = 0x85;
const REFUSED: u8 = 0x86;

const GRANTED: u8 = 0;
const GRANTED_WITH_GAPS: u8 = 1;
const NOT_GRANTED: u8 = 2;

impl Request {
    /// Appends the packet to `into`.
    pub fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Request::Open { protocol } => {
                into.push(OPEN);
                into.extend(protocol.to_le_bytes());
            }
            Request::Load { entry, digest, name } => {
                into.push(LOAD);
                into.extend(entry.to_le_bytes());
                into.extend(digest);
                encode_text(name, NAME_MAX_BYTES, into);
            }
            Request::Lane => into.push(LANE),
            Request::Add { ids } => encode_ids(ADD, ids, into),
            Request::Refresh { ids } => encode_ids(REFRESH, ids, into),
            Request::Remove { ids } => encode_ids(REMOVE, ids, into),
        }
    }

    /// Decodes the request in `packet`, which came with this number of descriptors.
    ///
    /// # Errors
    /// [`BadPacket`].
    pub fn decode(packet: &[u8], descriptors: usize) -> Result<Self, BadPacket> {
        let mut fields = Fields(packet);
        let (request, expected) = match fields.u8()? {
            OPEN => (Request::Open { protocol: fields.u16()? }, descriptors.min(1)),
            LOAD => {
                let (entry, digest) = (fields.u32()?, fields.array()?);
                let name = fields.text(NAME_MAX_BYTES)?;
                (Request::Load { entry, digest, name }, 1)
            }
            LANE => (Request::Lane, 0),
            ADD => {
                let ids = fields.ids()?;
                let count = ids.len();
                (Request::Add { ids }, count)
            }
            REFRESH => (Request::Refresh { ids: fields.ids()? }, 0),
            REMOVE => (Request::Remove { ids: fields.ids()? }, 0),
            _ => return Err(BadPacket("unknown kind of request")),
        };
        fields.end()?;
        match descriptors == expected {
            true => Ok(request),
            false => Err(BadPacket("wrong number of descriptors")),
        }
    }
}

impl Answer {
    /// Appends the packet to `into`.
    pub fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Answer::Opened(opened) => {
                into.push(OPENED);
                into.extend(opened.nsid.to_le_bytes());
                into.extend(opened.block_bytes.to_le_bytes());
                into.extend(opened.blocks.to_le_bytes());
                into.extend(opened.files_max.to_le_bytes());
            }
            Answer::Loaded { function } => {
                into.push(LOADED);
                into.extend(function.to_le_bytes());
            }
            Answer::Lane { state } => {
                into.push(LANE_IS);
                into.extend((state.len() as u16).to_le_bytes());
                into.extend_from_slice(state);
            }
            Answer::Files(files) => {
                into.push(FILES);
                into.push(files.len() as u8);
                for FileAnswer { id, result } in files {
                    into.extend(id.to_le_bytes());
                    match result {
                        Ok(grant) => {
                            into.push(if grant.has_gaps { GRANTED_WITH_GAPS } else { GRANTED });
                            into.extend(grant.version.to_le_bytes());
                        }
                        Err(refusal) => {
                            into.push(NOT_GRANTED);
                            refusal.encode(into);
                        }
                    }
                }
            }
            Answer::Done => into.push(DONE),
            Answer::Refused(refusal) => {
                into.push(REFUSED);
                refusal.encode(into);
            }
        }
    }

    /// Decodes the answer in `packet`, which came with this number of descriptors.
    ///
    /// # Errors
    /// [`BadPacket`].
    pub fn decode(packet: &[u8], descriptors: usize) -> Result<Self, BadPacket> {
        let mut fields = Fields(packet);
        let (answer, expected) = match fields.u8()? {
            OPENED => (Answer::Opened(fields.opened()?), 1),
            LOADED => (Answer::Loaded { function: fields.nonzero_u32()? }, 0),
            LANE_IS => {
                let length = usize::from(fields.u16()?);
                if length > LANE_STATE_MAX_BYTES {
                    return Err(BadPacket("the lane state is too long"));
                }
                (Answer::Lane { state: Zeroizing::new(fields.take(length)?.to_vec()) }, 1)
            }
            FILES => (Answer::Files(fields.files()?), 0),
            DONE => (Answer::Done, 0),
            REFUSED => (Answer::Refused(fields.refusal()?), 0),
            _ => return Err(BadPacket("unknown kind of answer")),
        };
        fields.end()?;
        match descriptors == expected {
            true => Ok(answer),
            false => Err(BadPacket("wrong number of descriptors")),
        }
    }
}

impl Refusal {
    fn encode(&self, into: &mut Vec<u8>) {
        into.push(self.cause.code());
        encode_text(&self.why, WHY_MAX_BYTES, into);
    }
}

/// Encodes a text, cut to `max` bytes.
fn encode_text(text: &str, max: usize, into: &mut Vec<u8>) {
    let text = &text[..text.floor_char_boundary(max)];
    into.extend((text.len() as u16).to_le_bytes());
    into.extend_from_slice(text.as_bytes());
}

fn encode_ids(kind: u8, ids: &[u32], into: &mut Vec<u8>) {
    into.push(kind);
    into.push(ids.len() as u8);
    ids.iter().for_each(|id| into.extend(id.to_le_bytes()));
}

/// The rest of a packet that has not been read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], BadPacket> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or(BadPacket("the packet is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadPacket> {
        let (taken, rest) =
            self.0.split_first_chunk().ok_or(BadPacket("the packet is too short"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, BadPacket> {
        self.array().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, BadPacket> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, BadPacket> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, BadPacket> {
        self.array().map(u64::from_le_bytes)
    }

    fn nonzero_u32(&mut self) -> Result<u32, BadPacket> {
        self.u32().and_then(|value| {
            if value == 0 { Err(BadPacket("a field is 0 that must not be 0")) } else { Ok(value) }
        })
    }

    fn end(&self) -> Result<(), BadPacket> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(BadPacket("the packet is longer than its fields"))
        }
    }

    /// Reads 1 to [`FILES_PER_REQUEST`] ids, of which none is 0 or occurs twice.
    fn ids(&mut self) -> Result<Vec<u32>, BadPacket> {
        let count = self.count()?;
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            let id = self.nonzero_u32()?;
            if ids.contains(&id) {
                return Err(BadPacket("a file id occurs twice"));
            }
            ids.push(id);
        }
        Ok(ids)
    }

    fn count(&mut self) -> Result<usize, BadPacket> {
        let count = usize::from(self.u8()?);
        match (1..=FILES_PER_REQUEST).contains(&count) {
            true => Ok(count),
            false => Err(BadPacket("no files, or too many files for one packet")),
        }
    }

    fn opened(&mut self) -> Result<Opened, BadPacket> {
        let (nsid, block_bytes) = (self.nonzero_u32()?, self.u32()?);
        if !block_bytes.is_power_of_two() || block_bytes < 512 {
            return Err(BadPacket("the logical block size is not a power of two of at least 512"));
        }
        Ok(Opened { nsid, block_bytes, blocks: self.u64()?, files_max: self.nonzero_u32()? })
    }

    fn files(&mut self) -> Result<Vec<FileAnswer>, BadPacket> {
        let count = self.count()?;
        let mut files = Vec::with_capacity(count);
        for _ in 0..count {
            let id = self.nonzero_u32()?;
            let kind = self.u8()?;
            let result = match kind {
                GRANTED | GRANTED_WITH_GAPS => {
                    let version = self.u64()?;
                    if version == 0 {
                        return Err(BadPacket("a grant has version 0"));
                    }
                    Ok(Grant { version, has_gaps: kind == GRANTED_WITH_GAPS })
                }
                NOT_GRANTED => Err(self.refusal()?),
                _ => return Err(BadPacket("unknown kind of result")),
            };
            files.push(FileAnswer { id, result });
        }
        Ok(files)
    }

    fn refusal(&mut self) -> Result<Refusal, BadPacket> {
        let cause = Cause::of_code(self.u8()?).ok_or(BadPacket("unknown cause of a refusal"))?;
        Ok(Refusal { cause, why: self.text(WHY_MAX_BYTES)? })
    }

    fn text(&mut self, max: usize) -> Result<String, BadPacket> {
        let length = usize::from(self.u16()?);
        if length > max {
            return Err(BadPacket("a text is too long"));
        }
        let text =
            str::from_utf8(self.take(length)?).map_err(|_| BadPacket("a text is not UTF-8"))?;
        match text.contains(is_unprintable) {
            true => Err(BadPacket("a text has unprintable characters")),
            false => Ok(text.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids() -> impl Strategy<Value = Vec<u32>> {
        proptest::collection::btree_set(1_u32.., 1..=FILES_PER_REQUEST)
            .prop_map(|ids| ids.into_iter().collect())
    }

    fn requests() -> impl Strategy<Value = Request> {
        prop_oneof![
            any::<u16>().prop_map(|protocol| Request::Open { protocol }),
            (any::<u32>(), any::<[u8; 32]>(), printable())
                .prop_map(|(entry, digest, name)| { Request::Load { entry, digest, name } }),
            Just(Request::Lane),
            ids().prop_map(|ids| Request::Add { ids }),
            ids().prop_map(|ids| Request::Refresh { ids }),
            ids().prop_map(|ids| Request::Remove { ids }),
        ]
    }

    fn refusals() -> impl Strategy<Value = Refusal> {
        (proptest::sample::select(Cause::ALL), any::<String>())
            .prop_map(|(cause, why)| Refusal::new(cause, why))
    }

    fn files() -> impl Strategy<Value = Vec<FileAnswer>> {
        let grant = (1_u64.., any::<bool>())
            .prop_map(|(version, has_gaps)| Ok(Grant { version, has_gaps }));
        let file = (1_u32.., prop_oneof![grant, refusals().prop_map(Err)])
            .prop_map(|(id, result)| FileAnswer { id, result });
        proptest::collection::vec(file, 1..=FILES_PER_REQUEST)
    }

    fn answers() -> impl Strategy<Value = Answer> {
        let state = proptest::collection::vec(any::<u8>(), 0..=LANE_STATE_MAX_BYTES);
        prop_oneof![
            (1_u32.., 9_u32..31, any::<u64>(), 1_u32..).prop_map(
                |(nsid, shift, blocks, files_max)| {
                    Answer::Opened(Opened { nsid, block_bytes: 1 << shift, blocks, files_max })
                }
            ),
            (1_u32..).prop_map(|function| Answer::Loaded { function }),
            state.prop_map(|state| Answer::Lane { state: Zeroizing::new(state) }),
            files().prop_map(Answer::Files),
            Just(Answer::Done),
            refusals().prop_map(Answer::Refused),
        ]
    }

    fn printable() -> impl Strategy<Value = String> {
        "\\PC{0,16}".prop_map(|text| text.replace(is_unprintable, "?"))
    }

    /// Number of descriptors that a request comes with.
    fn descriptors(request: &Request) -> usize {
        match request {
            Request::Load { .. } => 1,
            Request::Add { ids } => ids.len(),
            _ => 0,
        }
    }

    proptest! {
        #[test]
        fn requests_round_trip(request in requests()) {
            let mut packet = Vec::new();
            request.encode(&mut packet);
            prop_assert!(packet.len() <= PACKET_MAX_BYTES);
            let count = descriptors(&request);
            prop_assert_eq!(Request::decode(&packet, count), Ok(request.clone()));
            prop_assert!(Request::decode(&packet, count + 2).is_err());
            // A packet that is cut, or one byte too long, is refused.
            for end in 0..packet.len() {
                prop_assert!(Request::decode(&packet[..end], count).is_err());
            }
            packet.push(0);
            prop_assert!(Request::decode(&packet, count).is_err());
        }

        #[test]
        fn answers_round_trip(answer in answers()) {
            let mut packet = Vec::new();
            answer.encode(&mut packet);
            prop_assert!(packet.len() <= PACKET_MAX_BYTES);
            let count = usize::from(matches!(answer, Answer::Opened(_) | Answer::Lane { .. }));
            prop_assert_eq!(Answer::decode(&packet, count), Ok(answer));
            prop_assert!(Answer::decode(&packet, count + 1).is_err());
            for end in 0..packet.len() {
                prop_assert!(Answer::decode(&packet[..end], count).is_err());
            }
            packet.push(0);
            prop_assert!(Answer::decode(&packet, count).is_err());
        }

        #[test]
        fn any_packet_is_refused_or_means_one_thing(
            packet in proptest::collection::vec(any::<u8>(), 0..200), descriptors in 0_usize..40,
        ) {
            crate::fuzz::grant_packet(&packet, descriptors);
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_documentation() {
        let bytes = |request: Request| {
            let mut packet = Vec::new();
            request.encode(&mut packet);
            packet
        };
        assert_eq!(bytes(Request::Open { protocol: 1 }), [1, 1, 0]);
        let load = Request::Load { entry: 2, digest: [7; 32], name: "get".to_owned() };
        let expected = [&[2, 2, 0, 0, 0][..], &[7; 32], &[3, 0], b"get"].concat();
        assert_eq!(bytes(load), expected);
        assert_eq!(bytes(Request::Add { ids: vec![7] }), [4, 1, 7, 0, 0, 0]);
        let mut packet = Vec::new();
        let grant = FileAnswer { id: 7, result: Ok(Grant { version: 3, has_gaps: true }) };
        let refusal = Refusal::new(Cause::Quota, "no\n");
        let refused = FileAnswer { id: 8, result: Err(refusal) };
        Answer::Files(vec![grant, refused]).encode(&mut packet);
        let first = [0x84, 2, 7, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0];
        let second = [8, 0, 0, 0, 2, 8, 3, 0, b'n', b'o', b'?'];
        assert_eq!(packet, [&first[..], &second[..]].concat());
    }

    #[test]
    fn ids_are_few_and_differ() {
        let packet = |ids: &[u32]| {
            let mut packet = Vec::new();
            Request::Remove { ids: ids.to_vec() }.encode(&mut packet);
            Request::decode(&packet, 0)
        };
        assert!(packet(&[1, 2]).is_ok());
        for bad in [&[][..], &[0], &[1, 1], &[1; 33]] {
            assert!(packet(bad).is_err(), "{bad:?}");
        }
    }
}
