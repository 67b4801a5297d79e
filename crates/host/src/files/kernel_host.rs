//! Namespaces of NVMe/TCP and NVMe/RDMA targets to which the kernel's host is connected, found in sysfs.

use crate::{Portal, TargetUrl, Transport};
use rustix::fs::{major, minor};
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};

/// Most nested volumes that are followed.
const LAYERS_MAX: usize = 8;

/// A namespace of a target, and its block device on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelNamespace {
    /// Its address, with a portal for each TCP path of the kernel, or with one RDMA portal if there is no TCP path. It
    /// has no keys, because sysfs does not tell which ones the kernel uses.
    pub url: TargetUrl,
    /// The host NQN that the kernel uses.
    pub host_nqn: Option<String>,
    /// The block device of the whole namespace.
    pub device: PathBuf,
}

impl KernelNamespace {
    /// The namespace of the device with this number, which may also be a partition or volume on it. None if there is
    /// none. For a volume over several namespaces, any of them.
    #[must_use]
    pub fn of(device: u64) -> Option<Self> {
        let name = format!("{}:{}", major(device), minor(device));
        find(&Path::new("/sys/dev/block").join(name), LAYERS_MAX)
    }
}

/// The same for the device with this directory in sysfs.
fn find(folder: &Path, layers: usize) -> Option<KernelNamespace> {
    let folder = fs::canonicalize(folder).ok()?;
    if folder.join("dm").exists() {
        let below = fs::read_dir(folder.join("slaves")).ok()?.filter_map(Result::ok);
        let mut below: Vec<PathBuf> = below.map(|entry| entry.path()).collect();
        below.sort();
        let layers = layers.checked_sub(1)?;
        return below.iter().find_map(|folder| find(folder, layers));
    }
    let is_partition = folder.join("partition").exists();
    let disk = if is_partition { folder.parent()? } else { &folder };
    let nsid: u32 = text(&disk.join("nsid"))?.parse().ok()?;
    // With multipathing the device is below a subsystem, which has a link to each controller.
    let above = disk.join("device");
    let mut controllers = vec![above.clone()];
    let below = fs::read_dir(&above).into_iter().flatten().filter_map(Result::ok);
    controllers.extend(below.map(|entry| entry.path()));
    controllers.sort();
    let (mut nqn, mut host_nqn) = (None, None);
    let (mut by_tcp, mut by_rdma) = (Vec::<Portal>::new(), Vec::<Portal>::new());
    let mut from = Vec::new();
    for controller in controllers {
        let transport = text(&controller.join("transport"));
        let portals = match transport.as_deref() {
            Some("tcp") => &mut by_tcp,
            Some("rdma") => &mut by_rdma,
            _ => continue,
        };
        let address = text(&controller.join("address")).unwrap_or_default();
        let (Some(portal), Some(name)) = (portal(&address), text(&controller.join("subsysnqn")))
        else {
            continue;
        };
        if !portals.contains(&portal) {
            portals.push(portal);
        }
        if transport.as_deref() == Some("tcp") {
            from.push(value(&address, "host_traddr"));
        }
        nqn = Some(name);
        host_nqn = text(&controller.join("hostnqn")).filter(|nqn| !nqn.is_empty()).or(host_nqn);
    }
    // An RDMA address has only one portal.
    let (transport, portals) = match by_tcp.is_empty() {
        false => (Transport::Tcp, by_tcp.get(..crate::PORTALS_MAX).unwrap_or(&by_tcp)),
        true => (Transport::Rdma, by_rdma.get(..1)?),
    };
    let list: Vec<String> = portals.iter().map(ToString::to_string).collect();
    let (scheme, list) = (transport.scheme(), list.join(","));
    let mut url: TargetUrl = format!("{scheme}{list}/{}?ns={nsid}", nqn?).parse().ok()?;
    // If all paths have the same source address, use it too, because rules and limits of a target depend on it. This
    // process may not have that address, if it is in another network namespace.
    from.dedup();
    if let [Some(from)] = &from[..] {
        let is_here = |from: &IpAddr| UdpSocket::bind((*from, 0)).is_ok();
        url.host_traddr = from.parse().ok().filter(is_here);
    }
    Some(KernelNamespace { url, host_nqn, device: Path::new("/dev").join(disk.file_name()?) })
}

/// Parses a controller's address: `traddr=10.0.0.2,trsvcid=4420,host_traddr=10.0.0.3,src_addr=10.0.0.3`.
fn portal(address: &str) -> Option<Portal> {
    Some(Portal { host: value(address, "traddr")?, port: value(address, "trsvcid")?.parse().ok()? })
}

