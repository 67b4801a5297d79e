//! Attacks of hosts on a target. Each attack is made over real sockets, and others are served meanwhile. Bounds are
//! wide, because test machines are busy; `bpfof bench fair` measures.

mod common;

use bpfof_controller::{Server, TargetConfig};
use bpfof_host::{Controller, Lane, Options, PushdownCall, Request, Status};
use bpfof_nvme::fabrics::CNTLID_DYNAMIC;
use bpfof_nvme::tcp::Digests;
use bpfof_nvme::{AdminCommand, FabricsCommand, Installation, Rw, Sgl, Sqe, Upload, opcode};
use common::raw::{Peer, Said};
use common::{
    NAMESPACE_BYTES, Witness, call, compile, compile_text, connect, load, memory,
    raise_descriptor_limit, resident_bytes, run, until, url,
};
use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const NONE: Digests = Digests { header: false, data: false };
/// Longest wait that is tolerated in these tests.
const PATIENCE: Duration = Duration::from_secs(20);

/// A target under attack. It is stopped only if the test succeeds: a target that hangs would not stop.
struct Attacked {
    server: ManuallyDrop<Server>,
    // Memory and descriptors of the whole process are measured.
    _alone: MutexGuard<'static, ()>,
}

impl Attacked {
    fn new(settings: &str) -> Attacked {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        raise_descriptor_limit();
        let config = TargetConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            ..TargetConfig::from_toml(settings).expect("settings that a target has")
        };
        let usual = common::config(vec![memory(NAMESPACE_BYTES, 512)]);
        let config = TargetConfig { nqn: usual.nqn, namespaces: usual.namespaces, ..config };
        let server = ManuallyDrop::new(Server::start(&config).expect("it starts"));
        Attacked { server, _alone: alone }
    }

    /// Checks that it stops in time.
    fn stops(self) {
        let begun = Instant::now();
        ManuallyDrop::into_inner(self.server).stop();
        assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
    }
}

/// A separate host, with a lane.
fn host(server: &Server, number: u8) -> (Controller, Lane) {
    let options = Options { queue_depth: 1023, ..Options::for_host([number; 16]) };
    let controller = Controller::connect(&url(server), options).expect("it connects");
    let lane = controller.open_lane().expect("a lane");
    (controller, lane)
}

/// Begins as many chains as the queue has room for.
fn flood(lane: &mut Lane, call: &PushdownCall<'_>) {
    for tag in 0..1000 {
        lane.submit(tag, Request::Pushdown(*call)).expect("there is room");
    }
    lane.flush_doorbell().expect("sent");
}

/// The duration of the slowest of some rounds of a witness.
fn slowest(witness: &mut Witness, rounds: u32) -> Duration {
    let round = |_| {
        let begun = Instant::now();
        witness.check();
        begun.elapsed()
    };
    (0..rounds).map(round).max().unwrap_or_default()
}

/// Runs a chain that must end, with or without success; returns its status, if it got one.
fn end_of(lane: &mut Lane, call: &PushdownCall<'_>) -> Option<Status> {
    lane.submit(0, Request::Pushdown(*call)).expect("there is room");
    let mut status = None;
    let ended = lane.wait(PATIENCE, &mut |completion| {
        status = match completion.result {
            Ok(_) => Some(Status::SUCCESS),
            Err(bpfof_host::RequestError::Command(error)) => Some(error.status),
            Err(_) => None,
        };
    });
    assert_eq!(ended.expect("connected"), 1, "the chain goes on for ever");
    status
}

