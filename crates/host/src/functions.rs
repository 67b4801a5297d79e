//! Functions of an association: what the target can do, load, unload, report.

use crate::{Controller, Error, PushdownLimits, Status};
use bpfof_nvme::vendor_specific::{FunctionReportEntry, PROTOCOL_VERSION};
use bpfof_nvme::{AdminCommand, Installation, Sqe, Upload};
use std::fmt;

/// First buffer for a report or message, in bytes; the answer says if more is needed.
const REPORT_BYTES: u32 = 4096;
/// Longest report or message fetched, in bytes: more functions than an association holds.
const REPORT_MAX_BYTES: u32 = 256 << 10;

/// A function that is loaded in an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionId(pub u32);

impl fmt::Display for FunctionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Controller {
    /// What the target's pushdown can do (protocol.md, Pushdown Identify). Asked once per
    /// association.
    ///
    /// # Errors
    /// [`Error::NotPushdownTarget`] for an ordinary target, [`Error::ProtocolVersion`] for another
    /// version of the protocol.
    pub fn pushdown_limits(&mut self) -> Result<PushdownLimits, Error> {
        if let Some(limits) = &self.limits {
            return Ok(limits.clone());
        }
        let sqe = AdminCommand::pushdown_identify(PushdownLimits::BYTES as u32);
        let data = match self.admin_command(sqe, &[], PushdownLimits::BYTES as u32) {
            Ok((_, data)) => data,
            Err(Error::Command { source, .. })
                if source.status.same_code(Status::INVALID_OPCODE)
                    || source.status.same_code(Status::INVALID_FIELD) =>
            {
                return Err(Error::NotPushdownTarget);
            }
            Err(error) => return Err(error),
        };
        let bytes = data.first_chunk().ok_or(Error::NotPushdownTarget)?;
        let limits = PushdownLimits::from_bytes(bytes);
        if limits.protocol_version != PROTOCOL_VERSION {
            let found = limits.protocol_version;
            return Err(Error::ProtocolVersion { found, ours: PROTOCOL_VERSION });
        }
        self.limits = Some(limits.clone());
        Ok(limits)
    }

    /// Loads a function object (ELF for eBPF); `entry_index` says which of its `bpfof/…` sections,
    /// in file order, is the entry point.
    ///
    /// # Errors
    /// [`Error::FunctionRejected`] and [`Error::NoRoomForFunction`] with the target's words;
    /// [`Error::ObjectTooLarge`]; those of
    /// [`pushdown_limits`](Self::pushdown_limits).
    pub fn load_function(&mut self, object: &[u8], entry_index: u32) -> Result<FunctionId, Error> {
        self.load(object, Installation { entry: entry_index, kept: false })
    }

    /// The same for all associations with the subsystem: the function stays until it is unloaded or
    /// the target stops.
    ///
    /// # Errors
    /// Those of [`load_function`](Self::load_function).
    pub fn install_function(
        &mut self,
        object: &[u8],
        entry_index: u32,
    ) -> Result<FunctionId, Error> {
        self.load(object, Installation { entry: entry_index, kept: true })
    }

    fn load(&mut self, object: &[u8], installation: Installation) -> Result<FunctionId, Error> {
        let max_bytes = u64::from(self.pushdown_limits()?.object_bytes);
        if object.is_empty() {
            return Err(Error::FunctionRejected("the object is empty".to_owned()));
        }
        let loaded = self
            .upload(object, max_bytes, |chunk| AdminCommand::function_load(chunk, installation));
        match loaded {
            Ok(0) => Err(Error::BadAnswer("Function Load answered with function 0")),
            Ok(function) => Ok(FunctionId(function)),
            Err(Error::Command { source, .. })
                if source.status.same_code(Status::FUNCTION_REJECTED) =>
            {
                Err(Error::FunctionRejected(self.load_message()?))
            }
            Err(Error::Command { source, .. })
                if source.status.same_code(Status::RESOURCE_LIMIT) =>
            {
                Err(Error::NoRoomForFunction(self.load_message()?))
            }
            Err(error) => Err(error),
        }
    }

