//! Records, sealed and opened.

use super::*;
use crate::content_type::{ALERT, APPLICATION_DATA, HANDSHAKE};
use crate::keys::Suite;

fn key(suite: Suite) -> TrafficKey {
    TrafficKey::derive(suite, &vec![0x5A; suite.secret_bytes()], 0).unwrap()
}

fn pair(suite: Suite, side: Side) -> (Sealer, Opener) {
    (Sealer::new(key(suite)).unwrap(), Opener::new(key(suite), side).unwrap())
}

fn aes(side: Side) -> (Sealer, Opener) {
    pair(Suite::Aes128GcmSha256, side)
}

fn sealed(sealer: &mut Sealer, content_type: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    sealer.seal_as(content_type, [content], &mut out).unwrap();
    out
}

/// A record with the given inner plaintext, which no [`Sealer`] would make.
fn sealed_inner(sealer: &mut Sealer, inner: &[u8]) -> Vec<u8> {
    let mut record = [&[0; HEADER_BYTES][..], inner].concat();
    let tag = sealer.seal_in_place(&mut record).unwrap();
    record.extend_from_slice(tag.as_ref());
    record
}

/// RFC 8448 §3, "{client} send application_data record".
#[test]
fn known_answer_of_rfc_8448() {
    const SECRET: [u8; 32] = [
        0x9e, 0x40, 0x64, 0x6c, 0xe7, 0x9a, 0x7f, 0x9d, 0xc0, 0x5a, 0xf8, 0x88, 0x9b, 0xce, 0x65,
        0x52, 0x87, 0x5a, 0xfa, 0x0b, 0x06, 0xdf, 0x00, 0x87, 0xf7, 0x92, 0xeb, 0xb7, 0xc1, 0x75,
        0x04, 0xa5,
    ];
    const RECORD: [u8; 72] = [
        0x17, 0x03, 0x03, 0x00, 0x43, 0xa2, 0x3f, 0x70, 0x54, 0xb6, 0x2c, 0x94, 0xd0, 0xaf, 0xfa,
        0xfe, 0x82, 0x28, 0xba, 0x55, 0xcb, 0xef, 0xac, 0xea, 0x42, 0xf9, 0x14, 0xaa, 0x66, 0xbc,
        0xab, 0x3f, 0x2b, 0x98, 0x19, 0xa8, 0xa5, 0xb4, 0x6b, 0x39, 0x5b, 0xd5, 0x4a, 0x9a, 0x20,
        0x44, 0x1e, 0x2b, 0x62, 0x97, 0x4e, 0x1f, 0x5a, 0x62, 0x92, 0xa2, 0x97, 0x70, 0x14, 0xbd,
        0x1e, 0x3d, 0xea, 0xe6, 0x3a, 0xee, 0xbb, 0x21, 0x69, 0x49, 0x15, 0xe4,
    ];
    let key = || TrafficKey::derive(Suite::Aes128GcmSha256, &SECRET, 0).unwrap();
    let plaintext: Vec<u8> = (0..50).collect();
    let mut out = Vec::new();
    let (first, second) = plaintext.split_at(20);
    Sealer::new(key()).unwrap().seal([first, second], &mut out).unwrap();
    assert_eq!(out, RECORD);
    out.clear();
    Sealer::new(key()).unwrap().seal([&plaintext[..]], &mut out).unwrap();
    assert_eq!(out, RECORD);
    let opened = Opener::new(key(), Side::Server).unwrap().open(&mut out).unwrap();
    let expected = Opened { plaintext_bytes: 50, consumed_bytes: 72, ..Opened::default() };
    assert_eq!(opened, expected);
    assert_eq!(out[..50], plaintext);
}

#[test]
fn records_are_opened_some_at_a_time() {
    let (mut sealer, mut opener) = aes(Side::Server);
    let mut received = Vec::new();
    for content in [&b""[..], b"a", b"", b"", b"bc", b""] {
        let inner = [content, &[APPLICATION_DATA]].concat();
        received.extend(sealed_inner(&mut sealer, &inner));
    }
    let part = sealed(&mut sealer, APPLICATION_DATA, b"d");
    received.extend_from_slice(&part[..part.len() - 1]);
    let mut found = Vec::new();
    let mut rounds = Vec::new();
    loop {
        let opened = opener.open_some(&mut received, 2).unwrap();
        found.extend_from_slice(&received[..opened.plaintext_bytes]);
        received.drain(..opened.consumed_bytes);
        rounds.push((opened.plaintext_bytes, opened.has_more));
        if !opened.has_more {
            break;
        }
    }
    assert_eq!(rounds, [(1, true), (0, true), (2, true), (0, false)]);
    assert_eq!((&found[..], received.len()), (&b"abc"[..], part.len() - 1));
}

