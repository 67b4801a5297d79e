//! The initiator against a scripted target, and against a hostile one.

use bpfof_host::{
    Completion, FileVersion, Initiator, InitiatorConfig, LostReason, NamespaceInfo, PushdownCall,
    Request, RequestError, SubmitError, fuzz,
};
use bpfof_nvme::tcp::{
    C2hData, CapsuleResp, DataPdu, Digests, Fes, IcResp, Pdu, PduEvent, PduReceiver, R2t, TermReq,
    data_digest,
};
use bpfof_nvme::vendor_specific::PushdownRequest;
use bpfof_nvme::{Cqe, NvmCommand, Sqe, Status};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;

const NONE: Digests = Digests { header: false, data: false };
const BOTH: Digests = Digests { header: true, data: true };

fn config(digests: Digests) -> InitiatorConfig {
    let namespace = NamespaceInfo { nsid: 1, blocks: 1 << 20, block_bytes: 512, nguid: [0; 16] };
    InitiatorConfig {
        admin: false,
        digests,
        depth: 4,
        in_capsule_bytes: 4096,
        max_transfer_bytes: 64 << 10,
        namespaces: Arc::new([namespace]),
    }
}

/// The end of a request, owned.
#[derive(Clone, Debug, PartialEq)]
struct End {
    tag: u64,
    result: Result<(Vec<u8>, u32, u32), RequestError>,
}

fn end(completion: Completion<'_>) -> End {
    let result = completion.result.map(|done| (done.data.to_vec(), done.dw0, done.dw1));
    End { tag: completion.tag, result }
}

fn good(tag: u64, data: &[u8], dw0: u32, dw1: u32) -> End {
    End { tag, result: Ok((data.to_vec(), dw0, dw1)) }
}

/// An initiator after its ICResp, and the decoder of its output.
struct Host {
    initiator: Initiator,
    sent: PduReceiver,
    digests: Digests,
}

/// The host's PDUs as the target sees them.
#[derive(Clone, Debug)]
enum Seen {
    Command(Box<Sqe>, Vec<u8>),
    Data { ttag: u16, offset_bytes: u32, bytes: Vec<u8>, last: bool },
    Term(Fes),
}

impl Host {
    fn open(digests: Digests) -> Self {
        Self::open_with(config(digests))
    }

    fn open_with(config: InitiatorConfig) -> Self {
        let digests = config.digests;
        let mut host = Self {
            initiator: Initiator::new(config),
            sent: PduReceiver::for_target(8192),
            digests,
        };
        let request = host.initiator.outgoing().to_vec();
        assert!(matches!(
            host.sent.next(&request),
            Ok(Some((128, PduEvent::Header(Pdu::IcReq(ic))))) if ic.digests == digests
        ));
        host.sent.set_digests(digests);
        host.initiator.sent(128, 0);
        let read = Request::Read { nsid: 1, offset_bytes: 0, length_bytes: 512 };
        assert_eq!(host.initiator.submit(0, &read), Err(SubmitError::NotConnected));
        let mut response = Vec::new();
        IcResp { digests, maxh2cdata_bytes: 4096, ..IcResp::default() }.encode_into(&mut response);
        assert_eq!(host.receive(&response), Ok(vec![]));
        assert!(host.initiator.is_ready());
        host
    }

    /// Takes and decodes the host's output.
    fn take(&mut self) -> Vec<Seen> {
        let bytes = self.initiator.outgoing().to_vec();
        self.initiator.sent(bytes.len(), 0);
        let (mut rest, mut seen) = (&bytes[..], Vec::new());
        while let Some((used, event)) = self.sent.next(rest).unwrap() {
            rest = &rest[used..];
            seen.push(match event {
                PduEvent::Header(Pdu::CapsuleCmd { sqe, data, digest_ok: true }) => {
                    Seen::Command(Box::new(sqe), data.to_vec())
                }
                PduEvent::Header(Pdu::TermReq(term)) => Seen::Term(term.fes),
                PduEvent::Data {
                    pdu: DataPdu::H2c(pdu),
                    offset_bytes,
                    bytes,
                    last_fragment: true,
                    digest_ok: true,
                } => Seen::Data {
                    ttag: pdu.ttag,
                    offset_bytes,
                    bytes: bytes.to_vec(),
                    last: pdu.last,
                },
                other => panic!("{other:?}"),
            });
        }
        assert!(rest.is_empty());
        seen
    }

