//! Pushdown Vector: its chains end as they would alone, each once, whatever happens in the meantime.

use super::peer::{Peer, Said, pushdown};
use crate::rig::{FOLLOW, Rig, follow};
use bpfof_chain::{Extent, FileMap, Limits};
use bpfof_nvme::vendor_specific::{
    FileVersion, FirstRead, FirstReads, PushdownParts, PushdownVectorParts, VectorAnswer,
    VectorArguments, VectorRecord,
};
use bpfof_nvme::{Cqe, Sgl, Sqe, Status, opcode};
use proptest::collection::vec;
use proptest::prelude::*;

/// A file that consists of the namespace's first blocks.
const FILE: u32 = 5;
const BLOCKS: u64 = 12;
/// Maximum hops of a chain.
const HOPS: u32 = 40;

/// One chain of a vector.
#[derive(Clone, Debug)]
struct Entry {
    /// Block of the first read; the last block is outside the file.
    block: u64,
    argument: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Call {
    function: u32,
    file: u32,
    version: u64,
    entries: Vec<Entry>,
    answer_max_bytes: u32,
    /// Room for answers besides the records, in bytes.
    room: u32,
}

impl Call {
    /// The command and its request.
    fn command(&self) -> (Sqe, Vec<u8>) {
        let reads: Vec<FirstRead> = self.entries.iter().map(|entry| entry.first()).collect();
        let sizes: Vec<u16> = self.entries.iter().map(|of| of.argument.len() as u16).collect();
        let bytes: Vec<u8> = self.entries.iter().flat_map(|of| of.argument.clone()).collect();
        let mut data = Vec::new();
        let parts = PushdownVectorParts {
            function: self.function,
            files: &self.files(),
            first: FirstReads::Each(&reads),
            arguments: VectorArguments::Sized { sizes: &sizes, bytes: &bytes },
            scratch_size_bytes: 0,
            answer_max_bytes: self.answer_max_bytes,
            room_bytes: self.room_bytes(),
        };
        parts.encode_into(&mut data);
        let sqe = Sqe::new(opcode::nvm::PUSHDOWN_VECTOR, 1);
        (Sqe { sgl: Sgl::in_capsule(data.len() as u32), ..sqe }, data)
    }

    fn files(&self) -> [FileVersion; 1] {
        [FileVersion { id: self.file, version: self.version }]
    }

    fn room_bytes(&self) -> u32 {
        self.entries.len() as u32 * 16 + self.room
    }

    /// One of its chains as a single command.
    fn single(&self, entry: &Entry) -> (Sqe, Vec<u8>) {
        let FirstRead { file, offset_bytes, size_bytes } = entry.first();
        pushdown(&PushdownParts {
            function: self.function,
            files: &self.files(),
            first_file: file,
            first_offset_bytes: offset_bytes,
            first_size_bytes: size_bytes,
            scratch: &entry.argument,
            answer_max_bytes: self.answer_max_bytes,
            scratch_size_bytes: 0,
        })
    }
}

impl Entry {
    fn first(&self) -> FirstRead {
        FirstRead { file: 0, offset_bytes: self.block * 512, size_bytes: 512 }
    }
}

/// How a chain ended: status, DW0, DW1, answer.
type End = (Status, u32, u32, Vec<u8>);

/// A target with blocks that form lists of up to seven, one block that points to itself, and one that points nowhere.
struct Stage {
    rig: Rig,
    admin: Peer,
    io: Peer,
}

impl Stage {
    fn new(chains: usize) -> Stage {
        let limits = Limits { hops: HOPS, chains, ..Limits::default() };
        let mut rig = Rig::new(limits);
        let admin = Peer::connect(&mut rig, 0, 31);
        let io = Peer::connect(&mut rig, 1, 127);
        for block in 0..7u64 {
            rig.store(0, block * 512, &((block + 1) * 512).to_le_bytes());
        }
        rig.store(0, 8 * 512, &(8u64 * 512).to_le_bytes());
        rig.store(0, 9 * 512, &(u64::MAX - 8).to_le_bytes());
        let stage = Stage { rig, admin, io };
        stage.update(|tables| tables.with_function(follow()));
        stage.set_map(1);
        stage
    }

