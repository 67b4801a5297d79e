//! Idle programs at a real target, which gives up silent hosts.

#[path = "../../bpfof/tests/wait/mod.rs"]
mod wait;

use bpfof_controller::{HostLimits, NamespaceConfig, NamespaceSource, Server, TargetConfig};
use bpfof_host::{Controller, Options, TargetUrl};
use std::time::{Duration, Instant};
use wait::until;

const NQN: &str = "nqn.2026-01.io.bpf-of:idle";

/// A target that gives up silent hosts without a keep-alive timer after `idle_timeout_s`.
fn start(idle_timeout_s: u32) -> (Server, TargetUrl) {
    let source = NamespaceSource::Memory { size_bytes: 1 << 20, latency_us: 0, iops: 0 };
    let namespace = NamespaceConfig::new(source, 512);
    let config = TargetConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        nqn: NQN.to_owned(),
        namespaces: vec![namespace],
        hosts: HostLimits { idle_timeout_s, ..HostLimits::default() },
        ..TargetConfig::default()
    };
    let server = Server::start(&config).expect("the target starts");
    let url = format!("nvme-tcp://{}/{NQN}", server.address()).parse().expect("an address");
    (server, url)
}

fn with_timer(keep_alive: Duration) -> Options {
    Options { keep_alive, ..Options::default() }
}

/// Threads of this process that keep associations alive.
fn keepers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("there are threads");
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        // A thread may have ended meanwhile.
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| name.trim() == "bpfof-alive").count()
}

/// A single test, because it counts the threads of the whole process.
#[test]
fn an_idle_host_keeps_its_association() {
    let (_server, url) = start(2);
    let connect = |keep_alive_ms| {
        let options = with_timer(Duration::from_millis(keep_alive_ms));
        Controller::connect(&url, options).expect("it connects")
    };
    let begun = Instant::now();
    let (kept, mut silent) = (connect(3000), connect(0));
    let by_default = Controller::connect(&url, Options::default()).expect("it connects");
    let lanes = [kept.open_lane(), by_default.open_lane()];
    until("two threads", || keepers() == 2);
    until("the end of a host without a timer", || !silent.check_connected());
    // The target checks once a second: by then it would have given up a host that is silent for 3 s.
    std::thread::sleep(Duration::from_secs(5).saturating_sub(begun.elapsed()));
    for (mut controller, lane) in [kept, by_default].into_iter().zip(lanes) {
        assert!(controller.check_connected());
        assert_eq!(controller.active_namespaces().expect("it is there"), [1]);
        lane.expect("a lane").flush(1).expect("it is there");
    }
    drop(silent);
    until("the end of the threads", || keepers() == 0);

    // A target that insists on a timer.
    let (_server, url) = start(0);
    let refusal = Controller::connect(&url, with_timer(Duration::ZERO)).expect_err("no timer");
    assert!(refusal.to_string().contains("Options::keep_alive"), "{refusal}");
    let mut controller = Controller::connect(&url, Options::default()).expect("it connects");
    assert_eq!(controller.active_namespaces().expect("it is there"), [1]);
}
