//! Entry points for fuzzing: they assert what must hold for any bytes. Unit tests call them too.

use crate::client_hello::{self, ClientHelloError, OFFERS_MAX, OfferedPsk, offered_psks};
use crate::content_type;
use crate::identity::PskHash;
use crate::keys::{Side, Suite, TrafficKey};
use crate::records::{
    CONTENT_MAX_BYTES, Opener, RECORD_MAX_BYTES, RECORD_OVERHEAD_BYTES, RecordError, Sealer,
};

/// A ClientHello: any bytes give keys within limits or an error; what was offered is read; no part
/// of a good message is a good message.
///
/// The bytes are taken as a message. Then they are taken as identities, each led by its length and
/// that of its binder.
pub fn client_hello(data: &[u8]) {
    if let Ok(offers) = offered_psks(data) {
        assert!((1..=OFFERS_MAX).contains(&offers.len()));
        let within = data.as_ptr_range();
        for OfferedPsk { identity, .. } in offers {
            assert!(!identity.is_empty());
            let range = identity.as_ptr_range();
            assert!(within.start <= range.start && range.end <= within.end);
        }
    }

    let (mut identities, mut binders, mut rest) = (Vec::new(), Vec::new(), data);
    while let [length, binder_bytes, behind @ ..] = rest {
        let length = usize::from(*length).clamp(1, behind.len().max(1));
        let Some((identity, behind)) = behind.split_at_checked(length) else { break };
        identities.push(identity);
        binders.push(usize::from(*binder_bytes));
        rest = behind;
    }
    let message = client_hello::encode(&identities, &binders);
    // What `encode` cannot write.
    if message.len() > usize::from(u16::MAX) {
        return;
    }
    let read = offered_psks(&message);
    match identities.len() {
        0 => assert!(read.is_err()),
        1..=OFFERS_MAX => {
            let expected: Vec<OfferedPsk<'_>> = identities
                .iter()
                .zip(binders)
                .map(|(identity, binder_bytes)| OfferedPsk {
                    identity,
                    hash: PskHash::from_binder_bytes(binder_bytes),
                })
                .collect();
            assert_eq!(read.as_deref(), Ok(&expected[..]));
            let cut = data.iter().map(|byte| usize::from(*byte)).sum::<usize>() % message.len();
            assert!(offered_psks(&message[..cut]).is_err());
        }
        _ => assert_eq!(read, Err(ClientHelloError::TooMany)),
    }
}

/// What a peer sends, and what must come out of it.
#[derive(Default)]
struct Sent {
    stream: Vec<u8>,
    plaintext: Vec<u8>,
    /// Whether a close_notify is in the stream; what follows it does not come out.
    closed: bool,
    /// Why the stream must end in an error, if it is not changed on its way.
    error: Option<RecordError>,
}

/// Records: what was sealed comes out, however it is split, and nothing else; what was changed on
/// its way gives at most what was before it; any bytes give an error, or wait for more.
///
/// Byte 0: suite, bit 2 client, bit 3 change a byte. Byte 1: lengths of the pieces in which the
/// stream arrives. Bytes 2 to 4: which byte is changed, and how. Then steps of three bytes: what is
/// sent, and how much of it.
pub fn records(data: &[u8]) {
    let Some((&[settings, piece, at_high, at_low, change], steps)) = data.split_first_chunk()
    else {
        return;
    };
    let suite = Suite::ALL[usize::from(settings % 3)];
    let side = if settings & 4 != 0 { Side::Client } else { Side::Server };
    let key = || TrafficKey::derive(suite, &vec![0x33; suite.secret_bytes()], 7).expect("a key");
    let mut sealer = Sealer::new(key()).expect("a sealer");
    let mut sent = Sent::default();
    for step in steps.as_chunks().0 {
        send(&mut sealer, &mut sent, *step, side);
    }
    let piece = usize::from(piece) * 61 + 1;
    let mut opener = Opener::new(key(), side).expect("an opener");
    if settings & 8 != 0 && change != 0 && !sent.stream.is_empty() {
        let at = usize::from(u16::from_be_bytes([at_high, at_low])) % sent.stream.len();
        sent.stream[at] ^= change;
        let (opened, _) = receive(&mut opener, &sent.stream, piece);
        assert!(sent.plaintext.starts_with(&opened));
    } else {
        let (opened, end) = receive(&mut opener, &sent.stream, piece);
        match sent.error {
            None => {
                assert_eq!(opened, sent.plaintext);
                assert_eq!(end, Ok(sent.closed));
            }
            Some(error) => {
                assert!(sent.plaintext.starts_with(&opened));
                assert_eq!(end, Err(error));
            }
        }
    }
    let mut stranger = Opener::new(key(), side).expect("an opener");
    let (opened, _) = receive(&mut stranger, data, piece);
    assert_eq!(opened, [0; 0]);
}

