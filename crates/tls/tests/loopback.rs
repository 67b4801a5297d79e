//! Server and client of this crate with each other, and with misbehaving peers.

mod common;
#[path = "../../bpfof/tests/skip/mod.rs"]
mod skip;

use bpfof_tls::{
    ClientHelloError, HandshakeError, Psk, PskHash, PskStore, RECORD_OVERHEAD_BYTES, Side, Suite,
    accept, connect, init, ktls,
};
use common::{Channel, End, IDENTITY, psk, serve, sockets, soon, store};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time of a handshake that does not wait for its deadline of 20 s, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Both ends of a handshake with the keys of `client` and `server`.
fn handshake(client: &Psk, server: impl IntoIterator<Item = Psk>) -> (End, End) {
    let (port, serving) = serve(store(server));
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let secured = connect(&socket, client, soon());
    (serving.join().unwrap(), (socket, secured))
}

fn channels(hash: PskHash) -> (Channel, Channel) {
    let ((a, server), (b, client)) = handshake(&psk(hash), [psk(hash)]);
    (Channel::new(a, server.unwrap()), Channel::new(b, client.unwrap()))
}

#[test]
fn both_hashes() {
    init().unwrap();
    for (hash, suite) in
        [(PskHash::Sha256, Suite::Aes128GcmSha256), (PskHash::Sha384, Suite::Aes256GcmSha384)]
    {
        let ((_a, server), (_b, client)) = handshake(&psk(hash), [psk(hash)]);
        let (server, client) = (server.unwrap(), client.unwrap());
        assert_eq!((server.side, client.side), (Side::Server, Side::Client));
        assert_eq!((server.suite, client.suite), (suite, suite));
        assert_eq!((&*server.identity, &*client.identity), (IDENTITY, IDENTITY));
        for (write, read) in [(&server.write, &client.read), (&client.write, &server.read)] {
            assert_eq!((write.key(), write.iv()), (read.key(), read.iv()));
            assert_eq!((write.sequence(), read.sequence()), (0, 0));
        }
        assert_ne!(server.write.key(), client.write.key());
    }
}

/// Some clients make their binder with SHA-256 although the key is for SHA-384.
#[test]
fn the_binder_decides_the_hash() {
    let secret = psk(PskHash::Sha384).secret().to_vec();
    let client = Psk::new(IDENTITY, &secret, PskHash::Sha256).unwrap();
    let ((_a, server), (_b, client)) = handshake(&client, [psk(PskHash::Sha384)]);
    assert_eq!(server.unwrap().suite, Suite::Aes128GcmSha256);
    assert_eq!(client.unwrap().suite, Suite::Aes128GcmSha256);
}

#[test]
fn records_of_many_sizes_both_ways() {
    for hash in [PskHash::Sha256, PskHash::Sha384] {
        let (mut server, mut client) = channels(hash);
        for size in [1, 64, 600, 4096, 16_384, 16_385, 70_000] {
            let text: Vec<u8> = (0..size).map(|at| (at % 253) as u8).collect();
            server.send(&text);
            assert_eq!(client.receive(size), text);
            client.send(&text);
            assert_eq!(server.receive(size), text);
        }
    }
}

/// Data that a client sends right after its Finished stays in the socket for the record layer, even if it arrives
/// together with Finished.
#[test]
fn nothing_is_read_ahead() {
    let (port, serving) = serve(store([psk(PskHash::Sha256)]));
    let (between, client) = sockets();
    let client = thread::spawn(move || {
        let secured = connect(&client, &psk(PskHash::Sha256), soon()).unwrap();
        let mut channel = Channel::new(client, secured);
        channel.send(b"behind Finished");
        channel
    });
    // A relay between the two passes on all data, and the client's last data in one piece.
    let onward = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut bytes = vec![0; 20_000];
    for (mut from, mut to) in [(&between, &onward), (&onward, &between)] {
        let length = from.read(&mut bytes).unwrap();
        to.write_all(&bytes[..length]).unwrap();
    }
    let _client = client.join().unwrap();
    between.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut length = 0;
    while let Ok(more) = (&between).read(&mut bytes[length..]) {
        length += more;
    }
    (&onward).write_all(&bytes[..length]).unwrap();

    let (socket, secured) = serving.join().unwrap();
    let record = &bytes[length - (15 + RECORD_OVERHEAD_BYTES)..length];
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut unread = vec![0; 1000];
    let length = socket.peek(&mut unread).unwrap();
    assert_eq!(unread[..length], *record);
    let mut server = Channel::new(socket, secured.unwrap());
    assert_eq!(server.receive(15), b"behind Finished");
}

/// A store without keys that counts its calls.
struct Counting(AtomicUsize);

