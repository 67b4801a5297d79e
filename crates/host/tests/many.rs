//! Chains together in vectors, at a target, end as they do one by one.

use bpfkv::create::{Extent, write_database};
use bpfof_controller::{NamespaceConfig, NamespaceSource, Server, TargetConfig};
use bpfof_host::{
    Caravan, ChainInfo, CommandError, Controller, Error, FileVersion, FirstRead, FunctionId, Lane,
    ManyEnd, Options, PushdownCall, PushdownLimits, PushdownMany, SharedLane, SubmitError,
    TargetUrl, Urgency, VectorChain,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::RefCell;
use std::ops::ControlFlow;

const SIZE_BYTES: u64 = 1 << 20;
/// Keys of a database of two levels; other keys are not found.
const KEYS: u64 = 961;

/// The end of a chain: answer and hops, or the status.
type End = Result<(Vec<u8>, u32), CommandError>;

/// A target with a database, some blocks of which are damaged.
struct World {
    lane: Lane,
    shared: SharedLane,
    /// A lane that gathers the chains of many threads.
    gathered: SharedLane,
    limits: PushdownLimits,
    functions: [FunctionId; 2],
    _controller: Controller,
    _server: Server,
}

/// Threads that send chains of a call at the same time.
const THREADS: usize = 8;

fn target() -> (Server, Controller) {
    let source = NamespaceSource::Memory { size_bytes: SIZE_BYTES, latency_us: 0, iops: 0 };
    let namespace = NamespaceConfig::new(source, 512);
    let config = TargetConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        namespaces: vec![namespace],
        ..TargetConfig::default()
    };
    let server = Server::start(&config).expect("the target starts");
    let url: TargetUrl =
        format!("nvme-tcp://{}/{}?ns=1", server.address(), config.nqn).parse().expect("a URL");
    // Fewer slots than threads, so that some threads wait for room.
    let options = Options { queue_depth: 8, ..Options::default() };
    (server, Controller::connect(&url, options).expect("connected"))
}

impl World {
    fn new() -> World {
        let (server, mut controller) = target();
        let mut lane = controller.open_lane().expect("a lane");
        let extent = Extent::full(2).expect("two levels");
        let mut write = |offset, bytes: &[u8]| {
            let mut whole = bytes.to_vec();
            whole.resize(bytes.len().next_multiple_of(512), 0);
            lane.write(1, offset, &whole).map_err(std::io::Error::other)
        };
        write_database(&extent, &mut write, &mut |_, _| ControlFlow::Continue(()))
            .expect("written");
        for block in [3, 9, 17, 40] {
            let noise: Vec<u8> = (0..512_u32).map(|at| (at * block * 37) as u8).collect();
            lane.write(1, u64::from(block) * 512, &noise).expect("written");
        }
        let shared = controller.open_lane().expect("a lane");
        let shared = SharedLane::new(shared, Caravan::default()).expect("shared");
        let gathered = controller.open_lane().expect("a lane");
        let patient = Caravan { max_requests: 6, max_delay_us: 20_000, ..Caravan::default() };
        let gathered = SharedLane::new(gathered, patient).expect("shared");
        let objects = [bpfkv::GET_OBJECT, bpfkv::RANGE_OBJECT];
        let functions = objects.map(|object| controller.load_function(object, 0).expect("loaded"));
        let limits = controller.pushdown_limits().expect("limits");
        let (_controller, _server) = (controller, server);
        World { lane, shared, gathered, limits, functions, _controller, _server }
    }

    fn singly(&mut self, call: &PushdownMany<'_>) -> Vec<End> {
        let mut answer = Vec::new();
        let run = |chain| end(self.lane.pushdown(&single(call, chain), &mut answer), &answer);
        call.chains.iter().map(run).collect()
    }

    /// Runs the calls by threads that each send some of the chains of one call, one by one, on a lane that gathers
    /// them.
    fn gathered(&mut self, calls: &[PushdownMany<'_>; 2]) -> [Vec<End>; 2] {
        self.gathered.gather(calls[0].limits);
        let lane = &self.gathered;
        let part = |call: &PushdownMany<'_>, chains: &[VectorChain<'_>]| -> Vec<End> {
            let mut answer = Vec::new();
            let run = |chain| end(lane.pushdown(&single(call, chain), &mut answer), &answer);
            chains.iter().map(run).collect()
        };
        let part = &part;
        std::thread::scope(|scope| {
            // Reads take slots as well, several at a time.
            for thread in 0..2 {
                scope.spawn(move || {
                    let mut block = Vec::new();
                    for round in 0..100 {
                        let offset = (thread * 100 + round) * 512;
                        lane.read(1, offset, 512, &mut block).expect("read");
                    }
                });
            }
            let started = calls.each_ref().map(|call| {
                let chains = call.chains.chunks(call.chains.len().div_ceil(THREADS));
                let start = |chains| scope.spawn(move || part(call, chains));
                chains.map(start).collect::<Vec<_>>()
            });
            started.map(|threads| {
                threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
            })
        })
    }

