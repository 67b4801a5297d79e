//! Runs all parts of a plan at several places at once, with a thread for each place. Results are passed on in the order
//! of the files, on the caller's thread.

use crate::error::RunError;
use crate::functions::Stages;
use crate::partial::Partial;
use crate::parts::{Part, SourceFile, parts, row_min_bits};
use crate::plan::{Plan, Reduction};
use crate::run::{Runner, merge};
use crate::settings::{Settings, Stats};
use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Size of a part whose rows are answered, in bytes, and how many rows it may have (unless they are of the smallest
/// size): the rows are in memory together.
const ROWS_PART_BYTES: u64 = 64 << 20;
const ROWS_PART_MIN_BYTES: u64 = 1 << 20;
const ROWS_PART_ROWS: u64 = 4 << 20;
/// Size of a part that is reduced, in bytes.
const PART_BYTES: u64 = 1 << 30;
/// How often to report progress.
const TELL_AGAIN: Duration = Duration::from_millis(100);
/// Maximum stretches of a place that have begun and have not been passed on. With rows, each of them is a whole part in
/// memory.
const AHEAD: usize = 16;
const ROWS_AHEAD: usize = 2;

/// Consecutive parts, in the order of the files, at one place: they have one result.
#[derive(Debug, PartialEq, Eq)]
struct Stretch {
    place: usize,
    parts: Vec<Part>,
}

/// The number of a stretch, and its result.
type Done = (usize, Result<Partial, RunError>);

/// Messages of places.
enum Event {
    /// After a failure a place has no further results.
    Done(Done),
    Ended(Ended),
}

/// A place has finished its work.
pub(super) struct Ended {
    /// Index of the place.
    pub(super) place: usize,
    pub(super) stats: Stats,
    /// The reason why its target was given up, if it was.
    pub(super) lost: Option<String>,
}

/// Controls the progress of places.
struct Turns {
    /// Number of stretches that have been passed on, and whether no more are wanted.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
    done_bytes: AtomicU64,
    ahead: usize,
}

/// Ends the run when it is dropped, also by a panic: places would wait for ever for the results before theirs.
struct EndsRun<'a>(&'a Turns);

impl Drop for EndsRun<'_> {
    fn drop(&mut self) {
        self.0.state().1 = true;
        self.0.changed.notify_all();
    }
}

