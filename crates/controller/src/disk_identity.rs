//! Identities of this machine's disks, independent of the names that the kernel gives them.
//!
//! `/dev/sdb` and `/dev/dm-3` are named in the order in which the kernel found them, and may be other disks after the
//! next start. The identifiers of a namespace are therefore made from the disk's own identifiers, as sysfs shows them.

use rustix::fs::{major, minor};
use sha2::{Digest, Sha256};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::OnceLock;

/// Attributes of a block device in sysfs that identify it, the best first: of the device mapper and software RAID, of
/// NVMe, of SCSI and SATA, of virtio.
const ATTRIBUTES: [(&str, &str); 6] = [
    ("dm", "dm/uuid"),
    ("dm-name", "dm/name"),
    ("md", "md/uuid"),
    ("wwid", "wwid"),
    ("wwid", "device/wwid"),
    ("serial", "serial"),
];

/// Beginnings of identifiers that are unique in the world. Others, such as the names of volumes, the serial numbers of
/// virtual disks and the paths of files, are the same on many machines.
const WORLDWIDE: [&str; 6] =
    ["dm:LVM-", "dm:CRYPT-LUKS", "md:", "wwid:naa.", "wwid:eui.", "wwid:uuid."];

/// Distinguishes the storage behind a path from all other storage, also that of other machines: two targets with the
/// same configuration serve two disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskIdentity {
    /// The identifier of a disk, or the path of a file.
    pub(crate) text: String,
    /// It is a block device without an identifier, so that only the kernel's name identifies it.
    pub(crate) is_kernel_name: bool,
    /// Storage of other machines may have the same text.
    pub(crate) is_of_machine: bool,
}

impl DiskIdentity {
    /// That of a disk which is known by a text of its own.
    pub(crate) fn of_text(text: String) -> DiskIdentity {
        let is_of_machine = !WORLDWIDE.iter().any(|begin| text.starts_with(begin));
        DiskIdentity { text, is_kernel_name: false, is_of_machine }
    }

    pub(crate) fn of(path: &Path) -> DiskIdentity {
        let device = std::fs::metadata(path).ok().filter(|of| of.file_type().is_block_device());
        let known = device.as_ref().and_then(|of| {
            let number = format!("{}:{}", major(of.rdev()), minor(of.rdev()));
            of_device(&Path::new("/sys/dev/block").join(number))
        });
        // All paths of a file resolve to one.
        let whole = || path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let is_kernel_name = device.is_some() && known.is_none();
        let text = known.unwrap_or_else(|| whole().display().to_string());
        DiskIdentity { is_kernel_name, ..DiskIdentity::of_text(text) }
    }

    /// What identifiers are made of: the same on no other machine.
    pub(crate) fn of_world(&self) -> String {
        // No path contains a NUL byte.
        match machine() {
            Some(machine) if self.is_of_machine => format!("{}\0{machine}", self.text),
            _ => self.text.clone(),
        }
    }
}

/// A hash of this machine's identifier, which itself is confidential (machine-id(5)). None if it has none, as most
/// containers.
fn machine() -> Option<&'static str> {
    static HASH: OnceLock<Option<String>> = OnceLock::new();
    let hash = || {
        let text = std::fs::read_to_string("/etc/machine-id").ok()?;
        let text = text.trim();
        // The first start of a system may come before it is known.
        let is_known = !text.is_empty() && text != "uninitialized";
        is_known.then(|| hash_of(text))
    };
    HASH.get_or_init(hash).as_deref()
}

