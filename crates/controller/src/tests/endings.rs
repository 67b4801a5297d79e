//! Queues that end before their commands, and commands of queues that have ended.

use super::peer::{Peer, Said, pushdown};
use super::simulation::chains;
use crate::rig::{Rig, connect_command, enable_command};
use bpfof_chain::Limits;
use bpfof_nvme::fabrics::{ControllerConfig, FabricsCommand, Shutdown, offset};
use bpfof_nvme::vendor_specific::{FileVersion, PushdownParts};
use bpfof_nvme::{Sqe, Status};

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