    /// The only command that was sent.
    fn command(&mut self) -> (Sqe, Vec<u8>) {
        match &self.take()[..] {
            [Seen::Command(sqe, data)] => (**sqe, data.clone()),
            other => panic!("{other:?}"),
        }
    }

    /// Receives all of `bytes`.
    fn receive(&mut self, bytes: &[u8]) -> Result<Vec<End>, LostReason> {
        let mut ends = Vec::new();
        let used = self.initiator.receive(bytes, &mut |completion| ends.push(end(completion)))?;
        assert_eq!(used, bytes.len());
        Ok(ends)
    }

    fn response(&self, cid: u16, status: Status, dw0: u32, dw1: u32) -> Vec<u8> {
        let mut out = Vec::new();
        let cqe = Cqe { cid, status, dw0, dw1, ..Cqe::default() };
        CapsuleResp { cqe }.encode_into(&mut out, self.digests);
        out
    }

    fn data(&self, cccid: u16, offset: u32, data: &[u8], last: bool, success: bool) -> Vec<u8> {
        let mut out = Vec::new();
        C2hData {
            cccid,
            data_offset_bytes: offset,
            data_length_bytes: data.len() as u32,
            last,
            success,
        }
        .encode_header_into(&mut out, self.digests, 0);
        out.extend_from_slice(data);
        if self.digests.data {
            out.extend_from_slice(&data_digest(data));
        }
        out
    }

    /// The error when `bytes` come in at once; checks that each split gives the same.
    fn refuses(&mut self, bytes: &[u8]) -> Fes {
        let Err(LostReason::Protocol(error)) = self.receive(bytes) else {
            panic!("accepted");
        };
        let taken = self.take();
        let [Seen::Term(fes)] = taken[..] else { panic!("the host sent no TermReq") };
        assert_eq!(fes.name(), error.kind);
        let flush = self.initiator.submit(99, &Request::Flush { nsid: 1 });
        assert_eq!(flush, Err(SubmitError::NotConnected));
        fes
    }
}

const READ: Request<'_> = Request::Read { nsid: 1, offset_bytes: 1024, length_bytes: 1024 };
const FILES: [FileVersion; 2] =
    [FileVersion { id: 5, version: 6 }, FileVersion { id: 7, version: 8 }];
const CALL: PushdownCall<'_> = PushdownCall {
    nsid: 1,
    function: 3,
    files: &FILES,
    first_file: 1,
    first_offset_bytes: 4096,
    first_size_bytes: 512,
    scratch: b"key",
    scratch_size_bytes: 12_345,
    answer_max_bytes: 64,
};

/// Script: a target answers a read, a chain, a failed chain and a flush, in another order.
fn script(digests: Digests) -> (Host, Vec<u8>, Vec<End>) {
    let mut host = Host::open(digests);
    host.initiator.submit(1, &READ).unwrap();
    host.initiator.submit(2, &Request::Pushdown(CALL)).unwrap();
    host.initiator.submit(3, &Request::Pushdown(CALL)).unwrap();
    host.initiator.submit(4, &Request::Flush { nsid: 1 }).unwrap();
    assert_eq!(host.initiator.submit(5, &Request::Flush { nsid: 1 }), Err(SubmitError::QueueFull));
    let cids: Vec<u16> = host
        .take()
        .iter()
        .map(|seen| match seen {
            Seen::Command(sqe, _) => sqe.cid,
            other => panic!("{other:?}"),
        })
        .collect();
    let mut stream = host.data(cids[1], 0, b"the answer", true, false);
    stream.extend(host.response(cids[2], Status::STALE_FILE_MAP, 1, 7));
    stream.extend(host.data(cids[0], 0, &[1; 512], false, false));
    stream.extend(host.response(cids[1], Status::SUCCESS, 5, 10));
    stream.extend(host.data(cids[0], 512, &[2; 512], true, true));
    stream.extend(host.response(cids[3], Status::SUCCESS, 0, 0));
    let stale = RequestError::Command(bpfof_host::CommandError {
        status: Status::STALE_FILE_MAP,
        dw0: 1,
        dw1: 7,
    });
    let expected = vec![
        End { tag: 3, result: Err(stale) },
        good(2, b"the answer", 5, 10),
        good(1, &[[1; 512], [2; 512]].concat(), 0, 0),
        good(4, b"", 0, 0),
    ];
    (host, stream, expected)
}