/// A loop that the translator recognises as a scan, entered at its first instruction, which is the first of its
/// function: the start value from which its iterations are counted must be initialised.
#[test]
fn a_scan_from_the_first_instruction_of_a_function() {
    let attacked = Attacked::new("");
    let mut witness = Witness::new(&attacked.server);
    for step in ["-1", "1", "-8", "8", "-32767"] {
        let (bound, start) =
            if step.starts_with('-') { ("r1 >= r2", 400) } else { ("r1 <= r2", 0) };
        let text = format!(
            "#include \"bpfof.h\"
            static __attribute__((naked, noinline, used)) int through(void) {{
                asm volatile(\"1: r3 = *(u8 *)(r1 + 0)\\n r1 += {step}\\n if {bound} goto 1b\\n\"
                             \"r0 = 0\\n exit\\n\");
            }}
            SEC(\"bpfof/attack\") __attribute__((naked)) int attack(void) {{
                asm volatile(\"r6 = *(u64 *)(r1 + 0)\\n\"
                             \"2: r1 = r6\\n r1 += {start}\\n r2 = r6\\n r2 += {}\\n\"
                             \"call through\\n goto 2b\\n\");
            }}",
            400 - start,
        );
        let (mut controller, mut lane) = host(&attacked.server, 1);
        let function = load(&mut controller, &compile_text(&text), "attack");
        let status = end_of(&mut lane, &call(function, &[])).expect("a status");
        let expected = [Status::INSTRUCTION_BUDGET_EXHAUSTED, Status::FUNCTION_FAULT];
        assert!(expected.contains(&status), "step {step}: {status}");
        witness.check();
    }
    attacked.stops();
}

/// A mapping for each function would exceed the number that a process may have.
#[test]
fn many_small_functions() {
    let attacked = Attacked::new("");
    let mappings = || std::fs::read_to_string("/proc/self/maps").expect("Linux").lines().count();
    let object = compile("small");
    let (mut first, _lane) = host(&attacked.server, 0);
    load(&mut first, &object, "small");
    let before = mappings();
    let mut hosts = Vec::new();
    for number in 1..5 {
        let (mut controller, _lane) = host(&attacked.server, number);
        for _ in 0..64 {
            load(&mut controller, &object, "small");
        }
        hosts.push(controller);
    }
    let more = mappings().saturating_sub(before);
    assert!(more < 128, "256 functions have {more} mappings");
    drop((first, hosts));
    attacked.stops();
}

/// A turn is bounded by time, not by hops: it may end between the calls of a hop.
#[test]
fn chains_that_compute() {
    const CHAINS: u64 = 128;
    let attacked = Attacked::new("");
    let mut witness = Witness::new(&attacked.server);
    let text = "#include \"bpfof/blocks.h\"
        SEC(\"bpfof/compute\") int compute(struct bpfof_ctx *ctx) {
            __u64 value = ctx->offset | 1;
            __u32 i;
            for (i = 0; i < 60000; i++)
                value = value * 0x5851f42d4c957f2dULL ^ value >> 33;
            *(volatile __u64 *)ctx->scratch = value;
            if (ctx->read_index == 0)
                for (i = 0; i < BPFOF_MAX_READS; i++) {
                    ctx->next_offset[i] = i * 512;
                    ctx->next_size[i] = 512;
                    ctx->reads = i + 1;
                }
            return 0;
        }";
    let (mut controller, mut lane) = host(&attacked.server, 1);
    let function = load(&mut controller, &compile_text(text), "compute");
    for tag in 0..CHAINS {
        lane.submit(tag, Request::Pushdown(call(function, &[]))).expect("there is room");
    }
    lane.flush_doorbell().expect("sent");
    witness.check();
    let waited = slowest(&mut witness, 50);
    let mut ended = 0;
    while lane.wait(Duration::from_millis(1), &mut |_| ended += 1).expect("connected") > 0 {}
    println!("a write and a read waited {waited:?}; {ended} of {CHAINS} chains had ended");
    assert!(ended < CHAINS / 2, "50 reads and writes waited for {ended} chains");
    drop((controller, lane));
    attacked.stops();
}

/// Helpers cost the time that they take: this many calls exceed the budget of one call of a function.
#[test]
fn helpers_in_a_loop() {
    let attacked = Attacked::new("");
    let text = "#include \"bpfof/blocks.h\"
        SEC(\"bpfof/loop\") int loop(struct bpfof_ctx *ctx) {
            volatile __u64 *sum = (__u64 *)ctx->scratch;
            __u32 i;
            for (i = 0; i < 40000; i++)
                *sum += (__u64)bpfof_workspace();
            return bpfof_answer(ctx, 8);
        }";
    let (mut controller, mut lane) = host(&attacked.server, 1);
    let function = load(&mut controller, &compile_text(text), "loop");
    let status = end_of(&mut lane, &call(function, &[]));
    assert_eq!(status, Some(Status::INSTRUCTION_BUDGET_EXHAUSTED));
    attacked.stops();
}

/// Endless chains take all arenas; a host without an arena still gets one.
#[test]
fn chains_without_end() {
    let attacked = Attacked::new("");
    let object = compile("hostile");
    let mut greedy = Vec::new();
    for number in 1..4 {
        let (mut controller, first) = host(&attacked.server, number);
        let endless = load(&mut controller, &object, "endless");
        let others = (0..3).map(|_| controller.open_lane().expect("a lane"));
        let mut lanes: Vec<Lane> = [first].into_iter().chain(others).collect();
        lanes.iter_mut().for_each(|lane| flood(lane, &call(endless, &[])));
        greedy.push((controller, lanes));
    }
    let (mut controller, mut lane) = host(&attacked.server, 9);
    let answer = load(&mut controller, &object, "answer");
    let begun = Instant::now();
    for _ in 0..20 {
        assert_eq!(end_of(&mut lane, &call(answer, &[])), Some(Status::SUCCESS));
    }
    println!("20 chains waited {:?}", begun.elapsed());
    drop(greedy);
    attacked.stops();
}

/// Uploads an object; the last part is not answered before the function is compiled.
fn begin_load(admin: &mut Peer, object: &[u8]) {
    let (last, total_bytes) = (object.len().div_ceil(8192) - 1, object.len() as u32);
    for (index, chunk) in object.chunks(8192).enumerate() {
        let upload = Upload { total_bytes, offset_bytes: index as u32 * 8192 };
        let sqe = AdminCommand::function_load(upload, Installation::default());
        let sqe = Sqe { sgl: Sgl::in_capsule(chunk.len() as u32), ..sqe };
        if index < last {
            assert_eq!(admin.status(sqe, chunk), Status::SUCCESS);
        } else {
            admin.send(sqe, chunk);
        }
    }
}

/// Hosts that load large objects without end take turns with one that loads a small one; loads of closed connections
/// are not compiled.
#[test]
fn a_flood_of_loads() {
    const LOADS: usize = 24;
    let attacked = Attacked::new("");
    let server = &attacked.server;
    let (mut controller, _lane) = host(server, 9);
    let [large, small] = ["large", "small"].map(compile);
    let mut peers: Vec<Peer> =
        (0..LOADS).map(|_| Peer::admin(server.address(), common::NQN)).collect();
    for peer in &mut peers {
        begin_load(peer, &large);
    }
    let is_answered = |peer: &&Peer| {
        peer.stream.set_nonblocking(true).expect("a socket");
        peer.stream.peek(&mut [0]).is_ok()
    };
    let before = peers.iter().filter(is_answered).count();
    load(&mut controller, &small, "small");
    let answered = peers.iter().filter(is_answered).count() - before;
    assert!(answered < LOADS / 2, "a small function waited for {answered} large ones");
    drop(peers);
    attacked.stops();
}

/// Open descriptors of this process, of both sides.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux").count()
}

