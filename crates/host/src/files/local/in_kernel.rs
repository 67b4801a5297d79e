//! Runs chains in the interrupt of the drive, by the module `bpfof_xrp` (docs/kernel.md). This saves most of the cost
//! of a hop for a chain that is alone; many chains at once cost less in a ring.

use super::namespace::Namespace;
use crate::files::nvme::NvmeNamespace;
use bpfof_chain::{FileMap, FileVersion, Function, Limits, Start, Suspended};
use bpfof_device::xrp::{
    CHAIN_FILES, FILES_MAX, XrpChain, XrpDomain, XrpEnd, XrpExtent, XrpFile, XrpFunction,
};
use bpfof_function::kernel::{KFUNCS, KernelProgram, missing_helpers, slot};
use bpfof_function::{Program, abi};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Pause before the kernel is asked again for what it had no room or no memory, or which it could not finish.
const PAUSE: Duration = Duration::from_secs(10);

/// After this many chains in a row that had to start again in user space, a function rests.
const RESTARTS_MAX: u32 = 8;

/// How a chain ended in the kernel.
pub(super) enum End<'a> {
    /// The answer, and the number of hops.
    Answer(&'a [u8], u32),
    /// The engine must continue the chain.
    Continue(Suspended),
    /// The engine must run the chain from its start.
    Restart,
}

/// A function that was offered to the kernel.
#[derive(Debug)]
struct Known {
    function: Weak<Function>,
    load: Load,
    /// It calls helpers that the module lacks.
    lacks_helpers: bool,
    /// Chains in a row that had to start again in user space.
    restarts: u32,
    /// Chains do not try the kernel before, because the last ones had to start again.
    rests_until: Option<Instant>,
}

impl Known {
    /// Notes how a chain ended. Chains that call a helper which the module lacks run twice until then.
    fn ended(&mut self, is_restart: bool) {
        self.restarts = if is_restart && self.lacks_helpers { self.restarts + 1 } else { 0 };
        if self.restarts == RESTARTS_MAX {
            self.restarts = 0;
            self.rests_until = Some(Instant::now() + PAUSE);
        }
    }
}

/// Result of loading a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Its number.
    Done(u32),
    /// The kernel refused it.
    Refused,
    /// It failed for a reason that may pass: load it again at this time at the earliest.
    NotBefore(Instant),
}

impl Load {
    fn of(outcome: &io::Result<u32>) -> Load {
        match outcome {
            Ok(number) => Load::Done(*number),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Load::Refused,
            Err(_) => Load::NotBefore(Instant::now() + PAUSE),
        }
    }

    fn number(self) -> Option<u32> {
        if let Load::Done(number) = self { Some(number) } else { None }
    }

    /// Whether to load it again.
    fn is_due(self) -> bool {
        matches!(self, Load::NotBefore(at) if at <= Instant::now())
    }
}

/// A domain of the module, and the functions and files that were given to it.
#[derive(Debug)]
pub(super) struct Kernel {
    domain: XrpDomain,
    functions: BTreeMap<u32, Known>,
    /// Files with a map in the kernel: number and version by file id.
    files: BTreeMap<u32, (u32, u64)>,
    /// Versions of maps that the kernel has refused, and when to ask again, by file id.
    refused: BTreeMap<u32, (u64, Instant)>,
    /// Free file numbers.
    free: Vec<u32>,
    chain_files: Vec<XrpFile>,
    /// Refusals of files that were logged already.
    told: BTreeSet<String>,
}

/// Rewrites a function for the kernel and loads it into a domain. Returns its number there.
///
/// # Errors
/// The function cannot be rewritten, or the kernel's verifier refuses it
/// ([`InvalidData`](io::ErrorKind::InvalidData)); or the kernel or the domain has no room for it now.
pub fn load_into_kernel(domain: &mut XrpDomain, program: &Program) -> io::Result<u32> {
    let translated = KernelProgram::translate(program)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let (arena, kfuncs) = domain.relocations();
    let kfuncs: &[u32; KFUNCS.len()] = kfuncs.try_into().map_err(io::Error::other)?;
    let instructions = translated.relocate(arena, kfuncs);
    let constants = program.statics().constants();
    domain.add_function(&XrpFunction {
        instructions: &instructions,
        workspace: program.lowest_address() == abi::WORKSPACE,
        constants: (constants.start, constants.end - constants.start),
    })
}

