//! Chains on an NVMe namespace of this machine by its character device. The tests need a namespace that they may
//! overwrite: interop/passthrough.py boots a machine with one, and runs the ignored tests.

use crate::PATIENT;
use crate::local::{KEYS, Store, table, value};
use bpfof_host::Status;
use bpfof_host::files::{Executor, FileMaps, NamespaceDevice, NvmeNamespace, ReadError};
use bpfof_sorted::Lookup;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A namespace of this machine.
pub(crate) struct Nvme {
    character: PathBuf,
    pub(crate) block: PathBuf,
    /// Where the file system on it is mounted, if it has one; otherwise tests may overwrite the namespace.
    pub(crate) mount: Option<PathBuf>,
}

/// The namespace that the variable `BPFOF_NVME` names: character device, block device, mount.
pub(crate) fn nvme() -> Option<Nvme> {
    let text = std::env::var("BPFOF_NVME").ok()?;
    let mut words = text.split_whitespace().map(PathBuf::from);
    Some(Nvme { character: words.next()?, block: words.next()?, mount: words.next() })
}

impl Nvme {
    pub(crate) fn maps(&self) -> FileMaps {
        let namespace = NvmeNamespace::open(&self.character).expect("a namespace");
        let device = NamespaceDevice::new(&self.block).expect("its block device");
        FileMaps::passthrough(namespace, device).expect("a thread")
    }
}

/// The namespace, which has a file system, and where that is mounted.
pub(crate) fn mounted() -> (Nvme, PathBuf) {
    let nvme = nvme().expect("BPFOF_NVME names a namespace");
    let mount = nvme.mount.clone().expect("BPFOF_NVME says where it is mounted");
    (nvme, mount)
}

/// The namespace, which has no file system.
pub(crate) fn bare() -> Nvme {
    let nvme = nvme().expect("BPFOF_NVME names a namespace");
    assert!(nvme.mount.is_none(), "the test would write over a file system");
    nvme
}

/// The block device of another drive is not the namespace's.
#[test]
#[ignore = "interop/passthrough.py runs it on an NVMe drive"]
fn disks_of_other_drives_are_refused() {
    let nvme = bare();
    let all = std::fs::read_dir("/sys/block").expect("sysfs").flatten();
    let all = all.map(|disk| PathBuf::from("/dev").join(disk.file_name()));
    let is_other = |disk: &PathBuf| *disk != nvme.block && disk.to_string_lossy().contains("nvme");
    let others: Vec<PathBuf> = all.filter(is_other).collect();
    assert!(!others.is_empty(), "the guest has several drives");
    for other in others {
        let namespace = NvmeNamespace::open(&nvme.character).expect("a namespace");
        let device = NamespaceDevice::new(&other).expect("a block device");
        let refused = FileMaps::passthrough(namespace, device).expect_err("of another drive");
        let words = refused.to_string();
        assert!(words.contains(&other.display().to_string()), "{words}");
    }
}

/// A table of sorted keys on the bare namespace.
#[test]
#[ignore = "interop/passthrough.py runs it on an NVMe drive"]
fn a_whole_namespace() {
    let nvme = bare();
    let device = OpenOptions::new().write(true).open(&nvme.block).expect("opens");
    let (bytes, _) = table(7);
    device.write_all_at(&bytes, 0).expect("written");
    device.sync_all().expect("synced");
    let elsewhere = tempfile::tempdir().expect("a folder");
    let mut store = Store::over(nvme.maps(), elsewhere, PATIENT);
    // On another file system: plain reads.
    assert_eq!(store.expect(5, 0), Executor::FallBack);
    store.files = [store.maps.open(&nvme.character).expect("opens")];
    for key in (0..KEYS).step_by(100) {
        assert_eq!(store.expect(key, 7), Executor::Local);
    }
    // More than there are arenas.
    (0..600).for_each(|key| store.submit(key));
    let mut ended = 0;
    while store.reader.in_flight() > 0 {
        ended += store.reader.wait(PATIENCE, &mut |completion| {
            let (answer, info) = completion.result.expect("succeeds");
            let expected = value(completion.tag, 7);
            assert_eq!(Lookup::parse(answer), Some(Lookup::Found(0, &expected)));
            assert_eq!(info.executor, Executor::Local);
        });
    }
    assert_eq!(ended, 600);
    store.root.offset = 1 << 50;
    let error = store.get(1).expect_err("outside");
    let ReadError::Command(error) = error else { panic!("{error}") };
    assert!(error.status.same_code(Status::READ_OUTSIDE_FILE), "{error}");
}

/// The checks before and after chains are those of targets.
#[test]
#[ignore = "interop/passthrough.py runs it on an NVMe drive"]
fn files_of_a_namespace_that_change() {
    let (nvme, mount) = mounted();
    let folder = tempfile::tempdir_in(mount).expect("a folder");
    let mut store = Store::over(nvme.maps(), folder, PATIENT);
    assert!(store.maps.wait_mapped(&store.files[0], PATIENCE), "{:?}", store.files[0].refusal());
    assert!(store.files[0].is_leased());
    let (_, info) = store.get(3).expect("succeeds");
    assert_eq!((info.executor, info.stale), (Executor::Local, 0));
    // The file's lease is given back; from then on its version is compared.
    let path = store.files[0].path().to_owned();
    let writer = OpenOptions::new().write(true).open(path).expect("opens");
    for generation in 1..4 {
        // In place, and in the page cache only.
        writer.write_all_at(&table(generation).0, 0).expect("room");
        assert_eq!(store.expect(generation, generation), Executor::Local);
    }
    for generation in 4..8 {
        store.submit(generation);
        // To other blocks, during the chain. The old blocks may belong to another file.
        rewrite(&writer, generation);
        let mut end = None;
        while end.is_none() {
            store.reader.wait(PATIENCE, &mut |completion| {
                let (answer, info) = completion.result.expect("succeeds");
                end = Some((answer.to_vec(), info));
            });
        }
        let (answer, info) = end.expect("ended");
        let expected = value(generation, generation);
        assert_eq!(Lookup::parse(&answer), Some(Lookup::Found(0, &expected)));
        assert!(info.stale > 0, "{info:?}");
    }
}

fn rewrite(file: &File, generation: u64) {
    file.set_len(0).expect("cut");
    file.write_all_at(&table(generation).0, 0).expect("room");
}
