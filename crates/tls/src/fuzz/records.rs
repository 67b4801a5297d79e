//! Records against a model, which has a table of sealed records in place of a cipher.

use super::input::Input;
use crate::content_type::{ALERT, APPLICATION_DATA, CHANGE_CIPHER_SPEC, HANDSHAKE};
use crate::error::Alert;
use crate::keys::{Side, Suite, TrafficKey};
use crate::records::{
    CONTENT_MAX_BYTES, HEADER_BYTES, Opener, RECORD_MAX_BYTES, RECORD_OVERHEAD_BYTES, RecordError,
    Sealer,
};
use std::collections::HashMap;

/// Most steps of one input, to limit its time.
const STEPS_MAX: usize = 48;
/// The number of the first record.
const FIRST: u64 = 7;
/// Lengths of a record that are at or beside a limit (RFC 8446 §5.2).
const EDGES: [u16; 8] = [0, 1, 16, 17, 18, 16_640, 16_641, 65_535];
const NEW_SESSION_TICKET: u8 = 4;

/// The stream of a peer with the key and of an attacker on the path.
struct Wire {
    sealer: Sealer,
    next: u64,
    /// Each sealed record with its inner plaintext, by its number.
    sealed: HashMap<u64, (Vec<u8>, Vec<u8>)>,
    /// The bytes that arrive.
    stream: Vec<u8>,
    /// Start of its last record.
    last_at: usize,
}

/// The result of receiving a stream.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    plaintext: Vec<u8>,
    closed: bool,
    error: Option<RecordError>,
}

/// Records: exactly the sealed data is opened, however the stream is split. Whatever the peer seals (types, paddings,
/// lengths, handshake messages and alerts in any pieces), and whatever an attacker without the key changes, repeats,
/// leaves out or adds, the result follows RFC 8446 §5: the same plaintext, end and error as the model's.
///
/// Byte 0: suite, bit 2 client. Bytes 1 to 4: lengths of the pieces in which the stream arrives. Then steps. The input
/// itself is also used as a stream.
pub fn records(data: &[u8]) {
    let mut input = Input(data);
    let settings = input.byte();
    let suite = Suite::ALL[usize::from(settings % 3)];
    let side = if settings & 4 != 0 { Side::Client } else { Side::Server };
    let pieces = [input.number16(), input.number16()];
    let derived = |secret| {
        TrafficKey::derive(suite, &vec![secret; suite.secret_bytes()], FIRST).expect("a key")
    };
    let key = || derived(0x33);
    let opener = |key| Opener::new(key, side).expect("an opener");
    let mut wire = Wire {
        sealer: Sealer::new(key()).expect("a sealer"),
        next: FIRST,
        sealed: HashMap::new(),
        stream: Vec::new(),
        last_at: 0,
    };
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        wire.step(&mut input);
    }
    let found = receive(opener(key()), &wire.stream, pieces);
    compare(&found, model(&wire.stream, &wire.sealed, side));
    // With a key that has sealed nothing: the input may contain a record from above.
    let found = receive(opener(derived(0x44)), data, pieces);
    compare(&found, model(data, &HashMap::new(), side));
}

/// Plaintext that arrived together with an error may be lost.
fn compare(found: &Outcome, expected: Outcome) {
    assert!(expected.plaintext.starts_with(&found.plaintext), "it differs from the data sent");
    assert_eq!(found.error, expected.error);
    if expected.error.is_none() {
        assert!(found.plaintext == expected.plaintext, "something is missing");
        assert_eq!(found.closed, expected.closed);
    }
}

