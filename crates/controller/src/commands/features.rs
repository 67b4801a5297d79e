//! Get Features and Set Features (NVMe Base 2.0 §5.15 and §5.27).

use super::context::{Answered, Command, Context, Outcome};
use super::events;
use crate::controller::Controller;
use crate::limits::{ALL_NAMESPACES, MAX_IO_QUEUES};
use crate::refusal::{Refusal, Reply};
use bpfof_nvme::Status;
use bpfof_nvme::features::{self, SELECT_CURRENT, SELECT_DEFAULT, SELECT_SAVED, SELECT_SUPPORTED};
use std::sync::atomic::Ordering;

/// Get Features, Supported Capabilities: the value can be changed (§5.15).
const CHANGEABLE: u32 = 1 << 2;
/// Arbitration: no limit to the commands fetched from one queue at a time (§5.27.1.1).
const NO_BURST_LIMIT: u32 = 7;
/// Temperature Threshold, CDW11 bits 21:20: the lower one is meant (§5.27.1.3).
const UNDER_TEMPERATURE: u32 = 1 << 20;
/// The upper threshold that is never exceeded: there is no thermometer.
const NO_TEMPERATURE_LIMIT: u32 = 0xFFFF;

/// The value of a feature that cannot be changed, for `cdw11`.
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
        // Writes are as atomic in normal operation as the controller announces.
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
    let unknown_select = || Refusal::field("SEL", format!("there is no selection {select}"));
    let default = match fid {
        features::NUMBER_OF_QUEUES if !subsystem.is_discovery() => {
            features::number_of_queues(MAX_IO_QUEUES)
        }
        features::ASYNC_EVENT_CONFIGURATION | features::KEEP_ALIVE_TIMER => 0,
        // Bit 0: the 128-bit form, which fabrics hosts have.
        features::HOST_IDENTIFIER if cdw11 & 1 == 0 => {
            let status = Status::HOST_ID_INCONSISTENT.with_dnr();
            return Err(Refusal::new(status, "hosts over fabrics have 128 bits").of_field("EXHID"));
        }
        features::HOST_IDENTIFIER if select == SELECT_SUPPORTED => return Ok(Outcome::dword(0)),
        features::HOST_IDENTIFIER => {
            command.check_room(controller.host_id.len())?;
            return Ok(Outcome::Data(Reply::default(), controller.host_id.to_vec()));
        }
        _ if subsystem.is_discovery() => return Err(unknown(fid)),
        _ => {
            let has_cache = subsystem.traits().has_volatile_cache;
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
        return Err(Refusal::new(status, "no feature is saved").of_field("SV"));
    }
    match fid {
        features::NUMBER_OF_QUEUES if !subsystem.is_discovery() => {
            return grant_queues(cdw11, &controller);
        }
        features::ASYNC_EVENT_CONFIGURATION => events::configure(cx, cdw11),
        features::KEEP_ALIVE_TIMER => controller.kato_ms.store(cdw11, Ordering::Relaxed),
        features::HOST_IDENTIFIER => {
            // (NVMe Base 2.0 §5.27.1.25)
            let status = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
            return Err(Refusal::new(status, "Connect has told the host's identifier"));
        }
        _ if subsystem.is_discovery() => return Err(unknown(fid)),
        _ => set_fixed((fid, cdw11, nsid), subsystem.traits().has_volatile_cache)?,
    }
    Ok(Outcome::DONE)
}

/// To set what it is changes nothing.
fn set_fixed((fid, cdw11, nsid): (u8, u32, u32), has_cache: bool) -> Result<(), Refusal> {
    let value = fixed(fid, cdw11, has_cache).ok_or_else(|| unknown(fid))?;
    // Of these only Error Recovery belongs to a namespace.
    if fid != features::ERROR_RECOVERY && !matches!(nsid, 0 | ALL_NAMESPACES) {
        let status = Status::FEATURE_NOT_PER_NAMESPACE.with_dnr();
        return Err(Refusal::new(status, "the feature is the controller's").of_field("NSID"));
    }
    // A threshold has its selectors above it.
    if cdw11 & 0xFFFF == value {
        return Ok(());
    }
    let cause = format!("feature {fid:#x} is always {value:#x}");
    Err(Refusal::new(Status::FEATURE_NOT_CHANGEABLE.with_dnr(), cause))
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
        return Err(Refusal::new(status, "the controller has I/O queues already"));
    }
    Ok(Outcome::dword(features::number_of_queues(granted)))
}
