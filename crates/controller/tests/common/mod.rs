//! Shared code of the tests: a target in this process, hosts, and functions compiled at run time.
#![allow(dead_code, unused_imports)] // Each test uses a part.

pub(crate) mod raw;
#[path = "../../../bpfof/tests/skip/mod.rs"]
pub(crate) mod skip;
#[path = "../../../bpfof/tests/stop/mod.rs"]
pub(crate) mod stop;
#[path = "../../../bpfof/tests/wait/mod.rs"]
mod wait;

use bpfkv::create::{Extent, write_database};
use bpfof_controller::{
    ListenConfig, Listeners, NamespaceConfig, NamespaceSource, Server, TargetConfig, Transport,
};
use bpfof_function::Object;
use bpfof_host::{
    CommandError, Connector, Controller, Error, FileVersion, FunctionId, Lane, Options,
    PushdownCall, RequestError, TargetUrl,
};
use fastrand::Rng;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
pub(crate) use wait::until;

pub(crate) const NQN: &str = "nqn.2026-01.io.bpf-of:test";
/// The whole namespace as a file.
pub(crate) const WHOLE: &[FileVersion] = &[FileVersion { id: 0, version: 1 }];
/// Size of most namespaces in the tests.
pub(crate) const NAMESPACE_BYTES: u64 = 4 << 20;
/// The last block of such a namespace, which the witness uses.
const WITNESS_AT: u64 = NAMESPACE_BYTES - 512;

pub(crate) fn memory(size_bytes: u64, lba_bytes: u32) -> NamespaceConfig {
    slow_memory(size_bytes, lba_bytes, 0)
}

/// Memory whose operations take `latency_us`.
pub(crate) fn slow_memory(size_bytes: u64, lba_bytes: u32, latency_us: u64) -> NamespaceConfig {
    let source = NamespaceSource::Memory { size_bytes, latency_us, iops: 0 };
    NamespaceConfig::new(source, lba_bytes)
}

pub(crate) fn file(path: &Path, size_bytes: u64, lba_bytes: u32) -> NamespaceConfig {
    let source = NamespaceSource::File { path: path.to_owned(), size_bytes: Some(size_bytes) };
    NamespaceConfig::new(source, lba_bytes)
}

/// The address of a network card, if `over_messages.rs` is to connect by RDMA.
fn card() -> Option<IpAddr> {
    let text = std::env::var("BPFOF_TEST_RDMA").ok().filter(|_| is_over_messages())?;
    Some(text.parse().expect("BPFOF_TEST_RDMA is the IP address of a network card for RDMA"))
}

/// Ports that the kernel chooses.
pub(crate) fn any_ports() -> Listeners {
    let mut listeners = Listeners::from(([127, 0, 0, 1], 0));
    if let Some(card) = card() {
        let transport = Transport::Rdma;
        listeners.0.push(ListenConfig { transport, ..SocketAddr::from((card, 0)).into() });
    }
    listeners
}

/// The ports that a target had.
pub(crate) fn same_ports(server: &Server) -> Listeners {
    let mut listeners = any_ports();
    for (listener, address) in listeners.0.iter_mut().zip(server.addresses()) {
        listener.address = address;
    }
    listeners
}

/// A configuration on ports that the kernel chooses.
pub(crate) fn config(namespaces: Vec<NamespaceConfig>) -> TargetConfig {
    TargetConfig {
        listen: any_ports(),
        allow_any_host: card().is_some(),
        nqn: NQN.to_owned(),
        namespaces,
        ..TargetConfig::default()
    }
}

pub(crate) fn start(namespaces: Vec<NamespaceConfig>) -> Server {
    Server::start(&config(namespaces)).expect("the target starts")
}

pub(crate) fn url(server: &Server) -> TargetUrl {
    let text = match card() {
        Some(_) => format!("nvme-rdma://{}/{NQN}", server.addresses()[1]),
        None => format!("nvme-tcp://{}/{NQN}", server.address()),
    };
    text.parse().expect("an address")
}

/// Whether these are the tests of `over_messages.rs`, which connect in this process or by RDMA.
pub(crate) fn is_over_messages() -> bool {
    module_path!().starts_with("over_messages")
}

/// Whether hosts connect to targets of their own process.
pub(crate) fn is_in_process() -> bool {
    is_over_messages() && card().is_none()
}

/// Options to connect to a target of this process.
pub(crate) fn options(server: &Server) -> Options {
    let connector = is_in_process().then(|| Connector::new(server.connector()));
    Options { connector, ..Options::default() }
}

pub(crate) fn connect(server: &Server, digests: bool) -> (Controller, Lane) {
    let options = Options { header_digest: digests, data_digest: digests, ..options(server) };
    let controller = Controller::connect(&url(server), options).expect("it connects");
    let lane = controller.open_lane().expect("a lane");
    (controller, lane)
}

/// Raises the limit of descriptors, which both sides share.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("up to hard");
}

/// Resident memory of this process.
pub(crate) fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    pages * 4096
}

/// Compiles a C source of `tests/functions`.
pub(crate) fn compile(name: &str) -> Vec<u8> {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = crate_root.join("tests/functions").join(format!("{name}.bpf.c"));
    compiled(name.to_owned(), || compile_file(&path))
}

