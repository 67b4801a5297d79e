//! Lookups across many files while other processes change, replace, delete, punch, defragment them
//! and fill the disk. No answer may be wrong.
//!
//! RACE_SECONDS is the least time on each file system (5).

#[path = "../disk/mod.rs"]
mod disk;
mod ledger;
mod mutators;
mod tables;

use bpfof_host::files::{
    Executor, FileMaps, FirstRead, NamespaceDevice, Policy, PushdownFile, PushdownReader,
    ReadError, ReadInfo, ReadPushdown, StorageFunction,
};
use bpfof_sorted::{GET_OBJECT, Lookup, Root, get_argument};
use disk::{Disk, run};
use fastrand::Rng;
use ledger::{Generations, Ledger};
use mutators::{Mutator, ROLES};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tables::{CHANGED, KEYS, REPLACED, Value, generation_of, path, root, table};

const FILES: u64 = CHANGED + REPLACED;
/// Chains in flight.
const DEPTH: usize = 12;
/// Tables that one lookup walks, at most.
const TABLES: u64 = 5;
/// The longest wait until chains have met changes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Free space for which the processes compete.
const FREE_BYTES: u64 = 24 << 20;

/// Not a test: the program of the other processes.
#[test]
#[ignore = "the program of the processes that the race starts"]
fn mutator_process() {
    mutators::run();
}

#[test]
fn no_answer_is_wrong_on_ext4() {
    race("ext4", 128 << 20);
}

#[test]
fn no_answer_is_wrong_on_xfs() {
    race("xfs", 320 << 20);
}

/// Without the comparison of versions, to show that the race finds wrong answers.
#[test]
fn without_checks_an_answer_is_wrong() {
    let Some((mut race, _mutators)) = start("ext4", 128 << 20, false) else { return };
    let begun = Instant::now();
    race.run(&mut |race| !race.tally.wrong.is_empty() || begun.elapsed() > PATIENCE);
    println!("after {:?}: {:?}", begun.elapsed(), race.tally);
    assert!(!race.tally.wrong.is_empty(), "no answer is wrong");
}

/// One lookup, and the generations when it began.
#[derive(Clone, Default)]
struct Begun {
    files: Vec<u64>,
    key: u64,
    /// Generations of files that change.
    before: Vec<Generations>,
    /// For the others: the generation of the open file.
    fixed: Vec<u64>,
}

#[derive(Debug, Default)]
struct Tally {
    target: u64,
    fall_back: u64,
    stale: u64,
    /// Descriptions of answers that no error or generation excuses.
    wrong: Vec<String>,
    /// Lookups that ended in an error while a file was being written.
    in_flux: u64,
}

struct Race {
    ledger: Ledger,
    maps: FileMaps,
    function: StorageFunction,
    files: Vec<PushdownFile>,
    /// Generation of each file that is open, if it cannot change.
    fixed: Vec<u64>,
    roots: Vec<Root>,
    numbers: Rng,
    begun: Vec<Begun>,
    free: Vec<usize>,
    tally: Tally,
    /// The last field: dropped, and so unmounted, after its files are closed.
    disk: Disk,
}

fn race(kind: &str, size_bytes: u64) {
    let seconds = std::env::var("RACE_SECONDS").map_or(5, |text| text.parse().expect("a number"));
    let Some((mut race, mut mutators)) = start(kind, size_bytes, true) else { return };
    let (begun, seconds) = (Instant::now(), Duration::from_secs(seconds));
    race.run(&mut |race| match begun.elapsed() {
        early if early < seconds => false,
        late => race.is_one() || late > seconds.max(PATIENCE),
    });
    for (role, mutator) in ROLES.iter().zip(&mut mutators) {
        assert!(mutator.is_alive(), "the process that should {role} has ended");
    }
    drop(mutators);
    let generations = race.generations();
    let Tally { target, fall_back, stale, in_flux, wrong } = &race.tally;
    println!(
        "{kind}: {} lookups in {:?}: {target} at the target, {fall_back} fell back \
         ({in_flux} of them saw a file half written); {stale} times stale; {generations} changes; \
         {} wrong",
        target + fall_back + in_flux,
        begun.elapsed(),
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong[..wrong.len().min(10)].join("\n"));
    assert!(race.is_one(), "the race was none");
}

