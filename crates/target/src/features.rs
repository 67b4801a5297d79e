//! Get Features and Set Features (NVMe Base 2.0 §5.15 and §5.27).

use crate::admin::invalid_field;
use crate::connection::{Connection, Reply};
use crate::controller::Controller;
use crate::limits::MAX_IO_QUEUES;
use bpfof_nvme::Status;
use bpfof_nvme::features::{self, SELECT_CURRENT, SELECT_DEFAULT, SELECT_SAVED, SELECT_SUPPORTED};
use std::sync::atomic::Ordering;

/// Get Features, Supported Capabilities: the value can be changed (§5.15).
const CHANGEABLE: u32 = 1 << 2;
/// Names all namespaces (NVMe Base 2.0 §3.2.1).
const ALL_NAMESPACES: u32 = u32::MAX;
/// Arbitration: no limit to the commands fetched from one queue at a time (§5.27.1.1).
const NO_BURST_LIMIT: u32 = 7;
/// Temperature Threshold, CDW11 bits 21:20: the lower one is meant (§5.27.1.3).
const UNDER_TEMPERATURE: u32 = 1 << 20;
/// The upper threshold that is never exceeded: there is no thermometer.
const NO_TEMPERATURE_LIMIT: u32 = 0xFFFF;

/// A feature's value.
pub(crate) enum Feature {
    /// In DW0 of the completion.
    Dword(u32),
    /// As data.
    Data([u8; 16]),
}

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

impl Connection {
    /// Get Features.
    pub(crate) fn feature(
        &mut self,
        (fid, select, cdw11): (u8, u8, u32),
        controller: &Controller,
        has_cache: bool,
    ) -> Result<Feature, Reply> {
        let default = match fid {
            features::NUMBER_OF_QUEUES if !controller.subsystem.is_discovery() => {
                features::number_of_queues(MAX_IO_QUEUES)
            }
            features::ASYNC_EVENT_CONFIGURATION | features::KEEP_ALIVE_TIMER => 0,
            // Bit 0: the 128-bit form, which fabrics hosts have.
            features::HOST_IDENTIFIER if cdw11 & 1 == 0 => {
                return Err(Status::HOST_ID_INCONSISTENT.with_dnr().into());
            }
            features::HOST_IDENTIFIER if select == SELECT_SUPPORTED => {
                return Ok(Feature::Dword(0));
            }
            features::HOST_IDENTIFIER => return Ok(Feature::Data(controller.host_id)),
            _ if controller.subsystem.is_discovery() => return Err(invalid_field()),
            _ => {
                let value = fixed(fid, cdw11, has_cache).ok_or_else(invalid_field)?;
                return match select {
                    SELECT_CURRENT | SELECT_DEFAULT | SELECT_SAVED => Ok(Feature::Dword(value)),
                    SELECT_SUPPORTED => Ok(Feature::Dword(0)),
                    _ => Err(invalid_field()),
                };
            }
        };
        Ok(Feature::Dword(match select {
            SELECT_CURRENT => self.changed_feature(fid, controller),
            // Nothing is saved, and then Saved means Default (NVMe Base 2.0 §5.15).
            SELECT_DEFAULT | SELECT_SAVED => default,
            SELECT_SUPPORTED => CHANGEABLE,
            _ => return Err(invalid_field()),
        }))
    }

    fn changed_feature(&mut self, fid: u8, controller: &Controller) -> u32 {
        match fid {
            features::NUMBER_OF_QUEUES => features::number_of_queues(controller.granted_queues()),
            features::ASYNC_EVENT_CONFIGURATION => self.async_event_config(),
            _ => controller.kato_ms.load(Ordering::Relaxed),
        }
    }

    /// Set Features; returns DW0.
    pub(crate) fn set_feature(
        &mut self,
        (fid, cdw11, nsid): (u8, u32, u32),
        controller: &Controller,
        has_cache: bool,
    ) -> Result<u32, Reply> {
        match fid {
            features::NUMBER_OF_QUEUES if !controller.subsystem.is_discovery() => {
                grant_queues(cdw11, controller)
            }
            features::ASYNC_EVENT_CONFIGURATION => {
                self.set_async_event_config(cdw11);
                Ok(0)
            }
            features::KEEP_ALIVE_TIMER => {
                controller.kato_ms.store(cdw11, Ordering::Relaxed);
                Ok(0)
            }
            // Connect has told it (NVMe Base 2.0 §5.27.1.25).
            features::HOST_IDENTIFIER => Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr().into()),
            _ if controller.subsystem.is_discovery() => Err(invalid_field()),
            // Of these only Error Recovery belongs to a namespace.
            _ if fixed(fid, cdw11, has_cache).is_some()
                && fid != features::ERROR_RECOVERY
                && !matches!(nsid, 0 | ALL_NAMESPACES) =>
            {
                Err(Status::FEATURE_NOT_PER_NAMESPACE.with_dnr().into())
            }
            _ => match fixed(fid, cdw11, has_cache) {
                // To set what it is changes nothing; a threshold has its selectors above it.
                Some(value) if cdw11 & 0xFFFF == value => Ok(0),
                Some(_) => Err(Status::FEATURE_NOT_CHANGEABLE.with_dnr().into()),
                None => Err(invalid_field()),
            },
        }
    }
}

/// NVMe Base 2.0 §5.27.1.5.
fn grant_queues(cdw11: u32, controller: &Controller) -> Result<u32, Reply> {
    // FFFFh is invalid; both halves are 0's based.
    let (submission, completion) = (cdw11 as u16, (cdw11 >> 16) as u16);
    if submission == u16::MAX || completion == u16::MAX {
        return Err(invalid_field());
    }
    let granted = submission.min(MAX_IO_QUEUES - 1) + 1;
    if !controller.grant_queues(granted) {
        // There are I/O queues already.
        return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr().into());
    }
    Ok(features::number_of_queues(granted))
}
