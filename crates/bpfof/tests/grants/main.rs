//! The grant daemon: an honest client without privileges gets right answers while its files change, and a
//! hostile one never gets a byte of another file, whatever it does and whatever happens to the daemon.
//!
//! GRANT_CHAINS is how many chains the hostile client runs (20000), on each file system.

#[path = "../clang/mod.rs"]
mod clang;
mod daemon;
#[path = "../disk/mod.rs"]
mod disk;
mod honest;
mod hostile;
#[path = "../manager/mod.rs"]
mod manager;
mod nobody;
mod places;
mod refusals;
mod relay;
mod speed;
mod systemd;
#[path = "../wait/mod.rs"]
mod wait;

use bpfof_host::files::{BreakSignal, LeasedFile};
use bpfof_host::grant::GrantClient;
use bpfof_host::grant::protocol::{Cause, FileAnswer};
use daemon::{Grantd, UID};
use disk::{Disk, run};
use hostile::{
    CANARY, Changer, Hostile, MINE, Tally, Victim, defragment, filled, is_clean, make_immutable,
    wait_immutable, write_files,
};
use nobody::{as_nobody, number, outcome, variable};
use rustix::fs::OFlags;
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wait::{until, within};

/// Keep-alive timeout of the daemon's associations.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Free space for which all processes compete.
const FREE_BYTES: u64 = 8 << 20;
/// Longest wait of a writer for a lease that the daemon releases, on a busy machine. Much later the kernel would break
/// the lease by force.
const RELEASED: Duration = Duration::from_secs(10);

/// A disk with a folder of user nobody and a folder of secrets, and a daemon that grants its files.
struct World {
    folder: PathBuf,
    secrets: PathBuf,
    object: PathBuf,
    file_system: String,
    grantd: Option<Grantd>,
    // The last field: dropped, and so unmounted, after its files are closed.
    disk: Disk,
}

impl World {
    /// None if this machine cannot mount the disk.
    fn new(kind: &str, size_bytes: u64) -> Option<World> {
        let disk = Disk::new(kind, size_bytes)?;
        let url = disk.url.to_string();
        Some(World { file_system: kind.to_owned(), ..World::at(disk, &url) })
    }

    /// With a daemon that reaches the target at `url`.
    fn at(disk: Disk, url: &str) -> World {
        // The user nobody must be able to enter the folders above its own.
        let above = disk.image().with_file_name("");
        fs::set_permissions(above, fs::Permissions::from_mode(0o755)).expect("set");
        let (folder, secrets) = (disk.mount().join("mine"), disk.mount().join("secrets"));
        fs::create_dir(&folder).expect("made");
        fs::create_dir(&secrets).expect("made");
        fs::write(folder.join(WAITS), "").expect("made");
        chown(&folder, Some(UID), Some(UID)).expect("given");
        fs::set_permissions(&secrets, fs::Permissions::from_mode(0o700)).expect("set");
        let object = disk.image().with_file_name("peek.bpf.o");
        clang::compile("tests/grants/peek.bpf.c", &object);
        let grantd = Grantd::start(url, &disk.image(), &["--allow-own-functions"]);
        let file_system = "ext4".to_owned();
        World { folder, secrets, object, file_system, grantd: Some(grantd), disk }
    }

    /// With a daemon whose connections to the target the relay can delay and cut.
    fn behind_relay() -> Option<(World, relay::Relay)> {
        let disk = Disk::new("ext4", 96 << 20)?;
        let relay = relay::Relay::start(&format!("{}:{}", disk.url.host, disk.url.port));
        let mut url = disk.url.clone();
        url.port = relay.port;
        Some((World::at(disk, &url.to_string()), relay))
    }

    /// Replaces the daemon by one with these arguments.
    fn replace_daemon(&mut self, arguments: &[&str]) {
        self.replace_daemon_by(&[], arguments, &[]);
    }