/// Files, and the processes that change them; None if this machine cannot mount the disk.
fn start(kind: &str, size_bytes: u64, checks: bool) -> Option<(Race, Vec<Mutator>)> {
    let disk = Disk::new(kind, size_bytes)?;
    let ledger_path = disk.image().with_file_name("ledger");
    Ledger::create(&ledger_path, FILES);
    prepare(&disk);
    let race = Race::new(disk, Ledger::open(&ledger_path), checks);
    let mount = race.disk.mount();
    let mutators = ROLES.iter().map(|role| Mutator::start(role, &mount, &ledger_path)).collect();
    Some((race, mutators))
}

/// Writes all files in generation 0, and leaves little free space.
fn prepare(disk: &Disk) {
    let mount = disk.mount();
    for file in 0..FILES {
        fs::write(path(&mount, file), table(file, 0)).expect("written");
    }
    let found = rustix::fs::statvfs(&mount).expect("mounted");
    let ballast = (found.f_bavail * found.f_frsize).saturating_sub(FREE_BYTES);
    let name = mount.join("ballast");
    run("fallocate", &["-l", &ballast.to_string(), name.to_str().expect("UTF-8")]);
}

impl Race {
    fn new(disk: Disk, ledger: Ledger, checks: bool) -> Race {
        let device = NamespaceDevice::new(disk.image()).expect("an image");
        let maps = match checks {
            true => FileMaps::new(disk.connect(), 1, device),
            false => FileMaps::unchecked(disk.connect(), 1, device),
        };
        let maps = maps.expect("a target");
        let function = maps.load_function(GET_OBJECT, 0).expect("good");
        let mut race = Race {
            disk,
            ledger,
            maps,
            function,
            files: Vec::new(),
            fixed: vec![0; FILES as usize],
            roots: (0..FILES).map(root).collect(),
            numbers: Rng::with_seed(7),
            begun: vec![Begun::default(); DEPTH],
            free: (0..DEPTH).collect(),
            tally: Tally::default(),
        };
        for file in 0..FILES {
            let opened = race.maps.open(race.path(file)).expect("opens");
            race.files.push(opened);
        }
        race
    }

    fn path(&self, file: u64) -> PathBuf {
        path(&self.disk.mount(), file)
    }

    /// How often files have changed.
    fn generations(&self) -> u64 {
        (0..CHANGED).map(|file| self.ledger.read(file).finished).sum()
    }

    /// Whether enough chains have met changes.
    fn is_one(&self) -> bool {
        self.tally.target > 100 && self.tally.stale > 10 && self.generations() > 50
    }

    fn run(&mut self, is_over: &mut dyn FnMut(&Race) -> bool) {
        let policy =
            Policy { retries: 1, patience: Duration::from_millis(5), fall_back: true, local: true };
        let mut reader = PushdownReader::new(&self.maps, policy).expect("a lane");
        let mut ends = false;
        while !ends || reader.in_flight() > 0 {
            ends = ends || is_over(self);
            while !ends && let Some(slot) = self.free.pop() {
                self.begin(&mut reader, slot);
            }
            let mut done = Vec::new();
            reader.wait(Duration::from_secs(5), &mut |completion| {
                let result = completion.result.map(|(answer, info)| (answer.to_vec(), info));
                done.push((completion.tag as usize, result));
            });
            for (slot, result) in done {
                self.judge(slot, result);
                self.free.push(slot);
            }
            // Open the file that has this name now.
            let file = CHANGED + self.numbers.u64(..REPLACED);
            if self.numbers.u64(..100) == 0 && self.begun.iter().all(|b| !b.files.contains(&file)) {
                self.reopen(file);
            }
        }
    }

    /// Opens a file that may have been replaced. An open file keeps its bytes.
    fn reopen(&mut self, file: u64) {
        let Ok(opened) = self.maps.open(self.path(file)) else { return };
        let bytes = fs::read(format!("/proc/self/fd/{}", fd(&opened))).expect("reads");
        self.fixed[file as usize] = generation_of(&bytes).expect("files are renamed when whole");
        self.files[file as usize] = opened;
    }