#[test]
fn script_split_at_every_byte() {
    for digests in [NONE, BOTH] {
        let (mut host, stream, expected) = script(digests);
        assert_eq!(host.receive(&stream), Ok(expected.clone()));
        assert_eq!(host.initiator.in_flight(), 0);
        for cut in 1..stream.len() {
            let (mut host, stream, _) = script(digests);
            let mut ends = Vec::new();
            let mut on = |completion: Completion<'_>| ends.push(end(completion));
            let used = host.initiator.receive(&stream[..cut], &mut on).unwrap();
            let rest = host.initiator.receive(&stream[used..], &mut on).unwrap();
            assert_eq!((used + rest, &ends), (stream.len(), &expected), "cut at {cut}");
        }
    }
}

#[test]
fn commands_on_the_wire() {
    let mut host = Host::open(BOTH);
    host.initiator.submit(1, &READ).unwrap();
    let (sqe, data) = host.command();
    let Ok(NvmCommand::Read(rw)) = NvmCommand::parse(&sqe) else { panic!("no read") };
    assert_eq!((rw.slba, rw.blocks, sqe.nsid, sqe.sgl.length_bytes), (2, 2, 1, 1024));
    assert!(data.is_empty());
    host.initiator.submit(2, &Request::Pushdown(CALL)).unwrap();
    let (sqe, data) = host.command();
    assert_eq!(NvmCommand::parse(&sqe), Ok(NvmCommand::Pushdown));
    let request = PushdownRequest::parse(&data, 8).unwrap();
    assert_eq!(request.files().collect::<Vec<_>>(), FILES);
    assert_eq!((request.scratch(), request.header().answer_max_bytes), (&b"key"[..], 64));
    assert_eq!(request.header().scratch_size_bytes, 12_345);
    assert_eq!(sqe.sgl, bpfof_nvme::Sgl::in_capsule(data.len() as u32));
    let write = Request::Write { nsid: 1, offset_bytes: 512, data: &[9; 512], fua: true };
    host.initiator.submit(3, &write).unwrap();
    let (sqe, data) = host.command();
    assert!(matches!(NvmCommand::parse(&sqe), Ok(NvmCommand::Write(rw)) if rw.fua && rw.slba == 1));
    assert_eq!(data, [9; 512]);
    host.initiator
        .submit(
            4,
            &Request::WriteZeroes { nsid: 1, offset_bytes: 0, length_bytes: 512, fua: false },
        )
        .unwrap();
    assert!(matches!(NvmCommand::parse(&host.command().0), Ok(NvmCommand::WriteZeroes { .. })));
}

#[test]
fn unsendable_requests_are_refused() {
    let mut host = Host::open(NONE);
    let mut submit = |request: Request<'_>| host.initiator.submit(0, &request).unwrap_err();
    let read =
        |nsid, offset_bytes, length_bytes| Request::Read { nsid, offset_bytes, length_bytes };
    assert_eq!(submit(read(2, 0, 512)), SubmitError::UnknownNamespace { nsid: 2 });
    let unaligned = SubmitError::Unaligned { block_bytes: 512 };
    assert_eq!(submit(read(1, 1, 512)), unaligned);
    assert_eq!(submit(read(1, 0, 511)), unaligned);
    assert_eq!(submit(read(1, 0, 0)), unaligned);
    let too_long = SubmitError::TooLong { bytes: 66_048, max_bytes: 65_536 };
    assert_eq!(submit(read(1, 0, 66_048)), too_long);
    let scratch = &[0; 4096];
    let bytes = 32 + 2 * 16 + 4096;
    let long = Request::Pushdown(PushdownCall { scratch, ..CALL });
    assert_eq!(submit(long), SubmitError::TooLong { bytes, max_bytes: 4096 });
    assert_eq!(host.initiator.in_flight(), 0);
    assert!(host.initiator.outgoing().is_empty());
}

