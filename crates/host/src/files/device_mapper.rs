//! Reads tables of the device mapper (Linux, Documentation/admin-guide/device-mapper), which LVM sets up, through its
//! control device.
#![allow(unsafe_code)]

use rustix::fs::makedev;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The control device; only root may use it.
const CONTROL: &str = "/dev/mapper/control";
/// `_IOWR(0xfd, 12, struct dm_ioctl)`
const DM_TABLE_STATUS: u64 = 0xC138_FD0C;
/// The interface version: any kernel since Linux 2.6 supports at least this one.
const VERSION: [u32; 3] = [4, 0, 0];
/// In: asks for tables rather than device states.
const FLAG_TABLE: u32 = 1 << 4;
/// Out: the buffer was too small.
const FLAG_BUFFER_FULL: u32 = 1 << 8;
/// In: the kernel clears its own copy of the data, because tables of encrypted volumes contain their keys.
const FLAG_SECURE_DATA: u32 = 1 << 15;
/// `sizeof(struct dm_ioctl)`, and the offsets of the fields used here.
const HEADER_BYTES: usize = 312;
mod at {
    pub(super) const VERSION: usize = 0;
    pub(super) const DATA_BYTES: usize = 12;
    pub(super) const DATA_START: usize = 16;
    pub(super) const TARGET_COUNT: usize = 20;
    pub(super) const FLAGS: usize = 28;
    pub(super) const DEVICE: usize = 40;
}
/// `struct dm_target_spec`: start and length in sectors, status, offset of the next one, type.
const SPEC_BYTES: usize = 40;
const NEXT_AT: usize = 20;
const TYPE_AT: usize = 24;
/// Initial size of the buffer, enough for some twenty targets, and its maximum.
const BUFFER_BYTES: usize = 2 << 10;
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// Unit of tables, in bytes.
const SECTOR_BYTES: u64 = 512;

/// A part of a volume: `length_bytes` bytes from `start_bytes` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) start_bytes: u64,
    pub(super) length_bytes: u64,
    pub(super) kind: TargetKind,
}

/// The composition of a part of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetKind {
    /// Chunks of this size, taken from each of these devices in turn. `linear` is one device with one chunk.
    Striped { chunk_bytes: u64, stripes: Vec<Below> },
    /// Any other target type, by its name.
    Other(String),
}

/// A device, by its number, and an offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Below {
    pub(super) device: u64,
    pub(super) offset_bytes: u64,
}

/// The control device.
#[derive(Debug)]
pub(super) struct Control(File);

impl Control {
    /// The shared control device of this process, open while at least one caller holds it. Shared because there may be
    /// many files on volumes.
    ///
    /// # Errors
    /// The kernel's, from the open.
    pub(super) fn shared() -> io::Result<Arc<Self>> {
        static OPEN: Mutex<Weak<Control>> = Mutex::new(Weak::new());
        let mut known = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(control) = known.upgrade() {
            return Ok(control);
        }
        let control = Arc::new(Self(File::open(CONTROL)?));
        *known = Arc::downgrade(&control);
        Ok(control)
    }

    /// The active table of the volume with this device number.
    ///
    /// # Errors
    /// The kernel's: `PermissionDenied` unless the process is root, `NotFound` (`ENXIO`) if there is no such volume.
    pub(super) fn table(&self, device: u64) -> io::Result<Vec<Target>> {
        if let Some(table) = self.read(device, &mut [0; BUFFER_BYTES])? {
            return Ok(table);
        }
        let mut bytes = 8 * BUFFER_BYTES;
        while bytes <= BUFFER_BYTES_MAX {
            if let Some(table) = self.read(device, &mut vec![0; bytes])? {
                return Ok(table);
            }
            bytes *= 8;
        }
        Err(io::Error::other("its table is larger than 1 MiB"))
    }

    /// Reads a table into `buffer`, which must hold zeroes. None if the buffer is too small.
    fn read(&self, device: u64, buffer: &mut [u8]) -> io::Result<Option<Vec<Target>>> {
        let (bytes, start) = (buffer.len() as u32, HEADER_BYTES as u32);
        for (index, number) in VERSION.into_iter().enumerate() {
            put(buffer, at::VERSION + 4 * index, number);
        }
        put(buffer, at::DATA_BYTES, bytes);
        put(buffer, at::DATA_START, start);
        put(buffer, at::FLAGS, FLAG_TABLE | FLAG_SECURE_DATA);
        // Up to major 4095, the kernel encodes device numbers as user space does.
        put(buffer, at::DEVICE, device as u32);
        put(buffer, at::DEVICE + 4, (device >> 32) as u32);
        // SAFETY: the descriptor is open. The kernel reads and writes as many bytes as the structure at their beginning
        // says, and that is the length of the buffer.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), DM_TABLE_STATUS as _, buffer.as_mut_ptr()) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        if word(buffer, at::FLAGS) & FLAG_BUFFER_FULL != 0 {
            return Ok(None);
        }
        let data = buffer.get(word(buffer, at::DATA_START) as usize..).unwrap_or(&[]);
        let table = parse(data, word(buffer, at::TARGET_COUNT) as usize);
        table.map(Some).ok_or_else(|| io::Error::other("its table is invalid"))
    }
}

fn put(buffer: &mut [u8], at: usize, number: u32) {
    buffer[at..at + 4].copy_from_slice(&number.to_ne_bytes());
}

