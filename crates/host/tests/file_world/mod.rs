//! An image with a file system, a target in this process that serves it, and a connection between the two that can be
//! held up and cut.

#[allow(dead_code)] // A part of it.
#[path = "../../../controller/tests/failover/relay.rs"]
mod relay;
#[path = "../../../bpfof/tests/skip/mod.rs"]
mod skip;
#[path = "../../../bpfof/tests/wait/mod.rs"]
mod wait;

use bpfkv::create::{Extent, write_database};
use bpfkv::format::{Value, value_text};
use bpfof_controller::{NamespaceConfig, NamespaceSource, Server, TargetConfig};
use bpfof_host::files::{
    FileMaps, FirstRead, NamespaceDevice, Policy, PushdownFile, PushdownReader, ReadError,
    ReadInfo, StorageFunction,
};
use bpfof_host::{Controller, Options};
use relay::Relay;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
pub(crate) use wait::until;

/// A test gives up waiting after this time; long enough for any busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Keys of a database.
pub(crate) const KEYS: u64 = 961;

fn output<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Output {
    Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"))
}

fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> String {
    let output = output(program, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {errors}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Whether this machine cannot mount an image; reports the reason.
fn cannot_mount() -> bool {
    let why = if !rustix::process::geteuid().is_root() {
        "this needs root, for loop devices and mounting"
    } else if !output("losetup", &["--find"]).status.success() {
        "there is no free loop device"
    } else if Command::new("mkfs.ext4").arg("-V").output().is_err() {
        "mkfs.ext4 is missing; make setup installs it"
    } else {
        return false;
    };
    skip::skip(why);
    true
}

/// The value of a key in a database of this generation.
pub(crate) fn value(key: u64, generation: u64) -> Value {
    value_text(key + generation * 1_000_000)
}

/// The bytes of a database.
pub(crate) fn database(generation: u64) -> Vec<u8> {
    let extent = Extent::full(2).expect("two levels");
    let mut bytes = Vec::new();
    let mut sink = |offset: u64, chunk: &[u8]| {
        bytes.resize(bytes.len().max(offset as usize + chunk.len()), 0);
        bytes[offset as usize..][..chunk.len()].copy_from_slice(chunk);
        Ok(())
    };
    write_database(&extent, &mut sink, &mut |_, _| ControlFlow::Continue(())).expect("written");
    for key in 0..KEYS {
        let at = extent.layout().value_offset_bytes(key) as usize;
        let value = value(key, generation);
        bytes[at..][..value.len()].copy_from_slice(&value);
    }
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    bytes
}

/// An image that is mounted.
struct Disk {
    folder: tempfile::TempDir,
    device: String,
    is_on_small_disk: bool,
}

impl Disk {
    /// None if this machine cannot mount it.
    fn new(is_on_small_disk: bool, options: &[&str]) -> Option<Self> {
        if cannot_mount() {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut disk = Self { folder, device: String::new(), is_on_small_disk };
        let (below, mount) = (disk.below(), disk.mount());
        for folder in [&below, &mount] {
            std::fs::create_dir(folder).expect("a folder");
        }
        if is_on_small_disk {
            run("mount", &["-t", "tmpfs", "-o", "size=16m", "small", text(&below)]);
        }
        let image = disk.image();
        File::create_new(&image).and_then(|file| file.set_len(96 << 20)).expect("room");
        let fixed = ["-q", "-F", "-b", "4096", "-m", "0"];
        run("mkfs.ext4", &[&fixed, options, &[text(&image)]].concat());
        let direct = if is_on_small_disk { "--direct-io=off" } else { "--direct-io=on" };
        disk.device = run("losetup", &[direct, "--find", "--show", text(&image)]);
        run("mount", &["-t", "ext4", &disk.device, text(&mount)]);
        Some(disk)
    }

    fn below(&self) -> PathBuf {
        self.folder.path().join("below")
    }

    fn image(&self) -> PathBuf {
        self.below().join("image")
    }

    fn mount(&self) -> PathBuf {
        self.folder.path().join("mount")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut folders = vec![self.mount()];
        folders.extend(self.is_on_small_disk.then(|| self.below()));
        for folder in folders {
            // A failed test may have open files: then the image is unmounted when the last one closes.
            if !output("umount", &[&folder]).status.success() {
                let _ = output("umount", &["--lazy".as_ref(), folder.as_os_str()]);
            }
            let _ = output("losetup", &["--detach", &self.device]);
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A target, an association with it, and the file system.
pub(crate) struct World {
    pub(crate) maps: FileMaps,
    /// Finds the value of a key.
    pub(crate) function: StorageFunction,
    relay: Relay,
    server: Server,
    disk: Disk,
}

impl World {
    /// With these options of `mkfs.ext4`. None if this machine cannot mount the disk.
    pub(crate) fn new(options: &[&str]) -> Option<Self> {
        Disk::new(false, &[&["-J", "size=4"], options].concat()).map(Self::on)
    }

    /// The image is on a small disk, which [`fill`](Self::fill) fills.
    pub(crate) fn on_full_disk() -> Option<Self> {
        // The file system writes nothing later by itself.
        let options = ["-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard"];
        Disk::new(true, &options).map(Self::on)
    }

    fn on(disk: Disk) -> Self {
        let source = NamespaceSource::File { path: disk.image(), size_bytes: None };
        let config = TargetConfig {
            listen: ([127, 0, 0, 1], 0).into(),
            namespaces: vec![NamespaceConfig::new(source, 512)],
            ..TargetConfig::default()
        };
        let server = Server::start(&config).expect("the target starts");
        let relay = Relay::start(server.address());
        let url = format!("nvme-tcp://{}/{}?ns=1", relay.address, config.nqn);
        let url = url.parse().expect("an address");
        let controller = Controller::connect(&url, Options::default()).expect("it connects");
        let device = NamespaceDevice::new(disk.image()).expect("an image");
        let maps = FileMaps::new(controller, 1, device).expect("maps");
        let function = maps.load_function(bpfkv::GET_OBJECT, 0).expect("good");
        Self { maps, function, relay, server, disk }
    }

    pub(crate) fn mount(&self) -> PathBuf {
        self.disk.mount()
    }

    /// Writes a database into a file.
    pub(crate) fn write(&self, path: &Path, generation: u64) -> File {
        let mut file = File::create(path).expect("made");
        file.write_all(&database(generation)).expect("written");
        file
    }

    pub(crate) fn reader(&self, policy: Policy) -> Reader {
        Reader::new(&self.maps, &self.function, policy)
    }

    /// Loads the function again.
    pub(crate) fn load(&mut self) {
        self.function = self.maps.load_function(bpfkv::GET_OBJECT, 0).expect("good");
    }

    /// Replaces the target's namespace by another.
    pub(crate) fn remove_namespace(&self) {
        let source = NamespaceSource::Memory { size_bytes: 1 << 20, latency_us: 0, iops: 0 };
        let other = NamespaceConfig { nsid: Some(2), ..NamespaceConfig::new(source, 512) };
        self.server.reload_namespaces(&[other]).expect("it goes on");
    }

    /// Holds up all traffic, or lets it through again.
    pub(crate) fn hold(&self, is_held: bool) {
        if is_held { self.relay.silence() } else { self.relay.open() }
    }

    /// Cuts the newest connection.
    pub(crate) fn cut_last(&self) {
        self.relay.cut_last();
    }

    /// Fills the disk, so that the image cannot grow.
    pub(crate) fn fill(&mut self) {
        run("sync", &["-f", text(&self.mount())]);
        let mut file = File::create(self.disk.below().join("filler")).expect("made");
        for bytes in [1 << 20, 4096] {
            while file.write_all(&vec![1; bytes]).is_ok() {}
        }
    }

    pub(crate) fn empty(&mut self) {
        std::fs::remove_file(self.disk.below().join("filler")).expect("removed");
    }
}

/// Looks keys up.
pub(crate) struct Reader {
    pub(crate) reader: PushdownReader,
    function: StorageFunction,
}

/// Why there is no value.
#[derive(Debug)]
pub(crate) struct GetError(pub(crate) ReadError);

impl Reader {
    pub(crate) fn new(maps: &FileMaps, function: &StorageFunction, policy: Policy) -> Self {
        let reader = PushdownReader::new(maps, policy).expect("a lane");
        Self { reader, function: function.clone() }
    }

    pub(crate) fn get(
        &mut self,
        file: &PushdownFile,
        key: u64,
    ) -> Result<(Value, ReadInfo), GetError> {
        let first = FirstRead { file: 0, offset_bytes: 0, size_bytes: 512 };
        let mut scratch = bpfkv::pushdown::get_argument(key).expect("a key").to_vec();
        let files = std::slice::from_ref(file);
        let read = self.reader.read_pushdown(files, first, &self.function, &mut scratch);
        let info = read.map_err(GetError)?;
        let value = bpfkv::pushdown::get_answer(&scratch).expect("an answer");
        Ok((*value.expect("it is there"), info))
    }
}