    /// The same with a launcher that becomes the daemon.
    fn replace_daemon_by(
        &mut self,
        launcher: &[&str],
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) {
        drop(self.grantd.take());
        let (url, image) = (self.disk.url.to_string(), self.disk.image());
        self.grantd = Some(Grantd::start_by(launcher, &url, &image, arguments, variables));
    }

    fn grantd(&self) -> &Grantd {
        self.grantd.as_ref().expect("it runs")
    }

    fn socket(&self) -> &Path {
        &self.grantd().socket
    }

    /// Compiles a source text to an object.
    fn compile(&self, text: &str) -> Vec<u8> {
        let [source, object] =
            ["text.bpf.c", "text.bpf.o"].map(|name| self.disk.image().with_file_name(name));
        fs::write(&source, text).expect("written");
        clang::compile(source.to_str().expect("UTF-8"), &object);
        fs::read(&object).expect("read")
    }

    /// Takes all of the disk but [`FREE_BYTES`].
    fn fill(&self) {
        let found = rustix::fs::statvfs(self.disk.mount()).expect("mounted");
        let ballast = (found.f_bavail * found.f_frsize).saturating_sub(FREE_BYTES);
        let name = self.disk.mount().join("ballast");
        run("fallocate", &["-l", &ballast.to_string(), name.to_str().expect("UTF-8")]);
    }

    /// Starts the hostile client as a process of its own. It ends when it has lost its lane, or has run that many
    /// chains and made [`CHANGES`] changes (attempts, if its files are immutable).
    fn start_hostile(&self, chains: Option<u64>) -> std::process::Child {
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let (socket, folder) = (text(self.socket()), text(&self.folder));
        let object = text(&self.object);
        let chains = chains.unwrap_or(u64::MAX).to_string();
        let immutable = u8::from(self.file_system == "xfs").to_string();
        let variables = [
            ("GRANT_SOCKET", &*socket),
            ("GRANT_FOLDER", &folder),
            ("GRANT_OBJECT", &object),
            ("GRANT_CHAINS", &chains),
            ("GRANT_IMMUTABLE", &immutable),
        ];
        as_nobody("hostile_process", &variables)
    }

    /// Starts a hostile client that ends only with the loss of its lane, and waits until its chains run.
    fn start_endless_hostile(&self) -> std::process::Child {
        let hostile = self.start_hostile(None);
        let has_ended = || !self.folder.join(WAITS).exists();
        within(Duration::from_secs(60), "a chain of the hostile client ends", has_ended);
        hostile
    }
}

/// A file in its folder that the hostile client removes when its first chain has ended: the disk may be too full to
/// make one.
const WAITS: &str = "waits";

/// Not a test: the program of the hostile process.
#[test]
#[ignore = "the program of a process that the tests start"]
fn hostile_process() {
    let [socket, folder] =
        ["GRANT_SOCKET", "GRANT_FOLDER"].map(|name| PathBuf::from(variable(name)));
    let object = fs::read(variable("GRANT_OBJECT")).expect("read");
    let chains: u64 = variable("GRANT_CHAINS").parse().expect("a number");
    write_files(&folder);
    let is_immutable = variable("GRANT_IMMUTABLE") == "1";
    if is_immutable {
        wait_immutable(&folder);
    }
    let mut hostile = Hostile::new(&socket, &folder, &object);
    // A dead daemon revokes nothing: changes of its files wait until the process with the leases releases them.
    let changer = Changer::start(folder.clone());
    let counted = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    let attempts = || counted(&changer.attempts);
    let last = Instant::now() + Duration::from_secs(120);
    let mut runs = false;
    hostile.run(&mut |tally| {
        if !runs && tally.answers > 0 {
            fs::remove_file(folder.join(WAITS)).expect("removed");
            runs = true;
        }
        let troubled = if is_immutable { attempts() } else { counted(&changer.changes) };
        let enough = tally.answers + tally.refused >= chains && troubled > CHANGES;
        enough || (chains != u64::MAX && Instant::now() > last)
    });
    let Tally { answers, refused, lost } = hostile.tally;
    println!("answers={answers} refused={refused} lost={}", u8::from(lost));
    println!("attempts={} changes={}", attempts(), counted(&changer.changes));
    // Exit without joining the changer: it may wait long for the release of a lease.
    std::process::exit(0);
}

