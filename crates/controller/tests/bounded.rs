//! Peers that take all resources that they can get: others are served meanwhile, and memory stays within the limits in
//! ARCHITECTURE.md. The memory of the whole process is measured, so each test runs alone.

mod common;

use bpfof_controller::{NamespaceConfig, NamespaceSource, Server};
use bpfof_nvme::tcp::{CapsuleCmd, Digests, IcReq};
use bpfof_nvme::{DsmRange, Rw, Sgl, Sqe, opcode};
use common::raw::{Peer, Said};
use common::stop::StopAtEnd;
use common::{
    NAMESPACE_BYTES, Witness, connect, memory, raise_descriptor_limit, resident_bytes, start, until,
};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const NONE: Digests = Digests { header: false, data: false };
/// Memory of an idle connection (ARCHITECTURE.md, Limits).
const IDLE_BYTES: u64 = 160 << 10;
/// Most additional memory of a connection: data in flight, requested and unsent.
const BUSY_BYTES: u64 = 9 << 20;
/// Other memory that may come and go: stacks, the allocator, the test.
const SLACK_BYTES: u64 = 16 << 20;
/// Longest wait of a served host on a busy machine. The work of the floods takes much longer.
const PATIENCE: Duration = Duration::from_secs(10);

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve() -> (Server, Witness) {
    let server = start(vec![memory(NAMESPACE_BYTES, 512)]);
    let witness = Witness::new(&server);
    (server, witness)
}