/// Runs all parts of files, each at the place with its index, and returns the cost of each place that had any parts.
/// See [`Session::run`](super::Session::run).
pub(super) fn run<E: From<RunError>>(
    files: &[(usize, SourceFile)],
    places: &[Stages<'_>],
    (plan, settings): (&Plan, Settings),
    on_progress: &mut dyn FnMut(u64) -> bool,
    on_part: &mut dyn FnMut(Partial) -> Result<(), E>,
) -> Result<Vec<Ended>, E> {
    let stretches = stretches(plan, files);
    let (ahead, limit) = match plan.reduction {
        Reduction::Rows { limit: Some(limit), .. } => (1, Some(limit)),
        Reduction::Rows { .. } => (ROWS_AHEAD, None),
        _ => (AHEAD, None),
    };
    let turns = Turns::new(ahead);
    std::thread::scope(|scope| {
        let ends = EndsRun(&turns);
        let (told, events) = channel();
        let mut events = Events { events, at_work: 0, ended: Vec::new() };
        for (index, place) in places.iter().enumerate() {
            let own: Vec<_> =
                stretches.iter().enumerate().filter(|(_, one)| one.place == index).collect();
            if own.is_empty() {
                continue;
            }
            events.at_work += 1;
            let (turns, told) = (&turns, told.clone());
            scope.spawn(move || turns.work((index, place), &own, (plan, settings), &told));
        }
        drop(told);
        let wanted = (stretches.len(), limit);
        let given = give(&turns, &mut events, wanted, on_progress, on_part);
        drop(ends);
        given.map(|()| events.ended())
    })
}

/// The messages of places, and the places that have finished.
struct Events {
    events: Receiver<Event>,
    at_work: usize,
    ended: Vec<Ended>,
}

impl Events {
    /// The next result; None if none has arrived yet.
    fn next(&mut self) -> Result<Option<Done>, RunError> {
        match self.events.recv_timeout(TELL_AGAIN) {
            Ok(Event::Done(done)) => return Ok(Some(done)),
            Ok(Event::Ended(ended)) => self.end(ended),
            Err(RecvTimeoutError::Timeout) => {}
            // A place has panicked, which is reported when its thread is joined.
            Err(RecvTimeoutError::Disconnected) => return Err(RunError::Stopped),
        }
        Ok(None)
    }

    fn end(&mut self, ended: Ended) {
        self.ended.push(ended);
        self.at_work -= 1;
    }

    /// Waits until all places have finished; returns their costs, ordered by index.
    fn ended(mut self) -> Vec<Ended> {
        while self.at_work > 0 {
            match self.events.recv() {
                Ok(Event::Ended(ended)) => self.end(ended),
                // A late result.
                Ok(Event::Done(_)) => {}
                Err(_) => break,
            }
        }
        self.ended.sort_by_key(|ended| ended.place);
        self.ended
    }
}

/// Passes on the results of places, in order, until there are as many rows as are wanted.
fn give<E: From<RunError>>(
    turns: &Turns,
    events: &mut Events,
    (stretches, limit): (usize, Option<u64>),
    on_progress: &mut dyn FnMut(u64) -> bool,
    on_part: &mut dyn FnMut(Partial) -> Result<(), E>,
) -> Result<(), E> {
    let (mut early, mut given, mut rows) = (BTreeMap::new(), 0, 0);
    while given < stretches {
        if let Some((number, result)) = events.next()? {
            match (result, limit) {
                // The other results cannot make up for it.
                (Err(error), None) => return Err(error.into()),
                // The rows before it may be enough.
                (result, _) => early.insert(number, result),
            };
        }
        if !on_progress(turns.done_bytes.load(Ordering::Relaxed)) {
            return Err(RunError::Stopped.into());
        }
        while let Some(result) = early.remove(&given) {
            let partial = result?;
            rows += partial.rows();
            on_part(partial)?;
            if limit.is_some_and(|limit| rows >= limit) {
                return Ok(());
            }
            given += 1;
            turns.given(given);
        }
    }
    Ok(())
}

impl Turns {
    const fn new(ahead: usize) -> Self {
        Self {
            state: Mutex::new((0, false)),
            changed: Condvar::new(),
            done_bytes: AtomicU64::new(0),
            ahead,
        }
    }

    fn state(&self) -> MutexGuard<'_, (usize, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn given(&self, stretches: usize) {
        self.state().0 = stretches;
        self.changed.notify_all();
    }

    fn is_over(&self) -> bool {
        self.state().1
    }

    /// Waits until this stretch has been passed on; returns false if no more are wanted.
    fn wait_for(&self, stretch: usize) -> bool {
        let waits = |state: &mut (usize, bool)| state.0 <= stretch && !state.1;
        let state = self.changed.wait_while(self.state(), waits);
        !state.unwrap_or_else(PoisonError::into_inner).1
    }

    /// The work of one place: its stretches, in order.
    fn work(
        &self,
        (place, stages): (usize, &Stages<'_>),
        own: &[(usize, &Stretch)],
        (plan, settings): (&Plan, Settings),
        told: &Sender<Event>,
    ) {
        // Dropped only by a panic.
        let ends = EndsRun(self);
        let mut ended = Ended { place, stats: Stats::default(), lost: None };
        // Sending fails only if the receiver is no longer interested.
        match Runner::new(stages, plan, settings) {
            Ok(mut runner) => {
                self.stretches(&mut runner, own, plan, told);
                (ended.stats, ended.lost) = (runner.stats(), runner.lost().map(str::to_owned));
            }
            Err(error) => {
                let _ = told.send(Event::Done((own[0].0, Err(error))));
            }
        }
        let _ = told.send(Event::Ended(ended));
        mem::forget(ends);
    }

    fn stretches(
        &self,
        runner: &mut Runner<'_>,
        own: &[(usize, &Stretch)],
        plan: &Plan,
        told: &Sender<Event>,
    ) {
        for (at, (number, stretch)) in own.iter().enumerate() {
            if at >= self.ahead && !self.wait_for(own[at - self.ahead].0) {
                return;
            }
            let result = self.stretch(runner, stretch, plan);
            let has_failed = result.is_err();
            let _ = told.send(Event::Done((*number, result)));
            if has_failed {
                return;
            }
        }
    }

    fn stretch(
        &self,
        runner: &mut Runner<'_>,
        stretch: &Stretch,
        plan: &Plan,
    ) -> Result<Partial, RunError> {
        let mut whole: Option<Partial> = None;
        for part in &stretch.parts {
            let mut told_bytes = 0;
            let mut tell = |bytes: u64| {
                self.done_bytes.fetch_add(bytes.saturating_sub(told_bytes), Ordering::Relaxed);
                told_bytes = told_bytes.max(bytes);
                !self.is_over()
            };
            let partial = runner.run(part, &mut tell)?;
            if !tell(part.end_bytes - part.start_bytes) {
                return Err(RunError::Stopped);
            }
            match &mut whole {
                Some(whole) => merge(whole, plan, partial)?,
                none => *none = Some(partial),
            }
        }
        Ok(whole.unwrap_or_else(|| Partial::empty(plan)))
    }
}

/// Size of a part of this plan, if rows are answered.
fn rows_part_bytes(plan: &Plan) -> u64 {
    let bytes = ROWS_PART_ROWS.saturating_mul(row_min_bits(plan)) / 8;
    bytes.clamp(ROWS_PART_MIN_BYTES, ROWS_PART_BYTES)
}

/// Rows are passed on part by part, reductions place by place.
fn stretches(plan: &Plan, files: &[(usize, SourceFile)]) -> Vec<Stretch> {
    let answers_rows = matches!(plan.reduction, Reduction::Rows { .. });
    let part_bytes = if answers_rows { rows_part_bytes(plan) } else { PART_BYTES };
    let mut all: Vec<Stretch> = Vec::new();
    for (place, file) in files {
        for part in parts(plan, std::slice::from_ref(file), part_bytes) {
            match all.last_mut() {
                Some(last) if last.place == *place && !answers_rows => last.parts.push(part),
                _ => all.push(Stretch { place: *place, parts: vec![part] }),
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partial::State;
    use crate::plan::{
        Column, ColumnBuffers, Field, Format, Kind, OwnStages, Predicate, Scalar, Schema, Value,
    };
    use bpfof_host::files::FileMaps;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// A plan over records with one number.
    fn plan(record_bytes: u32, reduction: Reduction) -> Plan {
        let column = Column { name: "n".to_owned(), kind: Kind::U64, nullable: false };
        let fields = vec![Field { offset_bytes: 0, width_bytes: 8 }];
        Plan {
            schema: Schema { columns: vec![column] },
            format: Format::Fixed { header_bytes: 0, record_bytes, fields },
            filter: Predicate::Constant(true),
            reduction,
            own: OwnStages::default(),
        }
    }

    fn all_rows() -> Reduction {
        Reduction::Rows { columns: vec![Scalar::Column(0)], limit: None }
    }

    #[test]
    fn reductions_of_one_place_are_one_stretch() {
        let file = |place, name: &str, records: u64| {
            let (path, bytes) = (name.into(), records * 8);
            (place, SourceFile { path, bytes, inode: 1, header_hash: 0, modified_ns: 0 })
        };
        let of = |reduction| {
            let files = [file(0, "a", 1), file(0, "b", 2), file(1, "c", 3), file(0, "d", 1 << 28)];
            let stretches = stretches(&plan(8, reduction), &files);
            stretches.iter().map(|one| (one.place, one.parts.len())).collect::<Vec<_>>()
        };
        let groups = Reduction::Groups { keys: Vec::new(), aggregates: Vec::new() };
        assert_eq!(of(groups), [(0, 2), (1, 1), (0, 2)]);
        let rows = of(all_rows());
        assert_eq!(rows.len(), 3 + 64);
        assert!(rows.iter().all(|(_, parts)| *parts == 1));
    }

    /// Rows of few bytes take much more memory than in the file.
    #[test]
    fn parts_have_a_limited_number_of_rows() {
        let of = |record_bytes| rows_part_bytes(&plan(record_bytes, all_rows()));
        assert_eq!([1, 4, 100].map(of), [4 << 20, 16 << 20, ROWS_PART_BYTES]);
        let boolean = ColumnBuffers {
            name: "b".to_owned(),
            data_type: arrow_schema::DataType::Boolean,
            node: 0,
            buffer: 0,
            views_before: 0,
        };
        let format = Format::Columns { columns: vec![boolean], others: Vec::new() };
        assert_eq!(rows_part_bytes(&Plan { format, ..plan(8, all_rows()) }), ROWS_PART_MIN_BYTES);
        let format = Format::Csv { delimiter: b',', header_bytes: 0, nulls: Vec::new() };
        assert_eq!(rows_part_bytes(&Plan { format, ..plan(8, all_rows()) }), 4 << 20);
    }

    /// Passes on three results of two rows each, of which the second has failed and comes first. Returns the number of
    /// rows passed on.
    fn rows_around_a_failure(limit: Option<u64>) -> Result<u64, RunError> {
        let (told, events) = channel();
        let rows = || Partial(State::Rows(vec![vec![Value::Int(1)]; 2]));
        for done in [(1, Err(RunError::Damaged)), (2, Ok(rows())), (0, Ok(rows()))] {
            told.send(Event::Done(done)).expect("a receiver");
        }
        let turns = Turns::new(1);
        let mut events = Events { events, at_work: 2, ended: Vec::new() };
        let mut given = 0;
        let mut on_part = |partial: Partial| {
            given += partial.rows();
            Ok(())
        };
        give::<RunError>(&turns, &mut events, (3, limit), &mut |_| true, &mut on_part)?;
        Ok(given)
    }

    #[test]
    fn a_failure_counts_only_if_the_rows_before_it_are_too_few() {
        assert_eq!(rows_around_a_failure(Some(2)).expect("enough before it"), 2);
        for limit in [Some(3), Some(4), None] {
            let failed = rows_around_a_failure(limit);
            assert!(matches!(failed, Err(RunError::Damaged)), "{limit:?}: {failed:?}");
        }
    }

    #[test]
    fn a_panic_of_the_caller_ends_all_places() {
        let (told, ended) = channel();
        // Places that wait for ever must not hang the test.
        std::thread::spawn(move || {
            let folder = tempfile::tempdir().expect("a folder");
            let plan = plan(8, all_rows());
            // Each place has more stretches than it may begin before the first one is passed on.
            let file = |number: usize| {
                let path = folder.path().join(number.to_string());
                std::fs::write(&path, [0; 8]).expect("room");
                (number % 2, SourceFile::at(&path, &plan.format).expect("the file"))
            };
            let files: Vec<_> = (0..10).map(file).collect();
            let maps = FileMaps::local();
            let places = [Stages::new(&maps), Stages::new(&maps)];
            let run = || {
                let mut on_part =
                    |_: Partial| -> Result<(), RunError> { panic!("the caller panics") };
                let how = (&plan, Settings::default());
                run::<RunError>(&files, &places, how, &mut |_| true, &mut on_part)
            };
            let has_panicked = catch_unwind(AssertUnwindSafe(run)).is_err();
            told.send(has_panicked).expect("a receiver");
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok(true));
    }

    #[test]
    fn a_panic_of_a_place_ends_all_places() {
        let (maps, turns) = (FileMaps::local(), Turns::new(1));
        let (told, _events) = channel();
        let invalid = plan(0, all_rows());
        let stages = Stages::new(&maps);
        // Panics: the place has no stretch whose result the plan's error could be.
        let work = || turns.work((0, &stages), &[], (&invalid, Settings::default()), &told);
        assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
        assert!(turns.is_over());
    }
}
