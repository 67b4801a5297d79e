//! Handshakes of both sides (RFC 8446 §4), by s2n-tls over a blocking socket.
//!
//! s2n-tls performs only the handshake: its secrets are extracted, and it is dropped before the
//! first record. One reason is that it sends a KeyUpdate after 2^24.5 records on its own, which
//! ends a queue of a Linux host.

// s2n-tls calls our functions with a pointer to the socket.
#![allow(unsafe_code)]

use crate::client_hello::offered_psks;
use crate::content_type;
use crate::error::{Alert, HandshakeError};
use crate::identity::{Psk, PskHash, PskStore};
use crate::keys::{Secured, Side};
use crate::serialized::{SERIALIZED_MAX_BYTES, Traffic};
use crate::wire::Wire;
use s2n_tls::callbacks::{ClientHelloCallback, ConnectionFuture};
use s2n_tls::config::{Builder, Config};
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, Mode, PskHmac, SerializationVersion};
use s2n_tls::error::Error;
use s2n_tls::security::Policy;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
use std::time::Instant;
use std::{ptr, slice};
use zeroize::Zeroizing;

/// TLS 1.3 and no other version; the three suites of [`Suite`](crate::Suite), AES-128 first;
/// x25519, P-256 and P-384. Unlike its defaults, s2n-tls never changes the meaning of a policy's
/// name.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3";

static SERVER: OnceLock<Config> = OnceLock::new();
static CLIENT: OnceLock<Config> = OnceLock::new();

/// Initializes the TLS library, which takes 0.1 to 0.2 s once per process. Otherwise the first
/// handshake takes that much longer.
///
/// # Errors
/// The library does not work on this machine.
pub fn init() -> Result<(), HandshakeError> {
    let mut random = [0_u8; 32];
    aws_lc_rs::rand::fill(&mut random)
        .map_err(|_| HandshakeError::unexpected("the system has no random numbers"))?;
    drop(new_connection(Side::Server)?);
    drop(new_connection(Side::Client)?);
    Ok(())
}

/// Performs a handshake as server, with one of the keys in `store`. Returns when the client's
/// Finished has arrived; data that the client sends after it is still unread in the socket.
///
/// Takes 60 µs of processor time, and as long as the client likes until `deadline`. Whether the
/// socket is blocking does not matter. After an error the caller closes the socket, except for
/// [`HandshakeError::NotTls`], after which it may continue without TLS.
///
/// # Errors
/// All of [`HandshakeError`].
pub fn accept(
    socket: &TcpStream,
    store: &Arc<dyn PskStore>,
    deadline: Instant,
) -> Result<Secured, HandshakeError> {
    let mut wire = Wire::new(socket.as_fd(), deadline);
    let first_byte = wire.first_byte()?;
    if first_byte != content_type::HANDSHAKE {
        return Err(HandshakeError::NotTls { first_byte });
    }
    let mut connection = new_connection(Side::Server)?;
    let lookup = Lookup { store: Arc::clone(store), found: None, refused: None };
    connection.set_application_context(lookup);
    let result = match negotiate(&mut connection, &mut wire) {
        Ok(()) => secured(&connection, Side::Server),
        Err(error) => Err(server_error(&mut connection, &mut wire, &error)),
    };
    if let Err(error) = &result
        && let Some(alert) = error.alert()
    {
        wire.alert(alert);
    }
    result
}

/// Performs a handshake as client, with `psk` and no other key. Returns when its Finished has been
/// sent. The server may send NewSessionTickets after its own, which are still unread in the socket.
///
/// Takes 60 µs of processor time, and as long as the server likes until `deadline`. Whether the
/// socket is blocking does not matter. After an error the caller closes the socket.
///
/// # Errors
/// All of [`HandshakeError`], except those about a ClientHello.
pub fn connect(
    socket: &TcpStream,
    psk: &Psk,
    deadline: Instant,
) -> Result<Secured, HandshakeError> {
    let mut wire = Wire::new(socket.as_fd(), deadline);
    let mut connection = new_connection(Side::Client)?;
    append(&mut connection, psk, psk.hash())?;
    if let Err(error) = negotiate(&mut connection, &mut wire) {
        return Err(client_error(&connection, &mut wire, psk, &error));
    }
    wire.flush()?;
    secured(&connection, Side::Client)
}

/// State of the callback for ClientHellos, one for each connection.
struct Lookup {
    store: Arc<dyn PskStore>,
    /// Identity of the key with which the client's binder is checked.
    found: Option<String>,
    /// Why the ClientHello was refused.
    refused: Option<HandshakeError>,
}

/// Gives each connection the known key that its client offers, and ends the connection if there is
/// none. Otherwise s2n-tls would look for a certificate and report that there is none.
struct FindKey;