    fn begin(&mut self, reader: &mut PushdownReader, slot: usize) {
        let count = 1 + self.numbers.u64(..TABLES);
        let mut files: Vec<u64> = Vec::new();
        while (files.len() as u64) < count {
            let file = self.numbers.u64(..FILES);
            if !files.contains(&file) {
                files.push(file);
            }
        }
        let holder = files[self.numbers.u64(..count) as usize];
        let key = holder * KEYS + self.numbers.u64(..KEYS);
        let roots: Vec<Root> = files.iter().map(|file| self.roots[*file as usize]).collect();
        let handles: Vec<_> = files.iter().map(|file| self.files[*file as usize].clone()).collect();
        let before = files.iter().map(|file| self.ledger.read(*file)).collect();
        let fixed = files.iter().map(|file| self.fixed[*file as usize]).collect();
        let first = FirstRead { file: 0, offset_bytes: roots[0].offset, size_bytes: roots[0].size };
        let scratch = get_argument(key, &roots).expect("few tables");
        let call = ReadPushdown {
            files: &handles,
            first_read: first,
            function: &self.function,
            scratch: &scratch,
            scratch_size_bytes: 0,
            answer_max_bytes: 4096,
        };
        reader.submit(slot as u64, &call).expect("makes sense");
        self.begun[slot] = Begun { files, key, before, fixed };
    }

    fn judge(&mut self, slot: usize, result: Result<(Vec<u8>, ReadInfo), ReadError>) {
        let begun = std::mem::take(&mut self.begun[slot]);
        let after: Vec<_> = begun.files.iter().map(|file| self.ledger.read(*file)).collect();
        let holder = begun.key / KEYS;
        // The walk ends at the table that has the key.
        let walked = begun.files.iter().position(|file| *file == holder).map_or(0, |at| at + 1);
        let (seen, before) = (&after[..walked], &begun.before[..walked]);
        let quiet = seen == before && seen.iter().all(|file| file.is_quiet());
        let executor = match &result {
            Ok((_, info)) => {
                self.tally.stale += u64::from(info.stale);
                Some(info.executor)
            }
            Err(_) => None,
        };
        match check(&begun, &after, quiet, result) {
            Ok(true) if executor == Some(Executor::Target) => self.tally.target += 1,
            Ok(true) => self.tally.fall_back += 1,
            Ok(false) => self.tally.in_flux += 1,
            Err(problem) => {
                let Begun { files, key, .. } = &begun;
                self.tally.wrong.push(format!(
                    "key {key} in {files:?}, {executor:?}, quiet {quiet}: {problem}"
                ));
            }
        }
    }
}

/// Whether the lookup found its value; false if it did not and a file was being written, which
/// excuses that.
fn check(
    begun: &Begun,
    after: &[Generations],
    quiet: bool,
    result: Result<(Vec<u8>, ReadInfo), ReadError>,
) -> Result<bool, String> {
    let answer = match result {
        Ok((answer, _)) => answer,
        Err(_) if !quiet => return Ok(false),
        Err(error) => return Err(error.to_string()),
    };
    let holder = begun.key / KEYS;
    let index = begun.files.iter().position(|file| *file == holder).unwrap_or(0);
    let flux = after[index] != begun.before[index] || !after[index].is_quiet();
    let value = match Lookup::parse(&answer) {
        Some(Lookup::Found(_, bytes)) => Value::parse(bytes),
        // A table that is being written may have parts without entries.
        Some(Lookup::NotFound) if flux => return Ok(false),
        other => return Err(format!("{other:?}")),
    };
    let Some(value) = value else {
        // A value may be half written as well.
        return if flux { Ok(false) } else { Err("a torn value".into()) };
    };
    let allowed = if holder < CHANGED {
        begun.before[index].finished..=after[index].started
    } else {
        begun.fixed[index]..=begun.fixed[index]
    };
    let right = value.file == holder && value.key == begun.key;
    if right && allowed.contains(&value.generation) {
        Ok(true)
    } else {
        Err(format!("{value:?}, expected a generation in {allowed:?}"))
    }
}

fn fd(file: &PushdownFile) -> i32 {
    use std::os::fd::AsRawFd;
    file.file().expect("open").as_raw_fd()
}
