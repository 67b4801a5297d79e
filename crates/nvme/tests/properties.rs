//! Any bytes give a value or a typed error, written values are read back unchanged, and the
//! receiver's events do not depend on how its input is split.

use bpfof_nvme::fuzz;
use bpfof_nvme::tcp::{
    C2hData, CapsuleCmd, CapsuleResp, DataPdu, Digests, Fes, H2cData, IcReq, IcResp, Pdu, PduError,
    PduEvent, PduReceiver, R2t, data_digest,
};
use bpfof_nvme::vendor_specific::{
    Extent, FileMapObject, FileVersion, FirstRead, FirstReads, Malformed, PushdownParts,
    PushdownRequest, PushdownVectorParts, PushdownVectorRequest, VectorArguments, VectorRecord,
};
use bpfof_nvme::{Cqe, Sqe, Status};
use proptest::collection::vec;
use proptest::prelude::*;

fn digests() -> impl Strategy<Value = Digests> {
    (any::<bool>(), any::<bool>()).prop_map(|(header, data)| Digests { header, data })
}

/// Everything a host may send after ICReq, encoded.
fn host_pdu(digests: Digests) -> impl Strategy<Value = Vec<u8>> {
    let data = || vec(any::<u8>(), 1..100);
    prop_oneof![
        (vec(any::<u8>(), 64), vec(any::<u8>(), 0..100), 0..32_u8).prop_map(
            move |(entry, data, cpda)| {
                let sqe = Sqe::from_bytes(entry.first_chunk().unwrap());
                let mut out = Vec::new();
                CapsuleCmd { sqe, data: &data }.encode_into(&mut out, digests, cpda);
                out
            }
        ),
        (any::<u16>(), any::<u16>(), any::<u16>(), data(), any::<bool>(), 0..32_u8).prop_map(
            move |(cccid, ttag, offset, data, last, cpda)| {
                let mut out = Vec::new();
                H2cData {
                    cccid,
                    ttag,
                    data_offset_bytes: u32::from(offset),
                    data_length_bytes: data.len() as u32,
                    last,
                }
                .encode_header_into(&mut out, digests, cpda);
                out.extend_from_slice(&data);
                if digests.data {
                    out.extend_from_slice(&data_digest(&data));
                }
                out
            }
        ),
    ]
}

/// Everything a controller may send after ICResp, encoded.
fn controller_pdu(digests: Digests) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<[u8; 16]>().prop_map(move |entry| {
            let mut out = Vec::new();
            CapsuleResp { cqe: Cqe::from_bytes(&entry) }.encode_into(&mut out, digests);
            out
        }),
        any::<(u16, u16, u16, u16)>().prop_map(move |(cccid, ttag, offset, length)| {
            let mut out = Vec::new();
            let (offset_bytes, length_bytes) = (u32::from(offset), u32::from(length) + 1);
            R2t { cccid, ttag, offset_bytes, length_bytes }.encode_into(&mut out, digests);
            out
        }),
        (any::<u16>(), vec(any::<u8>(), 1..100), any::<bool>(), 0..32_u8).prop_map(
            move |(cccid, data, success, hpda)| {
                let mut out = Vec::new();
                C2hData {
                    cccid,
                    data_offset_bytes: 0,
                    data_length_bytes: data.len() as u32,
                    last: success,
                    success,
                }
                .encode_header_into(&mut out, digests, hpda);
                out.extend_from_slice(&data);
                if digests.data {
                    out.extend_from_slice(&data_digest(&data));
                }
                out
            }
        ),
    ]
}

/// A fuzz input: good PDUs of one side, of which one byte may be wrong.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    (digests(), any::<bool>())
        .prop_flat_map(|(digests, host_side)| {
            let pdus = if host_side {
                vec(controller_pdu(digests), 0..6).boxed()
            } else {
                vec(host_pdu(digests), 0..6).boxed()
            };
            let settings = u8::from(host_side) | digests.bits() << 1 | 8;
            (Just(settings), any::<[u8; 2]>(), pdus, any::<prop::sample::Index>(), any::<u8>())
        })
        .prop_map(|(settings, pieces, pdus, at, flip)| {
            let mut data = vec![settings, pieces[0], pieces[1]];
            data.extend(pdus.concat());
            if flip < 128 && data.len() > 3 {
                let at = 3 + at.index(data.len() - 3);
                data[at] ^= flip;
            }
            data
        })
}

