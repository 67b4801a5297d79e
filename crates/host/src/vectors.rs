//! Vectors of chains: which chains one Pushdown Vector command carries, and which chain each of its answers belongs to.

use crate::{
    CommandError, Completion, FileVersion, FirstRead, FirstReads, InitiatorConfig, PushdownCall,
    PushdownLimits, PushdownVectorCall, Request, RequestError, Status, VectorAnswer,
    VectorArguments, VectorChain, VectorRecord,
};
use bpfof_nvme::vendor_specific::PushdownVectorRequest;
use std::iter;
use std::mem;

/// Longest answer of one vector to accept, in bytes: buffers of a lane grow to it. Chains whose answers have no room
/// are sent again.
const ANSWER_MAX_BYTES: u32 = 128 << 10;
/// Most bytes of a request without its arguments: the header, each file, and for each chain its first read and the size
/// of its argument.
const HEADER_BYTES: usize = 48;
const FILE_BYTES: usize = 16;
const CHAIN_BYTES: usize = 18;
/// Offset of the number of chains in a request.
const CHAINS_AT: u32 = 6;

/// A target's limits for one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorLimits {
    /// Most chains; 0 if the target does not support the command.
    pub(crate) chains: u32,
    /// Longest answer, in bytes.
    pub(crate) bytes: u32,
}

impl VectorLimits {
    /// The limits to assume for a target that cannot be asked. If it refuses such a vector, it gets chains one by one.
    pub(crate) const UNKNOWN: Self = Self { chains: 256, bytes: 64 << 10 };

    pub(crate) const fn of(limits: &PushdownLimits) -> Self {
        Self { chains: limits.vector_chains, bytes: limits.vector_bytes }
    }
}

/// The parameters that all chains of one vector share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Common<'a> {
    pub(crate) nsid: u32,
    pub(crate) function: u32,
    pub(crate) files: &'a [FileVersion],
    pub(crate) scratch_size_bytes: u32,
    pub(crate) answer_max_bytes: u32,
}

/// A command of one chain or of many.
#[derive(Debug)]
pub(crate) enum Command<'a> {
    Single(PushdownCall<'a>),
    Vector(PushdownVectorCall<'a>),
}

impl Command<'_> {
    pub(crate) const fn request(&self) -> Request<'_> {
        match self {
            Self::Single(call) => Request::Pushdown(*call),
            Self::Vector(call) => Request::PushdownVector(call),
        }
    }
}

/// Why a chain has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The chain failed, as it could if sent alone.
    Request(RequestError),
    /// The answer to its vector had no room, the target does not accept such a vector, or another path must be used:
    /// the chain may be sent again.
    LeftOut,
    /// The target's answer to its vector is invalid.
    BadAnswer,
}

/// The end of a chain of a vector: its answer and hops.
pub(crate) type ChainEnd<'a> = Result<(&'a [u8], u32), Unanswered>;

/// The chains of one command, as the caller identifies them.
#[derive(Debug)]
struct Sent<T> {
    members: Vec<T>,
    answer_max_bytes: u32,
}

/// Commands of one or many chains, in flight on a queue. Nothing is allocated per command once its buffers
/// have grown.
#[derive(Debug)]
pub(crate) struct Vectors<T> {
    /// Most chains of one command; at most 1 if the target does not support vectors.
    chains_max: usize,
    /// Longest answer of one command, in bytes.
    answer_max_bytes: u32,
    /// Longest request, in bytes.
    request_max_bytes: usize,
    /// A decaying maximum of recent answer lengths, in bytes; `u32::MAX` before the first answer and after an answer
    /// had no room. A vector has room for twice as much per answer.
    lately_bytes: u32,
    /// Whether vectors have room for the longest allowed answer of each chain, whatever `lately_bytes` is.
    whole_answers: bool,
    sent: Vec<Sent<T>>,
    free: Vec<usize>,
    // Parts of the command that is being made.
    first_reads: Vec<FirstRead>,
    sizes: Vec<u16>,
    arguments: Vec<u8>,
}

