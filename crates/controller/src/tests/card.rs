//! A queue over RDMA, where the test plays the network card and the host: reads from the host complete late, after
//! answers that were posted behind them; works complete late, or without having been done; the connection is lost;
//! hosts send invalid messages.

use crate::rig::{FOLLOW, Rig, connect_command, enable_command, follow};
use bpfof_chain::Limits;
use bpfof_device::fabric::{Event, Work};
use bpfof_device::rdma::Shape;
use bpfof_nvme::vendor_specific::{FileVersion, PushdownParts};
use bpfof_nvme::{Cqe, Rw, Sgl, Sqe, opcode};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

const SHAPE: Shape =
    Shape { receives: ENTRIES, receive_bytes: 4160, work_bytes: 512 << 10, shared_bytes: 0 };
const ENTRIES: u16 = 16;
const BLOCK: usize = 512;
/// Address of the host's memory, and its key. Each command has its own room there.
const BASE: u64 = 0x7000_0000_0000;
const KEY: u32 = 0x0abc_def1;
const ROOM_BYTES: usize = 16 << 10;
/// Read-only blocks, with contents by block number; behind these each write has its own block.
const READ_BLOCKS: u64 = 512;
const WRITE_BLOCKS: u64 = 1400;
/// Fills the room of a command that has no data.
const NOTHING: u8 = 0xee;

/// The next action of a test.
#[derive(Clone, Debug)]
enum Step {
    Send(What, u64),
    /// The card performs this many of its pending sends and writes, also those behind reads.
    Do(usize),
    /// The first this many works complete.
    End(usize),
    /// Runs the target.
    Work,
    Hostile(Hostile),
    /// The connection is lost: closed by the host if true, otherwise by a failure.
    Lose(bool),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Read,
    WriteByKey,
    WriteInCapsule,
    Flush,
    ChainInResponse,
    ChainByKey,
    /// A read of blocks that do not exist.
    ReadNothing,
    /// A read without enough room.
    ReadLittle,
    /// A read with a descriptor of another transport.
    ReadByTcp,
}

#[derive(Clone, Debug)]
enum Hostile {
    Garbage(Vec<u8>),
    TooLong,
    /// A command with the identifier of one in flight.
    Twice,
    /// A write whose data is outside the host's memory.
    WrongKey,
    /// More commands than the queue has entries.
    Flood,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let what = prop_oneof![
        4 => Just(What::Read),
        4 => Just(What::WriteByKey),
        2 => Just(What::WriteInCapsule),
        1 => Just(What::Flush),
        3 => Just(What::ChainInResponse),
        2 => Just(What::ChainByKey),
        1 => Just(What::ReadNothing),
        1 => Just(What::ReadLittle),
        1 => Just(What::ReadByTcp),
    ];
    let hostile = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..100).prop_map(Hostile::Garbage),
        Just(Hostile::TooLong),
        Just(Hostile::Twice),
        Just(Hostile::WrongKey),
        Just(Hostile::Flood),
    ];
    let step = prop_oneof![
        30 => (what, any::<u64>()).prop_map(|(what, at)| Step::Send(what, at)),
        10 => (1usize..6).prop_map(Step::Do),
        10 => (1usize..6).prop_map(Step::End),
        20 => Just(Step::Work),
        1 => hostile.prop_map(Step::Hostile),
        1 => any::<bool>().prop_map(Step::Lose),
    ];
    prop::collection::vec(step, 1..150)
}

/// The contents of block `number`.
fn contents(number: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (number * 37 + at * 11 + at / 253) as u8).collect()
}

/// A command that has been sent and not answered.
#[derive(Clone, Debug)]
struct Open {
    what: What,
    number: u64,
    /// Bytes that it transfers, or bytes of its answer.
    bytes: usize,
    room: Range<usize>,
    /// Other unanswered commands with the same identifier.
    others: usize,
    /// Whether its answer cannot be told from others.
    is_muddled: bool,
}

/// A work that the card has not completed.
struct Held {
    work: Work,
    is_done: bool,
}

/// The host and the network card of one queue.
struct Card {
    line: usize,
    memory: Vec<u8>,
    open: BTreeMap<u16, Open>,
    held: VecDeque<Held>,
    next: u64,
    /// Successful writes, by block.
    written: BTreeMap<u64, usize>,
    /// Answers to commands that the test does not track.
    answers: Vec<Cqe>,
    is_hostile: bool,
    is_lost: bool,
}