proptest! {
    #[test]
    fn receiver_ignores_splits(data in stream()) {
        fuzz::pdu_stream(&data);
    }

    #[test]
    fn receiver_survives_noise(data in vec(any::<u8>(), 0..700)) {
        fuzz::pdu_stream(&data);
    }

    #[test]
    fn commands_round_trip(data in vec(any::<u8>(), 0..6000)) {
        fuzz::commands(&data);
        fuzz::rdma(&data);
    }

    #[test]
    fn vendor_structures_survive_noise(data in vec(any::<u8>(), 0..400)) {
        fuzz::vendor(&data);
    }

    #[test]
    fn pushdown_requests_round_trip(
        ids in vec(any::<(u32, u64)>(), 1..20),
        scratch in vec(any::<u8>(), 0..300),
        numbers in any::<(u32, u64, u32, u32)>(),
        scratch_size in prop_oneof![Just(0), 0..600_u32, any::<u32>()],
        first in any::<prop::sample::Index>(),
        flip in any::<(prop::sample::Index, u8)>(),
    ) {
        let files: Vec<_> =
            ids.iter().map(|&(id, version)| FileVersion { id, version }).collect();
        let mut bytes = Vec::new();
        PushdownParts {
            function: numbers.0,
            files: &files,
            first_file: first.index(files.len()) as u16,
            first_offset_bytes: numbers.1,
            first_size_bytes: numbers.2,
            scratch: &scratch,
            answer_max_bytes: numbers.3,
            scratch_size_bytes: scratch_size,
        }
        .encode_into(&mut bytes);
        let fits = scratch_size == 0 || scratch.len() <= scratch_size as usize;
        let refused = PushdownRequest::parse(&bytes, 64).err();
        prop_assert_eq!(refused, (!fits).then_some(Malformed { at: 28 }));
        fuzz::vendor(&bytes);
        let at = flip.0.index(bytes.len());
        bytes[at] ^= flip.1;
        fuzz::vendor(&bytes);
    }

    #[test]
    fn vector_requests_round_trip(
        ids in vec(any::<(u32, u64)>(), 1..20),
        chains in vec((any::<u64>(), 1..u32::MAX, vec(any::<u8>(), 0..40)), 1..40),
        has in any::<(bool, bool)>(),
        numbers in any::<(u32, u32, u32)>(),
        flip in any::<(prop::sample::Index, u8)>(),
    ) {
        let files: Vec<_> =
            ids.iter().map(|&(id, version)| FileVersion { id, version }).collect();
        let reads: Vec<_> = chains
            .iter()
            .map(|&(offset_bytes, size_bytes, _)| FirstRead {
                file: (offset_bytes % files.len() as u64) as u16,
                offset_bytes,
                size_bytes,
            })
            .collect();
        let bytes: Vec<u8> = chains.iter().flat_map(|(.., argument)| argument.clone()).collect();
        let sizes: Vec<u16> = chains.iter().map(|(.., argument)| argument.len() as u16).collect();
        let count = chains.len() as u16;
        let equal = &bytes[..bytes.len() - bytes.len() % chains.len()];
        let parts = PushdownVectorParts {
            function: numbers.0,
            files: &files,
            first: if has.0 { FirstReads::Each(&reads) } else { FirstReads::Same(reads[0]) },
            arguments: match has.1 {
                true => VectorArguments::Sized { sizes: &sizes, bytes: &bytes },
                false => VectorArguments::Equal { count, bytes: equal },
            },
            scratch_size_bytes: 0,
            answer_max_bytes: numbers.1,
            room_bytes: numbers.2.max(16 * u32::from(count)),
        };
        prop_assert!(parts.is_consistent());
        let mut encoded = Vec::new();
        parts.encode_into(&mut encoded);
        let request = PushdownVectorRequest::parse(&encoded, 64, count).unwrap();
        prop_assert_eq!(request.files().collect::<Vec<_>>(), files.clone());
        let (header, mut left) = (request.header(), request.chains());
        prop_assert_eq!((header.function, header.room_bytes), (numbers.0, parts.room_bytes));
        let mut rest = if has.1 { &bytes[..] } else { equal };
        for index in 0..chains.len() {
            let chain = left.next(&encoded).unwrap();
            prop_assert_eq!(chain.first, reads[if has.0 { index } else { 0 }]);
            let length =
                if has.1 { usize::from(sizes[index]) } else { equal.len() / chains.len() };
            let (argument, behind) = rest.split_at(length);
            prop_assert_eq!(chain.argument, argument);
            rest = behind;
        }
        fuzz::vendor(&encoded);
        let at = flip.0.index(encoded.len());
        encoded[at] ^= flip.1;
        fuzz::vendor(&encoded);
    }

    #[test]
    fn vector_answers_are_within(
        records in vec((any::<bool>(), 0..80_u32, 0..300_u32, any::<u32>()), 0..12),
        bytes in vec(any::<u8>(), 0..200),
    ) {
        let mut data = vec![records.len() as u8];
        for (is_ok, dw1, answer_at, dw0) in records {
            let status = if is_ok { Status::SUCCESS } else { Status::STALE_FILE_MAP };
            data.extend(VectorRecord { status, dw0, dw1, answer_at }.to_bytes());
        }
        data.extend(bytes);
        fuzz::vendor(&data);
    }

    #[test]
    fn file_maps_round_trip(
        lengths in vec((0..1000_u64, any::<u32>(), 1..1000_u64), 0..20),
        version in 1..u64::MAX,
        flip in any::<(prop::sample::Index, u8)>(),
    ) {
        let mut end = 0;
        let extents = lengths
            .iter()
            .map(|&(gap, device, length_bytes)| {
                let file_offset = end + gap;
                end = file_offset + length_bytes;
                Extent { file_offset, device_offset: u64::from(device), length_bytes }
            })
            .collect();
        let map = FileMapObject { file: 1, nsid: 1, version, length_bytes: end, extents };
        let mut bytes = Vec::new();
        map.encode_into(&mut bytes);
        prop_assert_eq!(FileMapObject::parse(&bytes), Ok(map));
        let at = flip.0.index(bytes.len());
        bytes[at] ^= flip.1;
        fuzz::vendor(&bytes);
    }
}

