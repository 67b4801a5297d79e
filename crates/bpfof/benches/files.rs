//! How long it takes until the target knows where 1,000 files lie.
//!
//! The files are on a mounted ext4 and XFS over the image that a target on this machine serves, which
//! needs root. Each file is opened, leased, examined and sent, by the keeper, as for any program; the
//! time runs from the first open to the last map. Their data is on the disk already, as for a database that starts. The
//! median of the rounds counts.

#[path = "../tests/disk/mod.rs"]
mod disk;

use bpfof_host::files::{FileMaps, NamespaceDevice, PushdownFile};
use disk::{Disk, run};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const FILES: usize = 1000;
const ROUNDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(30);

/// Opens all files with maps of their own, and waits for the maps.
fn register(disk: &Disk, paths: &[PathBuf]) -> Duration {
    let device = NamespaceDevice::new(disk.image()).expect("an image");
    let maps = FileMaps::new(disk.connect(), 1, device).expect("a target");
    let begun = Instant::now();
    let open = |path| maps.open(path).expect("opens");
    let files: Vec<PushdownFile> = paths.iter().map(open).collect();
    assert!(files.iter().all(|file| maps.wait_mapped(file, PATIENCE)), "a file has no map");
    let took = begun.elapsed();
    assert!(files.iter().all(PushdownFile::is_leased), "a file has no lease");
    took
}

fn main() {
    for (kind, disk) in Disk::of_each_kind() {
        let name = |index| disk.mount().join(format!("table-{index}"));
        let paths: Vec<PathBuf> = (0..FILES).map(name).collect();
        paths.iter().for_each(|path| std::fs::write(path, [7; 5000]).expect("written"));
        run("sync", &["-f", disk.mount().to_str().expect("UTF-8")]);
        let mut rounds: Vec<Duration> = (0..ROUNDS).map(|_| register(&disk, &paths)).collect();
        rounds.sort_unstable();
        let [median, least, most] = [ROUNDS / 2, 0, ROUNDS - 1].map(|at| rounds[at].as_millis());
        println!("register/{kind}: {FILES} files in {median} ms ({least} to {most} ms)");
    }
}