/// Hosts that do not receive their answers take bounded memory, and their connections are closed in the end.
#[test]
fn hosts_that_do_not_receive() {
    const MEMORY_BYTES: u64 = 256 << 20;
    const HOSTS: usize = 40;
    let attacked = Attacked::new("memory-max = \"256MiB\"\nsend-timeout-s = 3");
    let mut witness = Witness::new(&attacked.server);
    let before = resident_bytes();
    let mut deaf: Vec<_> = (0..HOSTS).map(|_| Peer::pair(&attacked.server, NONE, 1000)).collect();
    let all = descriptors();
    let rw = Rw { slba: 0, blocks: 256, fua: false }.to_sqe(opcode::nvm::READ, 1);
    let read = Sqe { sgl: Sgl::transport(128 << 10), ..rw };
    for (_, io) in &mut deaf {
        for _ in 0..100 {
            io.send(read, &[]);
        }
    }
    let waited = slowest(&mut witness, 50);
    println!("a write and a read waited {waited:?}");
    assert!(waited < PATIENCE, "a write and a read waited {waited:?}");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < MEMORY_BYTES + (64 << 20), "{grown} bytes");
    // Hosts cannot notice this by themselves: unread data before the end of the connection fills their buffers.
    until("they are given up", || descriptors() <= all - HOSTS);
    drop(deaf);
    witness.check();
    attacked.stops();
}