#[test]
fn fuzz_seeds() {
    for length in [0, 1, 3, 16, 64, 128, 1000, 6000] {
        for byte in [0, 1, 8, 0x55, 0xFF] {
            let data = vec![byte; length];
            fuzz::pdu_stream(&data);
            fuzz::commands(&data);
            fuzz::rdma(&data);
            fuzz::vendor(&data);
        }
    }
}

fn opened(receiver: &mut PduReceiver, digests: Digests) {
    let mut ic = Vec::new();
    IcReq { digests, ..IcReq::default() }.encode_into(&mut ic);
    assert!(matches!(
        receiver.next(&ic),
        Ok(Some((128, PduEvent::Header(Pdu::IcReq(found))))) if found.digests == digests
    ));
    receiver.set_digests(digests);
}

#[test]
fn capsule_is_handed_out_whole_at_every_split() {
    let digests = Digests { header: true, data: true };
    let mut receiver = PduReceiver::for_target(8192);
    opened(&mut receiver, digests);
    let mut pdu = Vec::new();
    CapsuleCmd { sqe: Sqe::new(1, 1), data: &[7; 100] }.encode_into(&mut pdu, digests, 3);
    for cut in 0..pdu.len() {
        assert_eq!(receiver.next(&pdu[..cut]), Ok(None));
    }
    let Ok(Some((used, PduEvent::Header(Pdu::CapsuleCmd { data, digest_ok, .. })))) =
        receiver.next(&pdu)
    else {
        panic!("no capsule");
    };
    assert_eq!((used, data, digest_ok), (pdu.len(), &[7; 100][..], true));
    *pdu.last_mut().unwrap() ^= 1;
    let Ok(Some((_, PduEvent::Header(Pdu::CapsuleCmd { digest_ok, .. })))) = receiver.next(&pdu)
    else {
        panic!("no capsule");
    };
    assert!(!digest_ok, "a wrong data digest is the command's error, not the connection's");
    pdu[20] ^= 1;
    assert!(matches!(receiver.next(&pdu), Err(PduError { fes: Fes::HeaderDigestError, .. })));
}