/// A domain of the module `bpfof_xrp` over the block device of a namespace.
///
/// # Errors
/// The module is not loaded or refuses the drive; the process may not load eBPF.
pub fn kernel_domain(drive: &Path) -> io::Result<XrpDomain> {
    XrpDomain::new(drive, &KFUNCS.map(|(_, name)| name))
}

impl Kernel {
    /// None if the module is not loaded, or refuses this process.
    pub(super) fn new(of: &NvmeNamespace, drive: &Path) -> Option<Kernel> {
        if !XrpDomain::is_possible() {
            return None;
        }
        match kernel_domain(drive) {
            Ok(domain) => Some(Kernel {
                domain,
                functions: BTreeMap::new(),
                files: BTreeMap::new(),
                refused: BTreeMap::new(),
                free: (0..FILES_MAX).rev().collect(),
                chain_files: Vec::with_capacity(CHAIN_FILES),
                told: BTreeSet::new(),
            }),
            Err(error) => {
                let nsid = of.info.nsid;
                log::warn!(
                    "chains over namespace {nsid} do not run in the kernel although the module is \
                     loaded: {error} (see bpfof xrp status)"
                );
                None
            }
        }
    }

    /// Loads the function and files of a chain into the kernel. Whether the kernel can run the chain.
    pub(super) fn prepare(
        &mut self,
        function: &Arc<Function>,
        versions: &[FileVersion],
        files: &Namespace,
        nsid: u32,
    ) -> bool {
        if self.function(function).is_none() {
            return false;
        }
        self.chain_files.clear();
        for &FileVersion { id, version } in versions {
            let Some(map) = files.tables().map(nsid, id) else { return false };
            if self
                .refused
                .get(&id)
                .is_some_and(|(refused, until)| *refused == version && Instant::now() < *until)
            {
                return false;
            }
            match self.file(id, version, map) {
                Ok(number) => self.chain_files.push(XrpFile::new(number, version)),
                Err(error) => {
                    if is_news(&mut self.told, &error) {
                        log::warn!("the kernel refuses the map of a file: {error}");
                    }
                    self.refused.insert(id, (version, Instant::now() + PAUSE));
                    return false;
                }
            }
        }
        true
    }

    /// The number of a function in the kernel, which loads it if necessary.
    fn function(&mut self, function: &Arc<Function>) -> Option<u32> {
        let known = self.functions.get_mut(&function.id);
        if let Some(known) = &known
            && known.rests_until.is_some_and(|until| Instant::now() < until)
        {
            return None;
        }
        let before = known.map(|known| {
            known.rests_until = None;
            known.load
        });
        if let Some(load) = before.filter(|load| !load.is_due()) {
            return load.number();
        }
        let Self { domain, functions, .. } = self;
        // Remove functions that no handle refers to any more.
        functions.retain(|_, known| {
            let is_used = known.function.strong_count() > 0;
            if let Some(number) = known.load.number().filter(|_| !is_used) {
                domain.remove_function(number);
            }
            is_used
        });
        let outcome = load_into_kernel(domain, function.native.program());
        let load = Load::of(&outcome);
        if let Err(error) = &outcome {
            let is_again = before.is_some() && load != Load::Refused;
            let level = if is_again { log::Level::Debug } else { log::Level::Warn };
            log::log!(level, "function {} does not run in the kernel: {error}", function.name);
        }
        let known = Known {
            function: Arc::downgrade(function),
            load,
            lacks_helpers: !missing_helpers(function.native.program()).is_empty(),
            restarts: 0,
            rests_until: None,
        };
        self.functions.insert(function.id, known);
        load.number()
    }