    fn update(&self, change: impl FnOnce(&bpfof_chain::Tables) -> bpfof_chain::Tables) {
        let controller = self.rig.connection(self.admin.line).controller().cloned();
        controller.expect("connected").update(change);
    }

    fn set_map(&self, version: u64) {
        let length = (BLOCKS - 1) * 512;
        let extent = Extent { file_offset: 0, device_offset: 0, length };
        let map = FileMap::new(1, version, length, vec![extent], 1 << 20, 512).expect("valid");
        self.update(|tables| tables.with_map(FILE, map));
    }

    /// Runs a single chain; returns how it ended.
    fn alone(&mut self, (sqe, data): (Sqe, Vec<u8>)) -> End {
        let cid = self.io.send(&mut self.rig, sqe, &data);
        self.rig.work();
        let (cqe, answer) = ends(self.io.hear(&mut self.rig)).pop().expect("an answer");
        assert_eq!(cqe.cid, cid);
        (cqe.status, cqe.dw0, cqe.dw1, answer)
    }
}

/// The completions, each with the data before it.
fn ends(said: Vec<Said>) -> Vec<(Cqe, Vec<u8>)> {
    let (mut ends, mut data) = (Vec::new(), Vec::new());
    for one in said {
        match one {
            Said::Data(bytes, false) => data = bytes,
            Said::Response(cqe) => ends.push((cqe, std::mem::take(&mut data))),
            other => panic!("{other:?}"),
        }
    }
    ends
}

/// How the chains of a call ended; checks the form of the answer.
fn chains(call: &Call, (cqe, data): &(Cqe, Vec<u8>)) -> Vec<End> {
    assert_eq!((cqe.status, cqe.dw1 as usize), (Status::SUCCESS, data.len()));
    assert!(data.len() <= call.room_bytes() as usize);
    let answer = VectorAnswer::parse(data, call.entries.len() as u16).expect("well-formed");
    let ends: Vec<End> = answer
        .chains()
        .map(|(VectorRecord { status, dw0, dw1, .. }, bytes)| (status, dw0, dw1, bytes.to_vec()))
        .collect();
    let failed = ends.iter().filter(|(status, ..)| !status.is_success()).count();
    assert_eq!(cqe.dw0 as usize, failed);
    // No padding.
    let bytes: usize = ends.iter().map(|(.., bytes)| bytes.len()).sum();
    assert_eq!(data.len(), ends.len() * 16 + bytes);
    ends
}

/// Whether a chain of a vector ended as it did alone, or had no room for its answer.
fn is_as_alone(found: &End, alone: &End, left: usize) -> bool {
    let is_full = found.0 == Status::VECTOR_FULL
        && alone.0.is_success()
        && (found.1, found.2) == (alone.2, alone.1)
        && left < alone.3.len();
    found == alone || is_full
}

fn entry() -> impl Strategy<Value = Entry> {
    (0..=BLOCKS, vec(any::<u8>(), 0..20)).prop_map(|(block, argument)| Entry { block, argument })
}

fn call() -> impl Strategy<Value = Call> {
    (
        prop_oneof![6 => Just(FOLLOW), 1 => Just(99)],
        prop_oneof![Just(FILE), Just(0), Just(77)],
        prop_oneof![4 => Just(1), 1 => Just(2)],
        vec(entry(), 1..60),
        prop_oneof![4 => Just(64), 1 => 0..8u32],
        prop_oneof![2 => Just(4096), 1 => 0..200u32],
    )
        .prop_map(|(function, file, version, entries, answer_max_bytes, room)| Call {
            function,
            file,
            version,
            entries,
            answer_max_bytes,
            room,
        })
}

/// Events while vectors run.
#[derive(Clone, Debug)]
enum Event {
    Steps(usize),
    Send(usize),
    /// Sets another version of the file's map.
    Map(u64),
    Unload,
    /// Changes namespaces; namespace 1 stays.
    Namespace,
    Close,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..40usize).prop_map(Event::Steps),
        6 => (0..4usize).prop_map(Event::Send),
        2 => (1..3u64).prop_map(Event::Map),
        1 => Just(Event::Unload),
        1 => Just(Event::Namespace),
        1 => Just(Event::Close),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Also with a single arena.
    #[test]
    fn a_vector_ends_as_its_chains_do_alone(
        calls in vec(call(), 1..4),
        arenas in prop_oneof![Just(1usize), 1..6usize, Just(100usize)],
    ) {
        let mut stage = Stage::new(arenas);
        let cids: Vec<u16> = calls
            .iter()
            .map(|call| {
                let (sqe, data) = call.command();
                stage.io.send(&mut stage.rig, sqe, &data)
            })
            .collect();
        stage.rig.work();
        let answers = ends(stage.io.hear(&mut stage.rig));
        prop_assert_eq!(answers.len(), calls.len());
        for answer in &answers {
            let at = cids.iter().position(|cid| *cid == answer.0.cid).expect("asked for");
            let call = &calls[at];
            let left = call.room_bytes() as usize - answer.1.len();
            for (entry, found) in call.entries.iter().zip(chains(call, answer)) {
                let alone = stage.alone(call.single(entry));
                prop_assert!(is_as_alone(&found, &alone, left), "{:?} {:?}", found, alone);
            }
        }
        stage.rig.finish();
    }

