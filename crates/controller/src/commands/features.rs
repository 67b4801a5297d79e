//! Get Features and Set Features (NVMe Base 2.0 §5.15 and §5.27).

use super::context::{Answered, Command, Context, Outcome};
use super::events;
use crate::controller::Controller;
use crate::limits::{ALL_NAMESPACES, MAX_IO_QUEUES, MAX_KATO_MS, RESTRICTED_KATO_MS};
use crate::refusal::{Refusal, Reply};
use bpfof_nvme::Status;
use bpfof_nvme::features::{self, SELECT_CURRENT, SELECT_DEFAULT, SELECT_SAVED, SELECT_SUPPORTED};
use log::Level;
use std::sync::atomic::Ordering;

/// Get Features, Supported Capabilities: the value can be changed (§5.15).
const CHANGEABLE: u32 = 1 << 2;
/// Arbitration: no limit to the commands fetched from one queue at a time (§5.27.1.1).
const NO_BURST_LIMIT: u32 = 7;
/// Temperature Threshold, CDW11 bits 21:20: selects the lower threshold (§5.27.1.3).
const UNDER_TEMPERATURE: u32 = 1 << 20;
/// The upper threshold that is never exceeded: there is no thermometer.
const NO_TEMPERATURE_LIMIT: u32 = 0xFFFF;

/// The value of a feature that cannot be changed; `cdw11` is the command's.
fn fixed(fid: u8, cdw11: u32, has_cache: bool) -> Option<u32> {
    match fid {
        features::ARBITRATION => Some(NO_BURST_LIMIT),
        // The only power state.
        features::POWER_MANAGEMENT => Some(0),
        features::TEMPERATURE_THRESHOLD if cdw11 & UNDER_TEMPERATURE != 0 => Some(0),
        features::TEMPERATURE_THRESHOLD => Some(NO_TEMPERATURE_LIMIT),
        // No limit to the time of retries, and deallocated blocks read as zeroes, not as errors.
        features::ERROR_RECOVERY => Some(0),
        // Bit 0: enabled.
        features::VOLATILE_WRITE_CACHE if has_cache => Some(1),
        // Writes are as atomic in normal operation as the controller reports.
        features::WRITE_ATOMICITY => Some(0),
        _ => None,
    }
}

fn unknown(fid: u8) -> Refusal {
    Refusal::field("FID", format!("there is no feature {fid:#x}"))
}

/// Get Features.
pub(super) fn get(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    (fid, select, cdw11): (u8, u8, u32),
) -> Answered {
    let (controller, subsystem) = (cx.controller(), cx.subsystem());
    let unknown_select = || Refusal::field("SEL", format!("there is no selector {select}"));
    let default = match fid {
        features::NUMBER_OF_QUEUES if !subsystem.is_discovery() => {
            features::number_of_queues(MAX_IO_QUEUES)
        }
        features::ASYNC_EVENT_CONFIGURATION | features::KEEP_ALIVE_TIMER => 0,
        // Bit 0: the 128-bit form, which fabrics hosts have.
        features::HOST_IDENTIFIER if cdw11 & 1 == 0 => {
            let status = Status::HOST_ID_INCONSISTENT.with_dnr();
            return Err(Refusal::new(status, "hosts over fabrics have identifiers of 128 bits")
                .of_field("EXHID"));
        }
        features::QUEUE_RESTRICTION if !subsystem.is_discovery() => 0,
        features::HOST_IDENTIFIER if select == SELECT_SUPPORTED => return Ok(Outcome::dword(0)),
        features::HOST_IDENTIFIER => {
            command.check_room(controller.host_id.len())?;
            return Ok(Outcome::Data(Reply::default(), controller.host_id.to_vec()));
        }
        _ if subsystem.is_discovery() => return Err(unknown(fid)),
        _ => {
            let has_cache = controller.traits.has_volatile_cache;
            let value = fixed(fid, cdw11, has_cache).ok_or_else(|| unknown(fid))?;
            return match select {
                SELECT_CURRENT | SELECT_DEFAULT | SELECT_SAVED => Ok(Outcome::dword(value)),
                SELECT_SUPPORTED => Ok(Outcome::dword(0)),
                _ => Err(unknown_select()),
            };
        }
    };
    Ok(Outcome::dword(match select {
        SELECT_CURRENT => match fid {
            features::NUMBER_OF_QUEUES => features::number_of_queues(controller.granted_queues()),
            features::ASYNC_EVENT_CONFIGURATION => cx.admin().events.config,
            features::QUEUE_RESTRICTION => u32::from(controller.is_restricted()),
            _ => controller.kato_ms.load(Ordering::Relaxed),
        },
        // Nothing is saved, and then Saved means Default (NVMe Base 2.0 §5.15).
        SELECT_DEFAULT | SELECT_SAVED => default,
        SELECT_SUPPORTED => CHANGEABLE,
        _ => return Err(unknown_select()),
    }))
}

