//! Handshakes of both sides (RFC 8446 §4), by s2n-tls over a blocking socket.
//!
//! s2n-tls does the handshake and nothing else: its secrets are taken from it, and it is gone
//! before the first record. Among others because it sends a KeyUpdate by itself after 2^24.5
//! records, which ends a queue of a Linux host.

// s2n-tls calls functions of ours with a pointer to the socket.
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
/// x25519, P-256 and P-384. s2n-tls does not change what a name means, unlike its defaults.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3";

static SERVER: OnceLock<Config> = OnceLock::new();
static CLIENT: OnceLock<Config> = OnceLock::new();

/// Prepares the TLS library, which takes 0.1 to 0.2 s once in a process. Without it the first
/// handshake takes so much longer.
///
/// # Errors
/// The library does not work on this machine.
pub fn init() -> Result<(), HandshakeError> {
    let mut random = [0_u8; 32];
    aws_lc_rs::rand::fill(&mut random)
        .map_err(|_| HandshakeError::unexpected("no random numbers"))?;
    drop(new_connection(Side::Server)?);
    drop(new_connection(Side::Client)?);
    Ok(())
}

/// Shakes hands as server, with one of the keys in `store`. Returns when the client's Finished has
/// arrived; what the client sends behind it is still unread in the socket.
///
/// Takes 60 µs of processor time, and as long as the client likes until `deadline`. Whether the
/// socket is blocking does not matter. After an error the caller closes the socket, but for
/// [`HandshakeError::NotTls`], with which it may go on.
///
/// # Errors
/// Each of [`HandshakeError`].
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

/// Shakes hands as client, with `psk` and no other key. Returns when its Finished was sent. The
/// server may send NewSessionTickets behind its own, which are still unread in the socket.
///
/// Takes 60 µs of processor time, and as long as the server likes until `deadline`. Whether the
/// socket is blocking does not matter. After an error the caller closes the socket.
///
/// # Errors
/// Each of [`HandshakeError`], but for those about a ClientHello.
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

/// What the callback for ClientHellos works with, one for each connection.
struct Lookup {
    store: Arc<dyn PskStore>,
    /// Identity of the key that the client's binder is checked with.
    found: Option<String>,
    /// Why the ClientHello was refused.
    refused: Option<HandshakeError>,
}

/// Gives each connection the one key that its client offers, and ends it if there is none.
/// Without that, s2n-tls would look for a certificate and complain that it has none.
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
    // Else a peer's mistake makes this thread sleep for 10 to 30 s.
    connection.set_blinding(Blinding::SelfService)?;
    // Asked for by the callback for ClientHellos, although that never waits.
    connection.set_waker(Some(Waker::noop()))?;
    Ok(connection)
}

/// What all connections of a side have in common; made once.
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

/// Does the handshake. The last of it may still be queued in `wire`.
fn negotiate(connection: &mut Connection, wire: &mut Wire<'_>) -> Result<(), Error> {
    connection.set_receive_callback(Some(receive))?.set_send_callback(Some(send))?;
    let context = ptr::from_mut(wire).cast::<c_void>();
    // SAFETY: the callbacks use the pointer while `poll_to_end` runs, and at no other time: it is
    // taken back below. `wire` is borrowed for this function, which does not use it meanwhile.
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

/// Lets s2n-tls work until it has succeeded or failed. The callbacks do the waiting.
fn poll_to_end(connection: &mut Connection) -> Result<(), Error> {
    // It is pending once, after its callback for ClientHellos.
    const PENDING_MAX: usize = 16;
    for _ in 0..PENDING_MAX {
        if let Poll::Ready(done) = connection.poll_negotiate() {
            return done.map(|_| ());
        }
    }
    Err(Error::application("the TLS library waits for nothing".into()))
}

/// s2n-tls's way to the socket: reads at most `length` bytes into `buffer`. Gives their number, or
/// -1 and EIO; the reason stays in the [`Wire`].
///
/// # Safety
/// `context` is null or a [`Wire`] that nobody else uses now. `buffer` has room for `length`
/// bytes.
unsafe extern "C" fn receive(context: *mut c_void, buffer: *mut u8, length: u32) -> c_int {
    // SAFETY: see this function's own conditions, which `negotiate` keeps.
    let Some(wire) = (unsafe { context.cast::<Wire<'_>>().as_mut() }) else { return failed() };
    if buffer.is_null() {
        return failed();
    }
    // SAFETY: s2n-tls gives a pointer into a buffer of its own, which has that much room behind
    // it. What is there need not be initialized.
    let into =
        unsafe { slice::from_raw_parts_mut(buffer.cast::<MaybeUninit<u8>>(), length as usize) };
    match wire.receive(into) {
        // Less than HANDSHAKE_MAX_BYTES.
        Ok(received) => received as c_int,
        Err(error) => {
            wire.fail(error);
            failed()
        }
    }
}

/// s2n-tls's way to the socket: takes the `length` bytes at `buffer`, all of them.
///
/// # Safety
/// `context` is null or a [`Wire`] that nobody else uses now. `buffer` has `length` bytes.
unsafe extern "C" fn send(context: *mut c_void, buffer: *const u8, length: u32) -> c_int {
    // SAFETY: see this function's own conditions, which `negotiate` keeps.
    let Some(wire) = (unsafe { context.cast::<Wire<'_>>().as_mut() }) else { return failed() };
    let Ok(taken) = c_int::try_from(length) else { return failed() };
    if buffer.is_null() {
        return failed();
    }
    // SAFETY: s2n-tls gives a pointer to as many bytes that it has written.
    wire.queue(unsafe { slice::from_raw_parts(buffer, length as usize) });
    taken
}

/// What a callback returns that failed, other than for want of data.
fn failed() -> c_int {
    // SAFETY: errno of this thread, which is always there.
    unsafe { *libc::__errno_location() = libc::EIO };
    -1
}

/// The identity and the keys of a connection that has shaken hands. It cannot be used any more.
fn secured(connection: &Connection, side: Side) -> Result<Secured, HandshakeError> {
    let mut identity = vec![0; connection.negotiated_psk_identity_length()?];
    if identity.is_empty() {
        return Err(HandshakeError::NoPsk);
    }
    connection.negotiated_psk_identity(&mut identity)?;
    let identity = String::from_utf8(identity)
        .map_err(|_| HandshakeError::unexpected("an identity that was not given to it"))?;

    let mut buffer = Zeroizing::new([0; SERIALIZED_MAX_BYTES]);
    let serialized = buffer
        .get_mut(..connection.serialization_length()?)
        .ok_or_else(|| HandshakeError::unexpected("a serialized connection that is too long"))?;
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

/// Why a handshake failed that either side can have: the peer's alert, the socket, or what the
/// library says.
fn peer_error(connection: &Connection, wire: &mut Wire<'_>, error: &Error) -> HandshakeError {
    if let Some(alert) = connection.alert() {
        return HandshakeError::Refused { alert: Alert(alert) };
    }
    wire.take_failure().unwrap_or_else(|| HandshakeError::from(error))
}