impl Card {
    fn new(line: usize) -> Card {
        Card {
            line,
            memory: vec![NOTHING; usize::from(ENTRIES) * ROOM_BYTES],
            open: BTreeMap::new(),
            held: VecDeque::new(),
            next: 0,
            written: BTreeMap::new(),
            answers: Vec::new(),
            is_hostile: false,
            is_lost: false,
        }
    }

    /// Sends a message of the host.
    fn send(&mut self, rig: &mut Rig, sqe: &Sqe, data: &[u8]) {
        let message = [&sqe.to_bytes()[..], data].concat();
        self.say(rig, message);
    }

    fn say(&mut self, rig: &mut Rig, message: Vec<u8>) {
        if !self.is_lost && rig.is_open(self.line) {
            rig.happens(self.line, Event::Message(message));
        }
    }

    fn command(&mut self, rig: &mut Rig, what: What, at: u64) {
        if self.open.len() + 1 >= usize::from(ENTRIES) {
            return;
        }
        let number = self.next;
        self.next += 1;
        let cid = (number % (1 << 16)) as u16;
        let used =
            |room: &usize| self.open.values().any(|open| open.room.start == room * ROOM_BYTES);
        let room = (0..usize::from(ENTRIES)).find(|room| !used(room)).expect("there are enough");
        let room = room * ROOM_BYTES..(room + 1) * ROOM_BYTES;
        let blocks = 1 + at % (ROOM_BYTES / BLOCK) as u64;
        let (mut number, mut bytes) = (number, blocks as usize * BLOCK);
        let keyed = |bytes: usize| Sgl::keyed(BASE + room.start as u64, bytes as u32, KEY);
        let rw = |opcode, slba, bytes: usize, sgl| {
            let rw = Rw { slba, blocks: (bytes / BLOCK) as u32, fua: false };
            Sqe { sgl, cid, ..rw.to_sqe(opcode, 1) }
        };
        let (sqe, data) = match what {
            What::Read | What::ReadLittle | What::ReadByTcp => {
                number = at % (READ_BLOCKS - blocks);
                let sgl = match what {
                    What::ReadLittle => keyed(bytes - 1),
                    What::ReadByTcp => Sgl::transport(bytes as u32),
                    _ => keyed(bytes),
                };
                (rw(opcode::nvm::READ, number, bytes, sgl), Vec::new())
            }
            What::ReadNothing => {
                (rw(opcode::nvm::READ, u64::MAX - 9, bytes, keyed(bytes)), Vec::new())
            }
            What::WriteByKey | What::WriteInCapsule => {
                // A single block that no other write uses.
                number = READ_BLOCKS + number % WRITE_BLOCKS;
                bytes = BLOCK;
                let data = contents(number, bytes);
                if what == What::WriteByKey {
                    self.memory[room.start..][..bytes].copy_from_slice(&data);
                    (rw(opcode::nvm::WRITE, number, bytes, keyed(bytes)), Vec::new())
                } else {
                    let sgl = Sgl::in_capsule(bytes as u32);
                    (rw(opcode::nvm::WRITE, number, bytes, sgl), data)
                }
            }
            What::Flush => {
                let sgl = Sgl::keyed(0, 0, 0);
                (Sqe { sgl, cid, ..Sqe::new(opcode::nvm::FLUSH, 1) }, Vec::new())
            }
            What::ChainInResponse | What::ChainByKey => {
                bytes = 8;
                let (sqe, data) = chain(number);
                let sgl = if what == What::ChainByKey { keyed(100) } else { sqe.sgl };
                (Sqe { sgl, cid, ..sqe }, data)
            }
        };
        self.open.insert(cid, Open { what, number, bytes, room, others: 0, is_muddled: false });
        self.send(rig, &sqe, &data);
    }