impl Wire {
    fn step(&mut self, input: &mut Input<'_>) {
        let kind = input.byte();
        match kind % 14 {
            0..=3 => self.application_data(input),
            4 => {
                let content_type = input.byte();
                self.inner(input, content_type);
            }
            5 => self.inner(input, APPLICATION_DATA),
            6 | 7 => {
                let mut message = Vec::new();
                for _ in 0..input.byte() % 3 + 1 {
                    let length = input.byte();
                    let message_type =
                        if input.byte() < 240 { NEW_SESSION_TICKET } else { input.byte() };
                    message.extend([message_type, 0, input.byte() / 250, length]);
                    message.extend(vec![0xEE; usize::from(length)]);
                }
                let size = usize::from(input.byte()) + 1;
                for part in message.chunks(size) {
                    self.seal(&[part, &[HANDSHAKE]].concat());
                }
            }
            8 => {
                let description = input.byte();
                let content = [1, if description < 128 { 0 } else { description }, 0];
                let length = if input.byte() < 200 { 2 } else { usize::from(input.byte() % 4) };
                self.seal(&[&content[..length], &[ALERT]].concat());
            }
            9 => self.plain(input),
            10 => {
                let at = self.last_at + input.index(self.stream.len() - self.last_at);
                let change = input.byte();
                if let Some(byte) = self.stream.get_mut(at) {
                    *byte ^= change;
                }
            }
            11 => {
                let again = self.stream[self.last_at..].to_vec();
                self.last_at = self.stream.len();
                self.stream.extend(again);
            }
            // The last record, or a part of it, is lost.
            12 => {
                let left = input.index(self.stream.len() - self.last_at + 1);
                self.stream.truncate(self.last_at + left);
            }
            _ => {
                let length = usize::from(input.byte());
                self.stream.extend_from_slice(input.bytes(length));
            }
        }
    }

    /// Seals application data as the target and the host library do.
    fn application_data(&mut self, input: &mut Input<'_>) {
        let length = match input.byte() {
            0 => CONTENT_MAX_BYTES + usize::from(input.byte() % 3) - 1,
            1 => usize::from(input.number16()),
            other => usize::from(other),
        };
        let content: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let (first, rest) = content.split_at(input.index(length + 1));
        let (second, third) = rest.split_at(input.index(rest.len() + 1));
        self.last_at = self.stream.len();
        let before = self.sealer.records_left();
        self.sealer.seal([first, second, third], &mut self.stream).expect("sealed");
        let records = length.div_ceil(CONTENT_MAX_BYTES);
        assert_eq!(before - self.sealer.records_left(), records as u64);
        let added = self.stream.len() - self.last_at;
        assert_eq!(added, length + records * RECORD_OVERHEAD_BYTES);
        for content in content.chunks(CONTENT_MAX_BYTES) {
            let record = &self.stream[self.last_at..][..content.len() + RECORD_OVERHEAD_BYTES];
            let inner = [content, &[APPLICATION_DATA]].concat();
            self.sealed.insert(self.next, (record.to_vec(), inner));
            self.next += 1;
            self.last_at += record.len();
        }
    }

    /// Seals a record with content, type and padding of any length.
    fn inner(&mut self, input: &mut Input<'_>, content_type: u8) {
        let length = usize::from(input.byte());
        let mut inner = input.bytes(length).to_vec();
        inner.push(content_type);
        let limit = CONTENT_MAX_BYTES + 1;
        let length = match input.byte() {
            padding @ 0..=199 => inner.len() + usize::from(padding) / 4,
            200..=219 => limit - 1,
            220..=229 => limit,
            230..=239 => limit + 1,
            240..=249 => limit + 239,
            _ => limit + usize::from(input.byte() % 239),
        };
        inner.resize(length, 0);
        self.seal(&inner);
    }

    fn seal(&mut self, inner: &[u8]) {
        let mut record = [&[0; HEADER_BYTES][..], inner].concat();
        let tag = self.sealer.seal_in_place(&mut record).expect("sealed");
        record.extend_from_slice(tag.as_ref());
        self.last_at = self.stream.len();
        self.stream.extend_from_slice(&record);
        self.sealed.insert(self.next, (record, inner.to_vec()));
        self.next += 1;
    }

    /// A record of an attacker without the key.
    fn plain(&mut self, input: &mut Input<'_>) {
        let types = [APPLICATION_DATA, CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, 0, 24];
        let content_type = types[usize::from(input.byte()) % types.len()];
        let length = match input.byte() {
            edge @ 0..=127 => EDGES[usize::from(edge) % EDGES.len()],
            _ => input.number16(),
        };
        let [high, low] = length.to_be_bytes();
        self.last_at = self.stream.len();
        self.stream.extend([content_type, 3, 3, high, low]);
        self.stream.extend(vec![0x16; usize::from(length)]);
    }
}