    fn together(&mut self, call: &PushdownMany<'_>, shared: bool) -> Vec<End> {
        let mut ends = vec![None; call.chains.len()];
        let mut on_end = |index: usize, end: ManyEnd<'_>| {
            let before =
                ends[index].replace(end.map(|(answer, info)| (answer.to_vec(), info.hops)));
            assert!(before.is_none(), "chain {index} ended twice");
        };
        match shared {
            true => self.shared.pushdown_many(call, Urgency::Normal, &mut on_end),
            false => self.lane.pushdown_many(call, &mut on_end),
        }
        .expect("connected");
        ends.into_iter().map(|end| end.expect("it has ended")).collect()
    }
}

/// The call of one of many chains.
const fn single<'a>(call: &PushdownMany<'a>, chain: &VectorChain<'a>) -> PushdownCall<'a> {
    PushdownCall {
        nsid: call.nsid,
        function: call.function,
        files: call.files,
        first_file: chain.first.file,
        first_offset_bytes: chain.first.offset_bytes,
        first_size_bytes: chain.first.size_bytes,
        scratch: chain.argument,
        scratch_size_bytes: call.scratch_size_bytes,
        answer_max_bytes: call.answer_max_bytes,
    }
}

/// The end of a chain that was sent alone, with this answer.
fn end(end: Result<ChainInfo, Error>, answer: &[u8]) -> End {
    match end {
        Ok(info) => Ok((answer.to_vec(), info.hops)),
        Err(Error::Command { source, .. }) => Err(source),
        Err(error) => panic!("{error}"),
    }
}

/// The parameters of generated chains.
#[derive(Clone, Debug)]
struct Asked {
    is_range: bool,
    /// Key, number of keys, and first read of each chain.
    chains: Vec<(u64, u64, FirstRead)>,
    file: FileVersion,
    answer_max_bytes: u32,
    scratch_size_bytes: u32,
    vector_chains: u32,
    vector_bytes: u32,
}

fn first_read() -> impl Strategy<Value = FirstRead> {
    let root = FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 };
    let other = (0..SIZE_BYTES + 4096, 1..2000_u32, 0..2_u16)
        .prop_map(|(offset_bytes, size_bytes, file)| FirstRead { file, offset_bytes, size_bytes });
    let node = (0..100_u64).prop_map(|block| FirstRead {
        file: 0,
        offset_bytes: block * 512,
        size_bytes: 512,
    });
    prop_oneof![8 => Just(root), 1 => other, 2 => node]
}

fn asked() -> impl Strategy<Value = Asked> {
    let chain = (0..KEYS + 50, 0..200_u64, first_read());
    let root = FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 };
    let alike = (0..KEYS + 50, 0..200_u64, Just(root));
    let chains = prop_oneof![vec(alike, 1..600), vec(chain, 1..600)];
    let file = prop_oneof![
        9 => Just(FileVersion { id: 0, version: 1 }),
        1 => Just(FileVersion { id: 7, version: 1 }),
        1 => Just(FileVersion { id: 0, version: 2 }),
    ];
    let answer_max = proptest::sample::select(vec![8, 72, 200, 4096, 16_384]);
    let scratch = proptest::sample::select(vec![0, 160, 4096, 16_384]);
    let most = proptest::sample::select(vec![0, 1, 2, 100, 256]);
    let bytes = proptest::sample::select(vec![100, 5000, 1 << 30]);
    (any::<bool>(), chains, file, answer_max, scratch, most, bytes).prop_map(
        |(
            is_range,
            chains,
            file,
            answer_max_bytes,
            scratch_size_bytes,
            vector_chains,
            vector_bytes,
        )| {
            Asked {
                is_range,
                chains,
                file,
                answer_max_bytes,
                scratch_size_bytes,
                vector_chains,
                vector_bytes,
            }
        },
    )
}