    fn hostile(&mut self, rig: &mut Rig, hostile: Hostile) {
        self.is_hostile = true;
        match hostile {
            Hostile::Garbage(bytes) => self.say(rig, bytes),
            Hostile::TooLong => self.say(rig, vec![2; Sqe::BYTES + 4097]),
            Hostile::Twice => {
                let Some((&cid, open)) = self.open.iter_mut().next() else { return };
                open.others += 1;
                open.is_muddled = true;
                let sqe = Sqe { cid, sgl: Sgl::keyed(0, 0, 0), ..Sqe::new(opcode::nvm::FLUSH, 1) };
                self.send(rig, &sqe, &[]);
            }
            Hostile::WrongKey => {
                let rw = Rw { slba: 1000, blocks: 1, fua: false }.to_sqe(opcode::nvm::WRITE, 1);
                let sgl = Sgl::keyed(BASE, BLOCK as u32, KEY ^ 1);
                self.send(rig, &Sqe { cid: 0xfff0, sgl, ..rw }, &[]);
            }
            Hostile::Flood => {
                for cid in 0..2 * ENTRIES {
                    let flush = Sqe::new(opcode::nvm::FLUSH, 1);
                    let sgl = Sgl::keyed(0, 0, 0);
                    self.send(rig, &Sqe { cid: 0xff00 + cid, sgl, ..flush }, &[]);
                }
            }
        }
    }

    /// Takes the works that the target has posted.
    fn take_posted(&mut self, rig: &mut Rig) {
        let posted = rig.posted(self.line).into_iter().flat_map(std::mem::take);
        self.held.extend(posted.map(|work| Held { work, is_done: false }));
    }

    /// The range of the host's memory that a work refers to; `None` if it is outside.
    fn place(&self, key: u32, address: u64, length: usize) -> Option<Range<usize>> {
        let start = usize::try_from(address.checked_sub(BASE)?).ok()?;
        let place = start..start.checked_add(length)?;
        (key == KEY && place.end <= self.memory.len()).then_some(place)
    }

    /// Performs a work; false if it fails.
    fn perform(&mut self, index: usize) -> bool {
        if std::mem::replace(&mut self.held[index].is_done, true) {
            return true;
        }
        let is_of = |open: &Open, place: &Range<usize>, whats: &[What]| {
            whats.contains(&open.what)
                && open.room.start <= place.start
                && place.end <= open.room.end
        };
        match &mut self.held[index].work {
            Work::Send(message) => {
                let message = std::mem::take(message);
                self.answered(&message);
                // Its length is needed when it completes.
                self.held[index].work = Work::Send(message);
            }
            Work::Write { key, address, bytes } => {
                let (key, address, bytes) = (*key, *address, std::mem::take(bytes));
                let place = self.place(key, address, bytes.len()).expect("only what hosts name");
                let readers = [What::Read, What::ChainByKey];
                let mut all = self.open.values();
                assert!(all.any(|open| is_of(open, &place, &readers)), "nobody reads there");
                self.memory[place].copy_from_slice(&bytes);
                self.held[index].work = Work::Write { key, address, bytes };
            }
            Work::Read { key, address, buffer, .. } => {
                let (key, address, length) = (*key, *address, buffer.len());
                let Some(place) = self.place(key, address, length) else {
                    assert!(self.is_hostile, "a range that no host has named");
                    return false;
                };
                let mut all = self.open.values();
                assert!(
                    all.any(|open| is_of(open, &place, &[What::WriteByKey])),
                    "nobody writes there"
                );
                let bytes = self.memory[place].to_vec();
                let Work::Read { buffer, .. } = &mut self.held[index].work else { return false };
                buffer.copy_from_slice(&bytes);
            }
        }
        true
    }

    /// Performs this many sends and writes in order, skipping reads.
    fn perform_some(&mut self, count: usize) {
        let is_due = |held: &Held| !held.is_done && !matches!(held.work, Work::Read { .. });
        let due: Vec<usize> = (0..self.held.len()).filter(|at| is_due(&self.held[*at])).collect();
        for index in due.into_iter().take(count) {
            assert!(self.perform(index), "only reads fail");
        }
    }

    /// Completes this many works. A failed one ends the connection.
    fn end_some(&mut self, rig: &mut Rig, count: usize) {
        for _ in 0..count.min(self.held.len()) {
            if !self.perform(0) {
                return self.lose(rig, false);
            }
            let Some(Held { work, .. }) = self.held.pop_front() else { return };
            let event = match work {
                Work::Read { id, buffer, .. } => Event::Read { id, buffer },
                work => Event::Done { bytes: work.bytes() },
            };
            rig.happens(self.line, event);
            self.take_posted(rig);
        }
    }