#[test]
fn many_sizes_in_all_suites() {
    let sizes = [1, 2, 15, 16, 17, 64, 600, 4096, 16_383, 16_384, 16_385, 32_768, 40_000, 100_000];
    for suite in Suite::ALL {
        let (mut sealer, mut opener) = pair(suite, Side::Server);
        let mut total = 0;
        for size in sizes {
            let plaintext: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            let mut out = b"before".to_vec();
            let halves = [&plaintext[..size / 2], &[], &plaintext[size / 2..]];
            let bytes: Vec<&[u8]> = plaintext.chunks(size / 50 + 1).collect();
            for pieces in [&[&plaintext[..]][..], &halves, &bytes] {
                out.truncate(6);
                sealer.seal(pieces.iter().copied(), &mut out).unwrap();
                let records = size.div_ceil(CONTENT_MAX_BYTES);
                total += records as u64;
                assert_eq!(sealer.records_left(), KEY_RECORDS_MAX - total);
                assert_eq!(out.len(), 6 + size + records * RECORD_OVERHEAD_BYTES);
                let opened = opener.open(&mut out[6..]).unwrap();
                assert_eq!(opened.plaintext_bytes, size);
                assert_eq!(opened.consumed_bytes, out.len() - 6);
                assert_eq!(out[6..6 + size], plaintext);
            }
        }
    }
}

#[test]
fn sealing_nothing_makes_no_record() {
    let (mut sealer, mut opener) = aes(Side::Server);
    let mut out = Vec::new();
    sealer.seal([], &mut out).unwrap();
    sealer.seal([&[][..], &[]], &mut out).unwrap();
    assert!(out.is_empty());
    assert_eq!(sealer.records_left(), KEY_RECORDS_MAX);
    assert_eq!(opener.open(&mut []).unwrap(), Opened::default());
}

/// Three records and an incomplete one, for each split into two receives.
#[test]
fn split_at_every_byte() {
    let (mut sealer, _) = aes(Side::Server);
    let mut stream = Vec::new();
    for content in [&b"one"[..], b"the second", b"3"] {
        sealer.seal([content], &mut stream).unwrap();
    }
    let plaintext = b"onethe second3";
    for split in 0..=stream.len() {
        let (_, mut opener) = aes(Side::Server);
        let mut buffer = stream[..split].to_vec();
        let first = opener.open(&mut buffer).unwrap();
        let mut got = buffer[..first.plaintext_bytes].to_vec();
        let mut buffer = buffer[first.consumed_bytes..].to_vec();
        buffer.extend_from_slice(&stream[split..]);
        let second = opener.open(&mut buffer).unwrap();
        assert_eq!(second.consumed_bytes, buffer.len());
        got.extend_from_slice(&buffer[..second.plaintext_bytes]);
        assert_eq!(got, plaintext, "split at {split}");
    }
}

#[test]
fn lengths_out_of_range_are_refused_by_their_header() {
    for length_bytes in [0, 1, 16, 16_641, 65_535_u16] {
        let (_, mut opener) = aes(Side::Server);
        let [high, low] = length_bytes.to_be_bytes();
        let error = RecordError::Length { record: 0, length_bytes };
        assert_eq!(opener.open(&mut [23, 3, 3, high, low]), Err(error));
        assert_eq!(opener.open(&mut []), Err(error));
    }
    for length_bytes in [17, 16_640_u16] {
        let (_, mut opener) = aes(Side::Server);
        let [high, low] = length_bytes.to_be_bytes();
        assert_eq!(opener.open(&mut [23, 3, 3, high, low]).unwrap(), Opened::default());
    }
}

#[test]
fn content_types_in_the_clear_are_refused() {
    for content_type in [0, 20, 21, 22, 24, 255] {
        let (_, mut opener) = aes(Side::Client);
        let error = RecordError::ContentType { record: 0, content_type };
        assert_eq!(opener.open(&mut [content_type, 3, 3, 0, 2, 1, 0]), Err(error));
    }
}