/// Opens `stream` in pieces of these lengths, in turn.
fn receive(mut opener: Opener, stream: &[u8], pieces: [u16; 2]) -> Outcome {
    let (mut outcome, mut buffer, mut rest) = (Outcome::default(), Vec::new(), stream);
    for length in pieces.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, behind) = rest.split_at(rest.len().min(usize::from(*length) + 1));
        rest = behind;
        buffer.extend_from_slice(piece);
        match opener.open(&mut buffer) {
            Ok(opened) => {
                assert!(opened.plaintext_bytes <= opened.consumed_bytes);
                outcome.plaintext.extend_from_slice(&buffer[..opened.plaintext_bytes]);
                buffer.drain(..opened.consumed_bytes);
                outcome.closed = opened.closed;
                assert!(opened.closed || buffer.len() < RECORD_MAX_BYTES, "input is hoarded");
            }
            Err(error) => {
                assert_eq!(opener.open(&mut []), Err(error));
                outcome.error = Some(error);
                break;
            }
        }
    }
    outcome
}

/// The model's result by RFC 8446 §5: a record can be opened if it equals the one that was sealed with its number.
fn model(stream: &[u8], sealed: &HashMap<u64, (Vec<u8>, Vec<u8>)>, side: Side) -> Outcome {
    let (mut outcome, mut messages, mut rest) = (Outcome::default(), Vec::new(), stream);
    for record in FIRST.. {
        let Some(([content_type, _, _, high, low], behind)) = rest.split_first_chunk() else {
            break;
        };
        let (content_type, length_bytes) = (*content_type, u16::from_be_bytes([*high, *low]));
        let step = if content_type != APPLICATION_DATA {
            Err(RecordError::ContentType { record, content_type })
        } else if !(17..=16_640).contains(&length_bytes) {
            Err(RecordError::Length { record, length_bytes })
        } else {
            let length = usize::from(length_bytes);
            let Some(whole) = rest.get(..HEADER_BYTES + length) else { break };
            rest = &behind[length..];
            match sealed.get(&record) {
                Some((bytes, inner)) if bytes == whole => {
                    opened(record, inner, &mut messages, side)
                }
                _ => Err(RecordError::Tag { record }),
            }
        };
        match step {
            Ok(Some(content)) => outcome.plaintext.extend_from_slice(content),
            Ok(None) => {
                outcome.closed = true;
                break;
            }
            Err(error) => {
                outcome.error = Some(error);
                break;
            }
        }
    }
    outcome
}

/// The application data of a record; None if it ends the stream. `messages` holds the incomplete handshake message.
fn opened<'a>(
    record: u64,
    inner: &'a [u8],
    messages: &mut Vec<u8>,
    side: Side,
) -> Result<Option<&'a [u8]>, RecordError> {
    if inner.len() > CONTENT_MAX_BYTES + 1 {
        return Err(RecordError::Length { record, length_bytes: inner.len() as u16 });
    }
    let typed = &inner[..inner.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)];
    let (content_type, content) =
        typed.split_last().map_or((0, typed), |(last, rest)| (*last, rest));
    if !messages.is_empty() && content_type != HANDSHAKE {
        return Err(RecordError::Interrupted { record });
    }
    match (content_type, content) {
        (APPLICATION_DATA, content) => Ok(Some(content)),
        (ALERT, [_, 0]) => Ok(None),
        (ALERT, [_, other]) => Err(RecordError::Alert(Alert(*other))),
        (HANDSHAKE, [_, ..]) => {
            messages.extend_from_slice(content);
            while let Some(message_type) = messages.first().copied() {
                if side == Side::Server || message_type != NEW_SESSION_TICKET {
                    return Err(RecordError::Handshake { message_type });
                }
                let Some([_, a, b, c]) = messages.first_chunk() else { break };
                let whole = 4 + u32::from_be_bytes([0, *a, *b, *c]) as usize;
                if messages.len() < whole {
                    break;
                }
                messages.drain(..whole);
            }
            Ok(Some(&[]))
        }
        _ => Err(RecordError::ContentType { record, content_type }),
    }
}
