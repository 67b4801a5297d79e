//! Queues that end before their commands, and commands of queues that have ended.

use super::peer::{Peer, Said, pushdown};
use super::simulation::chains;
use crate::connection::Connection;
use crate::limits::{GIVEN_UP_AT_ONCE, SLOW_THREADS};
use crate::operation::{CommandId, FileOperation};
use crate::queue::State;
use crate::reactor::{closing, completions, turn};
use crate::rig::{Rig, connect_command, enable_command};
use bpfof_chain::Limits;
use bpfof_nvme::fabrics::{ControllerConfig, FabricsCommand, Shutdown, offset};
use bpfof_nvme::vendor_specific::{FileVersion, PushdownParts};
use bpfof_nvme::{DataPointer, Rw, Sgl, Sqe, Status, opcode};
use std::sync::atomic::Ordering;

fn disable_command() -> Sqe {
    configure_command(ControllerConfig { enable: false, ..ControllerConfig::ENABLED })
}

fn configure_command(config: ControllerConfig) -> Sqe {
    let value = u32::from(config).into();
    FabricsCommand::PropertySet { offset: offset::CC, size8: false, value }.to_sqe()
}

/// A reactor learns of a reset after another reactor has already answered it. By then the host may
/// have opened new queues, which stay open.
#[test]
fn a_reset_ends_the_queues_that_were_there() {
    let mut rig = Rig::new(Limits::default());
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let old = Peer::connect(&mut rig, 1, 31);
    rig.core.io.holds_messages = true;
    for command in [disable_command(), enable_command()] {
        assert_eq!(admin.call(&mut rig, command, &[]).status, Status::SUCCESS);
    }
    let new = Peer::connect(&mut rig, 2, 31);
    let controller = rig.connection(admin.line).controller().cloned().expect("connected");
    let ends = |rig: &Rig, peer: &Peer, and_admin| {
        rig.connection(peer.line).ends_with(&controller, and_admin)
    };
    assert_eq!([&admin, &old, &new].map(|peer| ends(&rig, peer, false)), [false, true, false]);
    assert_eq!([&admin, &old, &new].map(|peer| ends(&rig, peer, true)), [true, true, true]);
    assert_eq!(admin.call(&mut rig, disable_command(), &[]).status, Status::SUCCESS);
    assert_eq!([&admin, &old, &new].map(|peer| ends(&rig, peer, false)), [false, true, true]);
}