#[test]
fn long_writes_go_by_r2t() {
    let mut host = Host::open(BOTH);
    let data: Vec<u8> = (0..10_240).map(|index| (index / 41) as u8).collect();
    let write = Request::Write { nsid: 1, offset_bytes: 0, data: &data, fua: false };
    host.initiator.submit(1, &write).unwrap();
    let (sqe, capsule) = host.command();
    assert_eq!((sqe.sgl.length_bytes, capsule.len()), (10_240, 0));
    let r2t = |offset_bytes, length_bytes| {
        let mut out = Vec::new();
        R2t { cccid: sqe.cid, ttag: 77, offset_bytes, length_bytes }.encode_into(&mut out, BOTH);
        out
    };
    let mut arrived = Vec::new();
    for (offset, length, pieces) in [(0, 9000, 3), (9000, 1240, 1)] {
        assert_eq!(host.receive(&r2t(offset, length)), Ok(vec![]));
        assert!(host.initiator.is_urgent());
        let seen = host.take();
        assert_eq!(seen.len(), pieces);
        for (index, piece) in seen.iter().enumerate() {
            let Seen::Data { ttag: 77, offset_bytes, bytes, last } = piece else { panic!() };
            assert_eq!(*offset_bytes as usize, arrived.len());
            assert_eq!(*last, index + 1 == pieces);
            arrived.extend_from_slice(bytes);
        }
    }
    assert_eq!(arrived, data);
    let response = host.response(sqe.cid, Status::SUCCESS, 0, 0);
    assert_eq!(host.receive(&response), Ok(vec![good(1, b"", 0, 0)]));

    let again = |request: &[u8], expected| {
        let mut host = Host::open(BOTH);
        host.initiator.submit(1, &write).unwrap();
        host.take();
        assert_eq!(host.refuses(request), expected);
    };
    again(&r2t(0, 10_241), Fes::DataTransferOutOfRange);
    again(&r2t(4, 8), Fes::DataTransferOutOfRange);
    again(&response, Fes::PduSequenceError);
}