/// How often the hostile client changes its files beside its chains, at least.
const CHANGES: u64 = 20;

/// How many chains the hostile client runs, at least.
fn hostile_chains() -> u64 {
    std::env::var("GRANT_CHAINS").map_or(20_000, |text| text.parse().expect("a number"))
}

#[test]
fn a_hostile_owner_sees_its_own_bytes_only() {
    let Some(world) = World::new("ext4", 96 << 20) else { return };
    let chains = hostile_chains();
    world.fill();
    let victim = Victim::start(world.secrets.clone());
    let defragmenter = defragment("e4defrag", world.folder.clone());
    let printed = outcome(world.start_hostile(Some(chains)));
    drop((victim, defragmenter));
    println!("ext4: {printed}");
    let [answers, changes] = ["answers", "changes"].map(|name| number(&printed, name));
    assert!(number(&printed, "lost") == 0 && changes > CHANGES, "{printed}");
    assert!(answers > chains / 100 && number(&printed, "refused") > chains / 100, "{printed}");
}

/// The client's files are immutable, and it tries to free their blocks nevertheless.
#[test]
fn a_hostile_owner_on_xfs_sees_its_own_bytes_only() {
    let Some(world) = World::new("xfs", 320 << 20) else { return };
    let chains = hostile_chains();
    world.fill();
    let hostile = world.start_hostile(Some(chains));
    make_immutable(&world.folder);
    let victim = Victim::start(world.secrets.clone());
    let defragmenter = defragment("xfs_fsr", world.folder.clone());
    let printed = outcome(hostile);
    drop((victim, defragmenter));
    println!("xfs: {printed}");
    assert!(number(&printed, "lost") == 0 && number(&printed, "attempts") > CHANGES, "{printed}");
    assert_eq!(number(&printed, "changes"), 0, "a file was not immutable: {printed}");
    assert!(number(&printed, "answers") > chains / 4, "{printed}");
}

/// The same without revocation, to show that the test finds the error: a map stays while its file is truncated.
#[test]
fn without_revocation_the_bytes_of_others_are_seen() {
    let Some(world) = World::new("ext4", 96 << 20) else { return };
    world.fill();
    let path = world.folder.join("file");
    fs::write(&path, filled(MINE, 1 << 20)).expect("written");
    let mut controller = world.disk.connect();
    let function = controller.load_function(&fs::read(&world.object).expect("read"), 0);
    let function = function.expect("good");
    let device = bpfof_host::files::NamespaceDevice::new(world.disk.image()).expect("an image");
    let (info, file) = (controller.namespaces()[0], File::open(&path).expect("opened"));
    let layout = bpfof_host::files::file_layout(&file, &device, &info).expect("mapped");
    let map = bpfof_host::FileMapObject {
        file: 1,
        nsid: 1,
        version: 1,
        length_bytes: layout.length_bytes(),
        extents: layout.extents().to_vec(),
    };
    controller.set_file_map(&map).expect("set");
    OpenOptions::new().write(true).truncate(true).open(&path).expect("truncated");
    rustix::fs::sync();
    let victim = Victim::start(world.secrets.clone());
    let mut lane = controller.open_lane().expect("a lane");
    let files = [bpfof_host::FileVersion { id: 1, version: 1 }];
    let (end, mut answer) = (Instant::now() + Duration::from_secs(30), Vec::new());
    while answer.is_empty() || is_clean(&answer) {
        assert!(Instant::now() < end, "nobody has taken the blocks");
        let call = bpfof_host::PushdownCall {
            nsid: 1,
            function: function.0,
            files: &files,
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: 4096,
            scratch: &[],
            scratch_size_bytes: 4096,
            answer_max_bytes: 4096,
        };
        lane.pushdown(&call, &mut answer).expect("it runs");
    }
    let words = answer.as_chunks::<8>().0;
    assert!(words.iter().any(|word| u64::from_le_bytes(*word) == CANARY));
    drop(victim);
}