fn hash_of(machine: &str) -> String {
    let hash = Sha256::digest(format!("bpf-of namespaces of {machine}"));
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The identifier of a block device, from its directory in sysfs. No path of a file has this form.
fn of_device(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    // The number is that of the entry in the partition table.
    if let Some(number) = attribute(&folder.join("partition")) {
        return Some(format!("{}/partition {number}", of_device(folder.parent()?)?));
    }
    if let Some(file) = attribute(&folder.join("loop/backing_file")) {
        let offset = attribute(&folder.join("loop/offset")).unwrap_or_default();
        return (!file.ends_with(" (deleted)")).then(|| format!("loop:{file}/{offset}"));
    }
    ATTRIBUTES.iter().find_map(|(kind, name)| {
        attribute(&folder.join(name)).map(|value| format!("{kind}:{value}"))
    })
}

/// The text of an attribute, if it is not empty.
fn attribute(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_known_by_the_identity_that_they_report() {
        let sysfs = tempfile::tempdir().expect("a folder");
        let folder = |device: &str| sysfs.path().join("devices").join(device);
        let write = |device: &str, name: &str, text: &str| {
            let path = folder(device).join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, format!("{text}\n")).expect("written");
        };
        write("sda", "device/wwid", "naa.5000c500a1b2c3d4");
        write("sda/sda1", "partition", "1");
        write("sda/sda2", "partition", "2");
        write("nvme0n1", "wwid", "eui.0025385b71b12345");
        write("dm-3", "dm/uuid", "LVM-x");
        write("dm-3", "dm/name", "vg0-disk");
        write("dm-4", "dm/uuid", "");
        write("dm-4", "dm/name", "plain");
        write("vda", "serial", "disk-7");
        write("vdb", "serial", "");
        write("vdb/vdb1", "partition", "1");
        write("loop0", "loop/backing_file", "/srv/disk.img");
        write("loop0", "loop/offset", "0");
        write("loop1", "loop/backing_file", "/srv/disk.img (deleted)");
        for (device, identity) in [
            ("sda", Some("wwid:naa.5000c500a1b2c3d4")),
            ("sda/sda1", Some("wwid:naa.5000c500a1b2c3d4/partition 1")),
            ("sda/sda2", Some("wwid:naa.5000c500a1b2c3d4/partition 2")),
            ("nvme0n1", Some("wwid:eui.0025385b71b12345")),
            ("dm-3", Some("dm:LVM-x")),
            ("dm-4", Some("dm-name:plain")),
            ("vda", Some("serial:disk-7")),
            ("vdb", None),
            ("vdb/vdb1", None),
            ("loop0", Some("loop:/srv/disk.img/0")),
            ("loop1", None),
            ("sdz", None),
        ] {
            assert_eq!(of_device(&folder(device)).as_deref(), identity, "{device}");
        }
        // The kernel finds the disk under another name at the next start.
        std::fs::create_dir(folder("now")).expect("made");
        let renamed = folder("now/sdc");
        std::fs::rename(folder("sda"), &renamed).expect("renamed");
        std::os::unix::fs::symlink(renamed.join("sda2"), folder("8:34")).expect("linked");
        let identity = of_device(&folder("8:34"));
        assert_eq!(identity.as_deref(), Some("wwid:naa.5000c500a1b2c3d4/partition 2"));
    }

    #[test]
    fn files_keep_their_paths() {
        let directory = tempfile::tempdir().expect("a folder");
        let whole = directory.path().canonicalize().expect("it is there");
        std::fs::write(whole.join("disk"), "").expect("written");
        std::os::unix::fs::symlink(whole.join("disk"), whole.join("link")).expect("linked");
        let text = whole.join("disk").display().to_string();
        let known = DiskIdentity::of_text(text);
        for name in ["disk", "link"] {
            assert_eq!(DiskIdentity::of(&whole.join(name)), known);
        }
    }

    /// Hosts would take disks of two machines with the same configuration for one.
    #[test]
    fn identifiers_that_other_machines_have_too_are_made_unique() {
        let is_of_machine = |text: &str| DiskIdentity::of_text(text.to_owned()).is_of_machine;
        for text in ["/srv/disk", "dm-name:vg-a", "dm:mpath-1", "serial:1", "loop:/srv/disk/0"] {
            assert!(is_of_machine(text), "{text}");
        }
        for text in ["dm:LVM-x", "md:a:b", "wwid:naa.5000c500a1b2c3d4/partition 1", "wwid:eui.00"] {
            assert!(!is_of_machine(text), "{text}");
        }
        let file = DiskIdentity::of_text("/srv/disk".to_owned());
        let known = machine().map_or(file.text.clone(), |hash| format!("/srv/disk\0{hash}"));
        assert_eq!(file.of_world(), known);
        assert_ne!(hash_of("1a"), hash_of("2b"));
    }
}
