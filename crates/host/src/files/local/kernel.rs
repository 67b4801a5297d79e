//! Runs chains in the interrupt of the drive, by the module `bpfof_xrp` (docs/kernel.md). This saves most of the cost
//! of a hop for a chain that is alone; many chains at once cost less in a ring.

use super::namespace::Namespace;
use crate::files::nvme::NvmeNamespace;
use bpfof_chain::{FileMap, FileVersion, Function, Limits, Start, Suspended};
use bpfof_device::xrp::{
    CHAIN_FILES, FILES_MAX, XrpChain, XrpDomain, XrpEnd, XrpExtent, XrpFile, XrpFunction,
};
use bpfof_function::kernel::{KFUNCS, KernelProgram, slot};
use bpfof_function::{Program, abi};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

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
    /// None if the kernel refused it.
    number: Option<u32>,
}

/// A domain of the module, and the functions and files that were given to it.
#[derive(Debug)]
pub(super) struct Kernel {
    domain: XrpDomain,
    functions: BTreeMap<u32, Known>,
    /// Files with a map in the kernel: number and version by file id.
    files: BTreeMap<u32, (u32, u64)>,
    /// Free file numbers.
    free: Vec<u32>,
    chain_files: Vec<XrpFile>,
}

/// Rewrites a function for the kernel and loads it into a domain. Returns its number there.
///
/// # Errors
/// The function cannot be rewritten, or the kernel's verifier refuses it.
pub fn load_into_kernel(domain: &mut XrpDomain, program: &Program) -> io::Result<u32> {
    let translated = KernelProgram::translate(program).map_err(io::Error::other)?;
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
                free: (0..FILES_MAX).rev().collect(),
                chain_files: Vec::with_capacity(CHAIN_FILES),
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
            match self.file(id, version, map) {
                Ok(number) => self.chain_files.push(XrpFile::new(number, version)),
                Err(error) => {
                    log::warn!("the kernel refuses the map of a file: {error}");
                    return false;
                }
            }
        }
        true
    }

    /// The number of a function in the kernel, which loads it if necessary.
    fn function(&mut self, function: &Arc<Function>) -> Option<u32> {
        if let Some(known) = self.functions.get(&function.id) {
            return known.number;
        }
        let Self { domain, functions, .. } = self;
        // Remove functions that no handle refers to any more.
        functions.retain(|_, known| {
            let is_used = known.function.strong_count() > 0;
            if let Some(number) = known.number.filter(|_| !is_used) {
                domain.remove_function(number);
            }
            is_used
        });
        let number = load_into_kernel(domain, function.native.program());
        if let Err(error) = &number {
            log::warn!("function {} does not run in the kernel: {error}", function.name);
        }
        let number = number.ok();
        self.functions.insert(function.id, Known { function: Arc::downgrade(function), number });
        number
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
            self.files.remove(&id);
            self.free.push(number);
        }
        set.map(|()| number)
    }

    /// Removes the maps of files that the namespace has removed.
    pub(super) fn let_go(&mut self, files: &Namespace, nsid: u32) {
        let Self { domain, free, .. } = self;
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
        let known = self.functions.get(&function.id).and_then(|known| known.number);
        let Some(number) = known else { return End::Restart };
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