impl ClientHelloCallback for FindKey {
    fn on_client_hello(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<Pin<Box<dyn ConnectionFuture>>>, Error> {
        let found = match find_key(connection) {
            Ok((psk, binder)) => {
                append(connection, &psk, binder).map(|()| psk.identity().to_owned())
            }
            Err(error) => Err(error),
        };
        let lookup = connection.application_context_mut::<Lookup>();
        match (found, lookup) {
            (Ok(identity), Some(lookup)) => {
                lookup.found = Some(identity);
                Ok(None)
            }
            (Err(error), Some(lookup)) => {
                lookup.refused = Some(error);
                Err(Error::application("the ClientHello is refused".into()))
            }
            (_, None) => Err(Error::application("the connection has no keys".into())),
        }
    }
}

/// The first key that the client offers and the store has, and the hash of its binder.
fn find_key(connection: &Connection) -> Result<(Psk, PskHash), HandshakeError> {
    let message = connection.client_hello()?.raw_message()?;
    let lookup = connection
        .application_context::<Lookup>()
        .ok_or_else(|| HandshakeError::unexpected("the connection has no keys"))?;
    let offers = offered_psks(&message)?;
    for offer in &offers {
        if let Some(binder) = offer.hash
            && let Some(psk) = lookup.store.find(offer.identity, binder)
        {
            return Ok((psk, binder));
        }
    }
    let first = offers.first().map_or(&[][..], |offer| offer.identity);
    Err(HandshakeError::unknown_identity(first))
}

/// Lets a connection use `psk`, with binders of `hash`.
fn append(connection: &mut Connection, psk: &Psk, hash: PskHash) -> Result<(), HandshakeError> {
    let mut builder = s2n_tls::psk::Psk::builder()?;
    builder.set_identity(psk.identity().as_bytes())?;
    builder.set_secret(psk.secret())?;
    builder.set_hmac(match hash {
        PskHash::Sha256 => PskHmac::SHA256,
        PskHash::Sha384 => PskHmac::SHA384,
    })?;
    connection.append_psk(&builder.build()?)?;
    Ok(())
}

/// A connection that has not begun.
fn new_connection(side: Side) -> Result<Connection, HandshakeError> {
    let mode = match side {
        Side::Server => Mode::Server,
        Side::Client => Mode::Client,
    };
    let mut connection = Connection::new(mode);
    connection.set_config(config(side)?)?;
    // Otherwise a peer's mistake makes this thread sleep for 10 to 30 s.
    connection.set_blinding(Blinding::SelfService)?;
    // The callback for ClientHellos requires it, although that never waits.
    connection.set_waker(Some(Waker::noop()))?;
    Ok(connection)
}

/// The configuration of all connections of a side; made once.
fn config(side: Side) -> Result<Config, HandshakeError> {
    let cell = match side {
        Side::Server => &SERVER,
        Side::Client => &CLIENT,
    };
    if let Some(config) = cell.get() {
        return Ok(config.clone());
    }
    let mut builder = Builder::new();
    builder.set_security_policy(&Policy::from_version(POLICY)?)?;
    builder.set_serialization_version(SerializationVersion::V1)?;
    // No certificate is trusted: a server that does not use the key is refused.
    builder.with_system_certs(false)?;
    if side == Side::Server {
        builder.set_client_hello_callback(FindKey)?;
    }
    let config = builder.build()?;
    Ok(cell.get_or_init(|| config).clone())
}

/// Performs the handshake. Its last bytes may still be queued in `wire`.
fn negotiate(connection: &mut Connection, wire: &mut Wire<'_>) -> Result<(), Error> {
    connection.set_receive_callback(Some(receive))?.set_send_callback(Some(send))?;
    let context = ptr::from_mut(wire).cast::<c_void>();
    // SAFETY: the callbacks use the pointer while `poll_to_end` runs, and at no other time: it is
    // removed below. `wire` is borrowed for this function, which does not use it meanwhile.
    let ready = unsafe {
        connection
            .set_receive_context(context)
            .and_then(|connection| connection.set_send_context(context))
    };
    let done = ready.and_then(poll_to_end);
    // SAFETY: the callbacks refuse null.
    unsafe {
        connection.set_receive_context(ptr::null_mut())?;
        connection.set_send_context(ptr::null_mut())?;
    }
    done
}

/// Polls s2n-tls until the handshake has succeeded or failed. The callbacks do the waiting.
fn poll_to_end(connection: &mut Connection) -> Result<(), Error> {
    // The handshake is pending once, after the callback for ClientHellos.
    const PENDING_MAX: usize = 16;
    for _ in 0..PENDING_MAX {
        if let Poll::Ready(done) = connection.poll_negotiate() {
            return done.map(|_| ());
        }
    }
    Err(Error::application("the TLS library makes no progress".into()))
}

/// Callback by which s2n-tls reads from the socket: at most `length` bytes into `buffer`. Returns
/// their number, or -1 and EIO; the reason stays in the [`Wire`].
///
/// # Safety
/// `context` is null or a [`Wire`] that is not borrowed elsewhere. `buffer` has room for `length`
/// bytes.
unsafe extern "C" fn receive(context: *mut c_void, buffer: *mut u8, length: u32) -> c_int {
    // SAFETY: see this function's own conditions, which `negotiate` keeps.
    let Some(wire) = (unsafe { context.cast::<Wire<'_>>().as_mut() }) else { return failed() };
    if buffer.is_null() {
        return failed();
    }
    // SAFETY: s2n-tls passes a pointer into a buffer of its own with room for `length` bytes, which
    // need not be initialized.
    let into =
        unsafe { slice::from_raw_parts_mut(buffer.cast::<MaybeUninit<u8>>(), length as usize) };
    match wire.receive(into) {
        // At most HANDSHAKE_MAX_BYTES.
        Ok(received) => received as c_int,
        Err(error) => {
            wire.fail(error);
            failed()
        }
    }
}

/// Callback by which s2n-tls writes to the socket: takes all `length` bytes at `buffer`.
///
/// # Safety
/// `context` is null or a [`Wire`] that is not borrowed elsewhere. `buffer` has `length` bytes.
unsafe extern "C" fn send(context: *mut c_void, buffer: *const u8, length: u32) -> c_int {
    // SAFETY: see this function's own conditions, which `negotiate` keeps.
    let Some(wire) = (unsafe { context.cast::<Wire<'_>>().as_mut() }) else { return failed() };
    let Ok(taken) = c_int::try_from(length) else { return failed() };
    if buffer.is_null() {
        return failed();
    }
    // SAFETY: s2n-tls passes a pointer to `length` initialized bytes.
    wire.queue(unsafe { slice::from_raw_parts(buffer, length as usize) });
    taken
}

/// Return value of a callback that failed for another reason than lack of data.
fn failed() -> c_int {
    // SAFETY: the pointer to this thread's errno is always valid.
    unsafe { *libc::__errno_location() = libc::EIO };
    -1
}

/// The identity and the keys of a connection after its handshake. The connection cannot be used any
/// more.
fn secured(connection: &Connection, side: Side) -> Result<Secured, HandshakeError> {
    let mut identity = vec![0; connection.negotiated_psk_identity_length()?];
    if identity.is_empty() {
        return Err(HandshakeError::NoPsk);
    }
    connection.negotiated_psk_identity(&mut identity)?;
    let identity = String::from_utf8(identity).map_err(|_| {
        HandshakeError::unexpected("the TLS library returned an identity that is not UTF-8")
    })?;

    let mut buffer = Zeroizing::new([0; SERIALIZED_MAX_BYTES]);
    let serialized = buffer
        .get_mut(..connection.serialization_length()?)
        .ok_or_else(|| HandshakeError::unexpected("the serialized connection is too long"))?;
    connection.serialize(serialized)?;
    let Traffic { suite, client, server } = Traffic::parse(serialized)
        .map_err(|error| HandshakeError::unexpected(&error.to_string()))?;
    let (write, read) = match side {
        Side::Client => (client, server),
        Side::Server => (server, client),
    };
    Ok(Secured { identity, suite, side, write, read })
}

/// Why a server's handshake failed.
fn server_error(connection: &mut Connection, wire: &mut Wire<'_>, error: &Error) -> HandshakeError {
    let (found, refused) = match connection.application_context_mut::<Lookup>() {
        Some(lookup) => (lookup.found.take(), lookup.refused.take()),
        None => (None, None),
    };
    if let Some(refused) = refused {
        return refused;
    }
    match found {
        Some(identity) if error.name() == "S2N_ERR_BAD_PSK_BINDER" => {
            HandshakeError::WrongKey { identity }
        }
        _ => peer_error(connection, wire, error),
    }
}

/// Why a client's handshake failed.
fn client_error(
    connection: &Connection,
    wire: &mut Wire<'_>,
    psk: &Psk,
    error: &Error,
) -> HandshakeError {
    match peer_error(connection, wire, error) {
        HandshakeError::Refused { alert: Alert::DECRYPT_ERROR } => {
            HandshakeError::WrongKey { identity: psk.identity().to_owned() }
        }
        // The server sent a certificate.
        HandshakeError::Tls { name, .. } if name.starts_with("S2N_ERR_CERT") => {
            HandshakeError::NoPsk
        }
        other => other,
    }
}

/// Why a handshake of either side failed: the peer's alert, the socket's error, or the library's.
fn peer_error(connection: &Connection, wire: &mut Wire<'_>, error: &Error) -> HandshakeError {
    if let Some(alert) = connection.alert() {
        return HandshakeError::Refused { alert: Alert(alert) };
    }
    wire.take_failure().unwrap_or_else(|| HandshakeError::from(error))
}
