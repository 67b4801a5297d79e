//! Fabrics commands other than Connect, on connected queues (NVMe Base 2.0 §6).

use super::authentication;
use super::context::{Answered, Close, Command, Context, Outcome, not_authenticated};
use crate::controller::Controller;
use crate::limits::{ADMIN_UNITS, MAX_QUEUE_ENTRIES};
use crate::refusal::{Refusal, Reply};
use bpfof_nvme::fabrics::{Cap, ControllerConfig, Version, offset};
use bpfof_nvme::{FabricsCommand, Status};
use log::Level;

/// On an admin queue.
pub(super) fn on_admin_queue(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    fabrics: FabricsCommand,
) -> Answered {
    match fabrics {
        FabricsCommand::AuthenticationSend { protocol, length_bytes } => {
            authentication::send(cx, command, protocol, length_bytes)
        }
        FabricsCommand::AuthenticationReceive { protocol, length_bytes } => {
            authentication::receive(cx, command, protocol, length_bytes)
        }
        _ if cx.awaits_authentication() => Err(not_authenticated()),
        FabricsCommand::PropertyGet { offset, size8 } => {
            let value = property(offset, size8, &cx.controller());
            let value = value.ok_or_else(|| {
                Refusal::field("OFST", format!("there is no property of this size at {offset:#x}"))
            })?;
            let (dw0, dw1) = (value as u32, (value >> 32) as u32);
            Ok(Outcome::Reply(Reply { dw0, dw1, ..Reply::default() }))
        }
        FabricsCommand::PropertySet { offset: offset::CC, size8: false, value } => {
            configure(cx, ControllerConfig::from(value as u32));
            let what = format_args!("controller configuration {value:#x}");
            cx.connection.note(Level::Debug, cx.executor.now_ns, what);
            Ok(Outcome::DONE)
        }
        FabricsCommand::PropertySet { offset, .. } => Err(Refusal::field(
            "OFST",
            format!("the property at {offset:#x} cannot be set, or not with this size"),
        )),
        FabricsCommand::Connect { .. } => Err(connected_already()),
        // Only for I/O queues (NVMe Base 2.0 §6.4).
        FabricsCommand::Disconnect => {
            let cause = "an admin queue ends with its connection; Disconnect is for I/O queues";
            Err(Refusal::new(Status::INVALID_QUEUE_TYPE.with_dnr(), cause))
        }
        FabricsCommand::Unknown(_) => Err(Status::INVALID_OPCODE.with_dnr().into()),
    }
}

/// On an I/O queue: Disconnect, and authentication.
pub(super) fn on_io_queue(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    fabrics: FabricsCommand,
) -> Result<(), Close> {
    cx.executor.spend(ADMIN_UNITS);
    let refusal = match fabrics {
        FabricsCommand::Disconnect => {
            cx.answer(command, Ok(Outcome::DONE));
            return Err(Close::Disconnect);
        }
        FabricsCommand::AuthenticationSend { protocol, length_bytes } => {
            let outcome = authentication::send(cx, command, protocol, length_bytes);
            cx.answer(command, outcome);
            return Ok(());
        }
        FabricsCommand::AuthenticationReceive { protocol, length_bytes } => {
            let outcome = authentication::receive(cx, command, protocol, length_bytes);
            cx.answer(command, outcome);
            return Ok(());
        }
        FabricsCommand::Connect { .. } => cx.not_carried_out(connected_already()),
        _ => cx.not_carried_out(Status::INVALID_OPCODE.with_dnr()),
    };
    cx.refuse(command.sqe, &refusal);
    Ok(())
}

fn connected_already() -> Refusal {
    Refusal::new(Status::COMMAND_SEQUENCE_ERROR.with_dnr(), "the queue is already connected")
}

/// Property Set of CC (NVMe Base 2.0 §3.1.3.5).
fn configure(cx: &mut Context<'_>, config: ControllerConfig) {
    let controller = cx.controller();
    let resets = controller.resets();
    cx.connection.asks.resets_queues |= controller.configure(config);
    if resets != controller.resets() {
        cx.admin().events.clear();
    }
}

/// The value of a property (NVMe Base 2.0 §3.1.3). `None` if it is unknown or the size is wrong.
fn property(at: u32, size8: bool, controller: &Controller) -> Option<u64> {
    match (at, size8) {
        (offset::CAP, true) => Some(
            Cap {
                mqes: MAX_QUEUE_ENTRIES - 1,
                cqr: true,
                timeout_500ms: 20,
                css: 1,
                ..Cap::default()
            }
            .into(),
        ),
        (offset::VS, false) => Some(Version::V1_4.0.into()),
        (offset::CC, false) => Some(u32::from(controller.config()).into()),
        (offset::CSTS, false) => Some(u32::from(controller.status()).into()),
        _ => None,
    }
}