    /// Each command is answered once or its connection is closed, and each of its chains has ended as it would with one
    /// of the tables that existed.
    #[test]
    fn nothing_is_lost_whatever_happens(
        calls in vec(call(), 4),
        events in vec(event(), 1..30),
        arenas in prop_oneof![1..4usize, Just(100usize)],
    ) {
        let mut stage = Stage::new(arenas);
        let mut asked = Vec::new();
        for event in events {
            match event {
                Event::Steps(count) => {
                    for _ in 0..count {
                        stage.rig.step();
                    }
                }
                Event::Send(at) => {
                    let (sqe, data) = calls[at].command();
                    asked.push((stage.io.send(&mut stage.rig, sqe, &data), at));
                }
                Event::Map(version) => stage.set_map(version),
                Event::Unload => stage.update(|tables| tables.without_function(FOLLOW)),
                Event::Namespace => stage.rig.replace_namespace(0),
                Event::Close => stage.rig.close(stage.io.line),
            }
        }
        let is_open = stage.rig.is_open(stage.io.line);
        stage.rig.work();
        let answers = ends(stage.io.hear(&mut stage.rig));
        if is_open {
            prop_assert_eq!(answers.len(), asked.len());
        }
        for answer in &answers {
            let at = asked.iter().position(|(cid, _)| *cid == answer.0.cid);
            let (_, at) = asked.remove(at.expect("asked for, and answered once"));
            for (status, ..) in chains(&calls[at], answer) {
                let known = [
                    Status::SUCCESS,
                    Status::UNKNOWN_FUNCTION,
                    Status::UNKNOWN_FILE,
                    Status::STALE_FILE_MAP,
                    Status::READ_OUTSIDE_FILE,
                    Status::HOP_BUDGET_EXHAUSTED,
                    Status::ANSWER_TOO_LONG,
                    Status::VECTOR_FULL,
                ];
                let is_cut = [Status::ABORTED_SQ_DELETION, Status::COMMAND_INTERRUPTED]
                    .iter()
                    .any(|cut| status.same_code(*cut))
                    && !is_open;
                prop_assert!(is_cut || known.iter().any(|one| one.same_code(status)), "{}", status);
            }
        }
        stage.rig.finish();
    }
}

fn endless(count: usize) -> Call {
    Call {
        function: FOLLOW,
        file: FILE,
        version: 1,
        entries: vec![Entry { block: 8, argument: Vec::new() }; count],
        answer_max_bytes: 64,
        room: 0,
    }
}

#[test]
fn a_map_that_changes_ends_the_chains_that_have_not_ended() {
    let mut stage = Stage::new(100);
    let mut call = endless(2);
    // One hop, and forty.
    call.entries[0].block = 7;
    call.room = 8;
    let (sqe, data) = call.command();
    stage.io.send(&mut stage.rig, sqe, &data);
    for _ in 0..8 {
        stage.rig.step();
    }
    stage.set_map(2);
    stage.rig.work();
    let answer = ends(stage.io.hear(&mut stage.rig)).pop().expect("an answer");
    let ends = chains(&call, &answer);
    assert_eq!((ends[0].0, ends[0].1), (Status::SUCCESS, 1));
    assert_eq!((ends[1].0, ends[1].1), (Status::STALE_FILE_MAP, 0));
    stage.rig.finish();
}