#[test]
fn sealed_content_types_are_refused() {
    for content_type in [20, 24, 255] {
        let (mut sealer, mut opener) = aes(Side::Client);
        let mut stream = sealed(&mut sealer, APPLICATION_DATA, b"x");
        stream.extend(sealed(&mut sealer, content_type, b"y"));
        let error = RecordError::ContentType { record: 1, content_type };
        assert_eq!(opener.open(&mut stream), Err(error));
    }
}

#[test]
fn every_changed_byte_is_noticed() {
    let (mut sealer, _) = aes(Side::Server);
    let record = sealed(&mut sealer, APPLICATION_DATA, b"something");
    for at in 0..record.len() {
        let (_, mut opener) = aes(Side::Server);
        let mut changed = record.clone();
        changed[at] ^= 0x10;
        let opened = opener.open(&mut changed);
        // The opener waits for the rest of a longer record.
        let waits = opened == Ok(Opened::default()) && (at == 3 || at == 4);
        let is_tag = opened == Err(RecordError::Tag { record: 0 });
        let is_header =
            matches!(opened, Err(RecordError::ContentType { .. } | RecordError::Length { .. }));
        assert!(waits || is_tag || (is_header && at < HEADER_BYTES), "{at}: {opened:?}");
    }
}

#[test]
fn records_out_of_order_are_refused() {
    let (mut sealer, mut opener) = aes(Side::Server);
    let first = sealed(&mut sealer, APPLICATION_DATA, b"1");
    let second = sealed(&mut sealer, APPLICATION_DATA, b"2");
    let mut twice = [&first[..], &first].concat();
    assert_eq!(opener.open(&mut twice), Err(RecordError::Tag { record: 1 }));
    let (_, mut opener) = aes(Side::Server);
    let mut missing = second;
    assert_eq!(opener.open(&mut missing), Err(RecordError::Tag { record: 0 }));
}

#[test]
fn padding_is_removed() {
    let (mut sealer, mut opener) = aes(Side::Server);
    let inner = [&b"content\0"[..], &[APPLICATION_DATA], &[0; 300]].concat();
    let mut stream = sealed_inner(&mut sealer, &inner);
    let opened = opener.open(&mut stream).unwrap();
    assert_eq!(&stream[..opened.plaintext_bytes], b"content\0");
}

#[test]
fn inner_plaintext_has_a_type_and_a_limit() {
    let (mut sealer, mut opener) = aes(Side::Server);
    let mut stream = sealed_inner(&mut sealer, &[0; 40]);
    let error = RecordError::ContentType { record: 0, content_type: 0 };
    assert_eq!(opener.open(&mut stream), Err(error));

    let (mut sealer, mut opener) = aes(Side::Server);
    let mut inner = vec![APPLICATION_DATA; INNER_MAX_BYTES];
    let mut stream = sealed_inner(&mut sealer, &inner);
    assert_eq!(opener.open(&mut stream).unwrap().plaintext_bytes, CONTENT_MAX_BYTES);
    inner.push(0);
    let mut stream = sealed_inner(&mut sealer, &inner);
    let error = RecordError::Length { record: 1, length_bytes: 16_386 };
    assert_eq!(opener.open(&mut stream), Err(error));
}

/// Empty records are allowed, against traffic analysis (RFC 8446 §5.1).
#[test]
fn empty_application_data_is_nothing() {
    let (mut sealer, mut opener) = aes(Side::Server);
    let mut stream = sealed_inner(&mut sealer, &[APPLICATION_DATA]);
    let expected = Opened { plaintext_bytes: 0, consumed_bytes: 22, ..Opened::default() };
    assert_eq!(opener.open(&mut stream), Ok(expected));
    for content_type in [HANDSHAKE, ALERT] {
        let (mut sealer, mut opener) = aes(Side::Client);
        let mut stream = sealed_inner(&mut sealer, &[content_type]);
        let error = RecordError::ContentType { record: 0, content_type };
        assert_eq!(opener.open(&mut stream), Err(error));
    }
}

