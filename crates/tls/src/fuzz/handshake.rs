//! ClientHellos at a server.

use super::hello::{Hello, in_records};
use super::input::Input;
use crate::client_hello::ClientHelloError;
use crate::content_type::{ALERT, HANDSHAKE};
use crate::error::HandshakeError;
use crate::handshake::{accept, connect};
use crate::identity::{Psk, PskHash, PskStore};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const IDENTITY: &str = "NVMe1R01 nqn.host nqn.subsystem digest";
/// Far longer than any input takes: no handshake waits.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Longest stream of an input, in bytes: it must fit in a socket's buffer.
const STREAM_MAX_BYTES: usize = 100_000;
/// Start of the random number of a ServerHello that asks for another ClientHello (RFC 8446 §4.1.3).
const HELLO_RETRY: [u8; 4] = [0xCF, 0x21, 0xAD, 0x74];

fn psk() -> Psk {
    Psk::new(IDENTITY, &[0x42; 32], PskHash::Sha256).expect("a key")
}

/// Two connected sockets, the first for the code under test.
fn sockets() -> Option<(TcpStream, UnixStream)> {
    let (a, b) = UnixStream::pair().ok()?;
    Some((TcpStream::from(OwnedFd::from(a)), b))
}

/// The first message of our client.
fn client_hello() -> Option<Vec<u8>> {
    let (socket, mut server) = sockets()?;
    server.shutdown(Shutdown::Write).ok()?;
    let ended = connect(&socket, &psk(), Instant::now() + TIMEOUT);
    assert!(matches!(ended, Err(HandshakeError::Closed)), "{ended:?}");
    drop(socket);
    let mut record = Vec::new();
    server.read_to_end(&mut record).ok()?;
    Some(record)
}

/// A changed ClientHello at a server that has one key. Whatever was changed, the handshake fails at once, since no
/// Finished follows. Only a client that knows the key gets a ServerHello, and only if the part that its binder covers
/// is unchanged. A refusal names the actual reason. An unchanged message is accepted, however it is cut into records.
///
/// Byte 0: bit 0 the client does not know the key, bits 3:1 how many changes, bit 4 a byte of the message
/// is damaged, bit 5 it is cut. Then the changes, the damage, and how it is cut into records.
pub fn handshake(data: &[u8]) {
    static HELLO: OnceLock<Option<Hello>> = OnceLock::new();
    let hello = HELLO.get_or_init(|| client_hello().map(|record| Hello::of(&record)));
    let Some(mut hello) = hello.clone() else { return };
    let mut input = Input(data);
    let settings = input.byte();
    let changes = settings >> 1 & 7;
    (0..changes).for_each(|_| hello.change(&mut input));
    let knows = settings & 1 == 0;
    let key = psk();
    let mut message = hello.message(knows.then_some(&key));
    let sound = message.clone();
    if settings & 0x10 != 0 {
        let at = input.index(message.len());
        message[at] ^= input.byte();
    }
    if settings & 0x20 != 0 {
        message.truncate(input.index(message.len()));
    }
    let is_covered = hello.bound(IDENTITY, sound.len()).is_some_and(|(binder, begin)| {
        message.len() == sound.len()
            && message[..begin] == sound[..begin]
            && message[binder.clone()] == sound[binder]
    });
    let is_bound = knows && is_covered;
    let (stream, has_others) = in_records(&message, &mut input);
    if stream.len() > STREAM_MAX_BYTES {
        return;
    }
    let Some((error, answer)) = serve(&stream) else { return };
    let is_hello = answer.first() == Some(&HANDSHAKE) && answer.get(11..15) != Some(&HELLO_RETRY);
    assert!(
        is_bound || !is_hello,
        "a ServerHello for a client that does not know the key: {error}"
    );
    if knows && message == sound && changes == 0 && !has_others {
        assert!(is_hello && matches!(error, HandshakeError::Closed), "{error}");
    }
    let is_known = hello.offers(IDENTITY);
    if hello.is_sound && message == sound && !has_others {
        match (hello.offers_all(), &error) {
            (Ok(_), HandshakeError::UnknownIdentity { .. }) => assert!(!is_known),
            (Ok(_), _) => assert!(is_known, "{error}"),
            (Err(expected), HandshakeError::ClientHello(found)) => assert_eq!(expected, *found),
            (Err(_), _) => assert!(matches!(error, HandshakeError::Tls { .. }), "{error}"),
        }
    }
    match &error {
        HandshakeError::UnknownIdentity { .. } => assert!(!is_known || message != sound, "{error}"),
        HandshakeError::WrongKey { identity } => assert_eq!(identity, IDENTITY),
        HandshakeError::ClientHello(ClientHelloError::NoPsk) if message == sound => {
            assert!(!is_known, "{error}");
        }
        HandshakeError::TimedOut | HandshakeError::Io(_) => panic!("{error}"),
        _ => {}
    }
    let alert = error.alert().map(|alert| [ALERT, 3, 3, 0, 2, 2, alert.0]);
    assert!(alert.is_none_or(|alert| is_hello || answer.ends_with(&alert) || answer.len() > 7));
    assert!(!error.to_string().contains(char::is_control));
}

/// A server's error for `stream`, after which nothing comes, and the bytes of its answer.
fn serve(stream: &[u8]) -> Option<(HandshakeError, Vec<u8>)> {
    static STORE: OnceLock<Arc<dyn PskStore>> = OnceLock::new();
    let store = STORE.get_or_init(|| Arc::new(HashMap::from([(IDENTITY.to_owned(), psk())])));
    let (socket, mut client) = sockets()?;
    client.write_all(stream).ok()?;
    client.shutdown(Shutdown::Write).ok()?;
    let ended = accept(&socket, store, Instant::now() + TIMEOUT);
    drop(socket);
    let mut answer = Vec::new();
    // Reset, if the server has not read all.
    let _ = client.read_to_end(&mut answer);
    Some((ended.expect_err("the client has sent no Finished"), answer))
}
