//! Uses a target through losses of the connection, or connects to it again and again, and prints the results. It
//! overwrites the first 256 KiB of the namespace.
//!
//!     cargo run --example endure -- URL for SECONDS [PAUSE]
//!     cargo run --example endure -- URL connect TIMES
//!
//! The first form writes blocks, reads them back and compares. Whenever the connection is lost, it connects again,
//! after PAUSE seconds. The second form connects an association with one lane TIMES times, reads a block by each, and
//! fails if this process has more descriptors or locked memory afterwards. `interop/guest/rdma` runs both.

use bpfof_host::{Controller, Error, Lane, Options, TargetUrl};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 64;
/// How long a target may be away.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);
/// Connections of each thread after which the libraries have allocated everything that they keep.
const WARM_UP: u32 = 3;
/// Threads that connect at the same time.
const THREADS: u32 = 8;

fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(3),
        command_timeout: Duration::from_secs(3),
        keep_alive: Duration::from_secs(4),
        ..Options::default()
    }
}

/// SplitMix64.
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

fn block(number: u64) -> Vec<u8> {
    (0..BLOCK_BYTES as u64 / 8).flat_map(|word| mix(number << 16 | word).to_le_bytes()).collect()
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, what, number, pause @ ..] = arguments.as_slice() else {
        return Err("usage: endure URL for SECONDS [PAUSE] | endure URL connect TIMES".into());
    };
    let (url, number) = (url.parse()?, number.parse()?);
    let pause = pause.first().map_or(Ok(0), |pause| pause.parse())?;
    match what.as_str() {
        "for" => go_on(&url, Duration::from_secs(number), Duration::from_secs(pause)),
        "connect" => connect(&url, u32::try_from(number)?),
        other => Err(format!("there is no {other}").into()),
    }
}

fn go_on(url: &TargetUrl, length: Duration, pause: Duration) -> Result<(), Failure> {
    let (begun, nsid) = (Instant::now(), url.nsid);
    let mut controller = Controller::connect(url, options())?;
    let mut lane = controller.open_lane()?;
    let (mut done, mut losses, mut longest) = (0u64, 0, Duration::ZERO);
    for number in 0..BLOCKS {
        lane.write(nsid, number * BLOCK_BYTES as u64, &block(number))?;
    }
    let mut data = vec![0; BLOCK_BYTES];
    let mut draw = 0;
    while begun.elapsed() < length {
        draw = mix(draw);
        let (number, asked) = (draw % BLOCKS, Instant::now());
        let at = number * BLOCK_BYTES as u64;
        let result = match draw >> 60 {
            0 => lane.write(nsid, at, &block(number)),
            _ => lane.read(nsid, at, &mut data).map(|()| assert_eq!(data, block(number))),
        };
        match result {
            Ok(()) => done += 1,
            Err(error @ (Error::Lost(_) | Error::Submit(_))) => {
                losses += 1;
                println!("after {done} requests: {error}");
                std::thread::sleep(pause);
                (controller, lane) = again(url)?;
                longest = longest.max(asked.elapsed());
            }
            Err(error) => return Err(error.into()),
        }
    }
    drop(lane);
    controller.disconnect()?;
    println!("{done} requests, {losses} losses, the longest for {} ms", longest.as_millis());
    Ok(())
}

/// Connects as soon as there is a target.
fn again(url: &TargetUrl) -> Result<(Controller, Lane), Error> {
    let lost = Instant::now();
    loop {
        let connected = Controller::connect(url, options())
            .and_then(|controller| controller.open_lane().map(|lane| (controller, lane)));
        match connected {
            Err(error) if lost.elapsed() < PATIENCE => {
                println!("{error}");
                std::thread::sleep(PAUSE);
            }
            connected => return connected,
        }
    }
}

/// The number of open descriptors of this process, and the status line with its memory locked for cards.
fn held() -> Result<(usize, String), Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let locked = status.lines().find(|line| line.starts_with("VmPin")).unwrap_or("");
    Ok((std::fs::read_dir("/proc/self/fd")?.count(), locked.to_owned()))
}

/// Connects by several threads at a time, because connecting is mostly waiting.
fn connect(url: &TargetUrl, times: u32) -> Result<(), Failure> {
    let begun = Instant::now();
    connect_each(url, THREADS * WARM_UP)?;
    let before = held()?;
    connect_each(url, times)?;
    let after = held()?;
    println!(
        "{} connections in {} ms; descriptors and locked memory {before:?}, now {after:?}",
        2 * (THREADS * WARM_UP + times),
        begun.elapsed().as_millis()
    );
    if before == after { Ok(()) } else { Err("something was not given back".into()) }
}

fn connect_each(url: &TargetUrl, times: u32) -> Result<(), Error> {
    let left = AtomicU32::new(times);
    let take = || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok();
    let work = || {
        let mut data = vec![0; BLOCK_BYTES];
        while let Some(time) = take() {
            let controller = Controller::connect(url, options())?;
            let mut lane = controller.open_lane()?;
            lane.read(url.nsid, 0, &mut data)?;
            // Every other association ends without a Disconnect.
            if time % 2 == 0 {
                drop(lane);
                controller.disconnect()?;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}
