//! Finds where a file system lies in a namespace: whole disk, partition, loop device, image file, volume.

use super::device_mapper::{Below, Control, Target, TargetKind};
use super::error::MapRefusal;
use super::placement::{Layer, Placement, Segment, Volume};
use super::sys::{self, LoopFile};
use crate::NamespaceInfo;
use rustix::fs::{FileType, fstat, major, makedev, minor, stat};
use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most layers that are followed: a partition of a loop device on a partition is three.
const LAYERS_MAX: usize = 8;
/// Unit of a partition's start in sysfs, in bytes.
const SECTOR_BYTES: u64 = 512;

/// The namespace on this machine: the block device that the kernel's NVMe/TCP host created for it,
/// or, if target and host are one machine, the disk or image file that the target serves.
#[derive(Clone, Debug)]
pub struct NamespaceDevice {
    path: PathBuf,
    identity: Identity,
    /// What sysfs told about the disk when this was created.
    labels: Labels,
    sysfs: PathBuf,
    /// Directory with the nodes of loop devices. Their ioctl tells more than sysfs.
    nodes: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    /// Device number.
    Block(u64),
    /// Device number of the file system, and inode.
    Image(u64, u64),
}

/// What sysfs tells about an NVMe disk: all of it is unknown of other devices.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Labels {
    subsystem: Option<String>,
    nsid: Option<String>,
    nguid: Option<String>,
}

impl Labels {
    fn is_known(&self) -> bool {
        self.subsystem.is_some() || self.nsid.is_some() || self.nguid.is_some()
    }

    fn read(sysfs: &Path, identity: Identity) -> Self {
        let folder = match identity {
            Identity::Block(number) => Some(sysfs.join(name(number))),
            Identity::Image(..) => None,
        };
        let text = |file: &str| text(&folder.as_ref()?.join(file));
        Self { subsystem: text("device/subsysnqn"), nsid: text("nsid"), nguid: text("nguid") }
    }
}

fn identify(path: &Path) -> Result<Identity, MapRefusal> {
    let action = format!("cannot examine the namespace {}", path.display());
    let found = stat(path).map_err(|error| MapRefusal::io(action)(error.into()))?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::BlockDevice => Ok(Identity::Block(found.st_rdev)),
        FileType::RegularFile => Ok(Identity::Image(found.st_dev, found.st_ino)),
        _ => Err(MapRefusal::Inode("the namespace is neither a block device nor an image file")),
    }
}

impl NamespaceDevice {
    /// The namespace is the block device or image file at `path`.
    ///
    /// # Errors
    /// It does not exist or is neither of these.
    pub fn new(path: impl Into<PathBuf>) -> Result<Self, MapRefusal> {
        let path = path.into();
        let identity = identify(&path)?;
        let (sysfs, nodes) = (PathBuf::from("/sys/dev/block"), PathBuf::from("/dev"));
        let labels = Labels::read(&sysfs, identity);
        Ok(Self { path, identity, labels, sysfs, nodes })
    }