#[test]
fn protocol_violations_end_the_connection() {
    let submitted = |request: Request<'_>| {
        let mut host = Host::open(NONE);
        host.initiator.submit(1, &request).unwrap();
        let (sqe, _) = host.command();
        (host, sqe.cid)
    };
    // An identifier that is not in flight: never used, already completed, or of an earlier use.
    let (mut host, cid) = submitted(READ);
    let stream = host.response(cid ^ 1, Status::SUCCESS, 0, 0);
    assert_eq!(host.refuses(&stream), Fes::PduSequenceError);
    let (mut host, cid) = submitted(Request::Flush { nsid: 1 });
    let stream = host.response(cid, Status::SUCCESS, 0, 0);
    assert!(host.receive(&stream).is_ok());
    host.initiator.submit(2, &Request::Flush { nsid: 1 }).unwrap();
    assert_ne!(host.command().0.cid, cid);
    assert_eq!(host.refuses(&stream), Fes::PduSequenceError);
    // Short data, too much data, data out of order, data after the last piece.
    let (mut host, cid) = submitted(READ);
    let stream = host.data(cid, 0, &[0; 512], true, true);
    assert_eq!(host.refuses(&stream), Fes::PduSequenceError);
    let (mut host, cid) = submitted(READ);
    let stream = host.data(cid, 0, &[0; 1025], true, true);
    assert_eq!(host.refuses(&stream), Fes::DataTransferOutOfRange);
    let (mut host, cid) = submitted(READ);
    let stream = host.data(cid, 512, &[0; 512], false, false);
    assert_eq!(host.refuses(&stream), Fes::DataTransferOutOfRange);
    let (mut host, cid) = submitted(READ);
    let mut stream = host.data(cid, 0, &[0; 512], true, false);
    stream.extend(host.data(cid, 512, &[0; 512], true, false));
    assert_eq!(host.refuses(&stream), Fes::DataTransferOutOfRange);
    // Data for a write, R2T for a read.
    let write = Request::Write { nsid: 1, offset_bytes: 0, data: &[1; 512], fua: false };
    let (mut host, cid) = submitted(write);
    let stream = host.data(cid, 0, &[0; 1], true, true);
    assert_eq!(host.refuses(&stream), Fes::DataTransferOutOfRange);
    let (mut host, cccid) = submitted(READ);
    let mut stream = Vec::new();
    R2t { cccid, ttag: 0, offset_bytes: 0, length_bytes: 1 }.encode_into(&mut stream, NONE);
    assert_eq!(host.refuses(&stream), Fes::DataTransferOutOfRange);
    // A chain whose answer has another length, or no response.
    let (mut host, cid) = submitted(Request::Pushdown(CALL));
    let mut stream = host.data(cid, 0, &[0; 8], true, false);
    stream.extend(host.response(cid, Status::SUCCESS, 1, 9));
    assert_eq!(host.refuses(&stream), Fes::PduSequenceError);
    let (mut host, cid) = submitted(Request::Pushdown(CALL));
    let stream = host.data(cid, 0, &[0; 64], true, true);
    assert_eq!(host.refuses(&stream), Fes::InvalidHeaderField);
}

#[test]
fn a_command_that_has_not_left_cannot_be_answered() {
    let mut host = Host::open(NONE);
    host.initiator.submit(1, &READ).unwrap();
    let cccid = host.command().0.cid;
    let data = [9; 8192];
    let write = Request::Write { nsid: 1, offset_bytes: 0, data: &data, fua: false };
    for request in [READ, write] {
        let answers = |host: &Host| {
            let mut r2t = Vec::new();
            let (offset_bytes, length_bytes) = (0, data.len() as u32);
            R2t { cccid, ttag: 0, offset_bytes, length_bytes }.encode_into(&mut r2t, NONE);
            [
                host.response(cccid, Status::INVALID_FIELD, 0, 0),
                host.data(cccid, 0, &[3; 1024], true, true),
                r2t,
            ]
        };
        // The last byte of the capsule was not sent yet.
        for (which, left) in [(0, 1), (1, 1), (2, 1), (0, 72)] {
            let mut host = Host::open(NONE);
            host.initiator.submit(1, &request).unwrap();
            let length = host.initiator.outgoing().len();
            host.initiator.sent(length - left, 0);
            let answer = answers(&host)[which].clone();
            let Err(LostReason::Protocol(error)) = host.receive(&answer) else {
                panic!("accepted");
            };
            assert_eq!(error.kind, Fes::PduSequenceError.name());
            assert_eq!(error.reason, "an answer to a command that was not sent");
        }
    }
}

/// A target that stops reading after the first commands.
#[test]
fn unsent_data_does_not_accumulate() {
    let mut host = Host::open(NONE);
    let data = [9; 8192];
    let write = Request::Write { nsid: 1, offset_bytes: 0, data: &data, fua: false };
    host.initiator.submit(1, &write).unwrap();
    let cccid = host.command().0.cid;
    let mut stream = Vec::new();
    let (offset_bytes, length_bytes) = (0, data.len() as u32);
    R2t { cccid, ttag: 0, offset_bytes, length_bytes }.encode_into(&mut stream, NONE);
    // The target may complete the command before it reads the data that it asked for.
    stream.extend(host.response(cccid, Status::INVALID_FIELD, 0, 0));
    assert_eq!(host.receive(&stream).unwrap().len(), 1);
    assert!(host.initiator.outgoing().len() > data.len());
    host.initiator.submit(2, &write).unwrap();
    let answer = host.response(cccid + (1 << 12), Status::INVALID_FIELD, 0, 0);
    let Err(LostReason::Protocol(error)) = host.receive(&answer) else { panic!("accepted") };
    assert_eq!(error.reason, "an answer to a command that was not sent");
}

