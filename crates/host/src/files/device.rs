//! Where a file system lies in a namespace: whole disk, partition, loop device, image file.

use super::error::MapRefusal;
use rustix::fs::{FileType, major, makedev, minor, stat};
use std::fs;
use std::path::{Path, PathBuf};

/// Layers that are followed: a partition of a loop device of a partition is three.
const LAYERS_MAX: usize = 8;
/// Unit of a partition's start in sysfs, in bytes.
const SECTOR_BYTES: u64 = 512;

/// What on this machine is the namespace: the block device that a kernel's NVMe/TCP host made of
/// it, or, where target and host are one machine, the disk or image file that the target serves.
#[derive(Clone, Debug)]
pub struct NamespaceDevice {
    path: PathBuf,
    identity: Identity,
    sysfs: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    /// Device number.
    Block(u64),
    /// Device number of the file system, and inode.
    Image(u64, u64),
}

fn identify(path: &Path) -> Result<Identity, MapRefusal> {
    let action = format!("cannot examine the namespace {}", path.display());
    let found = stat(path).map_err(|error| MapRefusal::io(action)(error.into()))?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::BlockDevice => Ok(Identity::Block(found.st_rdev)),
        FileType::RegularFile => Ok(Identity::Image(found.st_dev, found.st_ino)),
        _ => Err(MapRefusal::Inode("a namespace is a block device or an image file")),
    }
}

impl NamespaceDevice {
    /// The namespace is the block device or image file at `path`.
    ///
    /// # Errors
    /// It does not exist or is something else.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, MapRefusal> {
        let path = path.into();
        let identity = identify(&path)?;
        Ok(Self { path, identity, sysfs: PathBuf::from("/sys/dev/block") })
    }

    /// How it was named.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the device with number `device` begins in the namespace, in bytes: follows partitions
    /// and loop devices, as sysfs describes them, down to the namespace. Asks no file system on them.
    ///
    /// # Errors
    /// [`MapRefusal::OtherDevice`] says where the way ends.
    pub fn offset_of(&self, device: u64) -> Result<u64, MapRefusal> {
        let (mut at, mut offset) = (device, 0_u64);
        let refuse = |why: String| {
            let device = format!("{}:{}", major(device), minor(device));
            MapRefusal::OtherDevice { device, namespace: self.path.clone(), why }
        };
        for _ in 0..LAYERS_MAX {
            if self.identity == Identity::Block(at) {
                return Ok(offset);
            }
            let name = format!("{}:{}", major(at), minor(at));
            let folder = self.sysfs.join(&name);
            let number = |file: &str| text(&folder.join(file))?.parse::<u64>().ok();
            if folder.join("partition").exists() {
                let start = number("start").and_then(|sectors| sectors.checked_mul(SECTOR_BYTES));
                let disk = text(&folder.join("../dev")).and_then(|text| device_number(&text));
                let (Some(start), Some(disk)) = (start, disk) else {
                    return Err(refuse(format!("sysfs does not tell where partition {name} lies")));
                };
                (at, offset) = (disk, offset.saturating_add(start));
            } else if let Some(backing) = text(&folder.join("loop/backing_file")) {
                let Some(start) = number("loop/offset") else {
                    return Err(refuse(format!("sysfs does not tell the offset of loop {name}")));
                };
                offset = offset.saturating_add(start);
                let Ok(below) = identify(Path::new(&backing)) else {
                    return Err(refuse(format!(
                        "its loop device is over {backing}, which is gone"
                    )));
                };
                if below == self.identity {
                    return Ok(offset);
                }
                match below {
                    Identity::Block(disk) => at = disk,
                    Identity::Image(..) => {
                        return Err(refuse(format!("its loop device is over {backing}")));
                    }
                }
            } else if folder.join("dm").exists() {
                return Err(refuse(format!(
                    "{name} is a device mapper volume (LVM, encryption), whose table sysfs does \
                     not show; put the file system on the namespace or a partition of it"
                )));
            } else if folder.exists() {
                return Err(refuse(format!("{name} is neither a partition nor a loop device")));
            } else {
                return Err(refuse("it is no block device (network, overlay, memory?)".into()));
            }
        }
        Err(refuse(format!("more than {LAYERS_MAX} layers")))
    }
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

fn device_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sysfs with a partition 7:1 from sector 2048 on of loop device 7:0, which is over `image`
    /// from byte 512 on; a device mapper volume 253:0; a disk 8:0.
    fn machine(root: &Path, image: &Path) -> NamespaceDevice {
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("disk/dev", "7:0\n");
        write("disk/loop/backing_file", &format!("{}\n", image.display()));
        write("disk/loop/offset", "512\n");
        write("disk/part/partition", "1\n");
        write("disk/part/start", "2048\n");
        write("253:0/dm/name", "vg-lv\n");
        write("8:0/size", "1\n");
        std::os::unix::fs::symlink("disk", root.join("7:0")).expect("linked");
        std::os::unix::fs::symlink("disk/part", root.join("7:1")).expect("linked");
        let mut namespace = NamespaceDevice::new(image).expect("an image");
        namespace.sysfs = root.to_owned();
        namespace
    }

    #[test]
    fn partitions_and_loops_are_followed_and_the_rest_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        fs::write(&image, "").expect("written");
        let namespace = machine(&folder.path().join("sys"), &image);
        assert_eq!(namespace.offset_of(makedev(7, 0)).expect("found"), 512);
        assert_eq!(namespace.offset_of(makedev(7, 1)).expect("found"), 512 + 2048 * 512);
        let why = |device| namespace.offset_of(device).expect_err("refused").to_string();
        let mapped = why(makedev(253, 0));
        assert!(mapped.contains("device mapper") && mapped.contains("partition"), "{mapped}");
        assert!(why(makedev(8, 0)).contains("neither a partition nor a loop device"));
        assert!(why(makedev(0, 40)).contains("no block device"));
        let other = folder.path().join("other");
        fs::write(&other, "").expect("written");
        let mut other = NamespaceDevice::new(other).expect("an image");
        other.sysfs.clone_from(&namespace.sysfs);
        let error = other.offset_of(makedev(7, 0)).expect_err("another image").to_string();
        assert!(error.contains("its loop device is over"), "{error}");
        assert!(NamespaceDevice::new(folder.path()).is_err());
    }
}
