//! The association of one client, and its commands to the target.

use crate::config::Served;
use crate::{COMMAND_TIMEOUT, KEEP_ALIVE};
use bpfof_host::files::FileLayout;
use bpfof_host::grant::protocol::{Cause, Refusal};
use bpfof_host::{
    Controller, Error, FileMapObject, FunctionId, HandedLane, NamespaceInfo, Options,
    PushdownLimits,
};
use bpfof_nvme::vendor_specific::FunctionDigest;
use bpfof_nvme::{AdminCommand, Installation, Status, Upload};
use std::time::Duration;

/// Longest time to connect a queue. While a lane is being connected no Keep Alive is sent and the leases are not
/// checked; the last Keep Alive was sent at most half of the timeout before.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1800);
/// Longest time that connecting really takes: the library detects a timeout up to an eighth late.
pub(crate) const CONNECTED: Duration =
    Duration::from_millis(CONNECT_TIMEOUT.as_millis() as u64 * 9 / 8);
/// Most data of one command: during a long command the leases are not checked.
const TRANSFER_BYTES: u32 = 128 << 10;

/// A restricted association at a target.
#[derive(Debug)]
pub(crate) struct Association {
    controller: Controller,
    info: NamespaceInfo,
    limits: PushdownLimits,
    transfer_bytes: u32,
    last_version: u64,
    lanes: usize,
}

/// Why a request has failed: alone, or with the association.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The target, or the state of the association, does not allow it.
    Refused(Refusal),
    /// The association is over, or will be at the end of its keep-alive timeout.
    Lost(Lost),
}

/// Why an association is given up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    /// The target does not answer, or answers wrongly.
    #[error(transparent)]
    Host(#[from] Error),
    /// A lease break may have waited so long that one more command could end too late.
    #[error("the target answers too slowly for files to be given back in time")]
    Late,
}

impl From<Lost> for Failed {
    fn from(lost: Lost) -> Self {
        Failed::Lost(lost)
    }
}

/// Classifies an error of the target.
fn failed(error: Error) -> Failed {
    match error {
        Error::Command { .. }
        | Error::FunctionRejected(_)
        | Error::NoRoomForFunction(_)
        | Error::ObjectTooLarge { .. }
        | Error::NoQueueLeft { .. }
        | Error::HandOver(_) => Failed::Refused(Refusal::new(Cause::Target, error)),
        error => Failed::Lost(error.into()),
    }
}

impl Association {
    /// Connects to a target and restricts the association.
    pub(crate) fn open(served: &Served) -> Result<Self, Error> {
        let options = Options {
            keep_alive: KEEP_ALIVE,
            keep_alive_thread: false,
            pushdown_only: true,
            connect_timeout: CONNECT_TIMEOUT,
            command_timeout: COMMAND_TIMEOUT,
            ..Options::default()
        };
        let mut controller = Controller::connect(&served.url, options)?;
        let info = controller.identify_namespace(served.url.nsid)?;
        let limits = controller.pushdown_limits()?;
        let transfer_bytes = controller.max_transfer_bytes().min(TRANSFER_BYTES);
        Ok(Self { controller, info, limits, transfer_bytes, last_version: 0, lanes: 0 })
    }

    /// The namespace with the files.
    pub(crate) const fn namespace(&self) -> NamespaceInfo {
        self.info
    }

    /// Most files that may have maps at a time.
    pub(crate) const fn files_max(&self) -> u32 {
        self.limits.file_maps
    }

    /// Most extents of a map.
    pub(crate) const fn extents_max(&self) -> usize {
        self.limits.extents as usize
    }

    /// Largest object of a function, in bytes.
    pub(crate) const fn object_bytes_max(&self) -> u32 {
        self.limits.object_bytes
    }

    /// Sends a Keep Alive if one is due; returns the time until the next.
    pub(crate) fn keep_alive(&mut self) -> Result<Duration, Error> {
        self.controller.keep_alive()
    }

