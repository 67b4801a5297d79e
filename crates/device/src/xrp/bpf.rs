//! The system call `bpf`: loads programs, creates arenas, registers struct_ops.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// enum bpf_cmd
const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const OBJ_GET_INFO_BY_FD: i32 = 15;
const BTF_LOAD: i32 = 18;
const BTF_GET_FD_BY_ID: i32 = 19;
const BTF_GET_NEXT_ID: i32 = 23;
const LINK_CREATE: i32 = 28;
// enum bpf_map_type, bpf_prog_type, bpf_attach_type
const MAP_TYPE_STRUCT_OPS: u32 = 26;
const MAP_TYPE_ARENA: u32 = 33;
const PROG_TYPE_STRUCT_OPS: u32 = 27;
const ATTACH_STRUCT_OPS: u32 = 44;
// map_flags
const F_MMAPABLE: u32 = 1 << 10;
const F_LINK: u32 = 1 << 13;
const F_VTYPE_BTF_OBJ_FD: u32 = 1 << 15;
/// Size of the verifier's log.
const LOG_BYTES: usize = 1 << 20;
/// How many times a program is loaded if a signal interrupts its verification, as in libbpf.
const ATTEMPTS: u32 = 5;

/// `union bpf_attr`: fields at their offsets, the rest zero.
struct Attributes([u64; 20]);

impl Attributes {
    fn new() -> Attributes {
        Attributes([0; 20])
    }

    fn u32(mut self, at: usize, value: u32) -> Attributes {
        let shift = at % 8 * 8;
        self.0[at / 8] |= u64::from(value) << shift;
        self
    }

    fn fd(self, at: usize, fd: BorrowedFd<'_>) -> Attributes {
        self.u32(at, fd.as_raw_fd() as u32)
    }

    fn u64(mut self, at: usize, value: u64) -> Attributes {
        self.0[at / 8] = value;
        self
    }

    fn pointer<T>(self, at: usize, to: *const T) -> Attributes {
        self.u64(at, to.expose_provenance() as u64)
    }

    /// # Safety
    /// The memory that the attributes point to is valid, and as long as the command expects.
    unsafe fn call(&mut self, command: i32) -> io::Result<i32> {
        let size = size_of_val(&self.0);
        // SAFETY: the attributes have this size, and the caller guarantees the memory that they point to.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), size) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
    }

    /// # Safety
    /// As [`call`](Self::call), for a command that returns a descriptor.
    unsafe fn open(&mut self, command: i32) -> io::Result<OwnedFd> {
        // SAFETY: as the caller guarantees; the descriptor is new and has no other owner.
        unsafe { Ok(OwnedFd::from_raw_fd(self.call(command)?)) }
    }
}

/// Creates an arena of `pages` pages for a mapping at `address`.
pub(super) fn arena(pages: u32, address: u64) -> io::Result<OwnedFd> {
    let mut attributes = Attributes::new()
        .u32(0, MAP_TYPE_ARENA)
        .u32(12, pages)
        .u32(16, F_MMAPABLE)
        .u64(64, address);
    // SAFETY: the attributes contain no pointers.
    unsafe { attributes.open(MAP_CREATE) }
}

/// A descriptor of the types of a loaded module.
pub(super) fn module_types(name: &str) -> io::Result<OwnedFd> {
    let mut id = 0;
    loop {
        let mut next = Attributes::new().u32(0, id);
        // SAFETY: the attributes contain no pointers.
        unsafe { next.call(BTF_GET_NEXT_ID)? };
        id = (next.0[0] >> 32) as u32;
        // SAFETY: the attributes contain no pointers.
        let types = match unsafe { Attributes::new().u32(0, id).open(BTF_GET_FD_BY_ID) } {
            // The module was unloaded in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            types => types?,
        };
        let mut found = [0u8; 64];
        // struct bpf_btf_info: the name is a pointer at 16, its length at 24.
        let mut info = [0u64; 4];
        info[2] = found.as_mut_ptr().expose_provenance() as u64;
        info[3] = found.len() as u64;
        let mut attributes = Attributes::new()
            .u32(0, types.as_raw_fd() as u32)
            .u32(4, size_of_val(&info) as u32)
            .pointer(8, info.as_mut_ptr());
        // SAFETY: `info` has the given length, and so does the name buffer in it.
        unsafe { attributes.call(OBJ_GET_INFO_BY_FD)? };
        if found.split(|byte| *byte == 0).next() == Some(name.as_bytes()) {
            return Ok(types);
        }
    }
}

/// Minimal types of our own, because struct_ops maps must refer to some.
fn own_types() -> io::Result<OwnedFd> {
    // A header, the type `int`, its name.
    let mut types = vec![0x9f, 0xeb, 1, 0];
    for word in [24u32, 0, 16, 16, 5, 1, 1 << 24, 4, 1 << 24 | 32] {
        types.extend(word.to_le_bytes());
    }
    types.extend(b"\0int\0");
    let len = types.len() as u32;
    let mut attributes = Attributes::new().pointer(0, types.as_ptr()).u32(16, len);
    // SAFETY: the pointer refers to this many bytes.
    unsafe { attributes.open(BTF_LOAD) }
}

/// Repeats an attempt that fails with EAGAIN because a signal arrived.
fn despite_signals<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut left = ATTEMPTS;
    loop {
        left -= 1;
        match attempt() {
            Err(error) if left > 0 && error.raw_os_error() == Some(libc::EAGAIN) => {}
            outcome => return outcome,
        }
    }
}