/// A controller that was shut down or disabled takes no I/O queue until it is enabled again. The check is part of the
/// registration: a reactor may register a queue while another one disables the controller.
#[test]
fn a_controller_that_was_shut_down_takes_no_queues() {
    let mut rig = Rig::new(Limits::default());
    let mut admin = Peer::connect(&mut rig, 0, 31);
    let controller = rig.connection(admin.line).controller().cloned().expect("connected");
    let shutdown = Shutdown::Normal;
    let shut_down = configure_command(ControllerConfig { shutdown, ..ControllerConfig::ENABLED });
    let (connect, data) = connect_command(1, 31, 0);
    for command in [shut_down, disable_command()] {
        assert_eq!(admin.call(&mut rig, command, &[]).status, Status::SUCCESS);
        assert_eq!((controller.place_of_queue(1), controller.add_queue(1)), (None, None));
        let mut io = Peer::hello(&mut rig);
        let refused = io.call(&mut rig, connect, &data).status;
        assert_eq!(refused, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    }
    assert_eq!(admin.call(&mut rig, enable_command(), &[]).status, Status::SUCCESS);
    Peer::connect(&mut rig, 1, 31);
}

/// A host that reads that its controller is disabled or shut down may write the same blocks by another path: no device
/// may have an older write any more.
#[test]
fn a_reset_and_a_shutdown_wait_for_writes_at_a_device() {
    let status = FabricsCommand::PropertyGet { offset: offset::CSTS, size8: false }.to_sqe();
    let shutdown = Shutdown::Normal;
    let shut_down = configure_command(ControllerConfig { shutdown, ..ControllerConfig::ENABLED });
    for (command, meanwhile, at_last) in [(disable_command(), 1, 0), (shut_down, 0b0101, 0b1001)] {
        for closes in [false, true] {
            let mut rig = Rig::new(Limits::default());
            let mut admin = Peer::connect(&mut rig, 0, 31);
            let io = Peer::connect(&mut rig, 1, 31);
            let connection = rig.index(io.line);
            // A device has it until `file_done`.
            let write = State::Write { namespace: 0, offset: 0, fua: false };
            let slot = rig.connection_mut(io.line).occupy((0, 0), DataPointer::None, write);
            if closes {
                rig.close(io.line);
            }
            assert_eq!(admin.call(&mut rig, command, &[]).status, Status::SUCCESS);
            assert_eq!(admin.call(&mut rig, status, &[]).dw0, meanwhile, "{closes}");
            completions::file_done(&mut rig.core, CommandId { connection, slot }, 0, None);
            rig.work();
            assert_eq!(admin.call(&mut rig, status, &[]).dw0, at_last, "{closes}");
            rig.finish();
        }
    }
}

/// Answers on a closing connection are accurate: no device has failed.
#[test]
fn a_chain_cut_short_is_not_a_failed_device() {
    let mut rig = Rig::new(Limits::default());
    let admin = Peer::connect(&mut rig, 0, 31);
    let mut io = Peer::connect(&mut rig, 1, 31);
    let controller = rig.connection(admin.line).controller().cloned().expect("connected");
    let function = chains::walk();
    let id = function.id;
    controller.update(|tables| tables.with_function(function));
    let (sqe, data) = pushdown(&PushdownParts {
        function: id,
        files: &[FileVersion { id: 0, version: 1 }],
        first_file: 0,
        first_offset_bytes: 0,
        first_size_bytes: 512,
        scratch: &[],
        answer_max_bytes: 512,
        scratch_size_bytes: 0,
    });
    io.send(&mut rig, sqe, &data);
    rig.close(io.line);
    rig.work();
    let [Said::Response(answer)] = io.hear(&mut rig)[..] else { panic!("one answer") };
    assert_eq!(answer.status, Status::ABORTED_SQ_DELETION);
}

/// A rig over a file of 16 MiB, the admin queue of its host and two other queues.
fn rig_over_file() -> (tempfile::NamedTempFile, Rig, Peer, [Peer; 2]) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(16 << 20).expect("room");
    let mut rig = Rig::over_file(file.path());
    let admin = Peer::connect(&mut rig, 0, 31);
    let queues = [1, 2].map(|qid| Peer::connect(&mut rig, qid, 127));
    (file, rig, admin, queues)
}

/// Ends operations on files successfully. Returns the connections of those that are no reads.
fn end_operations(rig: &mut Rig, operations: Vec<FileOperation>) -> Vec<u32> {
    let mut of = Vec::new();
    for operation in operations {
        let (command, result, buffer) = match operation {
            FileOperation::Sync { command, .. } | FileOperation::Zero { command, .. } => {
                of.push(command.connection);
                (command, 0, None)
            }
            FileOperation::Write { command, buffer, .. } => {
                of.push(command.connection);
                (command, buffer.len() as i32, Some(buffer))
            }
            FileOperation::Read { command, buffer, .. } => {
                (command, buffer.len() as i32, Some(buffer))
            }
            other => panic!("{other:?}"),
        };
        completions::file_done(&mut rig.core, command, result, buffer);
        rig.work();
    }
    of
}

/// How the host of a connection, or the target, ends it.
#[derive(Debug, PartialEq)]
enum End {
    Closed,
    Silent,
    /// The connection does not receive, because too much of it is in flight.
    ClosedWhilePaused,
    /// The same, but the target closes it: its host hears the answers.
    EndedWhilePaused,
}

impl End {
    fn come(&self, rig: &mut Rig, (admin, io): (&Peer, &Peer)) {
        match self {
            End::Closed => rig.close(io.line),
            End::Silent => {
                let controller = rig.connection(admin.line).controller().expect("connected");
                controller.kato_ms.store(5_000, Ordering::Relaxed);
                rig.core.io.now_ns += 20_000_000_000;
            }
            End::ClosedWhilePaused => {
                assert!(rig.connection(io.line).is_paused());
                rig.hang_up(io.line);
            }
            End::EndedWhilePaused => {
                assert!(rig.connection(io.line).is_paused());
                rig.close_for_operator(io.line);
            }
        }
    }
}