/// Whether an open of `path` for writing would have to wait for a lease.
fn is_leased(path: &Path) -> bool {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    match OpenOptions::new().write(true).custom_flags(nonblock).open(path) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
            true
        }
    }
}

/// Waits until nobody opens the file for writing or has it open so, because then the daemon gets no lease. Programs
/// that other tests start inherit the descriptors of this process for a moment.
fn await_closed(path: &Path) {
    let signal = BreakSignal::of_this_thread().expect("a signal");
    let file = Arc::new(File::open(path).expect("opened"));
    let can_be_leased = || LeasedFile::take(Arc::clone(&file), &signal).is_ok();
    until("nobody has it open for writing", can_be_leased);
}

/// Writes a file that can then be granted.
fn write_file(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("written");
    await_closed(path);
}

/// A grant of root for a file that does not change.
fn granted_file(world: &World, name: &str) -> (GrantClient, PathBuf) {
    let path = world.folder.join(name);
    fs::write(&path, filled(MINE, 64 << 10)).expect("written");
    (grant(world, &path), path)
}

fn grant(world: &World, path: &Path) -> GrantClient {
    await_closed(path);
    let mut client = GrantClient::connect(world.socket(), None).expect("it connects");
    let file = File::open(path).expect("opened");
    let answers = client.add(&[1], &[file.as_fd()]).expect("answered");
    assert!(answers[0].result.is_ok(), "{answers:?}");
    client
}

#[test]
fn a_killed_daemon_leaves_leases_until_its_maps_are_gone() {
    let Some(world) = World::new("ext4", 96 << 20) else { return };
    world.fill();
    let (_client, path) = granted_file(&world, "kept");
    let victim = Victim::start(world.secrets.clone());
    let hostile = world.start_endless_hostile();
    world.grantd().signal(Signal::KILL);
    let killed = Instant::now();
    // The daemon's associations end with its connections; the leases last as long as the associations might have.
    let printed = outcome(hostile);
    assert!(killed.elapsed() < KEEP_ALIVE, "{printed}");
    assert!(number(&printed, "answers") > 0 && number(&printed, "lost") == 1, "{printed}");
    assert!(is_leased(&path), "the lease has gone with the daemon");
    within(3 * KEEP_ALIVE - killed.elapsed(), "the lease ends", || !is_leased(&path));
    assert!(killed.elapsed() > 2 * KEEP_ALIVE - Duration::from_secs(1), "{:?}", killed.elapsed());
    drop(victim);
}

#[test]
fn a_stopped_daemon_loses_its_associations() {
    let Some(world) = World::new("ext4", 96 << 20) else { return };
    world.fill();
    let (client, path) = granted_file(&world, "kept");
    let victim = Victim::start(world.secrets.clone());
    let hostile = world.start_endless_hostile();
    world.grantd().signal(Signal::STOP);
    let stopped = Instant::now();
    // The client's own chains do not keep the association alive.
    let printed = outcome(hostile);
    assert!(number(&printed, "answers") > 0 && number(&printed, "lost") == 1, "{printed}");
    assert!(stopped.elapsed() < 2 * KEEP_ALIVE, "it ran for {:?}", stopped.elapsed());
    assert!(is_leased(&path), "the lease has not lasted as long as the map");
    world.grantd().signal(Signal::CONT);
    let gives_up = || !is_leased(&path) && !client.is_connected();
    within(6 * KEEP_ALIVE - stopped.elapsed(), "the daemon gives up", gives_up);
    assert_eq!(client.page().version(1), 0);
    drop(victim);
    // The daemon still works.
    grant(&world, &path);
}

