//! Entry points for fuzzing: they assert properties that hold for any bytes. Unit tests call them too.

use crate::fabrics::{Cap, ConnectData, ControllerConfig, Csts};
use crate::identify::{IDENTIFY_BYTES, IdentifyController, IdentifyNamespace};
use crate::identify::{namespace_descriptors, parse_namespace_descriptors};
use crate::rdma::{ConnectAccept, ConnectReject, ConnectRequest};
use crate::tcp::{
    CapsuleCmd, CapsuleResp, DataPdu, Digests, Fes, IcReq, IcResp, Pdu, PduError, PduEvent,
    PduReceiver, Sender, TermReq,
};
use crate::vendor_specific::{
    FileMapObject, FileVersion, FirstRead, FirstReads, FunctionDigest, FunctionReportEntry,
    MapCommand, MapReportEntry, PushdownLimits, PushdownParts, PushdownRequest, PushdownShort,
    PushdownVectorParts, PushdownVectorRequest, VectorAnswer, VectorArguments, VectorRecord,
};
use crate::{AdminCommand, Cqe, DataPointer, FabricsCommand, NvmCommand, Sgl, Sqe};

/// Capsule limit of the fuzzed target, small enough for inputs to reach it.
const CAPSULE_MAX_BYTES: u32 = 512;

/// An event in a form that does not depend on how the input was split.
#[derive(Clone, Debug, PartialEq)]
enum Record {
    Pdu(Vec<u8>),
    Capsule { sqe: Box<Sqe>, data: Vec<u8>, digest_ok: bool },
    Data { pdu: DataPdu, offset_bytes: u32, bytes: Vec<u8>, ended: Option<bool> },
    Error(PduError),
}

fn record(log: &mut Vec<Record>, event: PduEvent<'_>, digests: Digests) {
    let mut pdu = Vec::new();
    match event {
        PduEvent::Header(Pdu::CapsuleCmd { sqe, data, digest_ok }) => {
            let data = data.to_vec();
            return log.push(Record::Capsule { sqe: Box::new(sqe), data, digest_ok });
        }
        PduEvent::Data { pdu, offset_bytes, bytes, last_fragment, digest_ok } => {
            let ended = last_fragment.then_some(digest_ok);
            if let Some(Record::Data {
                bytes: so_far,
                ended: end @ None,
                offset_bytes: start,
                ..
            }) = log.last_mut()
            {
                assert_eq!(*start + so_far.len() as u32, offset_bytes);
                so_far.extend_from_slice(bytes);
                *end = ended;
                return;
            }
            return log.push(Record::Data { pdu, offset_bytes, bytes: bytes.to_vec(), ended });
        }
        PduEvent::Header(Pdu::IcReq(ic)) => ic.encode_into(&mut pdu),
        PduEvent::Header(Pdu::IcResp(ic)) => ic.encode_into(&mut pdu),
        PduEvent::Header(Pdu::TermReq(term)) => term.encode_into(&mut pdu),
        PduEvent::Header(Pdu::CapsuleResp(response)) => response.encode_into(&mut pdu, digests),
        PduEvent::Header(Pdu::R2t(r2t)) => r2t.encode_into(&mut pdu, digests),
    }
    log.push(Record::Pdu(pdu));
}