    /// Unloads a function; chains that run it end with Unknown Function.
    ///
    /// # Errors
    /// As the target answered.
    pub fn unload_function(&mut self, function: FunctionId) -> Result<(), Error> {
        self.admin_command(AdminCommand::function_unload(function.0), &[], 0).map(|_| ())
    }

    /// What the target knows of each function of the association: its size, and counters.
    ///
    /// # Errors
    /// As the target answered.
    pub fn function_report(&mut self) -> Result<Vec<FunctionReportEntry>, Error> {
        let report = self.report(AdminCommand::ALL_FUNCTIONS)?;
        Ok(FunctionReportEntry::list(&report).collect())
    }

    /// The last fault of a function in words: source line, instruction, and what it missed. None
    /// if it has not faulted.
    ///
    /// # Errors
    /// As the target answered.
    pub fn last_fault(&mut self, function: FunctionId) -> Result<Option<String>, Error> {
        let command = |length| AdminCommand::last_fault(function.0, length);
        let text = text(&self.whole_answer(command)?);
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// What a function has said by `bpfof_trace`, oldest line first; nothing from a target that does
    /// not know this. Only printable ASCII is left in it, whatever the target sends.
    ///
    /// # Errors
    /// As the target answered.
    pub fn trace(&mut self, function: FunctionId) -> Result<Vec<String>, Error> {
        let answer = match self.whole_answer(|length| AdminCommand::trace(function.0, length)) {
            Err(Error::Command { source, .. })
                if source.status.same_code(Status::INVALID_FIELD) =>
            {
                return Ok(Vec::new());
            }
            answer => answer?,
        };
        let printable = |line: &str| line.replace(|c: char| !matches!(c, ' '..='~'), "?");
        Ok(text(&answer).lines().map(printable).collect())
    }

    /// Why the last Function Load was refused.
    fn load_message(&mut self) -> Result<String, Error> {
        let text = text(&self.report(AdminCommand::LAST_LOAD_MESSAGE)?);
        if text.is_empty() {
            return Ok("it gave no reason".to_owned());
        }
        Ok(text)
    }

    /// A report as a whole, at most [`REPORT_MAX_BYTES`].
    fn report(&mut self, function: u32) -> Result<Vec<u8>, Error> {
        self.whole_answer(|length| AdminCommand::function_report(function, length))
    }

    /// The answer to a command that is made for a buffer length and says in dword 0 how long the
    /// answer is.
    pub(crate) fn whole_answer(&mut self, command: impl Fn(u32) -> Sqe) -> Result<Vec<u8>, Error> {
        let most = REPORT_MAX_BYTES.min(self.max_transfer_bytes());
        let length = REPORT_BYTES.min(most);
        let (mut answer, mut data) = self.admin_command(command(length), &[], length)?;
        if answer.dw0 > length {
            let length = answer.dw0.min(most);
            (answer, data) = self.admin_command(command(length), &[], length)?;
        }
        // Not every transport tells how much of the buffer was written.
        data.truncate(answer.dw0 as usize);
        Ok(data)
    }

    /// Sends `object` in chunks; returns dword 0 of the last.
    pub(crate) fn upload(
        &mut self,
        object: &[u8],
        max_bytes: u64,
        command: impl Fn(Upload) -> Sqe,
    ) -> Result<u32, Error> {
        let bytes = object.len() as u64;
        let max_bytes = max_bytes.min(u64::from(u32::MAX));
        if bytes > max_bytes {
            return Err(Error::ObjectTooLarge { bytes, max_bytes });
        }
        let chunk_bytes = (self.max_transfer_bytes() as usize).max(1);
        let mut last = 0;
        for (index, chunk) in object.chunks(chunk_bytes).enumerate() {
            let offset_bytes = (index * chunk_bytes) as u32;
            let sqe = command(Upload { total_bytes: bytes as u32, offset_bytes });
            last = self.admin_command(sqe, chunk, 0)?.0.dw0;
        }
        Ok(last)
    }
}

/// A message of the target: up to its padding.
fn text(message: &[u8]) -> String {
    let text = message.split(|&byte| byte == 0).next().unwrap_or(&[]);
    String::from_utf8_lossy(text).into_owned()
}