#[test]
fn a_daemon_that_is_cut_off_loses_its_associations() {
    let Some((world, relay)) = World::behind_relay() else { return };
    world.fill();
    let (client, path) = granted_file(&world, "kept");
    let victim = Victim::start(world.secrets.clone());
    let hostile = world.start_endless_hostile();
    // Cut only the connections of the daemon itself; the lanes belong to its clients.
    relay.cut_admin_queues();
    let cut = Instant::now();
    let printed = outcome(hostile);
    assert!(number(&printed, "answers") > 0 && number(&printed, "lost") == 1, "{printed}");
    assert!(cut.elapsed() < 3 * KEEP_ALIVE, "it ran for {:?}", cut.elapsed());
    let gives_up = || !is_leased(&path) && !client.is_connected();
    within(6 * KEEP_ALIVE - cut.elapsed(), "the daemon gives up", gives_up);
    assert!(cut.elapsed() > 2 * KEEP_ALIVE, "the lease ended before the map: {:?}", cut.elapsed());
    drop(victim);
}

/// Maps and functions that are too large for one command of the daemon to its target.
#[test]
fn large_maps_and_functions_reach_the_target() {
    let Some(world) = World::new("ext4", 96 << 20) else { return };
    let path = world.folder.join("holes");
    let file = File::create(&path).expect("made");
    for piece in 0..6000 {
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], piece << 13).expect("written");
    }
    drop(file);
    let mut client = grant(&world, &path);
    assert_ne!(client.page().version(1), 0);
    let refused = client.load(&[7; 200 << 10], 0, "peek", [1; 32]).expect_err("it is no function");
    let refused = refused.to_string();
    assert!(refused.contains("ELF") || refused.contains("object"), "{refused}");
}

#[test]
fn a_daemon_that_ends_leaves_the_socket_of_another_one() {
    let Some(mut world) = World::new("ext4", 96 << 20) else { return };
    let socket = world.socket().to_owned();
    fs::remove_file(&socket).expect("removed");
    let _other = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
    world.grantd.take().expect("it runs").stop();
    assert!(socket.exists(), "another daemon's socket is removed");
}

#[test]
fn a_daemon_whose_terminal_goes_takes_its_grants_back_unless_it_is_to_stay() {
    let Some(mut world) = World::new("ext4", 96 << 20) else { return };
    let (_client, path) = granted_file(&world, "file");
    let daemon = world.grantd.take().expect("it runs");
    daemon.signal(Signal::HUP);
    daemon.stop();
    assert!(!is_leased(&path), "somebody else holds the lease");
    world.replace_daemon_by(&["nohup"], &["--trust-owners"], &[]);
    world.grantd().signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    let client = grant(&world, &path);
    assert!(client.is_connected());
}

