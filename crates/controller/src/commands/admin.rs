//! Dispatches the commands of admin queues.

use super::context::{Answered, Command, Context, Outcome, not_authenticated};
use super::{events, fabrics, features, file_maps, function_maps, functions, identify, logs};
use crate::access::Rights;
use crate::kept::is_kept;
use crate::refusal::Refusal;
use bpfof_nvme::{AdminCommand, Status};

/// Executes a command, or starts to. Its data has arrived if it was in the capsule or has been fetched.
pub(crate) fn carry_out(cx: &mut Context<'_>, command: &Command<'_>) {
    let outcome = match AdminCommand::parse(command.sqe) {
        Ok(AdminCommand::Fabrics(fabrics)) => fabrics::on_admin_queue(cx, command, fabrics),
        Ok(_) if cx.awaits_authentication() => Err(not_authenticated()),
        Ok(_) if !cx.controller().is_enabled() => {
            let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
            Err(Refusal::new(status, "the controller is not enabled"))
        }
        Ok(parsed) => dispatch(cx, command, parsed),
        Err(status) => Err(Refusal::new(status, "a reserved field is set")),
    };
    cx.answer(command, outcome);
}

fn dispatch(cx: &mut Context<'_>, command: &Command<'_>, parsed: AdminCommand) -> Answered {
    match parsed {
        AdminCommand::Identify { cns, nsid, csi, .. } => {
            identify::identify(cx, command, (cns, nsid, csi))
        }
        AdminCommand::GetLogPage { .. } => logs::get_log_page(cx, command, parsed),
        AdminCommand::SetFeatures { fid, cdw11, save, nsid } => {
            features::set(cx, (fid, cdw11, nsid), save)
        }
        AdminCommand::GetFeatures { fid, sel, cdw11, .. } => {
            features::get(cx, command, (fid, sel, cdw11))
        }
        AdminCommand::AsyncEventRequest => events::park(cx, command),
        // Commands cannot be withdrawn from a device: DW0 bit 0 says "not aborted".
        AdminCommand::Abort { .. } => Ok(Outcome::dword(1)),
        AdminCommand::KeepAlive => Ok(Outcome::DONE),
        AdminCommand::Fabrics(_) | AdminCommand::Unknown(_) => {
            Err(Status::INVALID_OPCODE.with_dnr().into())
        }
        // Functions and file maps belong to subsystems with namespaces.
        _ if cx.subsystem().is_discovery() => {
            let status = Status::INVALID_OPCODE.with_dnr();
            Err(Refusal::new(status, "the discovery subsystem has no functions or maps"))
        }
        AdminCommand::FunctionLoad(upload, installation) => {
            cx.check_rights(if installation.kept { Rights::KEEP } else { Rights::LOAD })?;
            functions::load(cx, command, upload, installation)
        }
        AdminCommand::FunctionUnload { function } => {
            cx.check_rights(if is_kept(function) { Rights::KEEP } else { Rights::LOAD })?;
            functions::unload(cx, function)
        }
        AdminCommand::FunctionReport { function, length_bytes, content, controller } => {
            cx.check_rights(Rights::RUN)?;
            functions::report(cx, command, (controller, function, content), length_bytes)
        }
        AdminCommand::PushdownIdentify { length_bytes } => {
            identify::pushdown_identify(cx, command, length_bytes)
        }
        AdminCommand::FileMapSet(upload) => {
            cx.check_rights(Rights::READ)?;
            file_maps::set(cx, command, upload)
        }
        AdminCommand::Map(map_command) => {
            cx.check_rights(Rights::RUN)?;
            function_maps::carry_out(cx, command, map_command)
        }
    }
}
