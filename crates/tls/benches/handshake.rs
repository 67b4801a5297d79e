//! Time of a handshake: both sides over loopback, each in a thread of its own, until each has its
//! keys; and the one-time costs before it: `init`, and the first handshake of a thread.

use bpfof_tls::{Psk, PskHash, PskStore, accept, connect, init};
use criterion::{Criterion, criterion_group, criterion_main};
use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const IDENTITY: &str =
    "NVMe1R01 nqn.2014-08.org.nvmexpress:uuid:host nqn.2026-01.io.bpf-of:target x";

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn handshakes(criterion: &mut Criterion) {
    let begun = Instant::now();
    init().expect("the library works");
    println!("init: {:?}", begun.elapsed());

    for hash in [PskHash::Sha256, PskHash::Sha384] {
        let psk = Psk::new(IDENTITY, &vec![7; hash.output_bytes()], hash).expect("a key");
        let store: Arc<dyn PskStore> =
            Arc::new(HashMap::from([(IDENTITY.to_owned(), psk.clone())]));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (done, served) = mpsc::channel();
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let secured = accept(&socket, &store, soon()).expect("secured");
                if done.send((socket, secured)).is_err() {
                    break;
                }
            }
        });
        let begun = Instant::now();
        let mut once = || {
            let socket = TcpStream::connect(address).expect("connected");
            let secured = connect(&socket, &psk, soon()).expect("secured");
            (secured, served.recv().expect("served"))
        };
        once();
        println!("{hash:?}: the first of its thread: {:?}", begun.elapsed());
        criterion.bench_function(&format!("handshake/{hash:?}"), |bencher| bencher.iter(&mut once));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots().sample_size(50);
    targets = handshakes
}
criterion_main!(benches);