    /// Ends the connection: all works complete without having been done.
    fn lose(&mut self, rig: &mut Rig, by_peer: bool) {
        if !std::mem::replace(&mut self.is_lost, true) && rig.is_open(self.line) {
            let reason = "lost".to_owned();
            rig.happens(self.line, Event::Closed { reason, by_peer });
        }
        self.flush(rig);
    }

    fn flush(&mut self, rig: &mut Rig) {
        self.take_posted(rig);
        while let Some(Held { work, .. }) = self.held.pop_front() {
            rig.happens(self.line, Event::Done { bytes: work.bytes() });
            self.take_posted(rig);
        }
    }

    /// Checks a response.
    fn answered(&mut self, message: &[u8]) {
        let (cqe, answer) = message.split_first_chunk().expect("a completion");
        let cqe = Cqe::from_bytes(cqe);
        let Some(open) = self.open.remove(&cqe.cid) else {
            assert!(self.is_hostile, "an answer to nothing: {cqe:?}");
            return self.answers.push(cqe);
        };
        if open.others > 0 {
            self.open.insert(cqe.cid, Open { others: open.others - 1, ..open });
            return;
        }
        let Open { what, number, bytes, room, is_muddled, .. } = open;
        if is_muddled {
            return self.memory[room].fill(NOTHING);
        }
        let place = room.start..room.start + bytes;
        let is_bad = matches!(what, What::ReadNothing | What::ReadLittle | What::ReadByTcp);
        // Commands in flight when a host breaks the rules are aborted.
        let may_fail = is_bad || self.is_hostile;
        let is_right = if cqe.status.is_success() { !is_bad } else { may_fail };
        assert!(is_right, "{what:?}: {cqe:?}");
        if cqe.status.is_success() {
            match what {
                What::Read => assert_eq!(self.memory[place], read_contents(number, bytes)),
                What::ChainByKey => assert_eq!(self.memory[place], number.to_le_bytes()),
                What::ChainInResponse => assert_eq!(answer, number.to_le_bytes()),
                What::WriteByKey | What::WriteInCapsule => {
                    self.written.insert(number, bytes);
                }
                _ => {}
            }
        }
        if what != What::ChainInResponse {
            assert!(answer.is_empty(), "{what:?}: nothing was asked for there");
        }
        let keeps = matches!(what, What::Read | What::ChainByKey) && cqe.status.is_success();
        let untouched = if keeps { bytes } else { 0 };
        if what != What::WriteByKey {
            let rest = &self.memory[room.start + untouched..room.end];
            assert!(rest.iter().all(|byte| *byte == NOTHING), "{what:?}: more than was asked for");
        }
        self.memory[room].fill(NOTHING);
    }

    /// Completes all works, and those posted after them, until none is left.
    fn settle(&mut self, rig: &mut Rig) {
        loop {
            rig.work();
            self.take_posted(rig);
            if self.held.is_empty() {
                return;
            }
            match self.is_lost || rig.is_cut(self.line) {
                true => self.flush(rig),
                false => self.end_some(rig, usize::MAX),
            }
        }
    }

    /// Runs a command that must succeed, on a queue without others.
    fn call(&mut self, rig: &mut Rig, sqe: Sqe, data: &[u8]) -> Cqe {
        self.is_hostile = true;
        self.send(rig, &Sqe { cid: 0xfffe, ..sqe }, data);
        self.settle(rig);
        self.is_hostile = false;
        let cqe = self.answers.pop().expect("an answer");
        assert!(cqe.status.is_success(), "{sqe:?}: {cqe:?}");
        cqe
    }
}

/// The contents of these read-only blocks.
fn read_contents(first: u64, bytes: usize) -> Vec<u8> {
    (first..).flat_map(|block| contents(block, BLOCK)).take(bytes).collect()
}

/// A chain over two blocks, whose answer contains this number.
fn chain(number: u64) -> (Sqe, Vec<u8>) {
    super::peer::pushdown(&PushdownParts {
        function: FOLLOW,
        files: &[FileVersion { id: 0, version: 1 }],
        first_file: 0,
        first_offset_bytes: 2000 * BLOCK as u64,
        first_size_bytes: BLOCK as u32,
        scratch: &number.to_le_bytes(),
        answer_max_bytes: 100,
        scratch_size_bytes: 100,
    })
}