/// Idle associations give way to new ones.
#[test]
fn admin_queues_that_do_nothing() {
    let attacked = Attacked::new("");
    let address = attacked.server.address();
    let mut idle = Vec::new();
    let mut busy = 0;
    for _ in 0..1100 {
        let mut peer = Peer::open_at(address);
        peer.initialize(NONE);
        let connected = peer.connect(common::NQN, 0, 31, CNTLID_DYNAMIC);
        busy += u32::from(connected != Status::SUCCESS);
        idle.push(peer);
    }
    assert!(busy < 1100, "nobody was let in");
    std::thread::sleep(Duration::from_millis(1100));
    let begun = Instant::now();
    let (controller, mut lane) = connect(&attacked.server, false);
    lane.read(1, 0, &mut [0; 512]).expect("served");
    println!("it took {:?}", begun.elapsed());
    assert!(begun.elapsed() < PATIENCE, "it took {:?}", begun.elapsed());
    drop((controller, lane, idle));
    attacked.stops();
}

/// The numbers of associations of a host and of an address are limited; those in use stay, and one more is refused with
/// a status.
#[test]
fn more_associations_than_there_may_be() {
    let attacked = Attacked::new("associations-per-host = 2\nassociations-per-address = 3");
    let server = &attacked.server;
    let open = |number| {
        let options = Options::for_host([number; 16]);
        let controller = Controller::connect(&url(server), options)?;
        let lane = controller.open_lane()?;
        Ok::<_, bpfof_host::Error>((controller, lane))
    };
    let works = |(_, lane): &mut (Controller, Lane)| {
        lane.read(1, 0, &mut [0; 512]).expect("it goes on");
    };
    let is_busy = |number: u8| {
        let error = open(number).map(drop).expect_err("one too many").to_string();
        assert!(error.contains("Controller Busy"), "host {number}: {error}");
    };
    let mut held = vec![open(1).expect("the first"), open(1).expect("the second")];
    is_busy(1);
    held.push(open(2).expect("of another host"));
    is_busy(3);
    held.iter_mut().for_each(works);
    drop(held.pop());
    until("its place is free", || open(3).map(|new| held.push(new)).is_ok());
    drop(held.remove(0));
    until("its place is free", || open(1).map(|new| held.push(new)).is_ok());
    is_busy(1);
    held.iter_mut().for_each(works);
    drop(held);
    attacked.stops();
}