/// The value of a key in such an address.
fn value(address: &str, key: &str) -> Option<String> {
    let mut pairs = address.split(',');
    pairs.find_map(|pair| pair.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn write(path: &Path, files: &[(&str, &str)]) {
        for (file, text) in files {
            let path = path.join(file);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
    }

    #[test]
    fn a_path_by_rdma_where_there_is_none_by_tcp() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("nvme0n1");
        let nqn = "nqn.2026-01.org.example:disk\n";
        write(&disk, &[("nsid", "1\n")]);
        for (name, transport, expected, from) in [
            ("nvme1", "rdma\n", "nvme-rdma://10.0.0.1:4420", ""),
            ("nvme2", "rdma\n", "nvme-rdma://10.0.0.1:4420", ""),
            ("nvme3", "tcp\n", "nvme-tcp://10.0.0.3:4420", "&host-traddr=127.0.0.9"),
        ] {
            let portal = format!("traddr=10.0.0.{},trsvcid=4420", &name[4..]);
            let address = format!("{portal},host_traddr=127.0.0.9,src_addr=127.0.0.9\n");
            let files = [("transport", transport), ("address", &address), ("subsysnqn", nqn)];
            write(&disk.join("device").join(name), &files);
            let found = find(&disk, 8).expect("a namespace");
            let expected = format!("{expected}/{}?ns=1{from}", nqn.trim_end());
            assert_eq!(found.url.to_string(), expected);
        }
    }

    #[test]
    fn partitions_and_paths_lead_to_the_target() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let subsystem = root.join("nvme-subsys0");
        write(&subsystem, &[("nvme0n1/nsid", "3\n"), ("nvme0n1/nvme0n1p1/partition", "1\n")]);
        for (name, address) in [
            ("nvme0", "traddr=10.0.0.2,trsvcid=4420,host_traddr=10.0.0.9,src_addr=10.0.0.9\n"),
            ("nvme1", "traddr=fd00::1,trsvcid=4421\n"),
        ] {
            let controller = root.join(name);
            let nqn = "nqn.2026-01.org.example:disk\n";
            write(&controller, &[("transport", "tcp\n"), ("address", address), ("subsysnqn", nqn)]);
            write(&controller, &[("hostnqn", "nqn.2026-01.org.example:host\n")]);
            symlink(&controller, subsystem.join(name)).expect("linked");
        }
        symlink(&subsystem, subsystem.join("nvme0n1/device")).expect("linked");
        // A drive of this machine, and a disk that is not NVMe.
        write(
            &root.join("pci"),
            &[("nvme2/transport", "pcie\n"), ("nvme2n1/nsid", "1\n"), ("sda/size", "1\n")],
        );
        symlink(root.join("pci/nvme2"), root.join("pci/nvme2n1/device")).expect("linked");
        let numbers = root.join("dev");
        fs::create_dir(&numbers).expect("made");
        for (number, device) in [
            ("259:0", "nvme-subsys0/nvme0n1"),
            ("259:1", "nvme-subsys0/nvme0n1/nvme0n1p1"),
            ("259:2", "pci/nvme2n1"),
            ("8:0", "pci/sda"),
            ("253:0", "virtual/dm-0"),
            ("253:1", "virtual/dm-1"),
        ] {
            symlink(root.join(device), numbers.join(number)).expect("linked");
        }
        // A volume over a disk and the partition, and one over that and itself.
        for (volume, below) in [
            ("dm-0", ["pci/sda", "nvme-subsys0/nvme0n1/nvme0n1p1"]),
            ("dm-1", ["virtual/dm-1", "virtual/dm-0"]),
        ] {
            let folder = root.join("virtual").join(volume);
            write(&folder, &[("dm/name", "vg-lv\n"), ("slaves/none", "")]);
            for (number, device) in below.iter().enumerate() {
                symlink(root.join(device), folder.join(format!("slaves/{number}")))
                    .expect("linked");
            }
        }
        for number in ["259:0", "259:1", "253:0", "253:1"] {
            let found = find(&numbers.join(number), 8).expect("a namespace");
            let url = "nvme-tcp://10.0.0.2:4420,[fd00::1]:4421/nqn.2026-01.org.example:disk?ns=3";
            assert_eq!(found.url.to_string(), url);
            assert_eq!(found.host_nqn.as_deref(), Some("nqn.2026-01.org.example:host"));
            assert_eq!(found.device, Path::new("/dev/nvme0n1"));
        }
        for number in ["259:2", "8:0", "0:40"] {
            assert_eq!(find(&numbers.join(number), 8), None);
        }
    }
}