/// Compiles a C source.
pub(crate) fn compile_text(text: &str) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    compiled(format!("{:016x}", hasher.finish()), || {
        let directory = tempfile::tempdir().expect("a directory");
        let source = directory.path().join("function.bpf.c");
        std::fs::write(&source, text).expect("written");
        compile_file(&source)
    })
}

/// An object by its name from the folder BPFOF_TEST_OBJECTS, for machines without a compiler. If it does not exist yet,
/// it is made and stored there.
fn compiled(name: String, make: impl Fn() -> Vec<u8>) -> Vec<u8> {
    let Some(folder) = std::env::var_os("BPFOF_TEST_OBJECTS") else { return make() };
    let path = Path::new(&folder).join(name + ".o");
    std::fs::read(&path).unwrap_or_else(|_| {
        let object = make();
        std::fs::write(&path, &object).expect("the folder can be written");
        object
    })
}

fn compile_file(source: &Path) -> Vec<u8> {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let directory = tempfile::tempdir().expect("a directory");
    let object = directory.path().join("function.o");
    let status = Command::new(clang)
        .args("-O2 -g -Wall -Werror -target bpf -mcpu=v3 -I".split(' '))
        .arg(crate_root.join("../../functions/include"))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(&object)
        .status()
        .expect("clang starts");
    assert!(status.success(), "clang refuses {}", source.display());
    std::fs::read(object).expect("an object")
}

/// Loads the function `entry` of an object.
pub(crate) fn load(controller: &mut Controller, object: &[u8], entry: &str) -> FunctionId {
    let parsed = Object::parse(object).expect("a valid object");
    let index = parsed.entries().iter().position(|found| found.name == entry);
    controller.load_function(object, index.expect("it is there") as u32).expect("it is loaded")
}

/// A call on the whole of namespace 1 that starts with block 0.
pub(crate) fn call(function: FunctionId, scratch: &[u8]) -> PushdownCall<'_> {
    PushdownCall {
        nsid: 1,
        function: function.0,
        files: WHOLE,
        first_file: 0,
        first_offset_bytes: 0,
        first_size_bytes: 512,
        scratch,
        scratch_size_bytes: 0,
        answer_max_bytes: 4096,
    }
}

/// Runs a chain; returns its answer and hops, or the status that it ended with.
pub(crate) fn run(
    lane: &mut Lane,
    call: &PushdownCall<'_>,
) -> Result<(Vec<u8>, u32), CommandError> {
    let mut answer = Vec::new();
    match lane.pushdown(call, &mut answer) {
        Ok(info) => Ok((answer, info.hops)),
        Err(Error::Command { source, .. }) => Err(source),
        Err(error) => panic!("{error}"),
    }
}

/// A well-behaved host that expects to be served whatever other hosts do.
pub(crate) struct Witness {
    _controller: Controller,
    pub(crate) lane: Lane,
    round: u8,
}

impl Witness {
    pub(crate) fn new(server: &Server) -> Witness {
        let (controller, lane) = connect(server, false);
        Witness { _controller: controller, lane, round: 0 }
    }

    pub(crate) fn check(&mut self) {
        self.round = self.round.wrapping_add(1);
        let (block, mut back) = ([self.round; 512], [0; 512]);
        self.lane.write(1, WITNESS_AT, &block).expect("the witness is served");
        self.lane.read(1, WITNESS_AT, &mut back).expect("the witness is served");
        assert_eq!(back, block);
    }
}

/// Polls a lane until all its requests have ended; returns their tags and results in the order of their ends.
pub(crate) fn ends(lane: &mut Lane) -> Vec<(u64, Result<u32, RequestError>)> {
    let ends = ends_with_data(lane).into_iter();
    ends.map(|(tag, end)| (tag, end.map(|(dw0, _)| dw0))).collect()
}

/// The tag of a request and its result: dword 0 and the returned data.
pub(crate) type Ended = (u64, Result<(u32, Vec<u8>), RequestError>);

/// The same with the returned data.
pub(crate) fn ends_with_data(lane: &mut Lane) -> Vec<Ended> {
    let mut ends = Vec::new();
    let started = Instant::now();
    while lane.requests_in_flight() > 0 {
        assert!(started.elapsed() < Duration::from_secs(20), "requests are lost");
        let _ = lane.wait(Duration::from_secs(1), &mut |completion| {
            let end = completion.result.map(|done| (done.dw0, done.data.to_vec()));
            ends.push((completion.tag, end));
        });
    }
    ends
}

/// A BPF-KV database, filled up to whole blocks of 4096 bytes.
pub(crate) fn database(levels: u32) -> Vec<u8> {
    let extent = Extent::full(levels).expect("a valid number of levels");
    let bytes = extent.layout().file_bytes().next_multiple_of(4096);
    let mut file = vec![0; bytes as usize];
    let mut sink = |offset: u64, bytes: &[u8]| {
        file[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    write_database(&extent, &mut sink, &mut |_, _| ControlFlow::Continue(())).expect("it fits");
    file
}

/// Pseudorandom bytes.
pub(crate) fn random_bytes(random: &mut Rng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}