/// Whether a load failed for lack of resources or rights, or because of a signal, not because of the program.
fn is_of_the_moment(error: &io::Error) -> bool {
    use libc::{EAGAIN, EMFILE, ENFILE, ENOMEM, EPERM};
    /// The kernel's compiler has no memory, or is switched off (linux/errno.h; programs are not meant to see it).
    const ENOTSUPP: i32 = 524;
    matches!(error.raw_os_error(), Some(EAGAIN | EMFILE | ENFILE | ENOMEM | EPERM | ENOTSUPP))
}

/// Loads a program that implements the first member of a module's struct_ops type.
///
/// # Errors
/// The kernel's error, with the end of the verifier's log: [`InvalidData`](io::ErrorKind::InvalidData) if the
/// verifier refuses the program.
pub(super) fn program(
    instructions: &[[u8; 8]],
    structure: u32,
    module: BorrowedFd<'_>,
) -> io::Result<OwnedFd> {
    let license = CString::new("GPL")?;
    // Entry 0 stands for the kernel itself.
    let descriptors = [0, module.as_raw_fd()];
    let load = |level: u32, log: &mut [u8]| {
        let mut attributes = Attributes::new()
            .u32(0, PROG_TYPE_STRUCT_OPS)
            .u32(4, instructions.len() as u32)
            .pointer(8, instructions.as_ptr())
            .pointer(16, license.as_ptr())
            .u32(24, level)
            .u32(28, log.len() as u32)
            .u32(108, structure)
            .fd(112, module)
            .pointer(120, descriptors.as_ptr());
        if level > 0 {
            attributes = attributes.pointer(32, log.as_mut_ptr());
        }
        // SAFETY: instructions, licence, log and descriptors are valid and as long as stated.
        unsafe { attributes.open(PROG_LOAD) }
    };
    let error = match despite_signals(|| load(0, &mut [])) {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    let mut log = vec![0; LOG_BYTES];
    // Load again to get the verifier's log. If the log is too short it keeps the end.
    if let Ok(program) = despite_signals(|| load(1, &mut log)) {
        return Ok(program);
    }
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("processed ")).collect();
    let end = lines[lines.len().saturating_sub(6)..].join("; ");
    let kind = if is_of_the_moment(&error) { error.kind() } else { io::ErrorKind::InvalidData };
    Err(io::Error::new(kind, format!("{error}: {end}")))
}

/// Registers a value of a struct_ops type. It has `size` bytes: the kernel's, and from byte `data_at` on `data`. It
/// stays registered as long as the descriptor is open.
pub(super) fn register(
    (value_type, size): (u32, u32),
    module: BorrowedFd<'_>,
    (data_at, data): (usize, &[u8]),
) -> io::Result<OwnedFd> {
    let types = own_types()?;
    let mut attributes = Attributes::new()
        .u32(0, MAP_TYPE_STRUCT_OPS)
        .u32(4, 4)
        .u32(8, size)
        .u32(12, 1)
        .u32(16, F_LINK | F_VTYPE_BTF_OBJ_FD)
        .u32(48, types.as_raw_fd() as u32)
        .u32(60, value_type)
        .fd(72, module);
    // SAFETY: the attributes contain no pointers.
    let map = unsafe { attributes.open(MAP_CREATE)? };
    let mut value = vec![0; size as usize];
    let place = value.get_mut(data_at..).and_then(|from| from.get_mut(..data.len()));
    place.ok_or(io::ErrorKind::InvalidData)?.copy_from_slice(data);
    let key = 0u32;
    let mut attributes = Attributes::new()
        .u32(0, map.as_raw_fd() as u32)
        .pointer(8, &raw const key)
        .pointer(16, value.as_ptr());
    // SAFETY: the map has keys of 4 bytes and values of `size`.
    unsafe { attributes.call(MAP_UPDATE_ELEM)? };
    let mut attributes = Attributes::new().u32(0, map.as_raw_fd() as u32).u32(8, ATTACH_STRUCT_OPS);
    // SAFETY: the attributes contain no pointers.
    unsafe { attributes.open(LINK_CREATE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_do_not_keep_a_program_from_being_loaded() {
        let attempts = |signals: u32, then: i32| {
            let mut count = 0;
            let outcome: io::Result<()> = despite_signals(|| {
                count += 1;
                let errno = if count <= signals { libc::EAGAIN } else { then };
                if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
            });
            (count, outcome.map_err(|error| error.raw_os_error()))
        };
        assert_eq!(attempts(0, 0), (1, Ok(())));
        assert_eq!(attempts(4, 0), (5, Ok(())));
        assert_eq!(attempts(u32::MAX, 0), (5, Err(Some(libc::EAGAIN))));
        assert_eq!(attempts(1, libc::EACCES), (2, Err(Some(libc::EACCES))));
    }

    /// Only a refusal by the verifier is permanent.
    #[test]
    fn refusals_are_told_from_want() {
        let is_of_the_moment = |errno| is_of_the_moment(&io::Error::from_raw_os_error(errno));
        let want = [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::EPERM];
        let refusals = [libc::EACCES, libc::EINVAL, libc::E2BIG];
        assert_eq!(want.map(is_of_the_moment), [true; 4]);
        assert_eq!(refusals.map(is_of_the_moment), [false; 3]);
    }
}
