//! A portal of a target: a relay that can be cut, or fall silent.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It relays all bytes.
    Open,
    /// It closes its connections, and new ones at once.
    Cut,
    /// It relays nothing, and keeps connections open.
    Silent,
}

struct State {
    way: Way,
    connections: Vec<TcpStream>,
    /// Bytes that have arrived since it fell silent.
    held_bytes: usize,
}

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    shared: Arc<(Mutex<State>, Condvar)>,
}

fn lock(shared: &Arc<(Mutex<State>, Condvar)>) -> MutexGuard<'_, State> {
    shared.0.lock().expect("no panic")
}

impl Relay {
    /// Relays to `target`, until the process ends.
    pub(crate) fn start(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = State { way: Way::Open, connections: Vec::new(), held_bytes: 0 };
        let shared = Arc::new((Mutex::new(state), Condvar::new()));
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                let mut state = lock(&of_thread);
                let Some(to) = TcpStream::connect(target).ok().filter(|_| state.way != Way::Cut)
                else {
                    continue;
                };
                let again = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                state.connections.extend([again(&host), again(&to)]);
                drop(state);
                carry(again(&host), again(&to), Arc::clone(&of_thread));
                carry(to, host, Arc::clone(&of_thread));
            }
        });
        Relay { address, shared }
    }

    fn set(&self, way: Way) {
        let mut state = lock(&self.shared);
        state.way = way;
        state.held_bytes = 0;
        if way == Way::Cut {
            for stream in state.connections.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        self.shared.1.notify_all();
    }

    pub(crate) fn cut(&self) {
        self.set(Way::Cut);
    }

    /// Ends the newest connection.
    #[allow(dead_code)] // Not every test needs it.
    pub(crate) fn cut_last(&self) {
        let state = lock(&self.shared);
        let newest = state.connections.last().expect("a connection");
        newest.shutdown(Shutdown::Both).expect("cut");
    }

    pub(crate) fn silence(&self) {
        self.set(Way::Silent);
    }

    pub(crate) fn held_bytes(&self) -> usize {
        lock(&self.shared).held_bytes
    }

    pub(crate) fn open(&self) {
        self.set(Way::Open);
    }
}

/// Relays bytes in one direction.
fn carry(mut from: TcpStream, mut to: TcpStream, shared: Arc<(Mutex<State>, Condvar)>) {
    to.set_nodelay(true).expect("set");
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let mut state = lock(&shared);
            state.held_bytes += if state.way == Way::Silent { length } else { 0 };
            while state.way == Way::Silent {
                state = shared.1.wait(state).expect("no panic");
            }
            if state.way == Way::Cut {
                break;
            }
            drop(state);
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}