fn word(buffer: &[u8], at: usize) -> u32 {
    buffer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// Parses the targets of a table as the kernel writes them; None if they make no sense.
fn parse(data: &[u8], count: usize) -> Option<Vec<Target>> {
    let (mut targets, mut at) = (Vec::new(), 0_usize);
    for _ in 0..count {
        let spec = data.get(at..at.checked_add(SPEC_BYTES)?)?;
        let number = |at: usize| Some(u64::from_ne_bytes(spec.get(at..at + 8)?.try_into().ok()?));
        let next = word(spec, NEXT_AT);
        let name = text(spec.get(TYPE_AT..)?)?;
        let parameters = text(data.get(at + SPEC_BYTES..)?)?;
        let start_bytes = number(0)?.checked_mul(SECTOR_BYTES)?;
        let length_bytes = number(8)?.checked_mul(SECTOR_BYTES)?;
        start_bytes.checked_add(length_bytes)?;
        let kind = kind(name, parameters, length_bytes)?;
        targets.push(Target { start_bytes, length_bytes, kind });
        // This offset counts from the start of the first target.
        at = next as usize;
    }
    let ascending = |pair: &[Target]| {
        pair.first().map(|one| one.start_bytes + one.length_bytes)
            <= pair.get(1).map(|two| two.start_bytes)
    };
    targets.windows(2).all(ascending).then_some(targets)
}

fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(bytes.get(..end)?).ok()
}

/// Parses a target's parameters: for `linear` a device and a sector; for `striped` the number of stripes, the sectors
/// of a chunk, and a device and a sector for each stripe.
fn kind(name: &str, parameters: &str, length_bytes: u64) -> Option<TargetKind> {
    let mut words = parameters.split_ascii_whitespace();
    let number = |word: Option<&str>| word?.parse::<u64>().ok();
    let bytes = |word: Option<&str>| number(word)?.checked_mul(SECTOR_BYTES);
    let (count, chunk_bytes) = match name {
        "linear" => (1, length_bytes),
        "striped" => (number(words.next())?, bytes(words.next())?),
        other => return Some(TargetKind::Other(other.to_owned())),
    };
    let mut stripes = Vec::new();
    for _ in 0..count {
        let (major, minor) = words.next()?.split_once(':')?;
        let device = makedev(major.parse().ok()?, minor.parse().ok()?);
        stripes.push(Below { device, offset_bytes: bytes(words.next())? });
    }
    let fits = chunk_bytes > 0 && count > 0 && words.next().is_none();
    fits.then_some(TargetKind::Striped { chunk_bytes, stripes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table as the kernel writes it: each target begins at a multiple of 8 bytes.
    fn table(targets: &[(u64, u64, &str, &str)]) -> Vec<u8> {
        let mut data = Vec::new();
        for (start, length, name, parameters) in targets {
            let end = (data.len() + SPEC_BYTES + parameters.len() + 1).next_multiple_of(8);
            data.extend(start.to_ne_bytes());
            data.extend(length.to_ne_bytes());
            data.extend(0_i32.to_ne_bytes());
            data.extend((end as u32).to_ne_bytes());
            let mut name = name.as_bytes().to_vec();
            name.resize(SPEC_BYTES - TYPE_AT, 0);
            data.extend(name);
            data.extend(parameters.as_bytes());
            data.resize(end, 0);
        }
        data
    }

    fn below(device: (u32, u32), sector: u64) -> Below {
        Below { device: makedev(device.0, device.1), offset_bytes: sector * 512 }
    }

    #[test]
    fn linear_and_striped_targets_are_parsed_and_others_named() {
        let data = table(&[
            (0, 8192, "linear", "259:3 2048"),
            (8192, 4096, "striped", "2 128 8:0 384 253:300 0"),
            (12_288, 8, "crypt", "aes-xts-plain64 00 0 8:16 0"),
        ]);
        let striped = TargetKind::Striped {
            chunk_bytes: 65_536,
            stripes: vec![below((8, 0), 384), below((253, 300), 0)],
        };
        let linear =
            TargetKind::Striped { chunk_bytes: 4 << 20, stripes: vec![below((259, 3), 2048)] };
        let target = |start_bytes, length_bytes, kind| Target { start_bytes, length_bytes, kind };
        let wanted = [
            target(0, 4 << 20, linear),
            target(4 << 20, 2 << 20, striped),
            target(6 << 20, 4096, TargetKind::Other("crypt".to_owned())),
        ];
        assert_eq!(parse(&data, 3).expect("a table"), wanted);
        assert_eq!(parse(&data, 2).expect("a part of it").len(), 2);
        assert_eq!(parse(&[], 0).expect("none"), []);
    }

    #[test]
    fn invalid_tables_are_refused() {
        for (name, parameters) in [
            ("linear", ""),
            ("linear", "8:0"),
            ("linear", "8:0 x"),
            ("linear", "sda 0"),
            ("linear", "8:0 0 0"),
            ("linear", "8:0 18446744073709551615"),
            ("striped", "2 128 8:0 0"),
            ("striped", "1 0 8:0 0"),
            ("striped", "0 128"),
        ] {
            assert_eq!(parse(&table(&[(0, 8, name, parameters)]), 1), None, "{name} {parameters}");
        }
        let good = table(&[(0, 8, "linear", "8:0 0"), (8, 8, "linear", "8:0 8")]);
        assert_eq!(parse(&good, 3), None);
        assert_eq!(parse(&good[..good.len() - 8], 2), None);
        assert_eq!(parse(&table(&[(0, 9, "linear", "8:0 0"), (8, 8, "linear", "8:0 8")]), 2), None);
        assert_eq!(parse(&table(&[(u64::MAX / 512, 8, "error", "")]), 1), None);
    }
}