/// Lets the witness work for some time, and checks that it never waits long.
fn is_served(witness: &mut Witness, time: Duration) {
    let begun = Instant::now();
    let mut slowest = Duration::ZERO;
    while begun.elapsed() < time {
        let round = Instant::now();
        witness.check();
        slowest = slowest.max(round.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("the witness waited {slowest:?}");
    assert!(slowest < PATIENCE, "the witness waited {slowest:?}");
}

fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    match stream.read(&mut [0; 256]) {
        Ok(0) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
        Ok(_) => false,
    }
}

/// Silent peers, and peers that send a byte a second, are kept for ten seconds and no longer.
#[test]
fn silent_and_slow_peers() {
    const TIME: Duration = Duration::from_secs(10);
    let _alone = alone();
    let begun = Instant::now();
    let (server, mut witness) = serve();
    let before = resident_bytes();
    let (mut silent, report) = (Vec::new(), server.report());
    while silent.len() < 500 {
        // More than may wait for a reactor are refused, if it is slower than these.
        let open = |_| TcpStream::connect(server.address()).expect("it listens");
        silent.extend((0..100).map(open));
        until("the reactor has them", || {
            report(PATIENCE).expect("a report").connections.len() > silent.len()
        });
    }
    let mut slow = silent.split_off(400);
    let mut request = Vec::new();
    IcReq::default().encode_into(&mut request);
    let (mut grown, mut bytes) = (0, request.iter());
    while !silent.iter_mut().any(is_closed) {
        assert!(begun.elapsed() < 3 * TIME, "silent peers are kept");
        grown = resident_bytes().saturating_sub(before).max(grown);
        let byte = *bytes.next().expect("the request is longer");
        for stream in &mut slow {
            let sent = stream.write_all(&[byte]);
            assert!(
                sent.is_ok() || begun.elapsed() >= TIME,
                "{sent:?} after {:?}",
                begun.elapsed()
            );
        }
        is_served(&mut witness, Duration::from_secs(1));
    }
    assert!(
        begun.elapsed() >= TIME,
        "they were kept for {:?}: {:?}",
        begun.elapsed(),
        server.denials()
    );
    assert!(grown < 500 * IDLE_BYTES + SLACK_BYTES, "{grown} bytes for 500 connections");
    until("silent peers are given up", || silent.iter_mut().all(is_closed));
    until("slow peers are given up", || slow.iter_mut().all(is_closed));
    witness.check();
}

/// Endless commands from a host that receives no answers: the target stops receiving from it.
#[test]
fn floods_of_aborts() {
    let _alone = alone();
    let (server, mut witness) = serve();
    let before = resident_bytes();
    let mut flood = Vec::new();
    for cid in 0..16 {
        let abort = Sqe { cid, ..Sqe::new(opcode::admin::ABORT, 0) };
        CapsuleCmd { sqe: abort, data: &[] }.encode_into(&mut flood, NONE, 0);
    }
    let (sent, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let held_up: [AtomicU64; 4] = Default::default();
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for held_up in &held_up {
            let (mut admin, _io) = Peer::pair(&server, NONE, 15);
            let (sent, stop, flood) = (&sent, &stop, &flood);
            scope.spawn(move || {
                let timeout = Some(Duration::from_millis(100));
                admin.stream.set_write_timeout(timeout).expect("a socket");
                let mut at = 0;
                while !stop.load(Ordering::Relaxed) {
                    // Blocks once the target does not receive any more.
                    match admin.stream.write(&flood[at..]) {
                        Ok(length) => {
                            at = (at + length) % flood.len();
                            sent.fetch_add(length as u64, Ordering::Relaxed)
                        }
                        Err(error) => {
                            let waits = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
                            assert!(waits.contains(&error.kind()), "{error}");
                            held_up.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
            });
        }
        is_served(&mut witness, Duration::from_secs(2));
        let is_held_up = |times: &AtomicU64| times.load(Ordering::Relaxed) > 0;
        until("the target listens no more", || held_up.iter().all(is_held_up));
    });
    assert!(sent.load(Ordering::Relaxed) > 1 << 20, "there was a flood");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 8 * (IDLE_BYTES + BUSY_BYTES) + SLACK_BYTES, "{grown} bytes");
}

/// Endless zeroing in memory of a file: one part at a time, and none for a host that is gone.
#[test]
fn a_flood_of_zeroes() {
    const SIZE_BYTES: u64 = 256 << 20;
    let _alone = alone();
    let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("tmpfs");
    file.as_file().set_len(SIZE_BYTES).expect("tmpfs has room");
    let source =
        NamespaceSource::MemoryFile { path: file.path().to_owned(), latency_us: 0, iops: 0 };
    let disk = NamespaceConfig { source, ..memory(SIZE_BYTES, 512) };
    let server = start(vec![memory(NAMESPACE_BYTES, 512), disk]);
    let mut witness = Witness::new(&server);
    let (_controller, mut lane) = connect(&server, false);
    lane.write(2, SIZE_BYTES - 512, &[7; 512]).expect("written");
    let (admin, mut flood) = Peer::pair(&server, NONE, 100);
    let all = DsmRange { attributes: 0, blocks: (SIZE_BYTES / 512) as u32, slba: 0 };
    let ranges = all.to_bytes().repeat(256);
    let mut deallocate = Sqe::new(opcode::nvm::DATASET_MANAGEMENT, 2);
    (deallocate.cdw10, deallocate.cdw11) = (255, 1 << 2);
    deallocate.sgl = Sgl::in_capsule(ranges.len() as u32);
    for _ in 0..50 {
        flood.send(deallocate, &ranges);
    }
    is_served(&mut witness, Duration::from_secs(2));
    // Here, too, a command waits for one part of each of the zeroing commands, not for all.
    let begun = Instant::now();
    lane.write(2, 0, &[7; 512]).expect("written");
    println!("a write waited {:?}", begun.elapsed());
    assert!(begun.elapsed() < PATIENCE, "a write waited {:?}", begun.elapsed());
    let mut last = [7; 512];
    until("they have come round", || {
        lane.read(2, SIZE_BYTES - 512, &mut last).expect("read");
        last == [0; 512]
    });
    drop((admin, flood));
    let begun = Instant::now();
    server.stop();
    println!("stopped after {:?}", begun.elapsed());
    assert!(begun.elapsed() < PATIENCE, "zeroes for nobody: {:?}", begun.elapsed());
}

/// Writes whose data never comes: the target requests no more data than it has reserved memory for.
#[test]
fn writes_whose_data_is_never_sent() {
    let _alone = alone();
    let (server, mut witness) = serve();
    let before = resident_bytes();
    let mut hosts = Vec::new();
    for _ in 0..20 {
        let (admin, mut io) = Peer::pair(&server, NONE, 1022);
        for index in 0..1000u64 {
            let rw = Rw { slba: index, blocks: 256, fua: false };
            let write = rw.to_sqe(opcode::nvm::WRITE, 1);
            io.send(Sqe { sgl: Sgl::transport(128 << 10), ..write }, &[]);
        }
        let Said::R2t(r2t) = io.hear() else { panic!("no R2T") };
        assert_eq!(r2t.length_bytes, 128 << 10);
        // Sends a piece of the requested data, and then nothing.
        let bytes = io.h2c_data(&r2t, &vec![1; 128 << 10]);
        io.send_bytes(&bytes[..100 << 10]);
        hosts.push((admin, io));
    }
    is_served(&mut witness, Duration::from_secs(1));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 40 * IDLE_BYTES + 20 * BUSY_BYTES + SLACK_BYTES, "{grown} bytes");
}

/// Opens `count` connections; beyond the limit on strangers the oldest are closed, and a host that connects meanwhile
/// is served.
fn flood_of_connections(count: usize) {
    raise_descriptor_limit();
    let (server, mut witness) = serve();
    let before = resident_bytes();
    let mut peers = Vec::new();
    let mut slowest = Duration::ZERO;
    for number in 0..count {
        peers.push(TcpStream::connect(server.address()).expect("it listens"));
        if number % 100 == 99 {
            let begun = Instant::now();
            witness.check();
            drop(Peer::pair(&server, NONE, 15));
            slowest = slowest.max(begun.elapsed());
        }
    }
    println!("a host waited {slowest:?}");
    assert!(slowest < PATIENCE, "a host waited {slowest:?}");
    let open = peers.iter_mut().map(|peer| !is_closed(peer)).filter(|open| *open).count();
    assert!(open <= 1024 + 16, "{open} connections are open");
    let denials = server.denials();
    let (_, closed) = denials.iter().find(|(reason, _)| *reason == "limit").expect("a reason");
    assert!(
        (count - open..=count).contains(&(*closed as usize)),
        "{closed} of {count} are counted"
    );
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 2 * 1024 * IDLE_BYTES + SLACK_BYTES, "{grown} bytes");
    drop(peers);
    witness.check();
}

#[test]
fn two_thousand_connections() {
    let _alone = alone();
    flood_of_connections(2000);
}