#[test]
fn data_may_arrive_in_pieces_and_its_digest_alone() {
    let digests = Digests { header: false, data: true };
    let mut receiver = PduReceiver::for_target(8192);
    opened(&mut receiver, digests);
    let header =
        H2cData { cccid: 1, ttag: 2, data_offset_bytes: 100, data_length_bytes: 8, last: true };
    let mut pdu = Vec::new();
    header.encode_header_into(&mut pdu, digests, 0);
    pdu.extend_from_slice(b"12345678");
    pdu.extend_from_slice(&data_digest(b"12345678"));
    let data = |offset_bytes, bytes, last_fragment, digest_ok| PduEvent::Data {
        pdu: DataPdu::H2c(header),
        offset_bytes,
        bytes,
        last_fragment,
        digest_ok,
    };
    assert_eq!(receiver.next(&pdu[..24]), Ok(None));
    assert_eq!(receiver.next(&pdu[..27]), Ok(Some((27, data(100, b"123", false, true)))));
    assert_eq!(receiver.next(&pdu[27..34]), Ok(Some((5, data(103, b"45678", false, true)))));
    assert_eq!(receiver.next(&pdu[32..34]), Ok(None));
    assert_eq!(receiver.next(&pdu[32..]), Ok(Some((4, data(108, b"", true, true)))));
    assert_eq!(receiver.next(&pdu), Ok(Some((36, data(100, b"12345678", true, true)))));
    pdu[35] ^= 1;
    assert_eq!(receiver.next(&pdu), Ok(Some((36, data(100, b"12345678", true, false)))));
}

#[test]
fn impossible_headers_are_refused_before_their_data_arrives() {
    let none = Digests::default();
    let capsule = {
        let mut pdu = Vec::new();
        CapsuleCmd { sqe: Sqe::new(1, 1), data: &[0; 8] }.encode_into(&mut pdu, none, 0);
        pdu
    };
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut receiver = PduReceiver::for_target(4096);
        opened(&mut receiver, none);
        let mut pdu = capsule.clone();
        change(&mut pdu);
        let error = receiver.next(&pdu[..8]).unwrap_err();
        (error.fes, error.fei)
    };
    let field = |at| (Fes::InvalidHeaderField, at);
    assert_eq!(refused(&|pdu| pdu[0] = 0x0B), field(0));
    assert_eq!(refused(&|pdu| pdu[0] = 0x05), field(0), "a response from a host");
    assert_eq!(refused(&|pdu| pdu[1] = 1), field(1), "a digest that was not negotiated");
    assert_eq!(refused(&|pdu| pdu[2] = 71), field(2));
    assert_eq!(refused(&|pdu| pdu[3] = 68), field(3), "data inside the header");
    assert_eq!(refused(&|pdu| pdu[4..8].fill(0)), field(4));
    assert_eq!(refused(&|pdu| pdu[6] = 1), field(4), "above the capsule limit");
    assert_eq!(
        refused(&|pdu| pdu[..8].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0])).0,
        Fes::PduSequenceError
    );
    let mut receiver = PduReceiver::for_target(4096);
    assert_eq!(receiver.next(&capsule).unwrap_err().fes, Fes::PduSequenceError);
    let mut resp = Vec::new();
    IcResp { maxh2cdata_bytes: 4092, ..IcResp::default() }.encode_into(&mut resp);
    assert_eq!(PduReceiver::for_host().next(&resp).unwrap_err().fei, 12);
    resp[8] = 1;
    assert_eq!(PduReceiver::for_host().next(&resp).unwrap_err().fes, Fes::UnsupportedParameter);
}

#[test]
fn statuses_survive_a_round_trip() {
    for field in 0..0x8000 {
        let cqe = Cqe { status: Status::from_field(field), ..Cqe::default() };
        assert_eq!(Cqe::from_bytes(&cqe.to_bytes()).status.field(), field);
    }
}