/// Feeds `stream` to a receiver in pieces whose lengths repeat `pieces`.
fn receive(host_side: bool, digests: Digests, stream: &[u8], pieces: &[usize]) -> Vec<Record> {
    let mut receiver = if host_side {
        PduReceiver::for_host()
    } else {
        PduReceiver::for_target(CAPSULE_MAX_BYTES)
    };
    let (mut log, mut buffer, mut rest) = (Vec::new(), Vec::new(), stream);
    for piece in pieces.iter().cycle() {
        let (now, later) = rest.split_at((*piece).clamp(1, rest.len().max(1)).min(rest.len()));
        buffer.extend_from_slice(now);
        rest = later;
        let mut used = 0;
        loop {
            match receiver.next(&buffer[used..]) {
                Ok(Some((consumed, event))) => {
                    assert!(consumed > 0 && consumed <= buffer.len() - used);
                    record(&mut log, event, digests);
                    if log.len() == 1 {
                        receiver.set_digests(digests);
                    }
                    used += consumed;
                }
                Ok(None) => break,
                Err(error) => {
                    let mut term = Vec::new();
                    let from = if host_side { Sender::Host } else { Sender::Controller };
                    TermReq::for_error(&error, from, &buffer[used..]).encode_into(&mut term);
                    assert!(term.len() <= 152);
                    log.push(Record::Error(error));
                    return log;
                }
            }
        }
        buffer.drain(..used);
        assert!(buffer.len() < receiver.buffer_min_bytes(), "input is hoarded");
        if rest.is_empty() {
            break;
        }
    }
    log
}

/// A stream of PDUs: the receiver of either side gives the same events however the stream is split, and never leaves
/// more unconsumed than its buffer holds.
///
/// Byte 0: bit 0 host side, bits 1 and 2 digests, bit 3 start with a good ICReq or ICResp. Bytes 1
/// and 2: lengths of the pieces.
pub fn pdu_stream(data: &[u8]) {
    let Some((&[settings, a, b], rest)) = data.split_first_chunk() else { return };
    let host_side = settings & 1 != 0;
    let digests = Digests::from_bits(settings >> 1);
    let mut stream = Vec::new();
    if settings & 8 != 0 {
        if host_side {
            IcResp { digests, maxh2cdata_bytes: 4096, ..IcResp::default() }
                .encode_into(&mut stream);
        } else {
            IcReq { digests, ..IcReq::default() }.encode_into(&mut stream);
        }
    }
    stream.extend_from_slice(rest);
    let whole = receive(host_side, digests, &stream, &[usize::MAX]);
    let split = receive(host_side, digests, &stream, &[usize::from(a), usize::from(b)]);
    assert_eq!(whole, split);
    for record in &whole {
        if let Record::Capsule { sqe, data, digest_ok: true } = record {
            let mut pdu = Vec::new();
            CapsuleCmd { sqe: **sqe, data }.encode_into(&mut pdu, digests, 0);
            assert!(pdu.len() <= CAPSULE_MAX_BYTES as usize);
        }
    }
}

/// Takes the next `N` bytes of `data`, padded with zeroes.
fn take<const N: usize>(data: &mut &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let length = data.len().min(N);
    bytes[..length].copy_from_slice(&data[..length]);
    *data = &data[length..];
    bytes
}