    /// Sets the map of a file with the next version. If that takes several commands, calls `between` between them; if
    /// that fails, the target has no new map.
    pub(crate) fn set_map(
        &mut self,
        file: u32,
        layout: &FileLayout,
        between: &mut dyn FnMut() -> Result<(), Failed>,
    ) -> Result<u64, Failed> {
        // The version is used up even if the target refuses the map, so that a version never names two maps.
        self.last_version += 1;
        let map = FileMapObject {
            file,
            nsid: self.info.nsid,
            version: self.last_version,
            length_bytes: layout.length_bytes(),
            extents: layout.extents().to_vec(),
        };
        let mut object = Vec::new();
        map.encode_into(&mut object);
        for (upload, chunk) in Upload::chunks(&object, self.transfer_bytes) {
            if upload.offset_bytes > 0 {
                between()?;
            }
            let command = AdminCommand::file_map_set(upload);
            self.controller.admin_command(command, chunk, 0).map_err(failed)?;
        }
        Ok(self.last_version)
    }

    /// Removes the map of a file. When it returns, no chain uses the map any more.
    pub(crate) fn remove_map(&mut self, file: u32) -> Result<(), Lost> {
        Ok(self.controller.remove_file_map(self.info.nsid, file)?)
    }

    /// The function with this digest that is installed at the target for all hosts. Sends one command.
    pub(crate) fn kept_function(
        &mut self,
        digest: &[u8; 32],
    ) -> Result<Option<FunctionId>, Failed> {
        let most = self.transfer_bytes;
        let command = AdminCommand::digests(most);
        let answered = self.controller.admin_command(command, &[], most);
        let (answer, mut report) = answered.map_err(|error| match error {
            Error::Command { source, .. } if source.status.same_code(Status::INVALID_FIELD) => {
                let why = "the target is older than this daemon, and does not report digests of \
                           functions: update it";
                Failed::Refused(Refusal::new(Cause::Target, why))
            }
            error => failed(error),
        })?;
        report.truncate(answer.dw0 as usize);
        let is_it = |entry: &FunctionDigest| {
            FunctionId(entry.function).is_installed() && entry.digest == *digest
        };
        let mut entries = FunctionDigest::list(&report);
        Ok(entries.find(is_it).map(|entry| FunctionId(entry.function)))
    }

    /// Loads a function for this association. Calls `between` between its commands.
    pub(crate) fn load(
        &mut self,
        object: &[u8],
        entry: u32,
        between: &mut dyn FnMut(&mut Self) -> Result<(), Lost>,
    ) -> Result<FunctionId, Failed> {
        if object.is_empty() {
            return Err(failed(Error::FunctionRejected("the object is empty".to_owned())));
        }
        let installation = Installation { entry, ..Installation::default() };
        let mut function = 0;
        for (upload, chunk) in Upload::chunks(object, self.transfer_bytes) {
            if upload.offset_bytes > 0 {
                between(self)?;
            }
            let command = AdminCommand::function_load(upload, installation);
            match self.controller.admin_command(command, chunk, 0) {
                Ok((answer, _)) => function = answer.dw0,
                Err(error) => {
                    // `load_error` sends a command, too.
                    between(self)?;
                    return Err(failed(self.controller.load_error(error).map_err(failed)?));
                }
            }
        }
        match function {
            0 => Err(failed(Error::BadAnswer("Function Load answered with function 0"))),
            function => Ok(FunctionId(function)),
        }
    }

    /// A connected lane. A client gets at most `max` in all.
    pub(crate) fn lane(&mut self, max: usize) -> Result<HandedLane, Failed> {
        if self.lanes >= max {
            let why = format!("a client may have at most {max} lanes");
            return Err(Failed::Refused(Refusal::new(Cause::Quota, why)));
        }
        // If no lane can be made, the association may still work.
        let lane = self.controller.open_lane().and_then(bpfof_host::Lane::hand_over);
        let lane = lane.map_err(|e| Failed::Refused(Refusal::new(Cause::Target, e)))?;
        self.lanes += 1;
        Ok(lane)
    }

    /// Shuts the association down in order.
    pub(crate) fn close(self) {
        if let Err(error) = self.controller.disconnect() {
            log::debug!("an association was not shut down properly: {error}");
        }
    }
}

const _: () = assert!(CONNECTED.as_millis() < KEEP_ALIVE.as_millis() / 2);