#[test]
fn damaged_data_fails_its_request_only() {
    let mut host = Host::open(Digests { header: false, data: true });
    host.initiator.submit(1, &READ).unwrap();
    let cid = host.command().0.cid;
    let mut stream = host.data(cid, 0, &[3; 1024], true, true);
    stream[100] ^= 1;
    let damaged = End { tag: 1, result: Err(RequestError::DataDigest) };
    assert_eq!(host.receive(&stream), Ok(vec![damaged]));
    host.initiator.submit(2, &READ).unwrap();
    let cid = host.command().0.cid;
    let stream = host.data(cid, 0, &[3; 1024], true, true);
    assert_eq!(host.receive(&stream), Ok(vec![good(2, &[3; 1024], 0, 0)]));
}

/// Whatever part of a PDU was sent, the target gets no report in place of the rest.
#[test]
fn a_report_never_completes_a_pdu() {
    const CAPSULE: usize = 72 + 4096;
    const MANY: usize = 300 * CAPSULE;
    for sent_bytes in [0, 1, 71, 72, CAPSULE - 1, CAPSULE, MANY - 1] {
        let mut host = Host::open_with(InitiatorConfig { depth: 300, ..config(NONE) });
        for tag in 0..300 {
            let data = &[tag as u8; 4096];
            let write = Request::Write { nsid: 1, offset_bytes: 0, data, fua: false };
            host.initiator.submit(tag, &write).unwrap();
        }
        assert_eq!(host.initiator.outgoing().len(), MANY);
        host.initiator.sent(sent_bytes, 0);
        host.initiator.sent(0, 0);
        assert_eq!(host.initiator.is_urgent(), sent_bytes > 0);
        let unasked = host.response(999, Status::SUCCESS, 0, 0);
        assert!(matches!(host.receive(&unasked), Err(LostReason::Protocol(_))));
        let report = host.initiator.outgoing();
        assert_eq!(report.is_empty(), sent_bytes > 0, "{sent_bytes} bytes were sent");
    }
}

#[test]
fn a_lost_connection_ends_each_request_once() {
    let mut host = Host::open(NONE);
    for tag in 0..4 {
        host.initiator.submit(tag, &READ).unwrap();
    }
    host.take();
    let mut stream = Vec::new();
    TermReq { from_host: false, fes: Fes::Other(9), fei: 1, header: &[] }.encode_into(&mut stream);
    let (kind, information) = (Fes::Other(9).name(), 1);
    let reason = LostReason::Terminated { kind, information };
    assert_eq!(host.receive(&stream), Err(reason));
    assert!(host.initiator.outgoing().is_empty(), "a TermReq is not answered");
    let mut ends = Vec::new();
    for _ in 0..2 {
        host.initiator.lost(&mut |completion| ends.push(end(completion)));
    }
    ends.sort_by_key(|end| end.tag);
    let lost = |tag| End { tag, result: Err(RequestError::Lost(reason)) };
    assert_eq!(ends, (0..4).map(lost).collect::<Vec<_>>());
    assert_eq!(host.initiator.in_flight(), 0);
}

#[test]
fn digests_must_be_as_asked() {
    let opened = |asked: Digests, answered: Digests| {
        let mut initiator = Initiator::new(config(asked));
        let mut response = Vec::new();
        IcResp { digests: answered, maxh2cdata_bytes: 4096, ..IcResp::default() }
            .encode_into(&mut response);
        initiator.receive(&response, &mut |_| {})
    };
    assert_eq!(opened(BOTH, BOTH), Ok(128));
    assert_eq!(opened(BOTH, NONE), Err(LostReason::DigestsDeclined));
    assert!(matches!(opened(NONE, BOTH), Err(LostReason::Protocol(_))));
}