/// A kept function belongs to the host that has loaded it.
#[test]
fn installed_functions_of_other_hosts() {
    let attacked = Attacked::new("");
    let text = "#include \"bpfof/blocks.h\"
        SEC(\"bpfof/says\") int says(struct bpfof_ctx *ctx) {
            bpfof_trace(\"secret\", *(__u64 *)ctx->scratch);
            return bpfof_answer(ctx, 8);
        }";
    let (mut owner, _owners) = host(&attacked.server, 1);
    let kept = owner.install_function(&compile_text(text), 0).expect("kept");
    let (mut tenant, mut lane) = host(&attacked.server, 2);
    let secret = 4711u64.to_le_bytes();
    run(&mut lane, &call(kept, &secret)).expect("it answers");
    let (mut stranger, mut strangers) = host(&attacked.server, 3);
    assert!(stranger.trace(kept).expect("a trace").is_empty());
    assert_eq!(tenant.trace(kept).expect("a trace"), ["secret 4711"], "its own call");
    let chains = |controller: &mut Controller| {
        let report = controller.function_report().expect("a report");
        report.iter().find(|known| known.function == kept.0).map(|known| known.chains)
    };
    assert_eq!([&mut owner, &mut tenant, &mut stranger].map(chains), [Some(1), Some(1), Some(0)]);
    // A host is identified by its name and its identifier, and the identifier 0 is none.
    let (host_id, owners) = ([1; 16], Options::for_host([1; 16]).host_nqn);
    let own_name = Options::for_host([9; 16]);
    for (host_id, host_nqn) in [(host_id, own_name.host_nqn.clone()), ([9; 16], owners)] {
        let options = Options { host_id, host_nqn, ..Options::default() };
        let mut other = Controller::connect(&url(&attacked.server), options).expect("connected");
        assert!(other.unload_function(kept).is_err(), "it is not the impostor's");
    }
    let nameless = Options { host_id: [0; 16], ..own_name };
    let mut nameless = Controller::connect(&url(&attacked.server), nameless).expect("connected");
    assert!(nameless.install_function(&compile_text(text), 0).is_err(), "for whom?");
    assert!(stranger.unload_function(kept).is_err(), "it is not the stranger's");
    run(&mut strangers, &call(kept, &secret)).expect("it is still there");
    owner.unload_function(kept).expect("it is the owner's");
    assert!(run(&mut lane, &call(kept, &secret)).is_err());
    attacked.stops();
}

/// Each reset and shutdown sends all reactors a message that queues are to end, if there are any.
#[test]
fn a_flood_of_shutdowns() {
    const SHUTDOWN: u64 = 0x0046_4001;
    let attacked = Attacked::new("");
    let set = FabricsCommand::PropertySet { offset: 0x14, size8: false, value: SHUTDOWN };
    let mut peers: Vec<Peer> =
        (0..8).map(|_| Peer::admin(attacked.server.address(), common::NQN)).collect();
    for _ in 0..300 {
        for peer in &mut peers {
            peer.send(set.to_sqe(), &[]);
        }
        for peer in &mut peers {
            assert!(matches!(peer.hear(), Said::Response(cqe) if cqe.status.is_success()));
        }
    }
    let begun = Instant::now();
    Witness::new(&attacked.server).check();
    println!("it took {:?}", begun.elapsed());
    assert!(begun.elapsed() < PATIENCE, "it took {:?}", begun.elapsed());
    drop(peers);
    attacked.stops();
}

/// Data never comes for which the target has reserved memory.
#[test]
fn writes_without_data() {
    let attacked = Attacked::new("memory-max = \"256MiB\"");
    let before = resident_bytes();
    let write = Rw { slba: 0, blocks: 1, fua: false }.to_sqe(opcode::nvm::WRITE, 1);
    let write = Sqe { sgl: Sgl::transport(512), ..write };
    let mut hosts: Vec<_> = (0..40).map(|_| Peer::pair(&attacked.server, NONE, 1000)).collect();
    for (_, io) in &mut hosts {
        for _ in 0..900 {
            io.send(write, &[]);
        }
    }
    let mut witness = Witness::new(&attacked.server);
    witness.check();
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 320 << 20, "{grown} bytes for 36,000 blocks of 512 bytes");
    drop(hosts);
    attacked.stops();
}
