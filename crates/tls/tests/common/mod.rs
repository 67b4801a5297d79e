//! Helpers for tests of handshakes.

#![allow(dead_code, reason = "each test file uses a part")]

use bpfof_tls::{HandshakeError, Opener, Psk, PskHash, PskStore, Sealer, Secured, accept};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// An identity like those of NVMe/TCP in length and form.
pub(crate) const IDENTITY: &str = "NVMe1R01 nqn.2014-08.org.nvmexpress:uuid:00112233-4455-6677-8899-aabbccddeeff \
     nqn.2026-01.io.bpf-of:target 89EbGACb/lBIYTDSNT9hBZ3jYFLWjH1o1y3N6IqOQI8=";

/// The time that a handshake gets in these tests.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// A key as long as an output of its hash.
pub(crate) fn psk(hash: PskHash) -> Psk {
    let secret: Vec<u8> = (0..hash.output_bytes()).map(|at| at as u8 ^ 0x90).collect();
    Psk::new(IDENTITY, &secret, hash).unwrap()
}

/// A store of these keys.
pub(crate) fn store(keys: impl IntoIterator<Item = Psk>) -> Arc<dyn PskStore> {
    let keys: HashMap<String, Psk> =
        keys.into_iter().map(|psk| (psk.identity().to_owned(), psk)).collect();
    Arc::new(keys)
}

/// Two ends of a connection.
pub(crate) fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (server, client)
}

/// A connection, and the result of its handshake.
pub(crate) type End = (TcpStream, Result<Secured, HandshakeError>);

/// Accepts one connection and its handshake in a thread; returns the port and the thread.
pub(crate) fn serve(store: Arc<dyn PskStore>) -> (u16, JoinHandle<End>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        let secured = accept(&socket, &store, soon());
        (socket, secured)
    });
    (port, server)
}

/// A connection with this crate's records, with blocking calls.
pub(crate) struct Channel {
    pub(crate) socket: TcpStream,
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
    /// Plaintext that was not taken yet, then an incomplete record.
    buffer: Vec<u8>,
    plaintext_bytes: usize,
    pub(crate) closed: bool,
}

impl Channel {
    pub(crate) fn new(socket: TcpStream, secured: Secured) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let sealer = Sealer::new(secured.write).unwrap();
        let opener = Opener::new(secured.read, secured.side).unwrap();
        let buffer = Vec::new();
        Self { socket, sealer, opener, buffer, plaintext_bytes: 0, closed: false }
    }

    pub(crate) fn send(&mut self, plaintext: &[u8]) {
        let mut out = Vec::new();
        self.sealer.seal([plaintext], &mut out).unwrap();
        self.socket.write_all(&out).unwrap();
    }

    /// Waits for at least `bytes` of plaintext, or the end, and takes all received plaintext.
    pub(crate) fn receive(&mut self, bytes: usize) -> Vec<u8> {
        while self.plaintext_bytes < bytes && !self.closed {
            let mut piece = [0; 20_000];
            let length = self.socket.read(&mut piece).unwrap();
            assert_ne!(length, 0, "the connection ended without close_notify");
            self.buffer.extend_from_slice(&piece[..length]);
            let opened = self.opener.open(&mut self.buffer[self.plaintext_bytes..]).unwrap();
            let end = self.plaintext_bytes + opened.plaintext_bytes;
            self.buffer.drain(end..self.plaintext_bytes + opened.consumed_bytes);
            self.plaintext_bytes = end;
            self.closed = opened.closed;
        }
        let taken: Vec<u8> = self.buffer.drain(..self.plaintext_bytes).collect();
        self.plaintext_bytes = 0;
        taken
    }
}
