//! A relay between a daemon and its target, which can stop carrying what the daemon sends.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Where a host's Connect names its queue: behind ICReq and the header of the capsule (NVMe over Fabrics
/// 1.1a §3.3, QID).
const QID_AT: usize = 128 + 8 + 42;

#[derive(Default)]
struct Connection {
    is_admin: AtomicBool,
    cut: AtomicBool,
}

pub(crate) struct Relay {
    pub(crate) port: u16,
    connections: Arc<Mutex<Vec<Arc<Connection>>>>,
}

impl Relay {
    /// Relays to `target`, until the process ends.
    pub(crate) fn start(target: &str) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::<Mutex<Vec<Arc<Connection>>>>::default();
        let (target, all) = (target.to_owned(), Arc::clone(&connections));
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                let Ok(to) = TcpStream::connect(&target) else { continue };
                let of = Arc::new(Connection::default());
                all.lock().expect("no panic").push(Arc::clone(&of));
                let back = to.try_clone().expect("a descriptor");
                carry(back, host.try_clone().expect("a descriptor"), None);
                carry(host, to, Some(of));
            }
        });
        Relay { port, connections }
    }

    /// Carries no more of what is sent on admin queues, as if a cable were cut; the connections stay open.
    pub(crate) fn cut_admin_queues(&self) {
        for connection in self.connections.lock().expect("no panic").iter() {
            connection.cut.store(connection.is_admin.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }
}

/// Carries bytes one way; those of a host until it is cut off.
fn carry(mut from: TcpStream, mut to: TcpStream, of: Option<Arc<Connection>>) {
    to.set_nodelay(true).expect("set");
    std::thread::spawn(move || {
        let (mut buffer, mut start) = (vec![0; 64 << 10], Vec::new());
        loop {
            let length = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            if let Some(of) = &of {
                if start.len() < QID_AT + 2 {
                    start.extend_from_slice(&buffer[..length]);
                    let is_admin = start.get(QID_AT..QID_AT + 2) == Some(&[0, 0]);
                    of.is_admin.store(is_admin, Ordering::SeqCst);
                }
                while of.cut.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}
