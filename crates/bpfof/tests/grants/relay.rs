//! A relay between a daemon and its target, which can drop the daemon's data, and delay the target's answers.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Offset of the queue id in a host's Connect, after ICReq and the header of the capsule (NVMe over Fabrics 1.1a §3.3,
/// QID).
const QID_AT: usize = 128 + 8 + 42;

#[derive(Default)]
struct Connection {
    is_admin: AtomicBool,
    cut: AtomicBool,
}

pub(crate) struct Relay {
    pub(crate) port: u16,
    connections: Arc<Mutex<Vec<Arc<Connection>>>>,
    answer_delay_ms: Arc<AtomicU64>,
}

impl Relay {
    /// Relays to `target`, until the process ends.
    pub(crate) fn start(target: &str) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::<Mutex<Vec<Arc<Connection>>>>::default();
        let (target, all) = (target.to_owned(), Arc::clone(&connections));
        let answer_delay_ms = Arc::<AtomicU64>::default();
        let delay_ms = Arc::clone(&answer_delay_ms);
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                let Ok(to) = TcpStream::connect(&target) else { continue };
                let of = Arc::new(Connection::default());
                all.lock().expect("no panic").push(Arc::clone(&of));
                let back = to.try_clone().expect("a descriptor");
                let (answered, delay_ms) = (Arc::clone(&of), Arc::clone(&delay_ms));
                carry(back, host.try_clone().expect("a descriptor"), move |_| {
                    if answered.is_admin.load(Ordering::SeqCst) {
                        let delay_ms = delay_ms.load(Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(delay_ms));
                    }
                });
                let mut start = Vec::new();
                carry(host, to, move |bytes| {
                    if start.len() < QID_AT + 2 {
                        start.extend_from_slice(bytes);
                        let is_admin = start.get(QID_AT..QID_AT + 2) == Some(&[0, 0]);
                        of.is_admin.store(is_admin, Ordering::SeqCst);
                    }
                    while of.cut.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                });
            }
        });
        Relay { port, connections, answer_delay_ms }
    }

    /// From now on each answer to a command of an admin queue is delayed by `delay`.
    pub(crate) fn delay_admin_answers(&self, delay: Duration) {
        self.answer_delay_ms.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// Drops everything that hosts send on admin queues, as if a cable were cut; the connections stay open.
    pub(crate) fn cut_admin_queues(&self) {
        for connection in self.connections.lock().expect("no panic").iter() {
            connection.cut.store(connection.is_admin.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }
}

/// Carries bytes in one direction, and calls `before` with them each time before it sends them.
fn carry(mut from: TcpStream, mut to: TcpStream, mut before: impl FnMut(&[u8]) + Send + 'static) {
    to.set_nodelay(true).expect("set");
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            before(&buffer[..length]);
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}
