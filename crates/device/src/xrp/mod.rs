//! Chains in the kernel: a domain of the module `bpfof_xrp` (`kernel/`, docs/kernel.md).
//!
//! A domain consists of a drive, an arena that the process shares with the kernel, file maps, and functions as kernel
//! eBPF programs. This one has a single slot: it runs one chain at a time.
#![allow(unsafe_code)]

mod bpf;
mod btf;

use btf::Btf;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// Names of the module and its device.
const MODULE: &str = "bpfof_xrp";
const DEVICE: &str = "/dev/bpfof-xrp";

/// `BPFOF_XRP_VERSION` and the limits of kernel/bpfof_xrp.h.
const VERSION: u32 = 2;
/// Bytes of the arena for each slot.
pub const SLOT_BYTES: usize = 0x28000;
/// Maximum functions of a domain.
pub const FUNCTIONS_MAX: u32 = 64;
/// Maximum files of a domain.
pub const FILES_MAX: u32 = 1024;
/// Maximum files of one chain.
pub const CHAIN_FILES: usize = 16;
/// Maximum hops of one chain in the kernel; user space continues the chain after them.
pub const HOPS_MAX: u32 = 64;

// _IOWR('B', 0xe0, struct bpfof_xrp_create), and likewise.
const IOC_CREATE: u64 = ioc(3, 0xe0, size_of::<Create>());
const IOC_FILE: u64 = ioc(1, 0xe1, size_of::<FileMap>());
const IOC_RUN: u64 = ioc(3, 0xe2, size_of::<Run>());

const fn ioc(direction: u64, number: u64, size: usize) -> u64 {
    direction << 30 | (size as u64) << 16 | (b'B' as u64) << 8 | number
}

/// `struct bpfof_xrp_create`.
#[repr(C)]
struct Create {
    version: u32,
    drive: i32,
    arena: u64,
    slots: u32,
    block_bytes: u32,
    id: u64,
}

/// `struct bpfof_xrp_extent`: a run of a file on the drive, in bytes, whole blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrpExtent {
    /// Where it starts in the file.
    pub file_offset: u64,
    /// Where it starts on the drive.
    pub device_offset: u64,
    /// Its length.
    pub length: u64,
}

/// `struct bpfof_xrp_file`.
#[repr(C)]
struct FileMap {
    file: u32,
    extent_count: u32,
    version: u64,
    length: u64,
    extents: u64,
}

/// `struct bpfof_xrp_file_version`: a file of a chain, and the version that its map must have.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XrpFile {
    /// Its number in the domain.
    pub file: u32,
    reserved: u32,
    /// The version.
    pub version: u64,
}

impl XrpFile {
    /// This file with this version.
    #[must_use]
    pub const fn new(file: u32, version: u64) -> XrpFile {
        XrpFile { file, reserved: 0, version }
    }
}

/// `struct bpfof_xrp_run`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    slot: u32,
    function: u32,
    offset: u64,
    size: u32,
    file: u32,
    file_count: u32,
    hops_max: u32,
    scratch_bytes: u32,
    answer_max: u32,
    units: u64,
    bytes: u64,
    end: u32,
    hops: u32,
    length: u32,
    reason: u32,
    files: [XrpFile; CHAIN_FILES],
}

const _: () = assert!(size_of::<Create>() == 32 && size_of::<FileMap>() == 32);
const _: () = assert!(size_of::<Run>() == 72 + 16 * CHAIN_FILES);

/// A chain to run in the kernel.
#[derive(Clone, Copy, Debug)]
pub struct XrpChain<'a> {
    /// The function's number in the domain.
    pub function: u32,
    /// Its files, at most [`CHAIN_FILES`].
    pub files: &'a [XrpFile],
    /// The first read: index into `files`, offset and size in bytes.
    pub first: (u32, u64, u32),
    /// Bytes of scratch.
    pub scratch_bytes: u32,
    /// The longest answer that is accepted, in bytes.
    pub answer_max: u32,
    /// Units of processor time that its calls may use.
    pub units: u64,
    /// Bytes that it may read.
    pub bytes: u64,
}

/// How a chain in the kernel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XrpEnd {
    /// With an answer of this many bytes in scratch, after so many hops.
    Done {
        /// Length of the answer.
        length_bytes: u32,
        /// Hops done.
        hops: u32,
    },
    /// After a hop: user space must continue with the reads that the context requests.
    Continue {
        /// Hops done.
        hops: u32,
        /// Units left.
        units: u64,
        /// Bytes that the chain may still read.
        bytes: u64,
    },
    /// User space must run the chain from its start.
    Restart,
}