/// Set Features.
pub(super) fn set(
    cx: &mut Context<'_>,
    (fid, cdw11, nsid): (u8, u32, u32),
    save: bool,
) -> Answered {
    let (controller, subsystem) = (cx.controller(), cx.subsystem());
    if save {
        let status = Status::FEATURE_NOT_SAVEABLE.with_dnr();
        return Err(Refusal::new(status, "features are not saved").of_field("SV"));
    }
    match fid {
        features::NUMBER_OF_QUEUES if !subsystem.is_discovery() => {
            return grant_queues(cdw11, &controller);
        }
        features::ASYNC_EVENT_CONFIGURATION => events::configure(cx, cdw11),
        features::KEEP_ALIVE_TIMER => {
            if controller.is_restricted() {
                check_short_kato(cdw11)?;
            }
            let idle_timeout_s = cx.executor.registry.hosts.limits.idle_timeout_s;
            why_not_kato(cdw11, idle_timeout_s).map_or(Ok(()), |why| Err(invalid_kato(why)))?;
            controller.kato_ms.store(cdw11, Ordering::Relaxed);
        }
        features::QUEUE_RESTRICTION if !subsystem.is_discovery() => {
            check_of_controller(nsid)?;
            restrict(cdw11, &controller)?;
            let (now_ns, cntlid) = (cx.executor.now_ns, controller.id);
            let what = format_args!("the I/O queues of association {cntlid} accept only chains");
            cx.connection.note(Level::Info, now_ns, what);
        }
        features::HOST_IDENTIFIER => {
            // (NVMe Base 2.0 §5.27.1.25)
            let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
            return Err(Refusal::new(status, "Connect has already set the host identifier"));
        }
        _ if subsystem.is_discovery() => return Err(unknown(fid)),
        _ => set_fixed((fid, cdw11, nsid), controller.traits.has_volatile_cache)?,
    }
    Ok(Outcome::DONE)
}

/// Setting a fixed feature to its value succeeds, and changes nothing.
fn set_fixed((fid, cdw11, nsid): (u8, u32, u32), has_cache: bool) -> Result<(), Refusal> {
    let value = fixed(fid, cdw11, has_cache).ok_or_else(|| unknown(fid))?;
    // Of the fixed features only Error Recovery belongs to a namespace.
    if fid != features::ERROR_RECOVERY {
        check_of_controller(nsid)?;
    }
    // Bits above the threshold's value are its selectors.
    if cdw11 & 0xFFFF == value {
        return Ok(());
    }
    let cause = format!("feature {fid:#x} is always {value:#x}");
    Err(Refusal::new(Status::FEATURE_NOT_CHANGEABLE.with_dnr(), cause))
}

fn check_of_controller(nsid: u32) -> Result<(), Refusal> {
    if matches!(nsid, 0 | ALL_NAMESPACES) {
        return Ok(());
    }
    let status = Status::FEATURE_NOT_PER_NAMESPACE.with_dnr();
    Err(Refusal::new(status, "the feature belongs to the controller, not to a namespace")
        .of_field("NSID"))
}

/// Queue Restriction (docs/protocol.md).
fn restrict(cdw11: u32, controller: &Controller) -> Result<(), Refusal> {
    match (cdw11, controller.is_restricted()) {
        (features::PUSHDOWN_ONLY, true) | (0, false) => return Ok(()),
        (features::PUSHDOWN_ONLY, false) => {}
        (0, true) => {
            let cause = "a restriction cannot be removed";
            return Err(Refusal::new(Status::FEATURE_NOT_CHANGEABLE.with_dnr(), cause));
        }
        _ => return Err(Refusal::field("CDW11", format!("there is no restriction {cdw11:#x}"))),
    }
    check_short_kato(controller.kato_ms.load(Ordering::Relaxed))?;
    match controller.restrict() {
        true => Ok(()),
        false => {
            let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
            Err(Refusal::new(status, "the association already has or had an I/O queue"))
        }
    }
}

/// Why no host gets this keep-alive timeout, if none does.
pub(super) fn why_not_kato(kato_ms: u32, idle_timeout_s: u32) -> Option<String> {
    if kato_ms == 0 && idle_timeout_s == 0 {
        return Some("there is no keep-alive timer, and idle-timeout is 0".to_owned());
    }
    let is_too_long = kato_ms > MAX_KATO_MS;
    is_too_long.then(|| format!("{kato_ms} ms, but at most {MAX_KATO_MS} ms are granted"))
}

fn invalid_kato(cause: String) -> Refusal {
    let status = Status::INVALID_KEEP_ALIVE_TIMEOUT.with_dnr();
    Refusal::new(status, cause).of_field("KATO")
}

/// A restricted association must end soon after its owner falls silent.
fn check_short_kato(kato_ms: u32) -> Result<(), Refusal> {
    if RESTRICTED_KATO_MS.contains(&kato_ms) {
        return Ok(());
    }
    let (least, most) = (RESTRICTED_KATO_MS.start(), RESTRICTED_KATO_MS.end());
    let cause = format!("{kato_ms} ms, but a restricted association needs {least} to {most} ms");
    Err(invalid_kato(cause))
}

/// NVMe Base 2.0 §5.27.1.5.
fn grant_queues(cdw11: u32, controller: &Controller) -> Answered {
    // Both halves are 0's based.
    let (submission, completion) = (cdw11 as u16, (cdw11 >> 16) as u16);
    if submission == u16::MAX || completion == u16::MAX {
        return Err(Refusal::field("NSQR or NCQR", "FFFFh is reserved"));
    }
    let granted = submission.min(MAX_IO_QUEUES - 1) + 1;
    if !controller.grant_queues(granted) {
        let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
        return Err(Refusal::new(status, "the controller already has I/O queues"));
    }
    Ok(Outcome::dword(features::number_of_queues(granted)))
}
