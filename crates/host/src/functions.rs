//! Functions of an association: the target's limits, load, unload, report.

use crate::installed::Installed;
use crate::{Controller, Error, PushdownLimits, Status};
use bpfof_function::Object;
use bpfof_nvme::vendor_specific::{FunctionDigest, FunctionReportEntry, PROTOCOL_VERSION};
use bpfof_nvme::{AdminCommand, Installation, NulPadded, Sqe, Upload, is_unprintable};
use std::collections::{BTreeMap, BTreeSet};
use std::{fmt, mem};

/// First buffer for a report or message, in bytes; the answer says whether a larger one is needed.
const REPORT_BYTES: u32 = 4096;
/// Longest report or message fetched, in bytes: more functions than an association holds.
const REPORT_MAX_BYTES: u32 = 256 << 10;
/// Longest text about one function, in bytes. A trace has 3 KiB, a fault one line of a source file.
const TEXT_MAX_BYTES: usize = 16 << 10;
/// Most lines of a trace: a target keeps 32 and reports how many it dropped (protocol.md, Function Report). A line
/// takes more memory than its text.
const TRACE_MAX_LINES: usize = 64;
/// Most memory for the reports of other programs' functions, in bytes: 128 associations with 64 functions, each with a
/// fault and a full trace, take about 40 MiB.
const FOREIGN_MAX_BYTES: usize = 64 << 20;

/// The id of a function that is loaded in an association, or installed for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionId(pub u32);

impl FunctionId {
    /// Whether the function is installed: it belongs to the subsystem, not to an association.
    #[must_use]
    pub const fn is_installed(self) -> bool {
        self.0 >> 31 == 1
    }
}

/// A function of another program of this host.
#[derive(Clone, Debug)]
pub struct ForeignFunction {
    /// The program's association: its controller id.
    pub controller: u16,
    /// The function's description and counters.
    pub report: FunctionReportEntry,
    /// Its last fault as text.
    pub last_fault: Option<String>,
    /// Its output by `bpfof_trace`, oldest line first.
    pub trace: Vec<String>,
}

impl ForeignFunction {
    fn memory_bytes(&self) -> usize {
        let lines = self.trace.iter().map(|line| mem::size_of::<String>() + line.len());
        let fault = self.last_fault.as_ref().map_or(0, String::len);
        mem::size_of::<Self>() + fault + lines.sum::<usize>()
    }
}