/// An arena of one slot, mapped so that the lower address bits are offsets in the arena.
#[derive(Debug)]
struct Mapping {
    address: NonNull<u8>,
    map: OwnedFd,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

/// Alignment of arenas: offsets in them have 32 bits.
const ALIGN: usize = 1 << 32;

impl Mapping {
    fn new() -> io::Result<Mapping> {
        let reserve = || {
            let (access, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping, which replaces none.
            unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    2 * ALIGN,
                    access,
                    flags | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            }
        };
        let found = reserve();
        if found == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = found.addr().next_multiple_of(ALIGN);
        let mapped = bpf::arena((SLOT_BYTES / 4096) as u32, start as u64).and_then(|map| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let at = found.with_addr(start);
            // SAFETY: the range lies in the reservation above, which is not in use.
            let at = unsafe { libc::mmap(at, SLOT_BYTES, access, flags, map.as_raw_fd(), 0) };
            match NonNull::new(at.cast::<u8>()) {
                Some(address) if at != libc::MAP_FAILED => Ok(Mapping { address, map }),
                _ => Err(io::Error::last_os_error()),
            }
        });
        // Unmap the rest of the reservation.
        let end = start + if mapped.is_ok() { SLOT_BYTES } else { 0 };
        for (from, to) in [(found.addr(), start), (end, found.addr() + 2 * ALIGN)] {
            if to > from {
                // SAFETY: reserved above and not in use.
                unsafe { libc::munmap(found.with_addr(from), to - from) };
            }
        }
        mapped
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and not borrowed any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), SLOT_BYTES) };
    }
}

/// The types of the module that a domain needs.
#[derive(Debug)]
struct ModuleTypes {
    descriptor: OwnedFd,
    structure: u32,
    /// Type id and size.
    value: (u32, u32),
    /// Offset of the module's own fields in the value, in bytes.
    data_at: usize,
    kfuncs: Vec<u32>,
}

/// The kernel's fields of the module's struct_ops, and then the module's own.
const VALUE: &str = "bpf_struct_ops_bpfof_xrp_ops";

impl ModuleTypes {
    fn find(kfuncs: &[&str]) -> io::Result<ModuleTypes> {
        let types = Btf::read(MODULE, btf::kernel_base()?).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::other(
                "the module has no type information (BTF): build it where the kernel's headers have vmlinux",
            ),
            _ => error,
        })?;
        let missing = |name: &str| io::Error::other(format!("the module has no {name}"));
        let structure = |name: &str| types.structure(name).ok_or_else(|| missing(name));
        Ok(ModuleTypes {
            descriptor: bpf::module_types(MODULE)?,
            structure: structure("bpfof_xrp_ops")?.0,
            value: structure(VALUE)?,
            data_at: types.member(VALUE, "data").ok_or_else(|| missing(VALUE))? as usize,
            kfuncs: kfuncs
                .iter()
                .map(|name| types.function(name).ok_or_else(|| missing(name)))
                .collect::<io::Result<_>>()?,
        })
    }
}

/// A function in the form that the kernel takes.
#[derive(Clone, Copy, Debug)]
pub struct XrpFunction<'a> {
    /// Its instructions, for this arena and these kfuncs.
    pub instructions: &'a [[u8; 8]],
    /// Whether it has a workspace.
    pub workspace: bool,
    /// Guest address and length of its constants.
    pub constants: (u64, u64),
}

/// A domain with one slot.
#[derive(Debug)]
pub struct XrpDomain {
    /// Declared first: functions must be dropped before the device.
    functions: Vec<Option<OwnedFd>>,
    device: File,
    mapping: Mapping,
    types: ModuleTypes,
    id: u64,
    block_bytes: u32,
}

impl XrpDomain {
    /// Whether the module is loaded.
    #[must_use]
    pub fn is_possible() -> bool {
        Path::new(DEVICE).exists()
    }

    /// A domain on the block device of a whole namespace, for functions that call these kfuncs.
    ///
    /// # Errors
    /// The module is not loaded, is of another release, or rejects the drive; or the process may not load eBPF.
    pub fn new(drive: &Path, kfuncs: &[&str]) -> io::Result<XrpDomain> {
        let device = File::options().read(true).write(true).open(DEVICE)?;
        let types = ModuleTypes::find(kfuncs)?;
        let mapping = Mapping::new()?;
        let drive = File::open(drive)?;
        let mut create = Create {
            version: VERSION,
            drive: drive.as_raw_fd(),
            arena: mapping.address.as_ptr().expose_provenance() as u64,
            slots: 1,
            block_bytes: 0,
            id: 0,
        };
        ioctl(&device, IOC_CREATE, &raw mut create).map_err(|error| match error.raw_os_error() {
            Some(libc::EPROTO) => io::Error::other(
                "the loaded module is of another release: bpfof xrp unload, then bpfof xrp load",
            ),
            _ => error,
        })?;
        let Create { id, block_bytes, .. } = create;
        Ok(XrpDomain { functions: Vec::new(), device, mapping, types, id, block_bytes })
    }

