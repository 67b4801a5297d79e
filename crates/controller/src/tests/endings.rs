//! Queues that end before their commands, and commands of queues that have ended.

use super::peer::{Peer, Said, pushdown};
use super::simulation::chains;
use crate::limits::SLOW_THREADS;
use crate::operation::{CommandId, FileOperation};
use crate::queue::State;
use crate::reactor::completions;
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

/// Zeroes that wait for other zeroes of their namespace do not begin once their host may have sent them by another path,
/// and written new data. What waits for them begins.
#[test]
fn zeroes_that_wait_end_with_their_connection() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 20).expect("room");
    for expires in [false, true] {
        let mut rig = Rig::over_file(file.path());
        let admin = Peer::connect(&mut rig, 0, 31);
        let mut queues = [1, 2].map(|qid| Peer::connect(&mut rig, qid, 31));
        let zeroes = Sqe::new(opcode::nvm::WRITE_ZEROES, 1);
        for _ in 0..SLOW_THREADS + 2 {
            queues[0].send(&mut rig, zeroes, &[]);
        }
        queues[1].send(&mut rig, zeroes, &[]);
        rig.work();
        let begun = std::mem::take(&mut rig.core.io.files);
        assert_eq!(begun.len(), SLOW_THREADS);
        if expires {
            let controller = rig.connection(admin.line).controller().expect("connected");
            controller.kato_ms.store(5_000, Ordering::Relaxed);
            rig.core.io.now_ns += 20_000_000_000;
        } else {
            rig.close(queues[0].line);
        }
        for operation in begun {
            let FileOperation::Zero { command, .. } = operation else { panic!("{operation:?}") };
            completions::file_done(&mut rig.core, command, 0, None);
            rig.work();
        }
        let begun = std::mem::take(&mut rig.core.io.files);
        assert_eq!(begun.len(), usize::from(!expires), "{begun:?}");
        for operation in begun {
            let FileOperation::Zero { command, .. } = operation else { panic!("{operation:?}") };
            assert_eq!(command.connection, rig.index(queues[1].line));
            completions::file_done(&mut rig.core, command, 0, None);
            rig.work();
        }
        let given_up = |said: &Said| matches!(said, Said::Response(cqe) if cqe.status == Status::ABORTED_SQ_DELETION);
        let counts = queues
            .each_mut()
            .map(|queue| queue.hear(&mut rig).iter().filter(|said| given_up(said)).count());
        assert_eq!(counts, [2, usize::from(expires)]);
        rig.finish();
    }
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