/// Appends what a step says to the stream.
fn send(sealer: &mut Sealer, sent: &mut Sent, [what, high, low]: [u8; 3], side: Side) {
    let length = usize::from(u16::from_be_bytes([high, low]));
    let over = sent.closed || sent.error.is_some();
    let content = vec![what; length];
    let before = sent.stream.len();
    let record = KEY_SEQUENCE + sealer_records(sealer);
    let mut seal = |content_type, content: &[u8]| {
        sealer.seal_as(content_type, [content], &mut sent.stream).expect("sealed");
    };
    let error = match what % 8 {
        0..=3 => {
            let (first, second) = content.split_at(length / 3);
            sealer.seal([first, &[], second], &mut sent.stream).expect("sealed");
            let records = length.div_ceil(CONTENT_MAX_BYTES);
            let expected = length + records * RECORD_OVERHEAD_BYTES;
            assert_eq!(sent.stream.len() - before, expected);
            if !over {
                sent.plaintext.extend_from_slice(&content);
            }
            None
        }
        4 | 5 => {
            // A ticket, in two records if it is long.
            let [_, a, b, c] = (length as u32).to_be_bytes();
            seal(content_type::HANDSHAKE, &[&[4, a, b, c], &content[..]].concat());
            (side == Side::Server).then_some(RecordError::Handshake { message_type: 4 })
        }
        6 => {
            seal(content_type::ALERT, &[1, 0]);
            sent.closed |= !over;
            None
        }
        _ => {
            seal(99, &[high, low]);
            Some(RecordError::ContentType { record, content_type: 99 })
        }
    };
    if !over {
        sent.error = error;
    }
}

/// The number of the first record.
const KEY_SEQUENCE: u64 = 7;

fn sealer_records(sealer: &Sealer) -> u64 {
    crate::records::KEY_RECORDS_MAX - sealer.records_left()
}

/// What `opener` makes of `stream` in pieces of `piece` bytes: the plaintext, and whether the peer
/// has closed.
fn receive(
    opener: &mut Opener,
    stream: &[u8],
    piece: usize,
) -> (Vec<u8>, Result<bool, RecordError>) {
    let (mut plaintext, mut buffer, mut closed) = (Vec::new(), Vec::new(), false);
    for piece in stream.chunks(piece) {
        buffer.extend_from_slice(piece);
        match opener.open(&mut buffer) {
            Ok(opened) => {
                assert!(opened.plaintext_bytes <= opened.consumed_bytes);
                plaintext.extend_from_slice(&buffer[..opened.plaintext_bytes]);
                buffer.drain(..opened.consumed_bytes);
                closed = opened.closed;
                assert!(closed || buffer.len() < RECORD_MAX_BYTES, "input is hoarded");
            }
            Err(error) => {
                assert_eq!(opener.open(&mut []), Err(error));
                return (plaintext, Err(error));
            }
        }
    }
    (plaintext, Ok(closed))
}