impl<T: Copy> Vectors<T> {
    /// For a queue with this configuration, to a target with these limits.
    pub(crate) fn new(limits: VectorLimits, config: &InitiatorConfig) -> Self {
        Self {
            chains_max: limits.chains as usize,
            answer_max_bytes: limits.bytes.min(config.max_transfer_bytes).min(ANSWER_MAX_BYTES),
            request_max_bytes: config.in_capsule_bytes as usize,
            lately_bytes: u32::MAX,
            whole_answers: false,
            sent: Vec::new(),
            free: Vec::new(),
            first_reads: Vec::new(),
            sizes: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// Reserves room for the longest answer of each chain, so that none must run again because other answers took the
    /// room.
    pub(crate) fn with_whole_answers(self) -> Self {
        Self { whole_answers: true, ..self }
    }

    /// Most chains of one command.
    pub(crate) const fn together_max(&self) -> usize {
        if self.chains_max > 1 { self.chains_max } else { 1 }
    }

    /// Makes a command of the first chain and as many of the others as it has room for, in order. Returns its tag, the
    /// number of its chains, and the command. [`complete`](Self::complete) or [`not_sent`](Self::not_sent) must follow.
    pub(crate) fn make<'a>(
        &'a mut self,
        common: &Common<'a>,
        first: (T, VectorChain<'a>),
        others: impl Iterator<Item = (T, VectorChain<'a>)>,
    ) -> (u64, usize, Command<'a>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.sent.push(Sent { members: Vec::new(), answer_max_bytes: 0 });
            self.sent.len() - 1
        });
        let likely_bytes = if self.whole_answers { u32::MAX } else { self.lately_bytes };
        let answer_bytes = common.answer_max_bytes.min(likely_bytes.saturating_mul(2));
        let room = self.answer_max_bytes as usize / (VectorRecord::BYTES + answer_bytes as usize);
        let chains_max = self.together_max().min(room);
        let Self { sent, first_reads, sizes, arguments, .. } = self;
        let Sent { members, answer_max_bytes } = &mut sent[slot];
        *answer_max_bytes = common.answer_max_bytes;
        first_reads.clear();
        sizes.clear();
        arguments.clear();
        let mut bytes = HEADER_BYTES + FILE_BYTES * common.files.len();
        for (member, chain) in iter::once(first).chain(others) {
            bytes += CHAIN_BYTES + chain.argument.len();
            let is_first = members.is_empty();
            if !is_first && (members.len() >= chains_max || bytes > self.request_max_bytes) {
                break;
            }
            members.push(member);
            first_reads.push(chain.first);
            sizes.push(chain.argument.len() as u16);
            arguments.extend_from_slice(chain.argument);
        }
        let count = members.len();
        let tag = (slot as u64) << 1 | u64::from(count > 1);
        let command = match count {
            1 => Command::Single(single(common, first.1)),
            _ => Command::Vector(self.vector(common)),
        };
        (tag, count, command)
    }

    /// The vector of the collected chains, without tables where all chains are alike.
    fn vector<'a>(&'a self, common: &Common<'a>) -> PushdownVectorCall<'a> {
        let Self { first_reads, sizes, arguments: bytes, .. } = self;
        let count = first_reads.len() as u16;
        let first = match first_reads.split_first() {
            Some((first, others)) if others.iter().all(|other| other == first) => {
                FirstReads::Same(*first)
            }
            _ => FirstReads::Each(first_reads),
        };
        let arguments = match sizes.split_first() {
            Some((first, others)) if others.iter().all(|other| other == first) => {
                VectorArguments::Equal { count, bytes }
            }
            _ => VectorArguments::Sized { sizes, bytes },
        };
        let room = VectorAnswer::room_bytes(count, common.answer_max_bytes);
        PushdownVectorCall {
            nsid: common.nsid,
            function: common.function,
            files: common.files,
            first,
            arguments,
            scratch_size_bytes: common.scratch_size_bytes,
            answer_max_bytes: common.answer_max_bytes,
            room_bytes: room.min(self.answer_max_bytes.into()) as u32,
        }
    }

    /// Forgets the command with this tag, which the queue has not accepted.
    pub(crate) fn not_sent(&mut self, tag: u64) {
        let slot = (tag >> 1) as usize;
        if let Some(sent) = self.sent.get_mut(slot) {
            sent.members.clear();
            self.free.push(slot);
        }
    }

    /// Handles the end of a command: reports the end of each of its chains.
    pub(crate) fn complete(
        &mut self,
        completion: &Completion<'_>,
        on_end: &mut dyn FnMut(T, ChainEnd<'_>),
    ) {
        let slot = (completion.tag >> 1) as usize;
        let Some(sent) = self.sent.get_mut(slot) else { return };
        let answer_max_bytes = sent.answer_max_bytes;
        let mut members = mem::take(&mut sent.members);
        let mut all = |end: ChainEnd<'_>| members.iter().for_each(|member| on_end(*member, end));
        match completion.result {
            result if completion.tag & 1 == 0 => {
                all(result.map(|done| (done.data, done.dw0)).map_err(Unanswered::Request));
            }
            Ok(done) => match VectorAnswer::parse(done.data, members.len() as u16) {
                Ok(answer) => {
                    let mut longest = 0;
                    for (member, (record, answer)) in members.iter().zip(answer.chains()) {
                        longest = longest.max(match record.status.same_code(Status::VECTOR_FULL) {
                            true => u32::MAX,
                            false => answer.len() as u32,
                        });
                        on_end(*member, chain_end(&record, answer, answer_max_bytes));
                    }
                    self.lately_bytes = match self.lately_bytes {
                        u32::MAX => longest,
                        lately => longest.max(lately - lately / 8),
                    };
                }
                Err(_) => all(Err(Unanswered::BadAnswer)),
            },
            // Sent alone, each chain gets an error of its own.
            Err(RequestError::Command(error)) if is_refused(error.status) => {
                all(Err(Unanswered::LeftOut));
                if takes_less(&error) {
                    self.chains_max = 1;
                }
            }
            Err(error) => all(Err(Unanswered::Request(error))),
        }
        members.clear();
        self.sent[slot].members = members;
        self.free.push(slot);
    }
}

const fn single<'a>(common: &Common<'a>, chain: VectorChain<'a>) -> PushdownCall<'a> {
    PushdownCall {
        nsid: common.nsid,
        function: common.function,
        files: common.files,
        first_file: chain.first.file,
        first_offset_bytes: chain.first.offset_bytes,
        first_size_bytes: chain.first.size_bytes,
        scratch: chain.argument,
        scratch_size_bytes: common.scratch_size_bytes,
        answer_max_bytes: common.answer_max_bytes,
    }
}

/// Whether the target refused the vector as such, and began none of its chains.
fn is_refused(status: Status) -> bool {
    [Status::INVALID_OPCODE, Status::MALFORMED_REQUEST].iter().any(|known| status.same_code(*known))
}

/// Whether it was refused because the target does not support vectors, or only shorter ones.
fn takes_less(error: &CommandError) -> bool {
    let limits = [CHAINS_AT, PushdownVectorRequest::ROOM_AT];
    error.status.same_code(Status::INVALID_OPCODE) || limits.contains(&error.dw0)
}

fn chain_end<'a>(record: &VectorRecord, answer: &'a [u8], most_bytes: u32) -> ChainEnd<'a> {
    let VectorRecord { status, dw0, dw1, .. } = *record;
    let error = CommandError { status, dw0, dw1 };
    match status {
        _ if status.is_success() && dw1 > most_bytes => Err(Unanswered::BadAnswer),
        _ if status.is_success() => Ok((answer, dw0)),
        // Sent alone, it can use another path.
        _ if status.same_code(Status::VECTOR_FULL) || error.is_of_path() => {
            Err(Unanswered::LeftOut)
        }
        _ => Err(Unanswered::Request(RequestError::Command(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Done, NamespaceInfo};
    use bpfof_nvme::tcp::Digests;

    const FILES: &[FileVersion] = &[FileVersion { id: 1, version: 1 }];
    const FIRST: FirstRead = FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 };

    fn vectors(chains: u32, bytes: u32) -> Vectors<usize> {
        let namespaces: [NamespaceInfo; 0] = [];
        let config = InitiatorConfig {
            admin: false,
            digests: Digests { header: false, data: false },
            depth: 8,
            in_capsule_bytes: 1024,
            max_transfer_bytes: 8192,
            namespaces: namespaces.into(),
        };
        Vectors::new(VectorLimits { chains, bytes }, &config)
    }

    fn common(answer_max_bytes: u32) -> Common<'static> {
        let (nsid, function, scratch_size_bytes) = (1, 2, 0);
        Common { nsid, function, files: FILES, scratch_size_bytes, answer_max_bytes }
    }

    /// Makes a command of the first of `chains` chains with arguments of `bytes` bytes, and checks that its request is
    /// valid. Returns its tag and the number of its chains.
    fn make(vectors: &mut Vectors<usize>, chains: usize, bytes: usize, most: u32) -> (u64, usize) {
        let argument = vec![7; bytes];
        let chain = |number| (number, VectorChain { first: FIRST, argument: &argument });
        let (tag, count, command) = vectors.make(&common(most), chain(0), (1..chains).map(chain));
        match command {
            Command::Single(call) => assert_eq!((count, call.scratch.len()), (1, bytes)),
            Command::Vector(call) => {
                assert!(call.parts().is_consistent() && call.encoded_bytes() <= 1024);
                assert_eq!((count, call.first), (call.arguments.count(), FirstReads::Same(FIRST)));
                let room = VectorAnswer::room_bytes(count as u16, most).min(8192);
                assert_eq!(u64::from(call.room_bytes), room);
            }
        }
        (tag, count)
    }

    /// The answer to a vector, given each chain's status and length of its answer.
    fn answer(ends: &[(Status, usize)]) -> Vec<u8> {
        let (mut records, mut answers) = (Vec::new(), Vec::new());
        for (status, length) in ends {
            let record = VectorRecord {
                status: *status,
                dw0: 3,
                dw1: *length as u32,
                answer_at: (ends.len() * VectorRecord::BYTES + answers.len()) as u32,
            };
            records.extend(record.to_bytes());
            answers.resize(answers.len() + length, 9);
        }
        records.extend(answers);
        records
    }

    fn complete(
        vectors: &mut Vectors<usize>,
        tag: u64,
        result: Result<&[u8], RequestError>,
    ) -> Vec<(usize, Result<usize, Unanswered>)> {
        let result = result.map(|data| Done { data, dw0: 3, dw1: data.len() as u32 });
        let mut ends = Vec::new();
        vectors.complete(&Completion { tag, result }, &mut |number, end| {
            ends.push((number, end.map(|(answer, _)| answer.len())));
        });
        ends
    }

    #[test]
    fn vectors_respect_the_limits_on_chains_and_answers() {
        assert_eq!(make(&mut vectors(256, 8192), 9, 8, 72).1, 9);
        assert_eq!(make(&mut vectors(7, 8192), 9, 8, 72).1, 7);
        // The request, and the answer.
        assert_eq!(make(&mut vectors(256, 8192), 999, 8, 8).1, 36);
        assert_eq!(make(&mut vectors(256, 500), 9, 8, 72).1, 5);
        for (chains, bytes) in [(0, 0), (1, 8192), (256, 87), (256, 0)] {
            assert_eq!(make(&mut vectors(chains, bytes), 9, 8, 72).1, 1, "{chains}, {bytes}");
        }
    }

    #[test]
    fn vectors_are_longer_while_answers_are_short() {
        let mut vectors = vectors(256, 8192);
        let good = |lengths: &[usize]| -> Vec<_> {
            lengths.iter().map(|length| (Status::SUCCESS, *length)).collect()
        };
        let (tag, count) = make(&mut vectors, 99, 4, 4000);
        assert_eq!(count, 2);
        complete(&mut vectors, tag, Ok(&answer(&good(&[100, 40]))));
        let (tag, count) = make(&mut vectors, 99, 4, 4000);
        assert_eq!(count, 8192 / (16 + 200));
        let mut ends = good(&vec![100; count]);
        ends[3] = (Status::VECTOR_FULL, 0);
        let ends = complete(&mut vectors, tag, Ok(&answer(&ends)));
        assert_eq!((ends[2], ends[3]), ((2, Ok(100)), (3, Err(Unanswered::LeftOut))));
        // One answer had no room, so that the estimate starts again.
        assert_eq!(make(&mut vectors, 99, 4, 4000).1, 2);
    }

    #[test]
    fn a_malformed_answer_completes_no_chain() {
        let good = answer(&[(Status::SUCCESS, 8), (Status::SUCCESS, 8)]);
        let bad = [&good[..40], &good[..31], &[], &answer(&[(Status::SUCCESS, 8)])];
        for bad in bad {
            let mut vectors = vectors(256, 8192);
            let (tag, _) = make(&mut vectors, 2, 8, 72);
            let ends = complete(&mut vectors, tag, Ok(bad));
            let none = Err(Unanswered::BadAnswer);
            assert_eq!(ends, [(0, none), (1, none)]);
        }
        // An answer longer than allowed.
        let mut vectors = vectors(256, 8192);
        let (tag, _) = make(&mut vectors, 2, 8, 72);
        let long = answer(&[(Status::SUCCESS, 73), (Status::SUCCESS, 72)]);
        let ends = complete(&mut vectors, tag, Ok(&long));
        assert_eq!(ends, [(0, Err(Unanswered::BadAnswer)), (1, Ok(72))]);
        assert!(complete(&mut vectors, 99, Ok(&long)).is_empty());
    }

    #[test]
    fn a_target_that_takes_no_vectors_gets_none() {
        let malformed = Status::MALFORMED_REQUEST;
        let refusals =
            [(Status::INVALID_OPCODE, 0), (malformed, 6), (malformed, 36), (malformed, 20)];
        for (status, dw0) in refusals {
            let mut vectors = vectors(256, 8192);
            let (tag, _) = make(&mut vectors, 2, 8, 72);
            let error = RequestError::Command(CommandError { status, dw0, dw1: 0 });
            let ends = complete(&mut vectors, tag, Err(error));
            let again = Err(Unanswered::LeftOut);
            assert_eq!(ends, [(0, again), (1, again)]);
            // Other refusals are not the vector's fault.
            let (tag, count) = make(&mut vectors, if dw0 == 20 { 1 } else { 2 }, 8, 72);
            assert_eq!(count, 1);
            assert_eq!(vectors.together_max() > 1, dw0 == 20);
            // An error of a single chain is reported as such.
            let ends = complete(&mut vectors, tag, Err(error));
            assert_eq!(ends, [(0, Err(Unanswered::Request(error)))]);
        }
    }
}
