//! Maps of real files on mounted ext4 and XFS: the target has the files' bytes at the mapped
//! places.

mod disk;

use bpfof_host::Lane;
use bpfof_host::files::{FileLayout, MapRefusal, NamespaceDevice, file_layout};
use disk::{BPFOF, Disk, output, run};
use fastrand::Rng;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The file's bytes as the namespace has them; zeroes in gaps.
fn bytes_at_target(lane: &mut Lane, layout: &FileLayout) -> Vec<u8> {
    let length = layout.length_bytes() as usize;
    let mut bytes = vec![0; length.next_multiple_of(4096)];
    for extent in layout.extents() {
        let from = extent.file_offset as usize;
        let part = &mut bytes[from..from + extent.length_bytes as usize];
        lane.read(1, extent.device_offset, part).expect("it reads");
    }
    bytes.truncate(length);
    bytes
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Writes a file of `blocks` extents: every second block is a hole.
fn scattered(path: &Path, blocks: u64) {
    let file = File::create(path).expect("made");
    for block in 0..blocks {
        file.write_all_at(&noise(4096, block), block * 8192).expect("written");
    }
}

#[test]
fn a_map_names_the_bytes_of_the_file() {
    for (kind, disk) in Disk::of_each_kind() {
        let controller = disk.connect();
        let mut lane = controller.open_lane().expect("a lane");
        let info = controller.namespaces()[0];
        let device = NamespaceDevice::new(disk.image()).expect("an image");
        let path = disk.mount().join("plain");
        // No sync: making the map brings the data to the device.
        fs::write(&path, noise(1_234_567, 7)).expect("written");
        let layout = file_layout(&File::open(&path).expect("opens"), &device, &info).expect("maps");
        assert!(bytes_at_target(&mut lane, &layout) == noise(1_234_567, 7), "{kind}");
        assert!(!layout.has_gaps());
        // 3,000 extents: a dozen calls of FIEMAP.
        let path = disk.mount().join("scattered");
        scattered(&path, 3000);
        let layout = file_layout(&File::open(&path).expect("opens"), &device, &info).expect("maps");
        assert_eq!(layout.extents().len(), 3000, "{kind}");
        assert!(layout.has_gaps());
        let expected = fs::read(&path).expect("read");
        assert!(bytes_at_target(&mut lane, &layout) == expected, "{kind}");
        // Blocks that are allocated, within the file, but never written have no data to read.
        let path = disk.mount().join("allocated");
        run("fallocate", &["--length", "1M", path.to_str().expect("UTF-8")]);
        let layout = file_layout(&File::open(&path).expect("opens"), &device, &info).expect("maps");
        assert!(layout.extents().is_empty() && layout.has_gaps(), "{kind}: {layout:?}");
    }
}

#[test]
fn unmappable_files_are_refused_with_a_reason() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let controller = disk.connect();
    let info = controller.namespaces()[0];
    let device = NamespaceDevice::new(disk.image()).expect("an image");
    let map = |path: &Path| file_layout(&File::open(path).expect("opens"), &device, &info);
    assert!(matches!(map(&disk.mount()), Err(MapRefusal::NotRegular)));
    assert!(matches!(map(Path::new("/proc/version")), Err(MapRefusal::FileSystem(_))));
    let empty = disk.mount().join("empty");
    fs::write(&empty, "").expect("written");
    assert!(map(&empty).expect("maps").extents().is_empty());
    // A file beside the image, not on the namespace.
    let beside = disk.image().with_file_name("beside");
    fs::write(&beside, "x").expect("written");
    assert!(map(&beside).is_err());

    let Some(journalling) = Disk::mounted("ext4", 96 << 20, "data=journal") else { return };
    let path = journalling.mount().join("file");
    fs::write(&path, "x").expect("written");
    let error = map(&path).expect_err("refused").to_string();
    assert!(error.contains("data=ordered"), "{error}");

    let good = disk.mount().join("good");
    fs::write(&good, noise(10_000, 1)).expect("written");
    let (url, image) = (disk.url.to_string(), disk.image());
    let (image, good) = (image.to_str().expect("UTF-8"), good.to_str().expect("UTF-8"));
    let arguments = ["file", "map", "--target", &url, "--device", image, "--json", good];
    let list: serde_json::Value = serde_json::from_str(&run(BPFOF, &arguments)).expect("JSON");
    assert_eq!((&list[0]["length_bytes"], &list[0]["has_gaps"]), (&10_000.into(), &false.into()));
    let failed = output(BPFOF, &[&arguments[..], &[beside.to_str().expect("UTF-8")]].concat());
    let errors = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success() && errors.contains("1 of 2 files"), "{errors}");
}
