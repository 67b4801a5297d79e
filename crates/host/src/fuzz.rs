//! Entry points for fuzzing: a hostile target, an invalid state of a handed-over lane, and a hostile process at either
//! end of the grant daemon's socket. Unit tests call them too.

use crate::grant::protocol;
use crate::handed_lane::Agreed;
use crate::{
    Completion, FileVersion, FirstRead, FirstReads, Initiator, InitiatorConfig, LostReason,
    NamespaceInfo, PushdownCall, PushdownVectorCall, Request, RequestError, VectorAnswer,
    VectorArguments,
};
use bpfof_nvme::Sqe;
use bpfof_nvme::opcode::nvm;
use bpfof_nvme::tcp::{Digests, IcResp};
use std::collections::BTreeMap;
use std::sync::Arc;

const NSID: u32 = 1;
const BLOCK_BYTES: u32 = 512;
/// Longest answer of the fuzzed chain and of the fuzzed raw command, in bytes.
const ANSWER_BYTES: u32 = 64;

/// Kinds of requests.
const KINDS: u64 = 8;
/// Chains of the fuzzed vector.
const CHAINS: u16 = 3;

/// A request of each kind, chosen by its tag.
fn request(tag: u64) -> Request<'static> {
    const FILES: &[FileVersion] = &[FileVersion { id: 1, version: 1 }];
    let (nsid, offset_bytes, length_bytes) = (NSID, 0, BLOCK_BYTES);
    match tag % KINDS {
        0 => Request::Read { nsid, offset_bytes, length_bytes },
        // Too long for the capsule: sent after R2T.
        1 => Request::Write { nsid, offset_bytes, data: &[7; 4096], fua: true },
        2 => Request::Write { nsid, offset_bytes, data: &[7; 512], fua: false },
        3 => Request::Flush { nsid },
        4 => Request::WriteZeroes { nsid, offset_bytes, length_bytes, fua: false },
        5 => Request::Pushdown(PushdownCall {
            nsid,
            function: 1,
            files: FILES,
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: BLOCK_BYTES,
            scratch: b"argument",
            scratch_size_bytes: 0,
            answer_max_bytes: ANSWER_BYTES,
        }),
        6 => Request::PushdownVector(&PushdownVectorCall {
            nsid: NSID,
            function: 1,
            files: FILES,
            first: FirstReads::Same(FirstRead {
                file: 0,
                offset_bytes: 0,
                size_bytes: BLOCK_BYTES,
            }),
            arguments: VectorArguments::Equal { count: CHAINS, bytes: b"someargument" },
            scratch_size_bytes: 0,
            answer_max_bytes: ANSWER_BYTES,
            room_bytes: ANSWER_BYTES,
        }),
        _ => {
            let sqe = Sqe::new(nvm::VERIFY, nsid);
            Request::Raw { sqe, data_out: &[], data_in_max_bytes: ANSWER_BYTES }
        }
    }
}

/// Checks the properties that a completion must have, whatever the target sent.
fn check(completion: &Completion<'_>) {
    if let Ok(done) = completion.result {
        let length = done.data.len();
        match completion.tag % KINDS {
            0 => assert_eq!(length, BLOCK_BYTES as usize),
            5 => assert!(length <= ANSWER_BYTES as usize && length == done.dw1 as usize),
            6 => {
                assert!(length <= ANSWER_BYTES as usize && length == done.dw1 as usize);
                if let Ok(answer) = VectorAnswer::parse(done.data, CHAINS) {
                    assert!(answer.chains().all(|(_, answer)| answer.len() <= length));
                }
            }
            7 => assert!(length <= ANSWER_BYTES as usize),
            _ => assert_eq!(length, 0),
        }
    }
}

/// A target that sends arbitrary bytes: no panic, no more memory than the requests need, each request ends exactly
/// once, and none is answered before it was sent.
///
/// Byte 0: bits 0 and 1 digests, bit 2 start with a good ICResp, bit 3 the target accepts half of the waiting bytes at
/// a time. Byte 1: length of the pieces in which the rest is received.
pub fn initiator(data: &[u8]) {
    let Some((&[settings, piece], rest)) = data.split_first_chunk() else { return };
    let digests = Digests::from_bits(settings);
    let namespace =
        NamespaceInfo { nsid: NSID, blocks: 1000, block_bytes: BLOCK_BYTES, nguid: [0; 16] };
    let mut initiator = Initiator::new(InitiatorConfig {
        admin: false,
        digests,
        depth: KINDS as u16,
        in_capsule_bytes: 1024,
        max_transfer_bytes: 4096,
        namespaces: Arc::new([namespace]),
    });
    let mut stream = Vec::new();
    if settings & 4 != 0 {
        IcResp { digests, maxh2cdata_bytes: 4096, ..IcResp::default() }.encode_into(&mut stream);
    }
    stream.extend_from_slice(rest);

    // Tags of open requests, with the position where the command ends in the sent bytes.
    let mut open = BTreeMap::new();
    let mut next_tag = 0;
    let mut sent = 0;
    let mut buffer = Vec::new();
    for piece in stream.chunks(usize::from(piece).max(1)) {
        while initiator.submit(next_tag, &request(next_tag)).is_ok() {
            open.insert(next_tag, sent + initiator.outgoing().len());
            next_tag += 1;
        }
        let waiting = initiator.outgoing().len();
        assert!(waiting <= 64 << 10, "{waiting} bytes wait to be sent");
        let taken = if settings & 8 == 0 { waiting } else { waiting.div_ceil(2) };
        initiator.sent(taken, 0);
        sent += taken;
        buffer.extend_from_slice(piece);
        let received = initiator.receive(&buffer, &mut |completion| {
            check(&completion);
            let end = open.remove(&completion.tag).expect("completed twice");
            assert!(end <= sent, "answered before it was sent");
        });
        let Ok(used) = received else { break };
        buffer.drain(..used);
        assert!(buffer.len() < 256, "input is hoarded");
    }
    assert_eq!(initiator.in_flight(), open.len());
    initiator.fail(LostReason::Closed);
    let reason = initiator.failure();
    for _ in 0..2 {
        initiator.lost(&mut |completion| {
            assert!(
                matches!(completion.result, Err(RequestError::Lost(why)) if Some(why) == reason)
            );
            assert!(open.remove(&completion.tag).is_some(), "completed twice");
        });
        assert!(open.is_empty(), "a request has no end");
    }
}

/// The state of a lane that another process hands over: any bytes are either refused, or the only encoding of their
/// meaning.
pub fn handed_lane(data: &[u8]) {
    let Ok(agreed) = Agreed::decode(data) else { return };
    assert_eq!(agreed.encode().as_slice(), data, "another encoding of the same state");
    let Agreed { config, takeover, .. } = agreed;
    if let Ok(initiator) = Initiator::adopted(config, &takeover.opened) {
        assert!(initiator.is_ready() && initiator.outgoing().is_empty());
        assert_eq!(initiator.opened_by(), takeover.opened);
    }
}

/// A packet of a hostile client or daemon, with this many descriptors: it is either refused, or the only encoding of
/// its meaning.
pub fn grant_packet(packet: &[u8], descriptors: usize) {
    let mut again = Vec::new();
    if let Ok(request) = protocol::Request::decode(packet, descriptors) {
        request.encode(&mut again);
        assert_eq!(again, packet, "two packets mean {request:?}");
    }
    again.clear();
    if let Ok(answer) = protocol::Answer::decode(packet, descriptors) {
        answer.encode(&mut again);
        assert_eq!(again, packet, "two packets mean {answer:?}");
    }
}