/// With a slow target, the daemon first revokes files for which a writer waits, before it continues a request or cleans
/// up after a client.
#[test]
fn writers_do_not_wait_for_all_that_a_slow_target_is_asked() {
    let Some((world, relay)) = World::behind_relay() else { return };
    let ids: Vec<u32> = (1..=16).collect();
    let path = |id: u32| world.folder.join(format!("file-{id}"));
    for id in &ids {
        write_file(&path(*id), &filled(MINE, 4096));
    }
    let opened: Vec<File> = ids.iter().map(|id| File::open(path(*id)).expect("opened")).collect();
    let files: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
    let write = |id: u32| {
        let asked = Instant::now();
        OpenOptions::new().write(true).open(path(id)).expect("opened");
        asked.elapsed()
    };
    let mut client = GrantClient::connect(world.socket(), None).expect("it connects");
    relay.delay_admin_answers(Duration::from_millis(700));
    let page = std::sync::Arc::clone(client.page());
    let answers = std::thread::scope(|scope| {
        let adding = scope.spawn(|| client.add(&ids, &files));
        while page.version(1) == 0 {
            assert!(!adding.is_finished(), "the first file has no grant");
            std::thread::sleep(Duration::from_millis(10));
        }
        let waited = write(1);
        assert!(waited < Duration::from_secs(8), "a writer has waited for {waited:?}");
        adding.join().expect("no panic").expect("answered")
    });
    let granted = |page: &bpfof_host::grant::PageReader| {
        ids.iter().filter(|id| page.version(**id) != 0).count()
    };
    assert_eq!((answers.len(), granted(&page)), (16, 15), "{answers:?}");
    drop(client);
    for id in [16, 9, 4, 2] {
        let waited = write(id);
        assert!(waited < Duration::from_secs(8), "a writer has waited for {waited:?}");
    }

    // The target is so slow that the next command could take too long: the daemon gives the association up instead.
    relay.delay_admin_answers(Duration::ZERO);
    let mut client = GrantClient::connect(world.socket(), None).expect("it connects");
    ids.iter().for_each(|id| await_closed(&path(*id)));
    client.add(&ids, &files).expect("answered");
    assert_eq!(granted(client.page()), 16);
    relay.delay_admin_answers(Duration::from_secs(4));
    drop(client);
    std::thread::sleep(Duration::from_secs(1));
    let waits: Vec<Duration> = std::thread::scope(|scope| {
        let writers: Vec<_> = [5, 9, 14].map(|id| scope.spawn(move || write(id))).into();
        writers.into_iter().map(|writer| writer.join().expect("no panic")).collect()
    });
    // The shortest time after which the kernel may break a lease by force.
    assert!(waits.iter().all(|wait| *wait < 4 * KEEP_ALIVE), "{waits:?}");
}

#[test]
fn kv_get_needs_no_privileges() {
    let Some(world) = World::new("ext4", 96 << 20) else { return };
    let database = world.folder.join("db");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    run(disk::BPFOF, &["kv", "create", "--levels", "3", "--file", &text(&database)]);
    let get = |grantd: bool| {
        let mut command = std::process::Command::new(disk::BPFOF);
        command.args(["kv", "get", "--json", "--file", &text(&database), "--grantd"]);
        command.arg(if grantd { world.socket() } else { Path::new("/nowhere") });
        command.args(["0", "17", "29790"]).uid(UID).gid(UID).output().expect("it runs")
    };
    let found = get(true);
    let [printed, errors] = [&found.stdout, &found.stderr].map(|out| String::from_utf8_lossy(out));
    assert!(found.status.success() && errors.is_empty(), "{printed}{errors}");
    let answers: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let keys: Vec<_> = (0..3).map(|index| answers[index]["key"].as_u64()).collect();
    assert_eq!(keys, [Some(0), Some(17), Some(29_790)]);
    assert!((0..3).all(|index| answers[index]["value"].is_string()), "{printed}");
    let failed = get(false);
    let errors = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success() && errors.contains("bpfof grantd"), "{errors}");
}

/// Why the first file has no grant, if it has none.
fn cause(answers: Vec<FileAnswer>) -> Option<Cause> {
    answers.into_iter().next().and_then(|answer| answer.result.err()).map(|why| why.cause)
}

/// Waits until the grant of file 1 is revoked.
fn await_taken_back(client: &GrantClient) {
    until("the grant is revoked", || client.page().version(1) == 0);
}