/// Writes and zeroes that wait for others of their namespace do not begin once their host may have sent them by another
/// path, and then newer data; nor do flushes. What waits behind them begins.
#[test]
fn operations_that_wait_end_with_their_connection() {
    let write = Rw { slba: 0, blocks: 1, fua: false }.to_sqe(opcode::nvm::WRITE, 1);
    for end in [End::Closed, End::Silent, End::ClosedWhilePaused, End::EndedWhilePaused] {
        for (sqe, data) in [
            (Sqe::new(opcode::nvm::WRITE_ZEROES, 1), &[][..]),
            (Sqe::new(opcode::nvm::FLUSH, 1), &[]),
            (Sqe { sgl: Sgl::in_capsule(512), ..write }, &[7; 512]),
        ] {
            let (_file, mut rig, admin, mut queues) = rig_over_file();
            rig.core.executor.limit_file_reads(2 * SLOW_THREADS);
            for _ in 0..SLOW_THREADS + 2 {
                queues[0].send(&mut rig, sqe, data);
            }
            queues[1].send(&mut rig, sqe, data);
            let read = Rw { slba: 0, blocks: 256, fua: false }.to_sqe(opcode::nvm::READ, 1);
            let is_paused = matches!(end, End::ClosedWhilePaused | End::EndedWhilePaused);
            for _ in 0..if is_paused { 40 } else { 0 } {
                let read = Sqe { sgl: Sgl::transport(128 << 10), ..read };
                queues[0].send(&mut rig, read, &[]);
            }
            rig.work();
            let begun = std::mem::take(&mut rig.core.io.files);
            assert!(begun.len() >= SLOW_THREADS, "{begun:?}");
            end.come(&mut rig, (&admin, &queues[0]));
            let [gone, other] = queues.each_ref().map(|queue| rig.index(queue.line));
            let is_read =
                |operation: &FileOperation| matches!(operation, FileOperation::Read { .. });
            let (reads, others): (Vec<_>, Vec<_>) = begun.into_iter().partition(is_read);
            assert_eq!(end_operations(&mut rig, others), [gone; SLOW_THREADS]);
            let begun = std::mem::take(&mut rig.core.io.files);
            let left = if end == End::Silent { vec![] } else { vec![other] };
            assert_eq!(end_operations(&mut rig, begun), left, "{end:?} {:x}", sqe.opcode);
            end_operations(&mut rig, reads);
            while !rig.core.io.files.is_empty() {
                let begun = std::mem::take(&mut rig.core.io.files);
                end_operations(&mut rig, begun);
            }
            let said = queues[1].hear(&mut rig);
            let [Said::Response(answer)] = said[..] else { panic!("one answer: {said:?}") };
            let given_up = answer.status == Status::ABORTED_SQ_DELETION;
            assert_eq!(given_up, end == End::Silent, "{answer:?}");
            while !queues[0].hear(&mut rig).is_empty() {
                rig.work();
            }
            rig.finish();
        }
    }
}

