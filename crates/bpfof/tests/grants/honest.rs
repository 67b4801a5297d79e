//! A client with another user's id, through the library: its chains run at the target and give right answers while its
//! files are written.

use super::daemon::Grantd;
use super::disk::Disk;
use super::nobody::{as_nobody, number, outcome, variable};
#[path = "../race/ledger.rs"]
mod ledger;
#[path = "../race/tables.rs"]
#[allow(dead_code)] // Of the race.
mod tables;

use bpfof_host::files::{
    Executor, FileMaps, FirstRead, Policy, PushdownFile, PushdownReader, ReadPushdown,
};
use bpfof_host::grant::GrantClient;
use bpfof_sorted::{GET_OBJECT, Lookup, get_argument};
use fastrand::Rng;
use ledger::Ledger;
use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tables::{KEYS, Value, path, root, table};

const FILES: u64 = 8;
/// The files change more often than this while the client reads.
const CHANGES: u64 = 20;
/// How long the client reads, and how long at most until it has seen enough changes.
const SECONDS: u64 = 4;
const MOST_SECONDS: u64 = 60;

/// Not a test: the program of the process without privileges.
#[test]
#[ignore = "the program of a process that the test starts"]
fn honest_process() {
    let [socket, mount, ledger] =
        ["GRANT_SOCKET", "GRANT_MOUNT", "GRANT_LEDGER"].map(|name| PathBuf::from(variable(name)));
    let ledger = Ledger::open(&ledger);
    let place = fs::File::open(&mount).expect("opened");
    let client = GrantClient::connect(&socket, Some(std::os::fd::AsFd::as_fd(&place)));
    let maps = FileMaps::granted(client.expect("it connects")).expect("it starts");
    let function = maps.load_function(GET_OBJECT, 0).expect("good");
    assert!(function.id().is_some(), "the target does not keep the function");
    let files: Vec<PushdownFile> =
        (0..FILES).map(|file| maps.open(path(&mount, file)).expect("opened")).collect();
    let policy = Policy { patience: Duration::from_millis(5), ..Policy::default() };
    let mut reader = PushdownReader::new(&maps, policy).expect("a lane");
    let (mut numbers, begun) = (Rng::with_seed(3), Instant::now());
    let (mut target, mut fall_back, mut stale) = (0, 0, 0);
    let goes_on = |target, stale| {
        let changes: u64 = (0..FILES).map(|file| ledger.read(file).finished).sum();
        let is_enough = begun.elapsed() >= Duration::from_secs(SECONDS)
            && target > 200
            && stale > 0
            && changes > CHANGES;
        !is_enough && begun.elapsed() < Duration::from_secs(MOST_SECONDS)
    };
    while goes_on(target, stale) {
        let file = numbers.u64(..FILES);
        let key = file * KEYS + numbers.u64(..KEYS);
        let before = ledger.read(file);
        let root = root(file);
        let call = ReadPushdown {
            files: &files[file as usize..=file as usize],
            first_read: FirstRead { file: 0, offset_bytes: root.offset, size_bytes: root.size },
            function: &function,
            scratch: &get_argument(key, &[root]).expect("one table"),
            scratch_size_bytes: 0,
            answer_max_bytes: 4096,
        };
        reader.submit(0, &call).expect("makes sense");
        let mut end = None;
        while end.is_none() {
            reader.wait(Duration::from_secs(5), &mut |completion| {
                end = Some(completion.result.map(|(answer, info)| (answer.to_vec(), info)));
            });
        }
        let after = ledger.read(file);
        let in_flux = before != after || !after.is_quiet();
        let Some(Ok((answer, info))) = end else {
            assert!(in_flux, "{:?}", end.map(|end| end.map(|_| ())));
            continue;
        };
        match info.executor {
            Executor::Target => target += 1,
            _ => fall_back += 1,
        }
        stale += info.stale;
        let value = match Lookup::parse(&answer) {
            Some(Lookup::Found(_, bytes)) => Value::parse(bytes),
            _ => None,
        };
        let allowed = before.finished..=after.started;
        match value {
            Some(value) => {
                assert_eq!((value.file, value.key), (file, key), "{:?}", info.executor);
                assert!(allowed.contains(&value.generation), "{value:?}, {allowed:?}");
            }
            None => assert!(in_flux, "key {key} is not found at {:?}", info.executor),
        }
    }
    println!("target={target} fall_back={fall_back} stale={stale}");
}

/// Rewrites, truncates and extends a file.
fn change(mount: &Path, ledger: &Ledger, numbers: &mut Rng) {
    let file = numbers.u64(..FILES);
    let generation = ledger.read(file).finished + 1;
    let bytes = table(file, generation);
    let out = OpenOptions::new().write(true).open(path(mount, file)).expect("opened");
    ledger.start(file, generation);
    match numbers.u64(..3) {
        0 => out.set_len(0).expect("truncated"),
        1 => out.write_all_at(&[0x55; 40_000], bytes.len() as u64).expect("written"),
        _ => {}
    }
    out.write_all_at(&bytes, 0).expect("written");
    out.set_len(bytes.len() as u64).expect("truncated");
    ledger.finish(file, generation);
}

#[test]
fn an_honest_client_of_another_user_gets_right_answers() {
    let Some(disk) = Disk::new("ext4", 96 << 20) else { return };
    let above = disk.image().with_file_name("");
    fs::set_permissions(above, Permissions::from_mode(0o755)).expect("set");
    let (mount, ledger_path) = (disk.mount(), disk.image().with_file_name("ledger"));
    Ledger::create(&ledger_path, FILES);
    fs::set_permissions(&ledger_path, Permissions::from_mode(0o666)).expect("set");
    for file in 0..FILES {
        fs::write(path(&mount, file), table(file, 0)).expect("written");
    }
    // An administrator installs the function at the target, so that clients need not load any.
    let mut administrator = disk.connect();
    administrator.install_function(GET_OBJECT, 0).expect("kept");
    let grantd = Grantd::start(&disk.url.to_string(), &disk.image(), &[]);
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (socket, at, written) = (text(&grantd.socket), text(&mount), text(&ledger_path));
    let variables = [("GRANT_SOCKET", &*socket), ("GRANT_MOUNT", &at), ("GRANT_LEDGER", &written)];
    let mut client = as_nobody("honest::honest_process", &variables);
    let (ledger, mut numbers, mut changes) = (Ledger::open(&ledger_path), Rng::with_seed(5), 0);
    while client.try_wait().expect("waits").is_none() {
        change(&mount, &ledger, &mut numbers);
        changes += 1;
        std::thread::sleep(Duration::from_millis(30));
    }
    let printed = outcome(client);
    println!("{changes} changes; {printed}");
    assert!(changes > CHANGES && number(&printed, "target") > 200, "{changes}: {printed}");
    assert!(number(&printed, "stale") > 0, "no grant was taken back: {printed}");
    grantd.stop();
}
