//! Commands of I/O queues.

use super::context::{Answered, Close, Command, Context, not_authenticated};
use super::{fabrics, nvm, nvm_optional, pushdown, pushdown_vector};
use crate::access::Rights;
use crate::refusal::Refusal;
use bpfof_nvme::vendor_specific::PushdownShort;
use bpfof_nvme::{NvmCommand, Status};

/// Executes a command, or starts to.
#[inline]
pub(crate) fn carry_out(cx: &mut Context<'_>, command: &Command<'_>) -> Result<(), Close> {
    let outcome = match NvmCommand::parse(command.sqe) {
        Ok(NvmCommand::Fabrics(fabrics)) => return fabrics::on_io_queue(cx, command, fabrics),
        Ok(NvmCommand::Unknown(_)) | Err(_) if cx.awaits_authentication() => {
            Err(not_authenticated())
        }
        Ok(NvmCommand::Unknown(_)) => Err(cx.not_carried_out(Status::INVALID_OPCODE.with_dnr())),
        Ok(parsed) => on_namespace(cx, command, parsed),
        // Only for a Pushdown Short whose first read is empty.
        Err(status) if status.same_code(Status::MALFORMED_REQUEST) => {
            Err(pushdown::malformed(PushdownShort::FIRST_BLOCKS_AT))
        }
        Err(status) => Err(Refusal::new(status, "a reserved field is set")),
    };
    cx.answer(command, outcome);
    Ok(())
}

/// The rights for a command: it needs one of them.
#[inline]
fn needed(parsed: &NvmCommand) -> Rights {
    match parsed {
        NvmCommand::Read(_) | NvmCommand::Compare(_) | NvmCommand::Verify(_) => Rights::READ,
        NvmCommand::Write(_)
        | NvmCommand::WriteZeroes { .. }
        | NvmCommand::DatasetManagement { .. } => Rights::WRITE,
        // A host with only this right has no functions of its own: Function Load needs LOAD or KEEP.
        NvmCommand::Pushdown | NvmCommand::PushdownShort(_) | NvmCommand::PushdownVector => {
            Rights::RUN
        }
        NvmCommand::Flush => Rights::READ | Rights::WRITE,
        NvmCommand::Fabrics(_) | NvmCommand::Unknown(_) => Rights::ALL,
    }
}

/// Refuses a command if its namespace is inaccessible through the listener that the host uses: the host may retry it on
/// another path (NVMe Base 2.0 §8.1.1.3).
#[cold]
fn check_access(cx: &Context<'_>, namespace: usize) -> Result<(), Refusal> {
    match cx.is_inaccessible(namespace) {
        false => Ok(()),
        true => {
            let cause = "the namespace is inaccessible on this path";
            Err(Refusal::new(Status::ANA_INACCESSIBLE, cause))
        }
    }
}

/// Executes a command on a namespace.
#[inline]
fn on_namespace(cx: &mut Context<'_>, command: &Command<'_>, parsed: NvmCommand) -> Answered {
    let nsid = command.sqe.nsid;
    cx.check_rights(needed(&parsed))?;
    let association = cx.connection.phase.association();
    let namespace = association
        .filter(|association| association.sees(nsid))
        .and_then(|association| cx.executor.namespaces.find(association.subsystem.number, nsid));
    let Some(namespace) = namespace else {
        let status = Status::INVALID_NAMESPACE.with_dnr();
        return Err(Refusal::new(status, format!("there is no namespace {nsid}")).of_field("NSID"));
    };
    if cx.connection.inaccessible != 0 {
        check_access(cx, namespace)?;
    }
    match parsed {
        NvmCommand::Read(rw) => nvm::read(cx, command, rw, namespace),
        NvmCommand::Write(rw) => nvm::write(cx, command, rw, namespace),
        NvmCommand::Flush => nvm::flush(cx, command, namespace),
        NvmCommand::WriteZeroes { rw, deallocate } => {
            nvm_optional::write_zeroes(cx, command, (rw, deallocate), namespace)
        }
        NvmCommand::Compare(rw) => nvm_optional::take_compare(cx, command, rw, namespace),
        NvmCommand::Verify(rw) => nvm_optional::verify(cx, command, rw, namespace),
        NvmCommand::DatasetManagement { ranges, deallocate } => {
            let what = (ranges, deallocate);
            nvm_optional::dataset_management(cx, command, what, namespace)
        }
        NvmCommand::Pushdown => pushdown::pushdown(cx, command, namespace),
        NvmCommand::PushdownShort(short) => pushdown::short(cx, command, &short, namespace),
        NvmCommand::PushdownVector => pushdown_vector::begin(cx, command, namespace),
        NvmCommand::Fabrics(_) | NvmCommand::Unknown(_) => {
            Err(Status::INVALID_OPCODE.with_dnr().into())
        }
    }
}