impl PskStore for Counting {
    fn find(&self, _identity: &[u8], _binder: PskHash) -> Option<Psk> {
        self.0.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[test]
fn unknown_identity() {
    let stranger = Psk::new("a stranger", &[5; 32], PskHash::Sha256).unwrap();
    let begun = Instant::now();
    let ((_a, server), (_b, client)) = handshake(&stranger, [psk(PskHash::Sha256)]);
    let server = server.unwrap_err();
    assert!(
        matches!(&server, HandshakeError::UnknownIdentity { identity } if identity == "a stranger"),
        "{server:?}"
    );
    let client = client.unwrap_err().to_string();
    assert!(client.contains("unknown_psk_identity"), "{client}");
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());

    let counting = Arc::new(Counting(AtomicUsize::new(0)));
    let (port, serving) = serve(Arc::clone(&counting) as Arc<dyn PskStore>);
    let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    connect(&socket, &stranger, soon()).unwrap_err();
    serving.join().unwrap().1.unwrap_err();
    assert_eq!(counting.0.load(Ordering::Relaxed), 1);
}

#[test]
fn wrong_key() {
    for hash in [PskHash::Sha256, PskHash::Sha384] {
        let wrong = Psk::new(IDENTITY, &vec![9; hash.output_bytes()], hash).unwrap();
        let begun = Instant::now();
        let ((_a, server), (_b, client)) = handshake(&wrong, [psk(hash)]);
        for error in [server.unwrap_err(), client.unwrap_err()] {
            assert!(
                matches!(&error, HandshakeError::WrongKey { identity } if identity == IDENTITY),
                "{error:?}"
            );
            assert!(error.to_string().contains("libnvme"), "{error}");
        }
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    }
}

/// A host without TLS begins with an ICReq, which stays in the socket.
#[test]
fn plain_client() {
    let (server, mut client) = sockets();
    let mut ic_req = [0; 128];
    ic_req[2] = 128;
    ic_req[4] = 128;
    client.write_all(&ic_req).unwrap();
    let error = accept(&server, &store([]), soon()).unwrap_err();
    assert!(matches!(error, HandshakeError::NotTls { first_byte: 0 }), "{error:?}");
    let mut left = [0xFF; 128];
    (&server).read_exact(&mut left).unwrap();
    assert_eq!(left, ic_req);
}

/// A target without TLS answers a ClientHello with a C2HTermReq, or hangs up.
#[test]
fn plain_server() {
    let (mut server, client) = sockets();
    server.write_all(&[3, 0, 24, 0, 24, 0, 0, 0]).unwrap();
    let error = connect(&client, &psk(PskHash::Sha256), soon()).unwrap_err();
    assert!(matches!(error, HandshakeError::NotTls { first_byte: 3 }), "{error:?}");

    let (server, client) = sockets();
    drop(server);
    let error = connect(&client, &psk(PskHash::Sha256), soon()).unwrap_err();
    assert!(matches!(error, HandshakeError::Closed), "{error:?}");
}

/// The first message of this crate's client.
fn client_hello() -> Vec<u8> {
    let (mut server, client) = sockets();
    let client = thread::spawn(move || connect(&client, &psk(PskHash::Sha256), soon()).is_err());
    let mut header = [0; 5];
    server.read_exact(&mut header).unwrap();
    let mut record = header.to_vec();
    record.resize(5 + usize::from(u16::from_be_bytes([header[3], header[4]])), 0);
    server.read_exact(&mut record[5..]).unwrap();
    drop(server);
    assert!(client.join().unwrap());
    record
}

#[test]
fn client_hello_cut_at_every_byte() {
    let hello = client_hello();
    let store = store([psk(PskHash::Sha256)]);
    let begun = Instant::now();
    for length in 0..hello.len() {
        let (server, mut client) = sockets();
        client.write_all(&hello[..length]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let error = accept(&server, &store, soon()).unwrap_err();
        match length {
            0 => assert!(matches!(error, HandshakeError::NothingSent), "{error:?}"),
            _ => assert!(matches!(error, HandshakeError::Closed), "{length}: {error:?}"),
        }
    }
    // The whole message: the server answers, and then the client closes.
    let (server, mut client) = sockets();
    client.write_all(&hello).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let error = accept(&server, &store, soon()).unwrap_err();
    assert!(matches!(error, HandshakeError::Closed), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

/// With each byte of the ClientHello inverted in turn: no panic, no success, no waiting.
#[test]
fn client_hello_changed_at_every_byte() {
    let hello = client_hello();
    let store = store([psk(PskHash::Sha256)]);
    let begun = Instant::now();
    for at in 0..hello.len() {
        let (server, mut client) = sockets();
        let mut changed = hello.clone();
        changed[at] ^= 0xFF;
        client.write_all(&changed).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        accept(&server, &store, soon()).unwrap_err();
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn a_client_without_a_key() {
    let hello = client_hello();
    // pre_shared_key is the last extension; another number makes it unknown.
    let at = hello.windows(2).rposition(|pair| pair == [0, 41]).unwrap();
    let mut other = hello;
    other[at] = 0x7F;
    let (server, mut client) = sockets();
    client.write_all(&other).unwrap();
    let error = accept(&server, &store([psk(PskHash::Sha256)]), soon()).unwrap_err();
    assert!(matches!(error, HandshakeError::ClientHello(ClientHelloError::NoPsk)), "{error:?}");
    let mut alert = [0; 7];
    client.read_exact(&mut alert).unwrap();
    assert_eq!(alert, [21, 3, 3, 0, 2, 2, 40]);
}

/// Clients that send nothing, one byte, or nothing after a ClientHello; and a silent server.
#[test]
fn deadlines_are_kept() {
    let store = store([psk(PskHash::Sha256)]);
    let hello = client_hello();
    let limit = Duration::from_millis(200);
    for sent in [&[][..], &hello[..1], &hello[..100], &hello] {
        let (server, mut client) = sockets();
        client.write_all(sent).unwrap();
        let begun = Instant::now();
        let error = accept(&server, &store, begun + limit).unwrap_err();
        assert!(matches!(error, HandshakeError::TimedOut), "{error:?}");
        assert!((limit..AT_ONCE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }
    let (_server, client) = sockets();
    let begun = Instant::now();
    let error = connect(&client, &psk(PskHash::Sha256), begun + limit).unwrap_err();
    assert!(matches!(error, HandshakeError::TimedOut), "{error:?}");
    assert!((limit..AT_ONCE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

/// A byte now and then does not extend the deadline.
#[test]
fn a_slow_client_has_no_more_time() {
    let hello = client_hello();
    let (server, mut client) = sockets();
    let slow = thread::spawn(move || {
        for byte in hello {
            thread::sleep(Duration::from_millis(20));
            if client.write_all(&[byte]).is_err() {
                break;
            }
        }
    });
    let begun = Instant::now();
    let error = accept(&server, &store([]), begun + Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, HandshakeError::TimedOut), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    drop(server);
    slow.join().unwrap();
}

/// A peer that sends meaningless records without end.
#[test]
fn a_client_that_never_ends() {
    let hello = client_hello();
    let (server, mut client) = sockets();
    let flood = thread::spawn(move || {
        client.write_all(&hello).unwrap();
        // ChangeCipherSpec is ignored in a handshake.
        while client.write_all(&[20, 3, 3, 0, 1, 1].repeat(100)).is_ok() {}
    });
    let begun = Instant::now();
    let error = accept(&server, &store([psk(PskHash::Sha256)]), soon()).unwrap_err();
    assert!(
        matches!(error, HandshakeError::TooLong { .. } | HandshakeError::Tls { .. }),
        "{error:?}"
    );
    assert!(begun.elapsed() < AT_ONCE, "{error:?} {:?}", begun.elapsed());
    drop(server);
    flood.join().unwrap();
}

/// A ClientHello with one byte per record is accepted (RFC 8446 §5.1).
#[test]
fn a_client_hello_in_many_records() {
    let (port, serving) = serve(store([psk(PskHash::Sha256)]));
    let (mut between, client) = sockets();
    let client = thread::spawn(move || connect(&client, &psk(PskHash::Sha256), soon()).map(drop));
    let mut header = [0; 5];
    between.read_exact(&mut header).unwrap();
    let mut message = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
    between.read_exact(&mut message).unwrap();
    let mut onward = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let records: Vec<u8> = message.iter().flat_map(|byte| [22, 3, 3, 0, 1, *byte]).collect();
    onward.write_all(&records).unwrap();
    // The rest is passed on unchanged.
    let (mut back, mut to_client) = (onward.try_clone().unwrap(), between.try_clone().unwrap());
    thread::spawn(move || std::io::copy(&mut back, &mut to_client));
    thread::spawn(move || std::io::copy(&mut between, &mut onward));
    client.join().unwrap().unwrap();
    let (_socket, secured) = serving.join().unwrap();
    assert_eq!(secured.unwrap().identity, IDENTITY);
}

#[test]
fn sockets_that_do_not_block() {
    let key = psk(PskHash::Sha256);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let store = store([key.clone()]);
    let serving = thread::spawn(move || accept(&server, &store, soon()).map(|_| server));
    connect(&client, &key, soon()).unwrap();
    serving.join().unwrap().unwrap();
}

/// A kernel with TLS seals sent data; without TLS, the sockets stay as they were.
#[test]
fn the_kernel_takes_over_or_says_why_not() {
    let key = psk(PskHash::Sha256);
    let ((mut a, server), (mut b, client)) = handshake(&key, [key.clone()]);
    let (server, client) = (server.unwrap(), client.unwrap());
    let both = ktls::enable(a.as_fd(), &server.write)
        .and_then(|()| ktls::enable(b.as_fd(), &client.write));
    if both.is_ok() {
        a.write_all(b"from the server").unwrap();
        b.write_all(b"from the client").unwrap();
    }
    let (mut a, mut b) = (Channel::new(a, server), Channel::new(b, client));
    assert_eq!(both.is_ok(), ktls::is_available().is_ok(), "{both:?}, {:?}", ktls::is_available());
    if let Err(error) = both {
        skip::skip_part("ktls", &format!("the kernel has no TLS: {error}"));
        a.send(b"from the server");
        b.send(b"from the client");
    }
    assert_eq!(b.receive(15), b"from the server");
    assert_eq!(a.receive(15), b"from the client");
}