    /// The number of a file in the kernel; sends this version of its map if necessary.
    fn file(&mut self, id: u32, version: u64, map: &FileMap) -> io::Result<u32> {
        let known = self.files.get(&id).copied();
        if let Some((number, _)) = known.filter(|(_, known)| *known == version) {
            return Ok(number);
        }
        let number = known.map(|(number, _)| number).or_else(|| self.free.pop());
        let number = number.ok_or_else(|| io::Error::other("there is no room for more files"))?;
        let extent = |extent: &bpfof_chain::Extent| XrpExtent {
            file_offset: extent.file_offset,
            device_offset: extent.device_offset,
            length: extent.length,
        };
        let extents: Vec<XrpExtent> = map.extents().iter().map(extent).collect();
        self.files.insert(id, (number, version));
        let set = self.domain.set_file(number, version, map.length_bytes(), &extents);
        if set.is_err() {
            // An earlier map must not stay: its blocks may be another file's. The module never refuses to remove one.
            if known.is_some() {
                drop(self.domain.set_file(number, 0, 0, &[]));
            }
            self.files.remove(&id);
            self.free.push(number);
        }
        set.map(|()| number)
    }

    /// Removes the maps of files that the namespace has removed.
    pub(super) fn let_go(&mut self, files: &Namespace, nsid: u32) {
        let Self { domain, free, .. } = self;
        self.refused.retain(|id, _| files.tables().map(nsid, *id).is_some());
        self.files.retain(|id, (number, _)| {
            let is_known = files.tables().map(nsid, *id).is_some();
            if !is_known {
                // The module never refuses to remove a map.
                drop(domain.set_file(*number, 0, 0, &[]));
                free.push(*number);
            }
            is_known
        });
    }

    /// Runs a chain that was [prepared](Self::prepare), to its end.
    pub(super) fn run(&mut self, function: &Function, start: &Start<'_>) -> End<'_> {
        let Some(known) = self.functions.get_mut(&function.id) else { return End::Restart };
        let Some(number) = known.load.number() else { return End::Restart };
        let (program, scratch_bytes) = (function.native.program(), start.scratch_bytes as usize);
        slot::begin_chain(self.domain.slot(), program, start.argument, scratch_bytes);
        let limits = Limits::default();
        let ended = self.domain.run(&XrpChain {
            function: number,
            files: &self.chain_files,
            first: (start.first_file, start.first_offset_bytes, start.first_size_bytes),
            scratch_bytes: start.scratch_bytes,
            answer_max: start.answer_max_bytes,
            units: limits.instructions,
            bytes: limits.bytes,
        });
        known.ended(matches!(ended, Ok(XrpEnd::Restart)));
        let memory = &*self.domain.slot();
        match ended {
            Ok(XrpEnd::Done { length_bytes, hops }) => {
                End::Answer(slot::scratch(memory, length_bytes as usize), hops)
            }
            Ok(XrpEnd::Continue { hops, units, bytes }) => {
                let arena = slot::save(memory, program, scratch_bytes);
                End::Continue(Suspended::of(start, arena, hops, bytes, units))
            }
            Ok(XrpEnd::Restart) => End::Restart,
            Err(error) => {
                log::debug!("the kernel cannot run a chain: {error}");
                End::Restart
            }
        }
    }
}

/// Whether this error was not logged before.
fn is_news(told: &mut BTreeSet<String>, error: &io::Error) -> bool {
    told.insert(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without memory, or with as many functions as there can be, a function is loaded again later.
    #[test]
    fn only_what_the_kernel_refuses_is_not_loaded_again() {
        let failed = |kind: io::ErrorKind| Load::of(&Err(kind.into()));
        assert_eq!(Load::of(&Ok(3)).number(), Some(3));
        assert!(!Load::of(&Ok(3)).is_due());
        assert_eq!(failed(io::ErrorKind::InvalidData), Load::Refused);
        assert!(!Load::Refused.is_due() && Load::Refused.number().is_none());
        let want = [io::ErrorKind::OutOfMemory, io::ErrorKind::WouldBlock, io::ErrorKind::Other];
        for kind in want {
            let load = failed(kind);
            assert!(matches!(load, Load::NotBefore(_)), "{kind}");
            assert!(!load.is_due() && load.number().is_none(), "{kind}");
        }
        assert!(Load::NotBefore(Instant::now()).is_due());
    }

    #[test]
    fn a_cause_is_told_once() {
        let mut told = BTreeSet::new();
        let full = || io::Error::other("there is no room for more files");
        let denied = || io::Error::from_raw_os_error(1);
        assert!(is_news(&mut told, &full()) && is_news(&mut told, &denied()));
        assert!(!is_news(&mut told, &full()) && !is_news(&mut told, &denied()));
    }
}