/// An open for reading can truncate without breaking a lease: files whose owners could do that get no grant.
#[test]
fn on_ext4_files_are_granted_that_their_owners_cannot_truncate() {
    let Some(mut world) = World::new("ext4", 96 << 20) else { return };
    world.replace_daemon(&[]);
    let path = world.folder.join("file");
    write_file(&path, &filled(MINE, 1 << 20));
    chown(&path, Some(UID), Some(UID)).expect("given");
    File::open(&path).and_then(|file| file.sync_all()).expect("synced");
    let mut client = GrantClient::connect(world.socket(), None).expect("it connects");
    let file = File::open(&path).expect("opened");
    let first = client.add(&[1], &[file.as_fd()]).expect("answered");
    assert_eq!(cause(first), Some(Cause::NotImmutable));
    chown(&path, Some(0), Some(0)).expect("taken");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).expect("set");
    assert_eq!(cause(client.refresh(&[1]).expect("answered")), Some(Cause::NotImmutable));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
    assert_eq!(cause(client.refresh(&[1]).expect("answered")), None);
    let name = path.to_str().expect("UTF-8");
    run("chattr", &["+i", name]);
    chown(&path, Some(UID), Some(UID)).expect_err("it is immutable");
    run("chattr", &["-i", name]);
    // After the file is given back, its owner could truncate it.
    chown(&path, Some(UID), Some(UID)).expect("given");
    await_taken_back(&client);
    run("chattr", &["+i", name]);
    assert_eq!(cause(client.refresh(&[1]).expect("answered")), None);
    run("chattr", &["-i", name]);
}

/// The reason for the rule above: the lease stands, and the file is empty. If a kernel breaks the lease, the rule can
/// go.
#[test]
fn an_open_for_reading_truncates_in_spite_of_a_lease() {
    let Some(world) = World::new("ext4", 96 << 20) else { return };
    let path = world.folder.join("file");
    write_file(&path, &filled(MINE, 1 << 20));
    File::open(&path).and_then(|file| file.sync_all()).expect("synced");
    let mut client = GrantClient::connect(world.socket(), None).expect("it connects");
    let file = File::open(&path).expect("opened");
    let granted = client.add(&[1], &[file.as_fd()]).expect("answered");
    assert!(granted[0].result.is_ok(), "{granted:?}");
    let emptied =
        OpenOptions::new().read(true).custom_flags(OFlags::TRUNC.bits() as i32).open(&path);
    assert_eq!(emptied.and_then(|file| file.metadata()).expect("opened").len(), 0);
    assert_ne!(client.page().version(1), 0, "owners need not be trusted any more");
}

#[test]
fn on_xfs_immutable_files_are_granted_and_stay_what_they_are() {
    let Some(world) = World::new("xfs", 320 << 20) else { return };
    let [kept, twin] = ["kept", "twin"].map(|name| world.folder.join(name));
    for path in [&kept, &twin] {
        write_file(path, &filled(MINE, 1 << 20));
        File::open(path).and_then(|file| file.sync_all()).expect("synced");
    }
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let mut client = GrantClient::connect(world.socket(), None).expect("it connects");
    let file = File::open(&kept).expect("opened");
    let first = client.add(&[1], &[file.as_fd()]).expect("answered");
    assert_eq!(cause(first), Some(Cause::NotImmutable));
    // A process that has the file open for writing may change it although it is immutable.
    let writer = OpenOptions::new().write(true).open(&kept).expect("opened");
    run("chattr", &["+i", &text(&kept)]);
    assert_eq!(cause(client.refresh(&[1]).expect("answered")), Some(Cause::BeingWritten));
    drop(writer);
    await_closed(&kept);
    let granted = client.refresh(&[1]).expect("answered");
    assert!(granted[0].result.is_ok(), "{granted:?}");
    // Deduplication would free the blocks in spite of the lease.
    let dedupe = format!("dedupe {} 0 0 1m", text(&twin));
    let output = disk::output("xfs_io", &["-r", "-c", &dedupe, &text(&kept)]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("not permitted") || said.contains("denied"), "{said}");
    // The grant of a file that is no longer immutable is revoked.
    run("chattr", &["-i", &text(&kept)]);
    await_taken_back(&client);
    // The tool deduplicates unprotected files; otherwise the test would show nothing.
    let output = disk::output("xfs_io", &["-c", &dedupe, &text(&kept)]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