    /// The descriptor of the arena, and the kfuncs' type ids in the order of their names in [`new`](Self::new).
    #[must_use]
    pub fn relocations(&self) -> (i32, &[u32]) {
        (self.mapping.map.as_raw_fd(), &self.types.kfuncs)
    }

    /// Logical block of the drive, in bytes.
    #[must_use]
    pub const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Adds a function to the domain; returns its number.
    ///
    /// # Errors
    /// The kernel's error, with the verifier's message, or too many functions. A program that is refused each time
    /// is [`InvalidData`](io::ErrorKind::InvalidData).
    pub fn add_function(&mut self, function: &XrpFunction<'_>) -> io::Result<u32> {
        let free = self.functions.iter().position(Option::is_none);
        let number = free.unwrap_or(self.functions.len()) as u32;
        if number == FUNCTIONS_MAX {
            return Err(io::Error::other("a domain has at most 64 functions"));
        }
        let ModuleTypes { descriptor, structure, value, data_at, .. } = &self.types;
        let module = descriptor.as_fd();
        let program = bpf::program(function.instructions, *structure, module)?;
        // struct bpfof_xrp_ops
        let mut ops = (program.as_raw_fd() as u64).to_le_bytes().to_vec();
        ops.extend(self.id.to_le_bytes());
        ops.extend(number.to_le_bytes());
        ops.extend(u32::from(function.workspace).to_le_bytes());
        ops.extend(function.constants.0.to_le_bytes());
        ops.extend(function.constants.1.to_le_bytes());
        let registered = bpf::register(*value, module, (*data_at, &ops))?;
        match self.functions.get_mut(number as usize) {
            Some(place) => *place = Some(registered),
            None => self.functions.push(Some(registered)),
        }
        Ok(number)
    }

    /// Removes a function.
    pub fn remove_function(&mut self, number: u32) {
        if let Some(place) = self.functions.get_mut(number as usize) {
            *place = None;
        }
    }

    /// Sets the map of a file, or removes it if `extents` is empty.
    ///
    /// # Errors
    /// The module's error.
    pub fn set_file(
        &mut self,
        file: u32,
        version: u64,
        length: u64,
        extents: &[XrpExtent],
    ) -> io::Result<()> {
        let mut map = FileMap {
            file,
            extent_count: extents.len() as u32,
            version,
            length,
            extents: extents.as_ptr().expose_provenance() as u64,
        };
        ioctl(&self.device, IOC_FILE, &raw mut map)
    }

    /// The memory of the slot from guest address 0 on. No chain is running.
    pub fn slot(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this many bytes, and the kernel uses it only during `run`, which also borrows the
        // domain mutably. A chain that a signal interrupts ends before `run` returns.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.address.as_ptr(), SLOT_BYTES) }
    }

    /// Runs a chain in the slot, and waits for its end.
    ///
    /// # Errors
    /// The module's error.
    pub fn run(&mut self, chain: &XrpChain<'_>) -> io::Result<XrpEnd> {
        let (file, offset, size) = chain.first;
        let mut run = Run {
            function: chain.function,
            offset,
            size,
            file,
            file_count: chain.files.len() as u32,
            hops_max: HOPS_MAX,
            scratch_bytes: chain.scratch_bytes,
            answer_max: chain.answer_max,
            units: chain.units,
            bytes: chain.bytes,
            ..Run::default()
        };
        for (place, file) in run.files.iter_mut().zip(chain.files) {
            *place = *file;
        }
        ioctl(&self.device, IOC_RUN, &raw mut run)?;
        Ok(match run.end {
            0 => XrpEnd::Done { length_bytes: run.length, hops: run.hops },
            1 => XrpEnd::Continue { hops: run.hops, units: run.units, bytes: run.bytes },
            _ => XrpEnd::Restart,
        })
    }
}

fn ioctl<T>(device: &File, request: u64, argument: *mut T) -> io::Result<()> {
    // SAFETY: the descriptor is the module's, and the request encodes the size of the argument.
    match unsafe { libc::ioctl(device.as_raw_fd(), request as _, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Offsets of members of the driver's structures in bytes, from the types of the running kernel; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverOffsets {
    /// The lock of a submission queue: `nvme_queue.sq_lock`.
    pub submission_lock: Option<u32>,
    /// The status that a drive returned for a request: `nvme_request.status`.
    pub status: Option<u32>,
}

impl DriverOffsets {
    /// The offsets in the running kernel, whose drivers may be modules.
    #[must_use]
    pub fn find() -> Self {
        let Ok(kernel) = Btf::read("vmlinux", Arc::default()) else { return Self::default() };
        let driver = Btf::read("nvme", kernel.as_base()).ok();
        let member = |structure, name| {
            let in_driver = || driver.as_ref()?.member(structure, name);
            kernel.member(structure, name).or_else(in_driver)
        };
        Self {
            submission_lock: member("nvme_queue", "sq_lock"),
            status: member("nvme_request", "status"),
        }
    }
}