/// Chains of a vector give way like others: a connection without an arena gets one after a hop.
#[test]
fn a_vector_takes_no_more_than_its_share() {
    let mut stage = Stage::new(4);
    let mut other = Peer::connect(&mut stage.rig, 2, 31);
    let call = endless(64);
    let (sqe, data) = call.command();
    stage.io.send(&mut stage.rig, sqe, &data);
    for _ in 0..40 {
        stage.rig.step();
    }
    let short = Call { room: 8, ..endless(1) };
    let (sqe, data) = short.single(&Entry { block: 0, argument: Vec::new() });
    other.send(&mut stage.rig, sqe, &data);
    let mut steps = 0;
    let answer = loop {
        stage.rig.step();
        steps += 1;
        if let Some(answer) = ends(other.hear(&mut stage.rig)).pop() {
            break answer;
        }
        assert!(steps < 200, "it waits for the vector");
    };
    assert_eq!((answer.0.status, answer.0.dw0), (Status::SUCCESS, 8));
    assert!(ends(stage.io.hear(&mut stage.rig)).is_empty(), "the vector goes on");
    stage.rig.work();
    let answer = ends(stage.io.hear(&mut stage.rig)).pop().expect("an answer");
    let all = chains(&call, &answer);
    assert!(
        all.iter().all(|end| end.0 == Status::HOP_BUDGET_EXHAUSTED && end.2 == HOPS),
        "{all:?}"
    );
    stage.rig.finish();
}

/// Reads in many pieces take long to start, so other work is done in between.
#[test]
fn chains_over_a_fragmented_file_begin_few_at_a_time() {
    const FRAGMENTED: u32 = 6;
    const READ_BYTES: u32 = 64 << 10;
    let mut stage = Stage::new(100);
    let blocks = u64::from(READ_BYTES) / 512;
    let extents = (0..blocks).map(|block| Extent {
        file_offset: block * 512,
        device_offset: (2 * blocks - block) * 512,
        length: 512,
    });
    let length = u64::from(READ_BYTES);
    let map = FileMap::new(1, 1, length, extents.collect(), 1 << 20, 512).expect("valid");
    stage.update(|tables| tables.with_map(FRAGMENTED, map));
    let reads = vec![FirstRead { file: 0, offset_bytes: 0, size_bytes: READ_BYTES }; 30];
    let mut data = Vec::new();
    let parts = PushdownVectorParts {
        function: FOLLOW,
        files: &[FileVersion { id: FRAGMENTED, version: 1 }],
        first: FirstReads::Each(&reads),
        arguments: VectorArguments::Sized { sizes: &[0; 30], bytes: &[] },
        scratch_size_bytes: 0,
        answer_max_bytes: 64,
        room_bytes: 30 * VectorRecord::BYTES as u32 + 8 * 30,
    };
    parts.encode_into(&mut data);
    let sqe = Sqe::new(opcode::nvm::PUSHDOWN_VECTOR, 1);
    let sqe = Sqe { sgl: Sgl::in_capsule(data.len() as u32), ..sqe };
    stage.io.send(&mut stage.rig, sqe, &data);
    let running = stage.rig.connection(stage.io.line).vectors.running;
    assert!((1..12).contains(&running), "{running} have begun at once");
    stage.rig.work();
    let answer = ends(stage.io.hear(&mut stage.rig)).pop().expect("an answer");
    assert_eq!((answer.0.status, answer.0.dw0), (Status::SUCCESS, 0), "all have ended well");
    stage.rig.finish();
}

