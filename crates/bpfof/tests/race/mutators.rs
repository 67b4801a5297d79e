//! Processes that change the files while they are read.

use crate::ledger::Ledger;
use crate::tables::{CHANGED, POISON, REPLACED, path, table, table_of};
use fastrand::Rng;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The role of each process.
pub(crate) const ROLES: [&str; 5] = ["change", "hold", "replace", "fill", "defragment"];

/// A mutator; killed when dropped.
pub(crate) struct Mutator(Child);

impl Mutator {
    pub(crate) fn start(role: &str, mount: &Path, ledger: &Path) -> Mutator {
        let program = std::env::current_exe().expect("this test");
        let child = Command::new(program)
            .args(["mutator_process", "--exact", "--ignored", "--nocapture"])
            .env("RACE_ROLE", role)
            .env("RACE_MOUNT", mount)
            .env("RACE_LEDGER", ledger)
            .env("RACE_PARENT", std::process::id().to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        Mutator(child)
    }

    /// Whether the process still runs.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Mutator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program of a mutator; its environment has its role.
pub(crate) fn run() {
    let Ok(role) = std::env::var("RACE_ROLE") else { return };
    let variable = |name: &str| PathBuf::from(std::env::var_os(name).expect("set"));
    let mount = variable("RACE_MOUNT");
    let ledger = Ledger::open(&variable("RACE_LEDGER"));
    let parent: u32 = std::env::var("RACE_PARENT").expect("set").parse().expect("a number");
    let mut numbers = Rng::with_seed(u64::from(std::process::id()));
    // Files held open for writing, so that they cannot be leased.
    let held: Vec<File> = match role.as_str() {
        "hold" => (0..CHANGED / 2).map(|file| open(&mount, file).expect("opens")).collect(),
        _ => Vec::new(),
    };
    while parent_id() == parent {
        let pause_ms = match role.as_str() {
            "change" => {
                let file = CHANGED / 2 + numbers.u64(..CHANGED / 2);
                change(&mount, &ledger, file, None, &mut numbers);
                numbers.u64(..12)
            }
            "hold" => {
                let file = numbers.u64(..CHANGED / 2);
                change(&mount, &ledger, file, held.get(file as usize), &mut numbers);
                numbers.u64(..12)
            }
            "replace" => replace(&mount, &mut numbers),
            "fill" => fill(&mount, &mut numbers),
            _ => defragment(&mount, &mut numbers),
        };
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
}

fn open(mount: &Path, file: u64) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path(mount, file))
}

/// Tries until the disk is not full.
fn insist<T>(mut attempt: impl FnMut() -> io::Result<T>) -> T {
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Gives a file its next generation in one of many ways, or changes the file only outside its
/// table.
fn change(mount: &Path, ledger: &Ledger, file: u64, held: Option<&File>, numbers: &mut Rng) {
    let opened;
    let target = match held {
        Some(held) => held,
        None => {
            opened = open(mount, file).expect("opens");
            &opened
        }
    };
    let generation = ledger.read(file).finished + 1;
    let bytes = table(file, generation);
    let length = bytes.len() as u64;
    let write = || insist(|| target.write_all_at(&bytes, 0));
    match numbers.u64(..7) {
        // After the table, whose blocks may move; its bytes do not change.
        0 => {
            insist(|| target.write_all_at(&[0x55; 40_000], length.next_multiple_of(4096)));
            if numbers.u64(..2) == 0 {
                target.sync_data().expect("synced");
            }
            return insist(|| target.set_len(length));
        }
        way => {
            ledger.start(file, generation);
            match way {
                // In place.
                1 | 2 => write(),
                3 => {
                    insist(|| target.set_len(0));
                    write();
                }
                4 => {
                    let name = path(mount, file);
                    run_tool("fallocate", &["--punch-hole", "-o", "0", "-l", "40960"], &name);
                    write();
                }
                5 => {
                    let cut = numbers.u64(..length);
                    insist(|| target.set_len(cut));
                    if numbers.u64(..2) == 0 {
                        target.sync_all().expect("synced");
                    }
                    write();
                }
                // In pieces, from the end.
                _ => {
                    for at in (0..bytes.len()).step_by(10_000).rev() {
                        let end = (at + 10_000).min(bytes.len());
                        let piece = bytes.get(at..end).unwrap_or(&[]);
                        insist(|| target.write_all_at(piece, at as u64));
                    }
                }
            }
            ledger.finish(file, generation);
        }
    }
    if numbers.u64(..3) == 0 {
        target.sync_data().expect("synced");
    }
}

/// Puts a new file in place of another, or removes it for a moment.
fn replace(mount: &Path, numbers: &mut Rng) -> u64 {
    let file = CHANGED + numbers.u64(..REPLACED);
    let bytes = table(file, numbers.u64(..1 << 40));
    let new = mount.join("new");
    let name = path(mount, file);
    insist(|| {
        let _ = fs::remove_file(&new);
        fs::write(&new, &bytes)
    });
    if numbers.u64(..2) == 0 {
        File::open(&new).and_then(|file| file.sync_all()).expect("synced");
    }
    if numbers.u64(..3) == 0 {
        fs::remove_file(&name).expect("removed");
    }
    insist(|| fs::rename(&new, &name));
    numbers.u64(..15)
}

/// Takes free blocks, fills them with fake tables, and frees them again.
fn fill(mount: &Path, numbers: &mut Rng) -> u64 {
    let name = mount.join(format!("poison-{}", numbers.u64(..3)));
    let _ = fs::remove_file(&name);
    let file = insist(|| File::create(&name));
    let most = if numbers.u64(..4) == 0 { u64::MAX } else { numbers.u64(..100) };
    let mut at = 0;
    for _ in 0..most {
        let like = numbers.u64(..CHANGED + REPLACED);
        let (mut bytes, _) = table_of(like, numbers.u64(..1 << 40), POISON);
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        if file.write_all_at(&bytes, at).is_err() {
            break;
        }
        at += bytes.len() as u64;
    }
    // This may report a full disk late; then less poison was written.
    let _ = file.sync_data();
    numbers.u64(..10)
}

fn defragment(mount: &Path, numbers: &mut Rng) -> u64 {
    let name = path(mount, numbers.u64(..CHANGED + REPLACED));
    run_tool("e4defrag", &[], &name);
    run_tool("xfs_fsr", &[], &name);
    numbers.u64(..20)
}

/// A tool that may fail: the file may be gone, full, or of another file system.
fn run_tool(tool: &str, arguments: &[&str], file: &Path) {
    let command = Command::new(tool)
        .args(arguments)
        .arg(file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if let Err(error) = command {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{tool}: {error}");
    }
}