impl Asked {
    /// The argument of a lookup, 8 bytes and for some keys more, or of a range, 24 bytes.
    fn argument(&self, key: u64, keys: u64) -> Vec<u8> {
        let mut argument = key.to_le_bytes().to_vec();
        if self.is_range {
            argument.extend((key + keys).to_le_bytes());
            argument.extend(2_u32.to_le_bytes());
            argument.extend(16_u32.to_le_bytes());
        } else if keys == 0 {
            argument.extend([0; 4]);
        }
        argument
    }

    fn check(&self, world: &mut World, tally: &mut [usize; 2]) -> Result<(), TestCaseError> {
        let arguments: Vec<_> =
            self.chains.iter().map(|(key, keys, _)| self.argument(*key, *keys)).collect();
        let chains: Vec<_> = self
            .chains
            .iter()
            .zip(&arguments)
            .map(|((.., first), argument)| VectorChain { first: *first, argument })
            .collect();
        let believed = PushdownLimits {
            vector_chains: self.vector_chains,
            vector_bytes: self.vector_bytes.min(world.limits.vector_bytes),
            ..world.limits
        };
        let call = PushdownMany {
            nsid: 1,
            function: world.functions[usize::from(self.is_range)].0,
            files: &[self.file],
            chains: &chains,
            scratch_size_bytes: self.scratch_size_bytes,
            answer_max_bytes: self.answer_max_bytes,
            limits: &believed,
        };
        let singly = world.singly(&call);
        // At the same time, chains of another function with other limits.
        let other = PushdownMany {
            function: world.functions[usize::from(!self.is_range)].0,
            answer_max_bytes: 72,
            files: &[FileVersion { id: 0, version: 1 }],
            ..call
        };
        let other_singly = world.singly(&other);
        let [gathered, other_gathered] = world.gathered(&[call, other]);
        prop_assert_eq!(other_gathered, other_singly);
        let ways = [world.together(&call, false), world.together(&call, true), gathered];
        for together in ways {
            let different = singly.iter().zip(&together).position(|(one, other)| one != other);
            if let Some(at) = different {
                let text = format!("chain {at}: {:?} is not {:?}", together[at], singly[at]);
                return Err(TestCaseError::fail(text));
            }
        }
        tally[0] += singly.iter().filter(|end| end.is_ok()).count();
        tally[1] += singly.iter().filter(|end| end.is_err()).count();
        Ok(())
    }
}

#[test]
fn chains_sent_together_end_as_if_sent_one_by_one() {
    let state = RefCell::new((World::new(), [0; 2]));
    let config = Config { cases: 24, max_shrink_time: 30_000, ..Config::with_source_file(file!()) };
    let outcome = TestRunner::new(config).run(&asked(), |asked| {
        let (world, tally) = &mut *state.borrow_mut();
        asked.check(world, tally)
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    let (world, [good, failed]) = state.into_inner();
    let counters = world.gathered.counters();
    assert!(counters.vectors > 100, "little was gathered: {counters:?}");
    assert!(good > 1000 && failed > 1000, "too little to compare: {good} good, {failed} failed");
}

#[test]
fn a_cut_connection_ends_the_call() {
    let world = World::new();
    let World { mut lane, shared, mut gathered, limits, functions, _controller, _server } = world;
    let first = FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 };
    let chains = vec![VectorChain { first, argument: &[0; 8] }; 2000];
    let call = PushdownMany {
        nsid: 1,
        function: functions[0].0,
        files: &[FileVersion { id: 0, version: 1 }],
        chains: &chains,
        scratch_size_bytes: 0,
        answer_max_bytes: 72,
        limits: &limits,
    };
    // The connection ends while chains are in flight and others have not left yet.
    gathered.gather(&limits);
    let sends = || {
        let mut answer = Vec::new();
        loop {
            match gathered.pushdown(&single(&call, &chains[0]), &mut answer) {
                Ok(_) => {}
                Err(Error::Lost(_) | Error::Submit(SubmitError::NotConnected)) => break,
                Err(error) => panic!("{error}"),
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| scope.spawn(sends));
        while gathered.counters().vectors < 10 {
            std::thread::yield_now();
        }
        drop(_server);
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
    let mut answers = 0;
    assert!(lane.pushdown_many(&call, &mut |_, _| answers += 1).is_err());
    let urgency = Urgency::Normal;
    assert!(shared.pushdown_many(&call, urgency, &mut |_, _| answers += 1).is_err());
    assert!(answers < 2 * chains.len());
    // Later calls fail at once.
    assert!(lane.pushdown_many(&call, &mut |_, _| ()).is_err());
    let none = PushdownMany { chains: &[], ..call };
    assert!(shared.pushdown_many(&none, urgency, &mut |_, _| ()).is_ok());
}