impl fmt::Display for FunctionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Controller {
    /// The limits of the target's pushdown (protocol.md, Pushdown Identify). The target is asked once per association.
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
        // An older target sends fewer fields; the rest is 0.
        let mut bytes = [0; PushdownLimits::BYTES];
        bytes.iter_mut().zip(&data).for_each(|(to, from)| *to = *from);
        if data.len() < PushdownLimits::LEAST_BYTES {
            return Err(Error::NotPushdownTarget);
        }
        let limits = PushdownLimits::from_bytes(&bytes);
        if limits.protocol_version != PROTOCOL_VERSION {
            let found = limits.protocol_version;
            return Err(Error::ProtocolVersion { found, ours: PROTOCOL_VERSION });
        }
        self.limits = Some(limits.clone());
        Ok(limits)
    }

    /// Loads a function object (ELF for eBPF); `entry_index` selects the entry point among its `bpfof/…` sections, in
    /// file order.
    ///
    /// # Errors
    /// [`Error::FunctionRejected`] and [`Error::NoRoomForFunction`] with the target's message;
    /// [`Error::ObjectTooLarge`]; those of [`pushdown_limits`](Self::pushdown_limits).
    pub fn load_function(&mut self, object: &[u8], entry_index: u32) -> Result<FunctionId, Error> {
        match &self.paths {
            Some(paths) => paths.load(object, entry_index).map(FunctionId),
            None => {
                self.load(object, Installation { entry: entry_index, ..Installation::default() })
            }
        }
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
        self.install(object, Installation { entry: entry_index, kept: true, named: false })
    }

    /// The same under the given name instead of the section's name: 1 to 64 bytes without control characters.
    ///
    /// # Errors
    /// Those of [`load_function`](Self::load_function).
    pub fn install_function_as(
        &mut self,
        name: &str,
        object: &[u8],
        entry_index: u32,
    ) -> Result<FunctionId, Error> {
        if name.is_empty() || name.len() > Installation::NAME_BYTES {
            let most = Installation::NAME_BYTES;
            let why = format!("its name has {} bytes, not 1 to {most}", name.len());
            return Err(Error::FunctionRejected(why));
        }
        let name = NulPadded::<{ Installation::NAME_BYTES }>::new(name);
        let named = [name.bytes(), object].concat();
        self.install(&named, Installation { entry: entry_index, kept: true, named: true })
    }

    fn install(&mut self, object: &[u8], installation: Installation) -> Result<FunctionId, Error> {
        match &self.paths {
            Some(paths) => paths.install(object, installation).map(FunctionId),
            None => self.load(object, installation),
        }
    }

    /// The installed function with the same program as this entry of an object, whatever its name; of several the one
    /// that was installed first. None if there is none, or the target is too old to report digests. With several
    /// portals, paths whose target lacks the function, or has another function under its id, are no longer used.
    ///
    /// # Errors
    /// [`Error::FunctionRejected`] if the object cannot be read; otherwise as the target answered.
    pub fn installed_program(
        &mut self,
        object: &[u8],
        entry_index: u32,
    ) -> Result<Option<FunctionId>, Error> {
        let entry = Object::parse_entry(object, entry_index as usize)
            .map_err(|error| Error::FunctionRejected(error.to_string()))?;
        let digest = entry.program.digest();
        let all = self.installed()?;
        let found = all.into_iter().find(|(_, installed)| installed.digest == digest);
        found.map(|(id, installed)| self.require(id, &installed)).transpose()
    }

    /// The installed function with this name, which any program may call by its id. With several portals, paths whose
    /// target lacks the function, or has another function under its id, are no longer used.
    ///
    /// # Errors
    /// [`Error::NoSuchFunction`], [`Error::SeveralFunctions`]; otherwise as the target answered.
    pub fn installed_function(&mut self, name: &str) -> Result<FunctionId, Error> {
        let all = self.installed()?.into_iter();
        let (found, others): (Vec<_>, Vec<_>) = all.partition(|(_, known)| known.name == name);
        match &found[..] {
            [(id, installed)] => self.require(*id, installed),
            [] => {
                let known: Vec<String> = others.into_iter().map(|(_, known)| known.name).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Err(Error::NoSuchFunction { name: name.to_owned(), known })
            }
            several => {
                let ids: Vec<String> = several.iter().map(|(id, _)| id.to_string()).collect();
                Err(Error::SeveralFunctions { name: name.to_owned(), ids: ids.join(", ") })
            }
        }
    }

    /// All installed functions, by their ids, which increase in the order of installation.
    pub(crate) fn installed(&mut self) -> Result<BTreeMap<u32, Installed>, Error> {
        let digests = match self.whole_answer(AdminCommand::digests) {
            Ok(digests) => Some(digests),
            // The target is older, and reports names only.
            Err(Error::Command { source, .. })
                if source.status.same_code(Status::INVALID_FIELD) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        let digests = digests.as_deref().map(|digests| -> BTreeMap<u32, [u8; 32]> {
            FunctionDigest::list(digests).map(|entry| (entry.function, entry.digest)).collect()
        });
        let report = self.function_report()?;
        let all = report.iter().filter(|entry| FunctionId(entry.function).is_installed());
        // A function that only one of the two answers contains is just being installed or unloaded.
        let known = all.filter_map(|entry| {
            let digest = match &digests {
                Some(digests) => *digests.get(&entry.function)?,
                None => Installed::NO_DIGEST,
            };
            Some((entry.function, Installed { name: entry.name.to_string(), digest }))
        });
        Ok(known.collect())
    }

    /// Lets requests use an installed function from now on, on any path.
    fn require(&self, id: u32, installed: &Installed) -> Result<FunctionId, Error> {
        if let Some(paths) = &self.paths {
            paths.require(id, installed)?;
        }
        Ok(FunctionId(id))
    }

    pub(crate) fn load(
        &mut self,
        object: &[u8],
        installation: Installation,
    ) -> Result<FunctionId, Error> {
        let name_bytes = if installation.named { Installation::NAME_BYTES } else { 0 };
        let max_bytes = u64::from(self.pushdown_limits()?.object_bytes) + name_bytes as u64;
        if object.is_empty() {
            return Err(Error::FunctionRejected("the object is empty".to_owned()));
        }
        let loaded = self.upload(
            object,
            max_bytes,
            |chunk| AdminCommand::function_load(chunk, installation),
            &mut || {},
        );
        match loaded {
            Ok(0) => Err(Error::BadAnswer("Function Load answered with function 0")),
            Ok(function) => Ok(FunctionId(function)),
            Err(error) => Err(self.load_error(error)?),
        }
    }

    /// Asks the target for its message about a failed Function Load: turns the statuses into
    /// [`Error::FunctionRejected`] and [`Error::NoRoomForFunction`] with that message, and returns other errors
    /// unchanged. For callers that send the command themselves. Sends one command, or none.
    ///
    /// # Errors
    /// The target could not be asked.
    pub fn load_error(&mut self, error: Error) -> Result<Error, Error> {
        let Error::Command { source, .. } = &error else { return Ok(error) };
        let is = |status| source.status.same_code(status);
        Ok(match () {
            () if is(Status::FUNCTION_REJECTED) => Error::FunctionRejected(self.load_message()?),
            () if is(Status::RESOURCE_LIMIT) => Error::NoRoomForFunction(self.load_message()?),
            () => error,
        })
    }

    /// Unloads a function; chains that run it end with Unknown Function.
    ///
    /// # Errors
    /// As the target answered.
    pub fn unload_function(&mut self, function: FunctionId) -> Result<(), Error> {
        if let Some(paths) = &self.paths {
            return paths.unload(function.0);
        }
        self.admin_command(AdminCommand::function_unload(function.0), &[], 0).map(|_| ())
    }

    /// The target's report on each function of the association: its size and counters.
    ///
    /// # Errors
    /// As the target answered.
    pub fn function_report(&mut self) -> Result<Vec<FunctionReportEntry>, Error> {
        let report = self.report(AdminCommand::ALL_FUNCTIONS)?;
        Ok(FunctionReportEntry::list(&report).collect())
    }

    /// The last fault of a function as text: source line, instruction and cause. None if it has not faulted. At most 16
    /// KiB of printable text, whatever the target sends.
    ///
    /// # Errors
    /// As the target answered.
    pub fn last_fault(&mut self, function: FunctionId) -> Result<Option<String>, Error> {
        self.last_fault_of(0, function)
    }

    fn last_fault_of(
        &mut self,
        controller: u16,
        function: FunctionId,
    ) -> Result<Option<String>, Error> {
        let command = |length| {
            AdminCommand::report_of(controller, AdminCommand::last_fault(function.0, length))
        };
        let mut answer = self.whole_answer(command)?;
        answer.truncate(TEXT_MAX_BYTES);
        let text = text(&answer);
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// The output of a function by `bpfof_trace`, oldest line first; empty from a target without traces. Contains only
    /// printable ASCII, whatever the target sends.
    ///
    /// # Errors
    /// As the target answered.
    pub fn trace(&mut self, function: FunctionId) -> Result<Vec<String>, Error> {
        self.trace_of(0, function)
    }

    fn trace_of(&mut self, controller: u16, function: FunctionId) -> Result<Vec<String>, Error> {
        let command =
            |length| AdminCommand::report_of(controller, AdminCommand::trace(function.0, length));
        let answer = match self.whole_answer(command) {
            Err(Error::Command { source, .. })
                if source.status.same_code(Status::INVALID_FIELD) =>
            {
                return Ok(Vec::new());
            }
            answer => answer?,
        };
        let lines = || up_to_padding(&answer).split(|byte| *byte == b'\n');
        // The last line ends in a line feed, too.
        if answer.len() > TEXT_MAX_BYTES || lines().count() > TRACE_MAX_LINES + 1 {
            return Err(Error::BadAnswer("a trace is longer than any that a target keeps"));
        }
        let printable = |line: &[u8]| text(line).replace(|c: char| !c.is_ascii(), "?");
        let mut trace: Vec<String> = lines().map(printable).collect();
        trace.pop_if(|line| line.is_empty());
        Ok(trace)
    }

    /// The functions that other programs of this host have loaded for themselves: programs that connected with the same
    /// host NQN and host identifier ([`Options`](crate::Options)). Empty from a target that does not report them.
    ///
    /// # Errors
    /// As the target answered. [`Error::BadAnswer`]: it names a function twice, or reports more than a target can have.
    pub fn foreign_functions(&mut self) -> Result<Vec<ForeignFunction>, Error> {
        let associations = match self.whole_answer(AdminCommand::associations) {
            Err(Error::Command { source, .. })
                if source.status.same_code(Status::INVALID_FIELD) =>
            {
                return Ok(Vec::new());
            }
            answer => answer?,
        };
        let ids = associations.as_chunks().0.iter().map(|id| u16::from_le_bytes(*id));
        let (mut found, mut left_bytes) = (Vec::new(), FOREIGN_MAX_BYTES);
        let mut known = BTreeSet::new();
        for (index, controller) in ids.enumerate() {
            if !known.insert(controller) {
                return Err(Error::BadAnswer("an association is listed twice"));
            }
            // This program's own association comes first.
            if index == 0 {
                continue;
            }
            match self.functions_of(controller, &mut found, &mut left_bytes) {
                Ok(()) => {}
                // The association has ended meanwhile.
                Err(Error::Command { source, .. })
                    if source.status.same_code(Status::UNKNOWN_FUNCTION) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Adds the functions of an association to `found`, whose memory may grow by `left_bytes`.
    fn functions_of(
        &mut self,
        controller: u16,
        found: &mut Vec<ForeignFunction>,
        left_bytes: &mut usize,
    ) -> Result<(), Error> {
        let all = AdminCommand::ALL_FUNCTIONS;
        let command = |length| {
            AdminCommand::report_of(controller, AdminCommand::function_report(all, length))
        };
        let report = self.whole_answer(command)?;
        let entries = FunctionReportEntry::list(&report);
        let own = entries.filter(|entry| !FunctionId(entry.function).is_installed());
        let mut known = BTreeSet::new();
        for report in own {
            let id = FunctionId(report.function);
            if !known.insert(id.0) {
                return Err(Error::BadAnswer("a function is listed twice"));
            }
            let last_fault = self.last_fault_of(controller, id)?;
            let trace = self.trace_of(controller, id)?;
            let function = ForeignFunction { controller, report, last_fault, trace };
            *left_bytes = left_bytes.checked_sub(function.memory_bytes()).ok_or(
                Error::BadAnswer("the report is larger than a target's functions can need"),
            )?;
            found.push(function);
        }
        Ok(())
    }

    /// Why the last Function Load was refused.
    fn load_message(&mut self) -> Result<String, Error> {
        let most = REPORT_MAX_BYTES.min(self.max_transfer_bytes());
        let command = AdminCommand::function_report(AdminCommand::LAST_LOAD_MESSAGE, most);
        let (answer, mut message) = self.admin_command(command, &[], most)?;
        // Not every transport reports how much of the buffer was written.
        message.truncate(answer.dw0 as usize);
        let text = text(&message);
        if text.is_empty() {
            return Ok("the target gave no reason".to_owned());
        }
        Ok(text)
    }

    /// A whole report, at most [`REPORT_MAX_BYTES`].
    fn report(&mut self, function: u32) -> Result<Vec<u8>, Error> {
        self.whole_answer(|length| AdminCommand::function_report(function, length))
    }

    /// The whole answer to a command whose completion has the answer's length in dword 0. `command` makes the command
    /// for a buffer length.
    pub(crate) fn whole_answer(&mut self, command: impl Fn(u32) -> Sqe) -> Result<Vec<u8>, Error> {
        let most = REPORT_MAX_BYTES.min(self.max_transfer_bytes());
        let length = REPORT_BYTES.min(most);
        let (mut answer, mut data) = self.admin_command(command(length), &[], length)?;
        if answer.dw0 > length {
            let length = answer.dw0.min(most);
            (answer, data) = self.admin_command(command(length), &[], length)?;
        }
        // Not every transport reports how much of the buffer was written.
        data.truncate(answer.dw0 as usize);
        Ok(data)
    }

    /// Sends `object` in chunks by [`admin_command_while`](Self::admin_command_while); returns dword 0 of the last
    /// completion.
    pub(crate) fn upload(
        &mut self,
        object: &[u8],
        max_bytes: u64,
        command: impl Fn(Upload) -> Sqe,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<u32, Error> {
        let bytes = object.len() as u64;
        let max_bytes = max_bytes.min(u64::from(u32::MAX));
        if bytes > max_bytes {
            return Err(Error::ObjectTooLarge { bytes, max_bytes });
        }
        let mut last = 0;
        for (upload, chunk) in Upload::chunks(object, self.max_transfer_bytes().max(1)) {
            let sent = (command(upload), chunk, 0);
            last = self.admin_command_while(sent, Some(&mut *meanwhile))?.0.dw0;
        }
        Ok(last)
    }
}

fn up_to_padding(message: &[u8]) -> &[u8] {
    message.split(|&byte| byte == 0).next().unwrap_or(&[])
}

/// A message of the target: up to its padding, with unprintable characters replaced, because a terminal or a log would
/// interpret them.
fn text(message: &[u8]) -> String {
    String::from_utf8_lossy(up_to_padding(message)).replace(is_unprintable, "?")
}