/// Commands, completions and data structures: a parsed value is written back as the same bytes.
pub fn commands(mut data: &[u8]) {
    let entry = take::<64>(&mut data);
    let sqe = Sqe::from_bytes(&entry);
    assert_eq!(sqe.to_bytes(), entry);
    if let Ok(AdminCommand::Map(command)) = AdminCommand::parse(&sqe) {
        assert_eq!(MapCommand::parse(&command.to_sqe()), Some(Ok(command)));
    }
    match NvmCommand::parse(&sqe) {
        Ok(NvmCommand::Read(rw) | NvmCommand::Write(rw)) => {
            let again = rw.to_sqe(sqe.opcode, sqe.nsid);
            assert_eq!(NvmCommand::parse(&again), NvmCommand::parse(&sqe));
        }
        Ok(NvmCommand::PushdownShort(short)) => {
            let again = short.to_sqe(sqe.nsid, sqe.sgl.length_bytes);
            assert_eq!(PushdownShort::from_sqe(&again), short);
        }
        _ => {}
    }
    let fabrics = FabricsCommand::parse(&sqe);
    assert_eq!(FabricsCommand::parse(&fabrics.to_sqe()), fabrics);

    let mut entry = take::<16>(&mut data);
    entry[14] &= 0xFE;
    let cqe = Cqe::from_bytes(&entry);
    assert_eq!(cqe.to_bytes(), entry);
    let mut pdu = Vec::new();
    CapsuleResp { cqe }.encode_into(&mut pdu, Digests::default());
    assert_eq!(pdu[8..], entry);
    let property = cqe.dw01();
    let cap = Cap::from(property);
    assert_eq!(Cap::from(u64::from(cap)), cap);
    let (cc, csts) = (ControllerConfig::from(cqe.dw0), Csts::from(cqe.dw0));
    assert_eq!(ControllerConfig::from(u32::from(cc)), cc);
    assert_eq!(Csts::from(u32::from(csts)), csts);
    assert_eq!(Fes::from_code(cqe.sqhd).code(), cqe.sqhd);

    if let Ok(connect) = ConnectData::from_bytes(&take(&mut data)) {
        assert_eq!(ConnectData::from_bytes(&connect.to_bytes()), Ok(connect));
    }
    let block = take::<IDENTIFY_BYTES>(&mut data);
    let controller = IdentifyController::from_bytes(&block);
    assert_eq!(IdentifyController::from_bytes(&controller.to_bytes()), controller);
    let namespace = IdentifyNamespace::from_bytes(&block);
    assert_eq!(IdentifyNamespace::from_bytes(&namespace.to_bytes()), namespace);
    let _ = (namespace.format().block_bytes(), controller.max_transfer_bytes(15));
    if let Ok(descriptors) = parse_namespace_descriptors(&block) {
        let _ = namespace_descriptors(&descriptors);
    }
}

/// Structures of the vendor commands: an accepted value is written back as the same bytes.
pub fn vendor(data: &[u8]) {
    if let Ok(request) = PushdownRequest::parse(data, 64) {
        let files: Vec<FileVersion> = request.files().collect();
        let header = request.header();
        assert!(request.scratch().len() <= header.effective_scratch_bytes() as usize);
        let parts = PushdownParts {
            function: header.function,
            files: &files,
            first_file: header.first_file,
            first_offset_bytes: header.first_offset_bytes,
            first_size_bytes: header.first_size_bytes,
            scratch: request.scratch(),
            answer_max_bytes: header.answer_max_bytes,
            scratch_size_bytes: header.scratch_size_bytes,
        };
        let mut encoded = Vec::new();
        parts.encode_into(&mut encoded);
        assert_eq!(encoded, data);
        assert_eq!(encoded.len(), parts.encoded_bytes());
    }
    vector_request(data);
    vector_answer(data);
    if let Ok(map) = FileMapObject::parse(data) {
        let mut encoded = Vec::new();
        map.encode_into(&mut encoded);
        assert_eq!(encoded, data);
    }
    for entry in FunctionDigest::list(data) {
        assert_eq!(FunctionDigest::from_bytes(&entry.to_bytes()), entry);
    }
    for entry in FunctionReportEntry::list(data) {
        assert_eq!(FunctionReportEntry::from_bytes(&entry.to_bytes()), entry);
    }
    for entry in MapReportEntry::list(data) {
        assert_eq!(MapReportEntry::from_bytes(&entry.to_bytes()), entry);
    }
    // Map commands in which only fields with a meaning are set.
    let given = Sqe::from_bytes(&take(&mut &*data));
    let sqe = Sqe {
        opcode: [0xC2, 0xC3, 0xC9, 0xCE][usize::from(given.opcode & 3)],
        cdw10: given.cdw10,
        cdw11: given.cdw11,
        cdw12: given.cdw12 & 0x3_FFFF,
        cdw13: given.cdw13,
        ..Sqe::default()
    };
    if let Ok(AdminCommand::Map(command)) = AdminCommand::parse(&sqe) {
        let Sqe { opcode, cdw10, cdw11, cdw12, cdw13, .. } = command.to_sqe();
        let fields = (sqe.opcode, sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13);
        assert_eq!((opcode, cdw10, cdw11, cdw12, cdw13), fields);
    }
    let limits = PushdownLimits::from_bytes(&take(&mut &*data));
    assert_eq!(PushdownLimits::from_bytes(&limits.to_bytes()), limits);
}