/// A connection ends although the disk never ends what others have begun there: what waits for that is given up.
#[test]
fn connections_end_although_others_wait_for_a_dead_disk() {
    let write = Rw { slba: 0, blocks: 1, fua: false }.to_sqe(opcode::nvm::WRITE, 1);
    let read = Rw { slba: 0, blocks: 1, fua: false }.to_sqe(opcode::nvm::READ, 1);
    for target_ends_it in [false, true] {
        let (_file, mut rig, _admin, mut queues) = rig_over_file();
        rig.core.executor.limit_file_reads(2 * SLOW_THREADS);
        let each = [
            (Sqe { sgl: Sgl::in_capsule(512), ..write }, &[7; 512][..]),
            (Sqe::new(opcode::nvm::FLUSH, 1), &[]),
        ];
        for (sqe, data) in each {
            for _ in 0..SLOW_THREADS {
                queues[0].send(&mut rig, sqe, data);
            }
            for _ in 0..40 {
                queues[1].send(&mut rig, sqe, data);
            }
        }
        for _ in 0..2 * SLOW_THREADS {
            queues[0].send(&mut rig, Sqe { sgl: Sgl::transport(512), ..read }, &[]);
        }
        for _ in 0..if target_ends_it { 0 } else { 10 } {
            queues[1].send(&mut rig, Sqe { sgl: Sgl::transport(512), ..read }, &[]);
        }
        rig.work();
        let begun = std::mem::take(&mut rig.core.io.files);
        assert_eq!(begun.len(), 4 * SLOW_THREADS);
        if target_ends_it {
            rig.close_for_operator(queues[1].line);
        } else {
            rig.close(queues[1].line);
        }
        rig.work();
        assert!(rig.entry(queues[1].line).is_none_or(|of| !of.queue.is_busy()));
        let said = queues[1].hear(&mut rig);
        assert!(!target_ends_it || said.len() == 80, "{}", said.len());
        for answer in said {
            let Said::Response(answer) = answer else { panic!("no data") };
            assert_eq!(answer.status, Status::ABORTED_SQ_DELETION);
        }
        let (reads, others): (Vec<_>, Vec<_>) =
            begun.into_iter().partition(|of| matches!(of, FileOperation::Read { .. }));
        end_operations(&mut rig, others);
        end_operations(&mut rig, reads);
        assert!(rig.core.io.files.is_empty(), "nothing else was to begin");
        rig.finish();
    }
}

/// A disk reports a failed flush of its cache once, although writes of several namespaces may have been in it.
#[test]
fn a_failed_flush_concerns_all_namespaces_of_the_disk() {
    let file = |folder: &str| {
        let file = tempfile::NamedTempFile::new_in(folder).expect("a file");
        file.as_file().set_len(1 << 20).expect("room");
        file
    };
    let files = [file("."), file("."), file("/dev/shm")];
    let mut rig = Rig::over_files(&files.each_ref().map(|file| file.path()));
    let _admin = Peer::connect(&mut rig, 0, 31);
    let mut io = Peer::connect(&mut rig, 1, 31);
    let lost = Status::WRITE_FAULT.with_dnr();
    for (nsid, result, status) in [
        (1, -libc::EIO, lost),
        (2, 0, lost),
        (2, 0, Status::SUCCESS),
        (3, 0, Status::SUCCESS),
        (1, 0, Status::SUCCESS),
    ] {
        io.send(&mut rig, Sqe::new(opcode::nvm::FLUSH, nsid), &[]);
        rig.work();
        let Some(FileOperation::Sync { command, .. }) = rig.core.io.files.pop() else {
            panic!("a flush")
        };
        completions::file_done(&mut rig.core, command, result, None);
        rig.work();
        let [Said::Response(answer)] = io.hear(&mut rig)[..] else { panic!("one answer") };
        assert_eq!(answer.status, status, "namespace {nsid}");
    }
    rig.finish();
}

/// All that a host has sent may be given up at the same moment: a few at once, so that other hosts do not wait.
#[test]
fn zeroes_are_given_up_a_few_at_a_time() {
    let (_file, mut rig, _admin, mut queues) = rig_over_file();
    for _ in 0..120 {
        queues[0].send(&mut rig, Sqe::new(opcode::nvm::WRITE_ZEROES, 1), &[]);
        queues[1].send(&mut rig, Sqe::new(opcode::nvm::WRITE_ZEROES, 1), &[]);
    }
    rig.work();
    let begun = std::mem::take(&mut rig.core.io.files);
    assert_eq!(begun.len(), SLOW_THREADS);
    let busy = |rig: &Rig| {
        let is_busy = |of: &Connection, slot| !matches!(of.queue.slot(slot).state, State::Free);
        let left = |line| {
            rig.entry(line).map_or(0, |of| (0..120).filter(|slot| is_busy(of, *slot)).count())
        };
        queues.each_ref().map(|queue| left(queue.line)).iter().sum::<usize>()
    };
    assert_eq!(busy(&rig), 240);
    for queue in &queues {
        let index = rig.index(queue.line);
        closing::end_soon(&mut rig.core, index, "an operator closes it", true);
    }
    turn::begin(&mut rig.core);
    turn::end(&mut rig.core);
    let given_up = 240 - busy(&rig);
    assert_eq!(given_up, GIVEN_UP_AT_ONCE);
    rig.work();
    assert_eq!(busy(&rig), begun.len());
    end_operations(&mut rig, begun);
    rig.finish();
}