#[test]
fn close_notify_ends_the_stream() {
    let (mut sealer, mut opener) = aes(Side::Server);
    let mut stream = sealed(&mut sealer, APPLICATION_DATA, b"last");
    stream.extend(sealed(&mut sealer, ALERT, &[1, 0]));
    let consumed_bytes = stream.len();
    stream.extend(sealed(&mut sealer, APPLICATION_DATA, b"too late"));
    let opened = opener.open(&mut stream).unwrap();
    let expected = Opened { plaintext_bytes: 4, consumed_bytes, closed: true, has_more: false };
    assert_eq!(opened, expected);
    assert_eq!(&stream[..4], b"last");
    let again = Opened { closed: true, ..Opened::default() };
    assert_eq!(opener.open(&mut stream[consumed_bytes..]).unwrap(), again);
}

#[test]
fn other_alerts_are_errors() {
    let (mut sealer, mut opener) = aes(Side::Server);
    let mut stream = sealed(&mut sealer, ALERT, &[2, 20]);
    assert_eq!(opener.open(&mut stream), Err(RecordError::Alert(Alert(20))));
    for content in [&[0][..], &[1, 0, 0]] {
        let (mut sealer, mut opener) = aes(Side::Server);
        let mut stream = sealed(&mut sealer, ALERT, content);
        let error = RecordError::ContentType { record: 0, content_type: ALERT };
        assert_eq!(opener.open(&mut stream), Err(error));
    }
}

/// Two tickets, in records of every size, between application data.
#[test]
fn a_client_skips_tickets() {
    let ticket = |length: u16| {
        let [high, low] = length.to_be_bytes();
        [&[4, 0, high, low], &vec![0xEE; usize::from(length)][..]].concat()
    };
    let messages = [ticket(0), ticket(300), ticket(5)].concat();
    for size in 1..=messages.len() {
        let (mut sealer, mut opener) = aes(Side::Client);
        let mut stream = sealed(&mut sealer, APPLICATION_DATA, b"a");
        for part in messages.chunks(size) {
            stream.extend(sealed(&mut sealer, HANDSHAKE, part));
        }
        stream.extend(sealed(&mut sealer, APPLICATION_DATA, b"b"));
        let opened = opener.open(&mut stream).unwrap();
        assert_eq!(opened.consumed_bytes, stream.len());
        assert_eq!(&stream[..opened.plaintext_bytes], b"ab", "{size}");
    }
}

#[test]
fn other_handshake_messages_are_errors() {
    const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
    for (side, message, message_type) in [
        (Side::Client, &KEY_UPDATE[..], 24),
        (Side::Server, &KEY_UPDATE, 24),
        (Side::Server, &[4, 0, 0, 1, 0], 4),
        (Side::Client, &[4, 0, 0, 1, 0, 13, 0, 0, 0], 13),
    ] {
        let (mut sealer, mut opener) = aes(side);
        let mut stream = sealed(&mut sealer, HANDSHAKE, message);
        let error = RecordError::Handshake { message_type };
        assert_eq!(opener.open(&mut stream), Err(error));
    }
}

#[test]
fn nothing_interrupts_a_handshake_message() {
    for begun in [&[4][..], &[4, 0, 0], &[4, 0, 0, 2, 9]] {
        for content_type in [APPLICATION_DATA, ALERT] {
            let (mut sealer, mut opener) = aes(Side::Client);
            let mut stream = sealed(&mut sealer, HANDSHAKE, begun);
            stream.extend(sealed(&mut sealer, content_type, &[1, 0]));
            let error = RecordError::Interrupted { record: 1 };
            assert_eq!(opener.open(&mut stream), Err(error));
        }
    }
}

#[test]
fn no_nonce_is_used_twice() {
    let suite = Suite::Aes128GcmSha256;
    for pieces in [&[&b"more"[..]][..], &[b"and", b" more"]] {
        let last = TrafficKey::derive(suite, &[1; 32], u64::MAX - 1).unwrap();
        let mut sealer = Sealer::new(last).unwrap();
        let mut out = Vec::new();
        sealer.seal([&b"last"[..]], &mut out).unwrap();
        let length = out.len();
        for _ in 0..2 {
            let error = sealer.seal(pieces.iter().copied(), &mut out).unwrap_err();
            assert_eq!(error, RecordError::Exhausted);
            assert_eq!(out.len(), length, "something is left in the send buffer");
        }
    }
}