/// An arena that a connection is granted for a command goes to others if the command is refused, although a vector of
/// the connection waits for one.
#[test]
fn an_arena_is_not_kept_for_a_refused_command() {
    let mut stage = Stage::new(4);
    let others = (2..8).map(|qid| Peer::connect(&mut stage.rig, qid, 31));
    let mut peers: Vec<Peer> = others.collect();
    peers.push(stage.io);
    let vector = endless(100);
    let unknown = Call { function: 999, ..vector.clone() };
    for _ in 0..3 {
        for peer in &mut peers {
            for (sqe, data) in [vector.command(), unknown.single(&unknown.entries[0])] {
                peer.send(&mut stage.rig, sqe, &data);
            }
        }
    }
    stage.rig.work();
    for peer in &mut peers {
        let statuses: Vec<Status> =
            ends(peer.hear(&mut stage.rig)).iter().map(|(cqe, _)| cqe.status).collect();
        let refused = |status: &&Status| status.same_code(Status::UNKNOWN_FUNCTION);
        assert_eq!((statuses.len(), statuses.iter().filter(refused).count()), (6, 3));
    }
    stage.rig.finish();
}

/// Resting chains and chains that have not started end with their connection, as do running chains.
#[test]
fn a_vector_ends_with_its_connection() {
    let mut stage = Stage::new(2);
    let mut other = Peer::connect(&mut stage.rig, 2, 31);
    for peer in [&mut stage.io, &mut other] {
        for _ in 0..3 {
            let (sqe, data) = endless(200).command();
            peer.send(&mut stage.rig, sqe, &data);
        }
    }
    for _ in 0..50 {
        stage.rig.step();
    }
    stage.rig.close(stage.io.line);
    for _ in 0..50 {
        stage.rig.step();
    }
    stage.rig.finish();
}

/// A vector whose connection closes before all of its chains have started is not answered, and no time is spent on
/// records of these chains.
#[test]
fn a_vector_that_closes_is_not_answered() {
    let mut stage = Stage::new(2);
    let (sqe, data) = endless(200).command();
    stage.io.send(&mut stage.rig, sqe, &data);
    stage.rig.step();
    assert!(stage.rig.connection(stage.io.line).vectors.running > 0);
    stage.rig.close(stage.io.line);
    stage.rig.work();
    assert!(stage.io.hear(&mut stage.rig).is_empty());
    stage.rig.finish();
}

/// A connection at its limit of held data continues with its vectors, however many of their chains fail without a hop.
#[test]
fn full_connections_go_on() {
    let mut stage = Stage::new(1);
    let call = Call { room: 108 << 10, ..endless(240) };
    let (sqe, data) = call.command();
    let count = 45;
    for _ in 0..count {
        stage.io.send(&mut stage.rig, sqe, &data);
    }
    for _ in 0..5 {
        stage.rig.step();
    }
    assert!(stage.rig.connection(stage.io.line).is_full());
    stage.set_map(2);
    stage.rig.work();
    let answers = ends(stage.io.hear(&mut stage.rig));
    assert_eq!(answers.len(), count);
    for answer in &answers {
        let ends = chains(&call, answer);
        assert!(ends.iter().all(|end| end.0 == Status::STALE_FILE_MAP), "{ends:?}");
    }
    stage.rig.finish();
}

/// A vector is charged to its host's memory, from before the command is taken until it ends.
#[test]
fn waiting_vectors_are_charged() {
    let mut stage = Stage::new(1);
    let memory = stage.rig.core.executor.registry.hosts.memory.clone();
    let used = memory.used_bytes();
    let call = Call { room: 100 << 10, ..endless(200) };
    let (sqe, data) = call.command();
    let count = 20;
    for _ in 0..count {
        stage.io.send(&mut stage.rig, sqe, &data);
    }
    assert!(
        memory.used_bytes() - used >= (count - 1) * (100 << 10),
        "{}",
        memory.used_bytes() - used
    );
    // While vectors wait, plain commands continue.
    let read = bpfof_nvme::Rw { slba: 0, blocks: 1, fua: false }.to_sqe(opcode::nvm::READ, 1);
    let read = Sqe { sgl: Sgl::transport(512), ..read };
    let cid = stage.io.send(&mut stage.rig, read, &[]);
    for _ in 0..200 {
        stage.rig.step();
    }
    let answers = ends(stage.io.hear(&mut stage.rig));
    assert!(answers.iter().any(|(cqe, _)| cqe.cid == cid), "{}", answers.len());
    stage.rig.finish();
}