/// While closing connections have more to give up than a turn does, what another waits for begins when its turn comes.
#[test]
fn giving_up_does_not_delay_others() {
    const OTHERS: usize = 24;
    let (_file, mut rig, _admin, [mut other, ending]) = rig_over_file();
    let zeroes = Sqe::new(opcode::nvm::WRITE_ZEROES, 1);
    let send = |rig: &mut Rig, queue: &mut Peer, count| {
        for _ in 0..count {
            queue.send(rig, zeroes, &[]);
        }
        rig.work();
    };
    send(&mut rig, &mut other, SLOW_THREADS);
    let mut ending = vec![ending];
    ending.extend((3..=8).map(|qid| Peer::connect(&mut rig, qid, 127)));
    for queue in &mut ending {
        send(&mut rig, queue, 120);
    }
    send(&mut rig, &mut other, OTHERS);
    let mut running = std::mem::take(&mut rig.core.io.files);
    assert_eq!(running.len(), SLOW_THREADS);
    let connections: Vec<_> = ending.iter().map(|queue| rig.index(queue.line)).collect();
    for index in &connections {
        closing::end_soon(&mut rig.core, *index, "an operator closes it", true);
    }
    let mut turns = 0;
    for ended in 0..SLOW_THREADS + OTHERS {
        while running.is_empty() {
            assert!(rig.core.has_work(), "{ended} have ended after {turns} turns");
            turn::begin(&mut rig.core);
            turn::end(&mut rig.core);
            running.append(&mut rig.core.io.files);
            turns += 1;
        }
        let FileOperation::Zero { command, .. } = running.remove(0) else { panic!("zeroes") };
        assert!(!connections.contains(&command.connection), "it is closing");
        completions::file_done(&mut rig.core, command, 0, None);
    }
    // Seven connections have 120 operations each; one in eight picks is another's.
    assert!(turns <= OTHERS * 8 / GIVEN_UP_AT_ONCE + 2, "{turns}");
    rig.work();
    rig.finish();
}

/// A host that has closed a connection may have sent its commands by another path: those that have not begun must not
/// overwrite newer data.
#[test]
fn writes_of_a_paused_connection_end_with_it() {
    const READ_BYTES: u32 = 128 << 10;
    for has_hung_up in [false, true] {
        let mut rig = Rig::new(Limits::default());
        let _admin = Peer::connect(&mut rig, 0, 31);
        let mut io = Peer::connect(&mut rig, 1, 31);
        let read = Rw { slba: 0, blocks: READ_BYTES / 512, fua: false };
        let read = Sqe { sgl: Sgl::transport(READ_BYTES), ..read.to_sqe(opcode::nvm::READ, 1) };
        for _ in 0..24 {
            io.send(&mut rig, read, &[]);
        }
        rig.work();
        assert!(rig.connection(io.line).is_paused(), "its host does not take the answers");
        let write = Rw { slba: 0, blocks: 1, fua: false }.to_sqe(opcode::nvm::WRITE, 1);
        io.send(&mut rig, Sqe { sgl: Sgl::in_capsule(512), ..write }, &[7; 512]);
        rig.work();
        if has_hung_up {
            rig.hang_up(io.line);
        }
        // The answers leave, and the pause ends.
        io.hear(&mut rig);
        rig.work();
        assert_eq!(rig.is_open(io.line), !has_hung_up);
        let mut found = [0; 512];
        let memory = rig.core.executor.namespace(0).backend.memory().expect("memory");
        memory.read(0, &mut found);
        assert_eq!(found == [7; 512], !has_hung_up, "{has_hung_up}");
        rig.finish();
    }
}