    /// Refuses the kernel's disk of another namespace than this one, as far as sysfs tells, and a partition of the
    /// subsystem's disks. With `nqn`, only disks of that subsystem are compared, because a disk of another subsystem,
    /// or a partition of it, may be what a target on this machine serves.
    pub(crate) fn compare(&self, info: &NamespaceInfo, nqn: Option<&str>) -> Result<(), String> {
        let Identity::Block(number) = self.identity else { return Ok(()) };
        let path = self.path.display();
        let folder = self.sysfs.join(name(number));
        let is_of = |file, nqn| text(&folder.join(file)).is_some_and(|of| of == nqn);
        if folder.join("partition").exists()
            && nqn.is_some_and(|nqn| is_of("../device/subsysnqn", nqn))
        {
            return Err(format!("{path} is a partition of the namespace; name the whole disk"));
        }
        if !nqn.is_none_or(|nqn| is_of("device/subsysnqn", nqn)) {
            return Ok(());
        }
        let nsid = text(&folder.join("nsid")).and_then(|text| text.parse::<u32>().ok());
        if let Some(nsid) = nsid.filter(|nsid| *nsid != info.nsid) {
            let wanted = info.nsid;
            return Err(format!("{path} is namespace {nsid} of the subsystem, not {wanted}"));
        }
        let nguid = text(&folder.join("nguid")).map(|text| text.replace('-', ""));
        let wanted = info.nguid.iter().fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        match nguid {
            Some(nguid) if info.nguid != [0; 16] && !nguid.eq_ignore_ascii_case(&wanted) => {
                Err(format!("{path} has the NGUID {nguid}, but the namespace has {wanted}"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a device that is not the block device of the NVMe namespace `info`, whose character device has this
    /// number: a partition of it, or a disk of another drive. In sysfs both belong to the same controller or subsystem.
    pub(crate) fn compare_local(&self, info: &NamespaceInfo, character: u64) -> Result<(), String> {
        let path = self.path.display();
        let Identity::Block(number) = self.identity else {
            return Err(format!("{path} is an image file, not the block device of the namespace"));
        };
        self.compare(info, None)?;
        let folder = self.sysfs.join(name(number));
        if text(&folder.join("nsid")).is_none() {
            return Err(format!("{path} is not an NVMe namespace; name the whole disk"));
        }
        let owner = |folder: &Path| fs::canonicalize(folder.join("device")).ok();
        let of_character = owner(&self.sysfs.with_file_name("char").join(name(character)));
        if of_character.is_none() || owner(&folder) != of_character {
            return Err(format!("{path} is not of the same drive as the character device"));
        }
        let wanted = info.size_bytes();
        match self.length_bytes() {
            Some(bytes) if bytes != wanted => {
                Err(format!("{path} has {bytes} bytes, but the namespace has {wanted}"))
            }
            _ => Ok(()),
        }
    }

    /// The same with the error of a refused file.
    pub(crate) fn admit(&self, info: &NamespaceInfo, nqn: Option<&str>) -> Result<(), MapRefusal> {
        self.compare(info, nqn).map_err(MapRefusal::OtherNamespace)
    }

    /// The same for a later file: also refuses a disk that has got the device number of the one that was there when this
    /// was created, as far as sysfs tells. Opens no device, which might have to wait for a disk.
    pub(crate) fn admit_again(
        &self,
        info: &NamespaceInfo,
        nqn: Option<&str>,
    ) -> Result<(), MapRefusal> {
        let labels = Labels::read(&self.sysfs, self.identity);
        // All are unknown if sysfs is not there any more.
        if labels.is_known() && labels != self.labels {
            return Err(self.has_changed());
        }
        self.admit(info, nqn)
    }

    /// Whether the path still leads to the device or file that it led to when this was created.
    pub(crate) fn is_in_place(&self) -> bool {
        let found = identify(&self.path);
        found.is_ok_and(|found| found == self.identity)
            && Labels::read(&self.sysfs, self.identity) == self.labels
    }

    fn has_changed(&self) -> MapRefusal {
        let path = self.path.display();
        MapRefusal::OtherNamespace(format!("{path} is another disk now than when it was opened"))
    }

    /// Checks that this is still the namespace `info` of the subsystem `nqn`: fails if the path leads to another device
    /// or file than when this was created, if the disk is another namespace by now, or if it is too short to be this
    /// one. For callers that keep this for long.
    ///
    /// # Errors
    /// [`MapRefusal::OtherNamespace`].
    pub fn check(&self, info: &NamespaceInfo, nqn: &str) -> Result<(), MapRefusal> {
        let path = self.path.display();
        let found =
            identify(&self.path).map_err(|why| MapRefusal::OtherNamespace(why.to_string()))?;
        if found != self.identity {
            let why = format!("{path} now leads to another device or file than when it was opened");
            return Err(MapRefusal::OtherNamespace(why));
        }
        // The kernel gives the number of a disk that is gone to another.
        if Labels::read(&self.sysfs, found) != self.labels {
            return Err(self.has_changed());
        }
        // It may be longer: the namespace may have grown since it was identified.
        let wanted = info.size_bytes();
        let is_short = |bytes: &u64| bytes.saturating_add(info.block_bytes.into()) <= wanted;
        if let Some(bytes) = self.length_bytes().filter(is_short) {
            let why = format!("{path} has {bytes} bytes, but the namespace has {wanted}");
            return Err(MapRefusal::OtherNamespace(why));
        }
        self.admit(info, Some(nqn))
    }

    /// Its length in bytes, if this process may know it.
    pub(crate) fn length_bytes(&self) -> Option<u64> {
        sys::length_bytes(&File::open(&self.path).ok()?).ok()
    }

    /// The backing file of a loop device, from its driver; None if this process may not ask the driver. The path in
    /// sysfs may lead to another file, for example from another mount namespace.
    fn loop_file(&self, device: u64, folder: &Path) -> Option<Identity> {
        let node = fs::canonicalize(folder).ok()?;
        let node = File::open(self.nodes.join(node.file_name()?)).ok()?;
        if fstat(&node).ok()?.st_rdev != device {
            return None;
        }
        Some(match sys::loop_file(&node).ok()? {
            LoopFile::Device(number) => Identity::Block(number),
            LoopFile::Inode { device, inode } => Identity::Image(device, inode),
        })
    }

    /// The path that was given to [`new`](Self::new).
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the device with number `device` begins in the namespace, in bytes: follows partitions and loop devices, as
    /// sysfs describes them, down to the namespace. Does not access file systems on them.
    ///
    /// # Errors
    /// [`MapRefusal::OtherDevice`] says at which layer the search ended: also at volumes, which may not be contiguous.
    pub fn offset_of(&self, device: u64) -> Result<u64, MapRefusal> {
        match self.walk(device) {
            Ok((offset, End::Namespace)) => Ok(offset),
            Ok((_, End::Volume(volume))) => {
                let name = name(volume);
                let why = format!("{name} is a volume of the device mapper (LVM, encryption)");
                Err(self.refuse(device, why))
            }
            Err(why) => Err(self.refuse(device, why)),
        }
    }

    /// The same, but also follows linear and striped volumes through their tables.
    pub(crate) fn placement_of(&self, device: u64) -> Result<Placement, MapRefusal> {
        let refuse = |why| self.refuse(device, why);
        let (offset, volume) = match self.walk(device).map_err(refuse)? {
            (offset, End::Namespace) => return Ok(Placement::At(offset)),
            (offset, End::Volume(volume)) => (offset, volume),
        };
        let control = Control::shared().map_err(|error| refuse(unreadable(volume, &error)))?;
        let mut tables = Vec::new();
        let read = &mut |volume| control.table(volume);
        let layer = self.mapped(volume, read, &mut tables, 1).map_err(refuse)?;
        let layer = Layer::Part(offset, Box::new(layer));
        Ok(Placement::Volume(Arc::new(Volume::new(layer, tables, control))))
    }

    fn refuse(&self, device: u64, why: String) -> MapRefusal {
        MapRefusal::OtherDevice { device: name(device), namespace: self.path.clone(), why }
    }

    /// The segments of a volume, with the layers below them.
    fn mapped(
        &self,
        volume: u64,
        read: &mut dyn FnMut(u64) -> io::Result<Vec<Target>>,
        tables: &mut Vec<(u64, Vec<Target>)>,
        depth: usize,
    ) -> Result<Layer, String> {
        if depth > LAYERS_MAX {
            return Err(format!("more than {LAYERS_MAX} layers"));
        }
        let table = read(volume).map_err(|error| unreadable(volume, &error))?;
        let mut segments = Vec::new();
        for target in &table {
            let (start, length) = (target.start_bytes, target.length_bytes);
            let (chunk, stripes) = match &target.kind {
                TargetKind::Striped { chunk_bytes, stripes } => {
                    let mut below = |stripe: &Below| self.below(stripe, read, tables, depth);
                    let stripes: Result<_, String> = stripes.iter().map(&mut below).collect();
                    (*chunk_bytes, stripes?)
                }
                TargetKind::Other(kind) => (length, vec![Layer::Elsewhere(advice(volume, kind))]),
            };
            segments.push(Segment { start, length, chunk: chunk.max(1), stripes });
        }
        if !tables.iter().any(|(known, _)| *known == volume) {
            tables.push((volume, table));
        }
        Ok(Layer::Mapped(segments))
    }

    /// The layer below a stripe. A stripe that is not on the namespace is no error here: it only matters to files with
    /// extents on it.
    fn below(
        &self,
        stripe: &Below,
        read: &mut dyn FnMut(u64) -> io::Result<Vec<Target>>,
        tables: &mut Vec<(u64, Vec<Target>)>,
        depth: usize,
    ) -> Result<Layer, String> {
        let (offset, layer) = match self.walk(stripe.device) {
            Ok((offset, End::Namespace)) => (offset, Layer::At(0)),
            Ok((offset, End::Volume(volume))) => {
                (offset, self.mapped(volume, read, tables, depth + 1)?)
            }
            Err(why) => {
                let device = name(stripe.device);
                let why =
                    format!("this part of the volume is on {device}, not on the namespace: {why}");
                return Ok(Layer::Elsewhere(why));
            }
        };
        Ok(Layer::Part(stripe.offset_bytes.saturating_add(offset), Box::new(layer)))
    }

    /// Follows partitions and loop devices. Returns the sum of their offsets, and where they end; or why they end
    /// elsewhere.
    fn walk(&self, device: u64) -> Result<(u64, End), String> {
        let (mut at, mut offset) = (device, 0_u64);
        for _ in 0..LAYERS_MAX {
            if self.identity == Identity::Block(at) {
                return Ok((offset, End::Namespace));
            }
            let name = name(at);
            let folder = self.sysfs.join(&name);
            let number = |file: &str| text(&folder.join(file))?.parse::<u64>().ok();
            if folder.join("partition").exists() {
                let start = number("start").and_then(|sectors| sectors.checked_mul(SECTOR_BYTES));
                let disk = text(&folder.join("../dev")).and_then(|text| device_number(&text));
                let (Some(start), Some(disk)) = (start, disk) else {
                    return Err(format!("sysfs does not show where partition {name} begins"));
                };
                (at, offset) = (disk, offset.saturating_add(start));
            } else if let Some(backing) = text(&folder.join("loop/backing_file")) {
                let Some(start) = number("loop/offset") else {
                    return Err(format!("sysfs does not show the offset of loop device {name}"));
                };
                offset = offset.saturating_add(start);
                let below = self.loop_file(at, &folder).ok_or(());
                let Ok(below) = below.or_else(|()| identify(Path::new(&backing))) else {
                    return Err(format!("the backing file of its loop device, {backing}, is gone"));
                };
                if below == self.identity {
                    return Ok((offset, End::Namespace));
                }
                match below {
                    Identity::Block(disk) => at = disk,
                    Identity::Image(..) => {
                        return Err(format!("the backing file of its loop device is {backing}"));
                    }
                }
            } else if folder.join("dm").exists() {
                return Ok((offset, End::Volume(at)));
            } else if folder.exists() {
                return Err(format!("{name} is neither a partition nor a loop device"));
            } else {
                return Err(
                    "it is not a block device (network, overlay or memory file system?)".into()
                );
            }
        }
        Err(format!("more than {LAYERS_MAX} layers"))
    }
}

/// The device at which a stack of partitions and loop devices ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Namespace,
    /// A volume of the device mapper, by its number.
    Volume(u64),
}

fn name(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

fn unreadable(volume: u64, error: &io::Error) -> String {
    let name = name(volume);
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "; only root may read the tables of volumes",
        io::ErrorKind::NotFound => "; check that /dev/mapper/control exists",
        _ => "",
    };
    format!("the table of the volume {name} cannot be read ({error}){hint}")
}

/// Why bytes in a device-mapper target of this type are not mapped, and a remedy.
fn advice(volume: u64, kind: &str) -> String {
    let why = match kind {
        "crypt" => {
            "its data is encrypted on the namespace; keep the files on an unencrypted volume"
        }
        "thin" | "thin-pool" => {
            "its blocks may move; keep the files on a volume created without --thin"
        }
        "snapshot" | "snapshot-origin" | "snapshot-merge" => {
            "its data is in several places; remove the snapshot (lvremove)"
        }
        "mirror" | "raid" => {
            "it has several copies, or is being moved; wait for pvmove, or keep the files on a linear or striped volume"
        }
        "cache" | "writecache" => {
            "its newest data is in a cache; detach the cache (lvconvert --uncache)"
        }
        _ => "keep the files on a linear or striped volume",
    };
    format!("this part of the volume {} has type {kind}: {why}", name(volume))
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

    /// A sysfs with a partition 7:1 from sector 2048 on of loop device 7:0, whose backing file is
    /// `image` from byte 512 on; a device mapper volume 253:0; a disk 8:0.
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
        namespace.nodes = root.to_owned();
        namespace
    }

    #[test]
    fn disks_of_another_namespace_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        fs::write(&image, "").expect("written");
        let mut disk = machine(folder.path(), &image);
        let nguid = [0x0A, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let info = NamespaceInfo { nsid: 1, blocks: 8, block_bytes: 512, nguid };
        let of = |disk: &NamespaceDevice, info| disk.compare(&info, Some("nqn.x"));
        of(&disk, info).expect("an image has no identifiers");
        disk.identity = Identity::Block(makedev(259, 1));
        of(&disk, info).expect("nothing is known of it");
        let files = folder.path().join("259:1");
        fs::create_dir_all(files.join("device")).expect("made");
        let write = |file: &str, text: &str| fs::write(files.join(file), text).expect("written");
        write("nguid", "0a010203-0405-0607-0809-0a0b0c0d0e0f\n");
        write("nsid", "1\n");
        write("device/subsysnqn", "nqn.x\n");
        of(&disk, info).expect("it is the same");
        of(&disk, NamespaceInfo { nguid: [0; 16], ..info }).expect("it may be the same");
        let other = NamespaceInfo { nguid: [1; 16], ..info };
        let why = of(&disk, other).expect_err("another NGUID");
        assert!(why.contains("but the namespace has 0101"), "{why}");
        let why = of(&disk, NamespaceInfo { nsid: 2, ..info }).expect_err("another number");
        assert!(why.contains("is namespace 1 of the subsystem, not 2"), "{why}");
        disk.compare(&other, Some("nqn.y")).expect("a target here may serve the disk");
        assert!(disk.compare(&other, None).is_err());
        fs::create_dir_all(files.join("part")).expect("made");
        std::os::unix::fs::symlink("259:1/part", folder.path().join("259:2")).expect("linked");
        write("part/partition", "1\n");
        disk.identity = Identity::Block(makedev(259, 2));
        let why = of(&disk, info).expect_err("a partition");
        assert!(why.contains("name the whole disk"), "{why}");
        disk.compare(&info, Some("nqn.y")).expect("a target here may serve the partition");
    }

    #[test]
    fn a_namespace_that_has_become_another_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        fs::write(&image, [0; 4096]).expect("written");
        let mut disk = machine(folder.path(), &image);
        let info = NamespaceInfo { nsid: 1, blocks: 8, block_bytes: 512, nguid: [0; 16] };
        disk.check(&info, "nqn.x").expect("it is as long");
        disk.check(&NamespaceInfo { blocks: 7, ..info }, "nqn.x").expect("it may have grown");
        let why = disk.check(&NamespaceInfo { blocks: 9, ..info }, "nqn.x").expect_err("too short");
        assert!(why.to_string().contains("has 4096 bytes, but"), "{why}");
        disk.labels.subsystem = Some("nqn.x".to_owned());
        let why = disk.check(&info, "nqn.x").expect_err("it was a disk of the subsystem");
        assert!(why.to_string().contains("another disk now"), "{why}");
        disk.admit_again(&info, None).expect("sysfs tells nothing");
    }

    #[test]
    fn only_the_block_device_of_a_local_namespace_will_do() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("block");
        let image = root.path().join("image");
        fs::write(&image, [0; 4096]).expect("written");
        let mut disk = machine(&folder, &image);
        let info = NamespaceInfo { nsid: 1, blocks: 8, block_bytes: 512, nguid: [0; 16] };
        let character = makedev(240, 0);
        let why = disk.compare_local(&info, character).expect_err("an image");
        assert!(why.contains("image file"), "{why}");
        // Two drives, each with a disk and a character device; the first has a partition.
        for (place, drive) in [("block/259:0", 0), ("char/240:0", 0), ("block/259:2", 1)] {
            let drive = root.path().join(format!("nvme{drive}"));
            fs::create_dir_all(&drive).expect("made");
            fs::create_dir_all(root.path().join(place)).expect("made");
            let link = root.path().join(place).join("device");
            std::os::unix::fs::symlink(drive, link).expect("linked");
            fs::write(root.path().join(place).join("nsid"), "1\n").expect("written");
        }
        fs::create_dir_all(folder.join("259:1")).expect("made");
        let mut compare = |minor, blocks| {
            disk.identity = Identity::Block(makedev(259, minor));
            disk.compare_local(&NamespaceInfo { blocks, ..info }, character)
        };
        compare(0, 8).expect("it is the same");
        let why = compare(0, 16).expect_err("another size");
        assert!(why.contains("has 4096 bytes, but the namespace has 8192"), "{why}");
        let why = compare(1, 8).expect_err("a partition");
        assert!(why.contains("name the whole disk"), "{why}");
        let why = compare(2, 8).expect_err("of another drive");
        assert!(why.contains("not of the same drive"), "{why}");
    }

    #[test]
    fn a_path_that_leads_to_another_device_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        fs::write(&image, [0; 4096]).expect("written");
        let disk = machine(folder.path(), &image);
        let info = NamespaceInfo { nsid: 1, blocks: 8, block_bytes: 512, nguid: [0; 16] };
        disk.check(&info, "nqn.x").expect("it is the same");
        let kept = folder.path().join("kept");
        fs::rename(&image, &kept).expect("renamed");
        let why = disk.check(&info, "nqn.x").expect_err("it is gone").to_string();
        assert!(why.contains("cannot examine the namespace"), "{why}");
        fs::write(&image, [0; 4096]).expect("written");
        let why = disk.check(&info, "nqn.x").expect_err("another file").to_string();
        assert!(why.contains("now leads to another device or file"), "{why}");
        fs::rename(&kept, &image).expect("renamed");
        disk.check(&info, "nqn.x").expect("it is the same again");
    }