/// Private data of connection managers, and keyed SGL descriptors: an accepted value is written back as the same bytes.
pub fn rdma(data: &[u8]) {
    if let Ok(request) = ConnectRequest::from_private_data(data) {
        let bytes = request.to_bytes();
        assert!(data.starts_with(&bytes[..10]));
        assert_eq!(ConnectRequest::from_private_data(&bytes), Ok(request));
    }
    if let Some(accept) = ConnectAccept::from_private_data(data) {
        assert!(data.starts_with(&accept.to_bytes()[..4]));
    }
    if let Some(reject) = ConnectReject::from_private_data(data) {
        assert!(data.starts_with(&reject.to_bytes()));
        assert!(!reject.status.to_string().is_empty());
    }
    let sqe = Sqe::from_bytes(&take(&mut &*data));
    if let DataPointer::Keyed { address, length_bytes, key, invalidate } = DataPointer::of(&sqe.sgl)
    {
        let kind = if invalidate { Sgl::KEYED_INVALIDATE } else { Sgl::KEYED };
        assert_eq!(Sgl { kind, ..Sgl::keyed(address, length_bytes, key) }, sqe.sgl);
    }
}

/// A Pushdown Vector request: the chains of an accepted request are within its bytes, and it is written back as the
/// same bytes, with the same tables.
fn vector_request(data: &[u8]) {
    let Ok(request) = PushdownVectorRequest::parse(data, 64, 256) else { return };
    let files: Vec<FileVersion> = request.files().collect();
    let header = request.header();
    let (mut chains, mut reads) = (request.chains(), Vec::<FirstRead>::new());
    let (mut sizes, mut bytes) = (Vec::new(), Vec::new());
    assert_eq!(chains.left(), header.chains);
    while let Some(chain) = chains.next(data) {
        assert_eq!(usize::from(chains.index()), reads.len() + 1);
        assert!(chain.argument.len() <= header.effective_scratch_bytes() as usize);
        assert!(chain.first.size_bytes > 0 && chain.first.file < header.files);
        reads.push(chain.first);
        sizes.push(chain.argument.len() as u16);
        bytes.extend_from_slice(chain.argument);
    }
    assert_eq!((chains.left(), reads.len()), (0, usize::from(header.chains)));
    assert!(data.ends_with(&bytes));
    let tables = data.get(22).copied().unwrap_or(0);
    let parts = PushdownVectorParts {
        function: header.function,
        files: &files,
        first: match (tables & 1, reads.first()) {
            (0, Some(first)) => FirstReads::Same(*first),
            _ => FirstReads::Each(&reads),
        },
        arguments: match tables & 2 {
            0 => VectorArguments::Equal { count: header.chains, bytes: &bytes },
            _ => VectorArguments::Sized { sizes: &sizes, bytes: &bytes },
        },
        scratch_size_bytes: header.scratch_size_bytes,
        answer_max_bytes: header.answer_max_bytes,
        room_bytes: header.room_bytes,
    };
    assert!(parts.is_consistent());
    let mut encoded = Vec::new();
    parts.encode_into(&mut encoded);
    assert_eq!(encoded, data);
    assert_eq!(encoded.len(), parts.encoded_bytes());
}

/// The answer of a Pushdown Vector: the chains' answers in an accepted one are within its bytes.
fn vector_answer(data: &[u8]) {
    let Some((count, data)) = data.split_first() else { return };
    let Ok(answer) = VectorAnswer::parse(data, u16::from(*count)) else { return };
    assert_eq!(answer.chains().len(), usize::from(*count));
    for (record, bytes) in answer.chains() {
        let is_ok = record.status.is_success();
        assert_eq!(bytes.len(), if is_ok { record.dw1 as usize } else { 0 });
        assert_eq!(VectorRecord::from_bytes(&record.to_bytes()), record);
    }
}
