//! With other TLS implementations: the programs of OpenSSL and GnuTLS as client and as server,
//! which `scripts/setup.sh tls` installs.

mod common;

use bpfof_tls::{HandshakeError, Psk, PskHash, Suite, accept, connect};
use common::{Channel, IDENTITY, psk, serve, soon, store};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// A program that is killed at the end of the test, even if the test fails.
struct Running(Child);

impl Running {
    /// Starts `program`.
    fn start(program: &str, arguments: &[&str]) -> Self {
        let started = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(started.unwrap_or_else(|error| {
            panic!("{program}: {error}; `scripts/setup.sh tls` installs it")
        }))
    }

    fn write(&mut self, text: &[u8]) {
        let stdin = self.0.stdin.as_mut().unwrap();
        stdin.write_all(text).unwrap();
        stdin.flush().unwrap();
    }

    /// Waits for a line of its standard output that contains `text`.
    fn wait_for(&mut self, text: &str) {
        let mut lines = BufReader::new(self.0.stdout.as_mut().unwrap());
        let mut seen = String::new();
        while !seen.contains(text) {
            let mut line = Vec::new();
            if lines.read_until(b'\n', &mut line).unwrap() == 0 {
                let mut errors = String::new();
                let _ = self.0.stderr.as_mut().unwrap().read_to_string(&mut errors);
                panic!("no {text:?} in:\n{seen}\n{errors}");
            }
            seen.push_str(&String::from_utf8_lossy(&line));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A port that was free a moment ago, for a program that needs a port number.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Connects to a program that has only just started.
fn connect_to(port: u16) -> TcpStream {
    for _ in 0..400 {
        // As long as nobody listens, the kernel may choose this very port, and connect the socket with itself.
        if let Ok(socket) = TcpStream::connect(("127.0.0.1", port))
            && socket.local_addr().unwrap().port() != port
        {
            return socket;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("no process listens on port {port}");
}

fn openssl_client(port: u16, key: &Psk, suites: &str, groups: &str) -> Running {
    Running::start(
        "openssl",
        &[
            "s_client",
            "-quiet",
            "-no_ign_eof",
            "-tls1_3",
            "-connect",
            &format!("127.0.0.1:{port}"),
            "-psk",
            &hex(key.secret()),
            "-psk_identity",
            key.identity(),
            "-ciphersuites",
            suites,
            "-groups",
            groups,
        ],
    )
}

#[test]
fn openssl_as_client() {
    let key = psk(PskHash::Sha256);
    // OpenSSL's program uses a suite with SHA-256 as its key's suite.
    for (suites, suite) in [
        ("TLS_AES_128_GCM_SHA256", Suite::Aes128GcmSha256),
        ("TLS_CHACHA20_POLY1305_SHA256", Suite::Chacha20Poly1305Sha256),
        ("TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256", Suite::Aes128GcmSha256),
    ] {
        let (port, serving) = serve(store([key.clone()]));
        let mut client = openssl_client(port, &key, suites, "X25519");
        let (socket, secured) = serving.join().unwrap();
        let secured = secured.unwrap();
        assert_eq!((secured.suite, &*secured.identity), (suite, IDENTITY));
        let mut channel = Channel::new(socket, secured);
        client.write(b"from the client\n");
        assert_eq!(channel.receive(16), b"from the client\n");
        channel.send(b"from the server\n");
        client.wait_for("from the server");
        // The client sends close_notify at the end of its input.
        drop(client.0.stdin.take());
        assert_eq!(channel.receive(1), b"");
        assert!(channel.closed);
    }
}

/// A client whose first group the server does not support is asked for another ClientHello (RFC
/// 8446 §4.1.4), whose binder covers both.
#[test]
fn openssl_as_client_after_hello_retry_request() {
    let key = psk(PskHash::Sha256);
    let (port, serving) = serve(store([key.clone()]));
    let mut client = openssl_client(port, &key, "TLS_AES_128_GCM_SHA256", "X448:X25519");
    let (socket, secured) = serving.join().unwrap();
    let mut channel = Channel::new(socket, secured.unwrap());
    client.write(b"from the client\n");
    assert_eq!(channel.receive(16), b"from the client\n");

    let (port, serving) = serve(store([key]));
    let wrong = Psk::new(IDENTITY, &[1; 32], PskHash::Sha256).unwrap();
    let _client = openssl_client(port, &wrong, "TLS_AES_128_GCM_SHA256", "X448:X25519");
    let error = serving.join().unwrap().1.unwrap_err();
    assert!(matches!(error, HandshakeError::WrongKey { .. }), "{error:?}");
}

#[test]
fn openssl_with_the_wrong_key_or_name() {
    let key = psk(PskHash::Sha256);
    let suites = "TLS_AES_128_GCM_SHA256";
    let (port, serving) = serve(store([key.clone()]));
    let wrong = Psk::new(IDENTITY, &[1; 32], PskHash::Sha256).unwrap();
    let _client = openssl_client(port, &wrong, suites, "X25519");
    let error = serving.join().unwrap().1.unwrap_err();
    assert!(matches!(error, HandshakeError::WrongKey { .. }), "{error:?}");

    let (port, serving) = serve(store([key.clone()]));
    let stranger = Psk::new("stranger", key.secret(), PskHash::Sha256).unwrap();
    let _client = openssl_client(port, &stranger, suites, "X25519");
    let error = serving.join().unwrap().1.unwrap_err();
    assert!(
        matches!(&error, HandshakeError::UnknownIdentity { identity } if identity == "stranger"),
        "{error:?}"
    );
}

/// A client without a key, and one that is too old.
#[test]
fn openssl_without_a_key() {
    for version in ["-tls1_3", "-tls1_2"] {
        let (port, serving) = serve(store([psk(PskHash::Sha256)]));
        let address = format!("127.0.0.1:{port}");
        let arguments = ["s_client", version, "-connect", &address];
        let _client = Running::start("openssl", &arguments);
        let error = serving.join().unwrap().1.unwrap_err();
        println!("{version}: {error}");
        assert!(
            matches!(error, HandshakeError::ClientHello(_) | HandshakeError::Tls { .. }),
            "{error:?}"
        );
    }
}

fn openssl_server(port: u16, key: &Psk, more: &[&str]) -> Running {
    let (port, secret) = (port.to_string(), hex(key.secret()));
    let arguments =
        ["s_server", "-tls1_3", "-accept", &port, "-psk", &secret, "-psk_identity", key.identity()];
    Running::start("openssl", &[&arguments, more].concat())
}

/// OpenSSL's server sends NewSessionTickets unasked.
#[test]
fn openssl_as_server() {
    let key = psk(PskHash::Sha256);
    let port = free_port();
    let more = ["-nocert", "-quiet"];
    let mut server = openssl_server(port, &key, &more);
    let socket = connect_to(port);
    let secured = connect(&socket, &key, soon()).unwrap();
    assert_eq!((secured.suite, &*secured.identity), (Suite::Aes128GcmSha256, IDENTITY));
    let mut channel = Channel::new(socket, secured);
    channel.send(b"from the client\n");
    server.wait_for("from the client");
    server.write(b"from the server\n");
    assert_eq!(channel.receive(16), b"from the server\n");
}

#[test]
fn openssl_as_server_with_another_key() {
    let key = psk(PskHash::Sha256);
    let other = Psk::new(IDENTITY, &[1; 32], PskHash::Sha256).unwrap();
    let port = free_port();
    let _server = openssl_server(port, &other, &["-nocert"]);
    let error = connect(&connect_to(port), &key, soon()).unwrap_err();
    println!("{error}");
    assert!(
        matches!(error, HandshakeError::WrongKey { .. } | HandshakeError::Refused { .. }),
        "{error:?}"
    );
}

/// A server that prefers to authenticate by a certificate.
#[test]
fn openssl_as_server_with_a_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (certificate, private) = (path("certificate.pem"), path("key.pem"));
    let arguments = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
        "-out",
        &certificate,
        "-keyout",
        &private,
    ];
    let mut made = Running::start("openssl", &arguments);
    assert!(made.0.wait().unwrap().success());
    let port = free_port().to_string();
    let arguments =
        ["s_server", "-tls1_3", "-accept", &port, "-cert", &certificate, "-key", &private];
    let _server = Running::start("openssl", &arguments);
    let socket = connect_to(port.parse().unwrap());
    let error = connect(&socket, &psk(PskHash::Sha256), soon()).unwrap_err();
    assert!(matches!(error, HandshakeError::NoPsk), "{error:?}");
}

fn gnutls_client(port: u16, key: &Psk, ciphers: &str) -> Running {
    Running::start(
        "gnutls-cli",
        &[
            "--no-ca-verification",
            "--port",
            &port.to_string(),
            "--pskusername",
            key.identity(),
            "--pskkey",
            &hex(key.secret()),
            "--priority",
            &format!("NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:+DHE-PSK:{ciphers}"),
            "127.0.0.1",
        ],
    )
}

/// The client of tlshd, and so of Linux hosts. In this version its binder uses SHA-256, whatever
/// the key's length.
#[test]
fn gnutls_as_client() {
    for (hash, ciphers, suite) in [
        (PskHash::Sha256, "-CIPHER-ALL:+AES-128-GCM", Suite::Aes128GcmSha256),
        (PskHash::Sha256, "-CIPHER-ALL:+CHACHA20-POLY1305", Suite::Chacha20Poly1305Sha256),
        (
            PskHash::Sha384,
            "-CIPHER-ALL:+AES-256-GCM:+CHACHA20-POLY1305",
            Suite::Chacha20Poly1305Sha256,
        ),
    ] {
        let key = psk(hash);
        let (port, serving) = serve(store([key.clone()]));
        let mut client = gnutls_client(port, &key, ciphers);
        let (socket, secured) = serving.join().unwrap();
        let secured = secured.unwrap();
        assert_eq!((secured.suite, &*secured.identity), (suite, IDENTITY));
        let mut channel = Channel::new(socket, secured);
        client.wait_for("Simple Client Mode");
        client.write(b"from the client\n");
        assert_eq!(channel.receive(16), b"from the client\n");
        channel.send(b"from the server\n");
        client.wait_for("from the server");
    }
}

#[test]
fn gnutls_as_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("psk.txt");
    // Identities in this file end at a colon, so that those of NVMe cannot be used.
    let key = Psk::new("someone", psk(PskHash::Sha256).secret(), PskHash::Sha256).unwrap();
    std::fs::write(&path, format!("someone:{}\n", hex(key.secret()))).unwrap();
    let port = free_port();
    let arguments = [
        "--echo",
        "--port",
        &port.to_string(),
        "--pskpasswd",
        path.to_str().unwrap(),
        "--priority",
        "NORMAL:-VERS-ALL:+VERS-TLS1.3:-KX-ALL:+ECDHE-PSK:+DHE-PSK",
    ];
    let _server = Running::start("gnutls-serv", &arguments);
    for wrong in [
        Psk::new("someone", &[1; 32], PskHash::Sha256).unwrap(),
        Psk::new("stranger", key.secret(), PskHash::Sha256).unwrap(),
    ] {
        let error = connect(&connect_to(port), &wrong, soon()).unwrap_err();
        println!("{error}");
        assert!(
            matches!(
                error,
                HandshakeError::WrongKey { .. }
                    | HandshakeError::Refused { .. }
                    | HandshakeError::Closed
            ),
            "{error:?}"
        );
    }
    let socket = connect_to(port);
    let secured = connect(&socket, &key, soon()).unwrap();
    let mut channel = Channel::new(socket, secured);
    channel.send(b"there and back\n");
    assert_eq!(channel.receive(15), b"there and back\n");
}

/// A port scanner, which sends neither TLS nor NVMe.
#[test]
fn neither_tls_nor_nvme() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = accept(&server, &store([]), soon()).unwrap_err();
    assert!(matches!(error, HandshakeError::NotTls { first_byte: b'G' }), "{error:?}");
}
