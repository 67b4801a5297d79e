//! The unit of the measurement: instructions of a guest, counted by its emulator, or time.
#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags, mmap};
use serde::Serialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// For all parts of the measurement; errors are shown to the user.
pub(super) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The unit of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    /// Instructions of all processors of the machine, including its kernel.
    Instructions,
    Nanoseconds,
}

impl Unit {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Unit::Instructions => "instructions",
            Unit::Nanoseconds => "ns",
        }
    }
}

/// Increases with instructions or time.
#[derive(Debug)]
pub(super) enum Counter {
    /// Memory of the machine's emulator (interop/nvme/count.c), mapped until the process ends.
    Instructions(*mut u64),
    Time(Instant),
}

impl Counter {
    /// Counts instructions if the emulator does.
    pub(super) fn find() -> Result<Counter> {
        let Some(device) = shared_memory(Path::new("/sys/bus/pci/devices"))? else {
            return Ok(Counter::Time(Instant::now()));
        };
        let path = device.join("resource2");
        let named = |error| format!("cannot map {}: {error}", path.display());
        let file = File::options().read(true).write(true).open(&path).map_err(named)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which is never removed.
        let at = unsafe { mmap(std::ptr::null_mut(), 4096, access, MapFlags::SHARED, &file, 0) };
        Ok(Counter::Instructions(at.map_err(|error| named(error.into()))?.cast()))
    }

    pub(super) const fn unit(&self) -> Unit {
        match self {
            Counter::Instructions(_) => Unit::Instructions,
            Counter::Time(_) => Unit::Nanoseconds,
        }
    }

    pub(super) fn now(&self) -> u64 {
        match self {
            // SAFETY: mapped in `find`, aligned, and written by the emulator, hence volatile.
            Counter::Instructions(at) => unsafe { at.read_volatile() },
            Counter::Time(begun) => begun.elapsed().as_nanos() as u64,
        }
    }

    /// Reads the counter at the beginning of a measurement. The emulator gets its number, for counts by place.
    pub(super) fn begin(&self, number: u64) -> u64 {
        self.tell(number);
        self.now()
    }

    /// Reads the counter at the end of a measurement.
    pub(super) fn end(&self) -> u64 {
        let now = self.now();
        self.tell(0);
        now
    }

    fn tell(&self, number: u64) {
        if let Counter::Instructions(at) = self {
            // SAFETY: as in `now`; the second word is written only by this process, the emulator reads it.
            unsafe { at.add(1).write_volatile(number) };
        }
    }
}

/// The PCI device of the memory shared with the emulator (ivshmem).
fn shared_memory(devices: &Path) -> Result<Option<PathBuf>> {
    let Ok(entries) = fs::read_dir(devices) else { return Ok(None) };
    for entry in entries {
        let path = entry?.path();
        let id = |name| fs::read_to_string(path.join(name)).unwrap_or_default();
        if id("vendor").trim() == "0x1af4" && id("device").trim() == "0x1110" {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emulator_is_found_by_its_device() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(shared_memory(folder.path()).expect("reads"), None);
        let device = folder.path().join("0000:00:04.0");
        fs::create_dir(&device).expect("a folder");
        fs::write(device.join("vendor"), "0x1af4\n").expect("written");
        fs::write(device.join("device"), "0x1110\n").expect("written");
        assert_eq!(shared_memory(folder.path()).expect("reads"), Some(device));
    }

    #[test]
    fn time_goes_on() {
        let counter = Counter::Time(Instant::now());
        let before = counter.now();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(counter.now() - before >= 1_000_000);
        assert_eq!(counter.unit().name(), "ns");
    }
}