#[test]
fn timeouts_count_from_sending_and_name_the_command() {
    let mut host = Host::open(NONE);
    host.initiator.submit(1, &READ).unwrap();
    assert_eq!(host.initiator.expired(u64::MAX, 1000), None, "not sent yet");
    let bytes = host.initiator.outgoing().len();
    host.initiator.sent(bytes, 5000);
    assert_eq!(host.initiator.expired(6000, 1000), None);
    let reason = LostReason::Timeout { command: "Read", waited_ms: 2 };
    assert_eq!(host.initiator.expired(7001, 1000), Some(reason));
    assert_eq!(reason.to_string(), "Read was not answered within 2 ms");
}

/// Well-formed PDUs with random contents: identifiers that may be in flight, ranges that may be
/// right.
fn controller_pdu(digests: Digests) -> impl Strategy<Value = Vec<u8>> {
    let cid = || (0..4_u16, 0..8_u16).prop_map(|(uses, index)| uses << 12 | index);
    let status = prop_oneof![3 => Just(0_u16), 1 => 1..0x8000_u16];
    let length = || prop_oneof![Just(512_u32), Just(64), Just(4096), 1..5000_u32];
    prop_oneof![
        (cid(), status, any::<u32>(), prop_oneof![Just(0), Just(64), any::<u32>()]).prop_map(
            move |(cid, status, dw0, dw1)| {
                let cqe =
                    Cqe { cid, status: Status::from_field(status), dw0, dw1, ..Cqe::default() };
                let mut out = Vec::new();
                CapsuleResp { cqe }.encode_into(&mut out, digests);
                out
            }
        ),
        (cid(), any::<u16>(), prop_oneof![Just(0), 0..5000_u32], length()).prop_map(
            move |(cccid, ttag, offset_bytes, length_bytes)| {
                let mut out = Vec::new();
                R2t { cccid, ttag, offset_bytes, length_bytes }.encode_into(&mut out, digests);
                out
            }
        ),
        (cid(), prop_oneof![Just(0), 0..5000_u32], length(), any::<bool>(), any::<bool>())
            .prop_map(move |(cccid, offset, length, last, success)| {
                let (success, data) = (success && last, vec![7; length as usize]);
                let mut out = Vec::new();
                C2hData {
                    cccid,
                    data_offset_bytes: offset,
                    data_length_bytes: length,
                    last,
                    success,
                }
                .encode_header_into(&mut out, digests, 0);
                out.extend_from_slice(&data);
                if digests.data {
                    out.extend_from_slice(&data_digest(&data));
                }
                out
            }),
    ]
}

fn hostile_stream() -> impl Strategy<Value = Vec<u8>> {
    (0..4_u8, prop_oneof![Just(0), Just(8_u8)])
        .prop_flat_map(|(bits, slow)| {
            let pdus = vec(controller_pdu(Digests::from_bits(bits)), 1..8);
            (Just(bits | slow), any::<u8>(), pdus, any::<prop::sample::Index>(), any::<u8>())
        })
        .prop_map(|(bits, piece, pdus, at, flip)| {
            let mut data = vec![bits | 4, piece];
            data.extend(pdus.concat());
            if flip < 64 {
                let at = 2 + at.index(data.len() - 2);
                data[at] ^= flip;
            }
            data
        })
}

proptest! {
    #[test]
    fn a_hostile_target_does_no_harm(data in hostile_stream()) {
        fuzz::initiator(&data);
    }

    #[test]
    fn random_bytes_do_no_harm(settings in 0..16_u8, data in vec(any::<u8>(), 0..400)) {
        fuzz::initiator(&[&[settings | 4, 3], &data[..]].concat());
        fuzz::initiator(&data);
    }
}

#[test]
fn fuzz_seeds() {
    for length in [0, 1, 2, 10, 200, 600] {
        for byte in [0, 1, 5, 7, 0xFF] {
            fuzz::initiator(&vec![byte; length]);
        }
    }
}