    /// Runs only as root, and only where loop devices can be made.
    #[test]
    fn the_backing_file_of_a_loop_device_is_asked_from_its_driver() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        fs::write(&image, [0; 4096]).expect("written");
        let made =
            std::process::Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else { return };
        let node = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        let number = stat(&node).expect("it is there").st_rdev;
        let mut namespace = NamespaceDevice::new(&image).expect("an image");
        let found = namespace.offset_of(number);
        // Another file takes the path by which the loop device was set up.
        let moved = folder.path().join("moved");
        fs::rename(&image, &moved).expect("renamed");
        fs::write(&image, [0; 4096]).expect("written");
        let of_moved = namespace.offset_of(number);
        namespace.identity = identify(&image).expect("another image");
        let of_other = namespace.offset_of(number);
        let _ = std::process::Command::new("losetup").args(["--detach", &node]).status();
        assert_eq!((found.ok(), of_moved.ok()), (Some(0), Some(0)));
        assert!(of_other.is_err(), "another file of that name");
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
        assert!(mapped.contains("device mapper"), "{mapped}");
        assert!(why(makedev(8, 0)).contains("neither a partition nor a loop device"));
        assert!(why(makedev(0, 40)).contains("not a block device"));
        let other = folder.path().join("other");
        fs::write(&other, "").expect("written");
        let mut other = NamespaceDevice::new(other).expect("an image");
        other.sysfs.clone_from(&namespace.sysfs);
        let error = other.offset_of(makedev(7, 0)).expect_err("another image").to_string();
        assert!(error.contains("the backing file of its loop device is"), "{error}");
        assert!(NamespaceDevice::new(folder.path()).is_err());
    }

    fn target(start_bytes: u64, length_bytes: u64, kind: TargetKind) -> Target {
        Target { start_bytes, length_bytes, kind }
    }

    fn on(chunk_bytes: u64, stripes: &[((u32, u32), u64)]) -> TargetKind {
        let below = |((major, minor), offset_bytes): &((u32, u32), u64)| Below {
            device: makedev(*major, *minor),
            offset_bytes: *offset_bytes,
        };
        TargetKind::Striped { chunk_bytes, stripes: stripes.iter().map(below).collect() }
    }

    #[test]
    fn volumes_are_followed_as_far_as_they_are_on_the_namespace() {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        fs::write(&image, "").expect("written");
        let sys = folder.path().join("sys");
        let namespace = machine(&sys, &image);
        fs::create_dir_all(sys.join("253:1/dm")).expect("made");
        // 253:0 has four segments: linear on the partition 7:1, striped over 7:1 and 253:1, on a disk, and encrypted;
        // 253:1 is linear on the loop device.
        let mut tables_of = |volume| match minor(volume) {
            0 => Ok(vec![
                target(0, 4096, on(4096, &[((7, 1), 1024)])),
                target(4096, 2048, on(512, &[((7, 1), 8192), ((253, 1), 512)])),
                target(6144, 512, on(512, &[((8, 0), 0)])),
                target(6656, 512, TargetKind::Other("crypt".to_owned())),
            ]),
            1 => Ok(vec![target(0, 1 << 20, on(1 << 20, &[((7, 0), 4096)]))]),
            _ => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
        };
        let mut tables = Vec::new();
        let found = namespace.mapped(makedev(253, 0), &mut tables_of, &mut tables, 1);
        let layer = found.expect("followed");
        let numbers: Vec<u64> = tables.iter().map(|(device, _)| *device).collect();
        assert_eq!(numbers, [makedev(253, 1), makedev(253, 0)]);
        let mut pieces = Vec::new();
        let found = layer.each(4000, 96 + 1536, &mut |at, length| pieces.push((at, length)));
        found.expect("on the namespace");
        let (partition, disk) = (512 + 2048 * 512, 512);
        let first = (partition + 1024 + 4000, 96);
        let second = (partition + 8192, 512);
        let third = (disk + 4096 + 512, 512);
        assert_eq!(pieces, [first, second, third, (partition + 8192 + 512, 512)]);
        let why = |at| layer.each(at, 1, &mut |_, _| {}).expect_err("refused");
        assert!(why(6144).contains("this part of the volume is on 8:0"), "{}", why(6144));
        assert!(
            why(6656)
                .contains("this part of the volume 253:0 has type crypt: its data is encrypted")
        );
        let refused = namespace.mapped(makedev(253, 2), &mut tables_of, &mut tables, 1);
        assert!(
            refused.expect_err("no rights").contains("only root may read the tables of volumes")
        );
        // A volume that contains itself.
        let mut circle = |_| Ok(vec![target(0, 512, on(512, &[((253, 1), 0)]))]);
        let refused = namespace.mapped(makedev(253, 1), &mut circle, &mut Vec::new(), 1);
        assert!(refused.expect_err("endless").contains("layers"));
    }

    #[test]
    fn advice_fits_the_type_of_the_volume() {
        for (kind, help) in [
            ("crypt", "encrypted"),
            ("thin", "--thin"),
            ("snapshot-origin", "lvremove"),
            ("raid", "pvmove"),
            ("mirror", "pvmove"),
            ("cache", "--uncache"),
            ("multipath", "linear or striped"),
        ] {
            let text = advice(makedev(253, 7), kind);
            assert!(text.contains(kind) && text.contains(help) && text.contains("253:7"), "{text}");
        }
    }
}