/// A target with a controller whose admin queue and first I/O queue are RDMA queues.
fn connected() -> (Rig, Card, Card) {
    let mut rig = Rig::new(Limits::default());
    for block in 0..READ_BLOCKS {
        rig.store(0, block * BLOCK as u64, &contents(block, BLOCK));
    }
    rig.store(0, 2000 * BLOCK as u64, &(2010 * BLOCK as u64).to_le_bytes());
    let mut admin = Card::new(rig.open_by_card(&SHAPE, 0));
    let (sqe, data) = connect_command(0, 15, 0);
    // The Connect data of an admin queue is in the host's memory.
    admin.memory[..data.len()].copy_from_slice(&data);
    let (what, room) = (What::WriteByKey, 0..ROOM_BYTES);
    admin.open.insert(0, Open { what, number: 0, bytes: 0, room, others: 0, is_muddled: false });
    admin.send(&mut rig, &Sqe { sgl: Sgl::keyed(BASE, data.len() as u32, KEY), ..sqe }, &[]);
    admin.settle(&mut rig);
    assert!(admin.open.is_empty() && rig.is_open(admin.line), "it is connected");
    let sgl = Sgl::keyed(0, 0, 0);
    admin.call(&mut rig, Sqe { sgl, ..enable_command() }, &[]);
    let mut io = Card::new(rig.open_by_card(&SHAPE, 1));
    let (sqe, data) = connect_command(1, ENTRIES - 1, 0);
    let sqe = Sqe { sgl: Sgl::in_capsule(data.len() as u32), ..sqe };
    io.call(&mut rig, sqe, &data);
    let association = rig.connection(io.line).phase.association().expect("it is connected");
    association.controller.update(|tables| tables.with_function(follow()));
    (rig, admin, io)
}

proptest! {
    /// Each command is answered once, with its own data, and its writes are stored; no memory of the host is accessed
    /// outside the rooms of commands; at the end nothing is left.
    #[test]
    fn whatever_a_card_does(steps in steps()) {
        let (mut rig, mut admin, mut io) = connected();
        for step in steps {
            match step {
                Step::Send(what, at) => io.command(&mut rig, what, at),
                Step::Do(count) => io.perform_some(count),
                Step::End(count) => io.end_some(&mut rig, count),
                Step::Work => rig.work(),
                Step::Hostile(hostile) => io.hostile(&mut rig, hostile),
                Step::Lose(by_peer) => io.lose(&mut rig, by_peer),
            }
            io.take_posted(&mut rig);
            if io.is_lost {
                io.flush(&mut rig);
            }
        }
        io.settle(&mut rig);
        if !io.is_hostile && !io.is_lost {
            prop_assert!(io.open.is_empty(), "not answered: {:?}", io.open);
            prop_assert!(rig.is_open(io.line), "the host has done nothing wrong");
        }
        let namespace = rig.core.executor.namespace(0).backend.memory().expect("it is memory");
        for (&block, &bytes) in &io.written {
            let mut found = vec![0; bytes];
            namespace.read(block * BLOCK as u64, &mut found);
            prop_assert_eq!(found, contents(block, bytes));
        }
        for card in [&mut io, &mut admin] {
            rig.close(card.line);
            card.settle(&mut rig);
        }
        rig.finish();
    }
}

/// Works that the card never completes are given up when the connection has been closing for too long.
#[test]
fn a_card_that_ends_nothing() {
    let (mut rig, mut admin, mut io) = connected();
    for at in 0..6 {
        io.command(&mut rig, What::Read, at);
        io.command(&mut rig, What::WriteByKey, at);
    }
    rig.work();
    io.take_posted(&mut rig);
    assert!(io.held.len() > 12);
    rig.close(io.line);
    rig.work();
    assert!(rig.entry(io.line).is_some() && !rig.is_cut(io.line));
    for _ in 0..8 {
        rig.core.io.now_ns += 1_000_000_000;
        rig.core.io.now_ns = rig.core.io.now_ns.max(rig.core.next_ns());
        rig.close(admin.line);
        rig.work();
    }
    assert!(rig.is_cut(io.line), "it has had its time");
    io.settle(&mut rig);
    admin.settle(&mut rig);
    rig.finish();
}
